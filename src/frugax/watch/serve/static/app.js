// The page: asks for news, and shows the curves of one run or of many.
import { Chart, chartOf, rankOf } from "./chart.js";
import { Details, WORDS } from "./details.js";
import { ask } from "./ask.js";
import { find, make, put } from "./format.js";

const ASK_MS = 1000;
const MOST_SETTINGS = 12; // runs side by side in the table of settings

class Page {
  runs = [];
  alone = null; // the run that is shown alone
  charts = new Map(); // "stream/name" -> Chart
  axis = "step";
  weight = null; // of the smoothing; null for that of a run alone
  log = false;
  stretch = null; // [low, high] of the axis, or a share of the newest, or null
  mark = null; // the step whose frame is shown
  limits = {}; // by "stream/name" of a chart
  stride = 1;
  onPick = () => {};
  #number = null; // of the run that is shown alone
  #known = -1;
  #seen = new Set();
  #stale = new Set();
  #took = 0; // milliseconds that the charts in sight took to load
  #timer = null;
  #due = null;

  constructor(query) {
    const chartAt = (place) => [...this.charts.values()].find((chart) => chart.root === place);
    this.sees = new IntersectionObserver((entries) => entries.forEach((e) => {
      const chart = chartAt(e.target);
      if (!chart) return;
      if (e.isIntersecting) this.#seen.add(chart); else this.#seen.delete(chart);
      this.#refresh();
    }), { rootMargin: "300px" });
    this.sizes = new ResizeObserver((entries) => entries.forEach((e) => chartAt(e.target)?.draw()));
    this.details = new Details(this);
    if (query.has("run")) this.#show(Number(query.get("run")), true);
    this.asked = query.get("step"); // from a mark of the page of many runs
  }

  #show(number, isOneOfMany) {
    this.#number = number;
    this.#known = -1;
    find("all-runs").hidden = !isOneOfMany;
    document.body.classList.add("alone");
  }

  /** The runs that are neither hidden nor left out by the search. */
  shown() {
    return this.runs.filter((run) => run.on && run.found);
  }

  async ask() {
    clearTimeout(this.#timer);
    const isOne = this.#number !== null;
    try {
      const answer = await ask(isOne ? "run" : "runs", { known: this.#known, ...(isOne && { run: this.#number }) });
      const news = await answer.json();
      this.details.hear(answer.headers.get("date"));
      if (news.changes !== this.#known) {
        this.#known = news.changes;
        if (isOne) this.#toldOne(news); else this.#told(news);
      }
    } catch (error) {
      this.details.lost(error);
    }
    // Curves of many runs take a while: the rest of the time is the server's, to read.
    if (!document.hidden) this.#timer = setTimeout(() => this.ask(), Math.max(ASK_MS, 5 * this.#took));
  }

  #told(news) {
    if (news.runs.length === 1) { this.#show(0, false); this.#timer = 0; return this.ask(); }
    document.title = news.title + " · frugax";
    put(find("title"), news.title);
    put(find("folder"), news.folder);
    this.#take(news.runs);
    find("legend").hidden = false;
    this.details.toldAll(this.runs);
    this.#search();
    this.legend();
    this.#settings();
  }

  #toldOne(news) {
    if (this.alone && news.rewinds !== this.alone.rewinds) this.details.forget();
    this.#take([news]);
    this.alone = this.runs[0];
    this.details.told(this.alone);
    if (this.asked !== null && news.streams[""]?.records) { this.setMark(Number(this.asked)); this.onPick(Number(this.asked)); this.asked = null; }
  }

  #take(told) {
    told.forEach((news, i) => {
      const run = this.runs[i] ?? { on: true, found: true, pinned: false, colour: colour(i) };
      this.runs[i] = Object.assign(run, news, { last: new Map(news.columns.map(([stream, column, value]) => [stream + "/" + column, value])) });
    });
    const leftOut = this.runs.some((run) => run.left_out);
    put(find("foot"), this.#number === null ? `${this.runs.length} runs${leftOut ? "; of some, columns beyond 200 are left out" : ""}.` : "");
    for (const run of this.runs) {
      for (const [stream, column] of run.columns) {
        const name = chartOf(run, stream, column, this.#number !== null);
        if (name) this.chart(stream, name).columns.set(column, this.chart(stream, name).columns.get(column) ?? {});
      }
    }
    find("nothing").hidden = this.charts.size > 0;
    this.reload();
  }

  /** The newest value of a column, null for one that is not a number. */
  latest(run, stream, column) {
    const latest = run.streams?.[stream]?.latest ?? {};
    return column in latest ? latest[column] : run.last.get(stream + "/" + column);
  }

  /** The chart of a stream and a name, in its group. */
  chart(stream, name) {
    const key = stream + "/" + name;
    if (this.charts.has(key)) return this.charts.get(key);
    const chart = new Chart(this, stream, name);
    this.charts.set(key, chart);
    const title = stream || (name.includes("/") ? name.slice(0, name.indexOf("/")) : "metrics");
    let group = [...find("charts").children].find((g) => g.dataset.name === title);
    if (!group) {
      const shut = make("button", { text: "fold", kind: "ghost", type: "button", "aria-label": "Fold " + title, "aria-expanded": "true", onclick: () => {
        shut.setAttribute("aria-expanded", String(!group.classList.toggle("shut")));
        shut.textContent = group.classList.contains("shut") ? "unfold" : "fold";
      } });
      group = make("section", { kind: "group", "data-name": title }, make("h2", {}, title, shut), make("div", { kind: "charts" }));
      insert(find("charts"), group, title === "metrics" ? -1 : rankOf(stream, name));
    }
    insert(group.lastElementChild, chart.root, rankOf(stream, name));
    this.sees.observe(chart.root);
    this.sizes.observe(chart.root);
    this.filter();
    return chart;
  }

  /** Ask for the curves of the charts in sight, and once for those of the others. */
  #refresh() {
    clearTimeout(this.#due);
    this.#due = setTimeout(async () => {
      const began = performance.now();
      await this.#load([...this.#stale].filter((c) => this.#seen.has(c)));
      this.#took = performance.now() - began;
      await this.#load([...this.#stale].filter((c) => !c.isLoaded));
    }, 20);
  }

  async #load(charts) {
    // Few at a time where there are many runs, so that the first are soon there.
    const size = Math.max(1, Math.floor(24 / Math.max(this.runs.length, 1)));
    for (let start = 0; start < charts.length; start += size) {
      const some = charts.slice(start, start + size);
      for (const chart of some) this.#stale.delete(chart);
      await Promise.all([true, false].map((isOwn) => this.#fetch(some.filter((chart) => chart.isOwn === isOwn), isOwn))).catch(() => {});
    }
  }

  async #fetch(charts, isOwn) {
    const asked = charts.flatMap((chart) => [...chart.columns.keys()].map((column) => [chart, column]));
    for (const chart of charts) chart.isLoaded = true; // even if it has dots alone
    if (!asked.length) return charts.forEach((chart) => chart.draw());
    const query = [["axis", isOwn ? "step" : this.axis], ["points", this.runs.length > 20 ? 250 : 600]];
    if (this.#number !== null) query.push(["run", this.#number]);
    if (this.stretch !== null && !isOwn) {
      const [low, high] = Array.isArray(this.stretch) ? this.stretch : this.#newest();
      query.push(["from", low], ...(Number.isFinite(high) ? [["to", high]] : []));
    }
    for (const [chart, column] of asked) query.push(["stream", chart.stream], ["column", column]);
    const found = await (await ask("curves", query)).json();
    asked.forEach(([chart, column], i) => chart.columns.set(column, found[i]));
    for (const chart of charts) chart.draw();
    this.filter();
  }

  /** The stretch of a share of the newest steps, open at its end. */
  #newest() {
    const [low, high] = this.whole ?? [0, 0];
    return [high - this.stretch * (high - low), Infinity];
  }

  #ends() {
    let [low, high] = [Infinity, -Infinity];
    for (const chart of this.charts.values()) {
      if (chart.isOwn) continue;
      for (const curves of chart.columns.values()) for (const { x } of Object.values(curves)) if (x.length) { low = Math.min(low, x[0]); high = Math.max(high, x[x.length - 1]); }
    }
    return low <= high ? [low, high] : null;
  }

  draw() {
    for (const chart of this.charts.values()) chart.draw();
    this.details.draw();
  }

  reload() {
    for (const chart of this.charts.values()) this.#stale.add(chart);
    this.#refresh();
  }

  zoom(stretch) {
    if (this.stretch === null) this.whole = this.#ends();
    this.stretch = stretch;
    find("whole").hidden = stretch === null;
    find("span").lastElementChild.hidden = !Array.isArray(stretch);
    find("span").value = Array.isArray(stretch) ? "zoom" : String(stretch ?? 1);
    this.draw();
    this.reload();
  }

  /** Read off a place: in all charts of a run alone. */
  hover(chart, at) {
    const isShared = this.alone && !chart.isOwn;
    for (const other of isShared ? [...this.#seen].filter((c) => !c.isOwn) : [chart]) { other.at = at; other.draw(); }
  }

  /** Show the frame of a step. */
  pick(run, step) {
    if (this.alone) return this.onPick(step);
    location.search = new URLSearchParams({ run: run.id, step });
  }

  setMark(step) {
    if (step === this.mark) return;
    this.mark = step;
    for (const chart of this.#seen) chart.draw();
  }

  download(blob, name) {
    const link = make("a", { href: URL.createObjectURL(blob), download: name.replaceAll(/[^\w.-]+/g, "_") });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  /** Hide the charts that are not searched for, and those that have nothing to say. */
  filter() {
    const text = find("metric").value.toLowerCase();
    for (const chart of this.charts.values()) {
      // Pictures that lost no pixel to clipping need no chart that says so.
      const isIdle = chart.name === "clipped" && chart.isLoaded && !chart.lines().some(({ curve }) => curve.y.some((share) => share > 0));
      chart.root.hidden = isIdle || !chart.title.toLowerCase().includes(text);
    }
    for (const group of find("charts").children) group.hidden = [...group.lastElementChild.children].every((c) => c.hidden);
  }

  #search() {
    const words = find("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const run of this.runs) {
      const text = [run.name, run.notes, ...run.tags, ...Object.entries(run.config).map(([k, v]) => k + "=" + v)].join("\n").toLowerCase();
      run.found = words.every((word) => text.includes(word));
    }
  }

  changed() {
    this.#search();
    this.legend();
    this.#settings();
    this.draw();
  }

  legend() {
    const list = this.runs.filter((run) => run.found).sort((a, b) => b.pinned - a.pinned || a.id - b.id);
    put(find("count"), `${this.shown().length} of ${this.runs.length} shown`);
    const said = JSON.stringify(list.map((r) => [r.id, r.on, r.pinned, r.state, r.tags, r.verdict, r.notes, r.why]));
    if (find("runs").dataset.said === said) return;
    find("runs").dataset.said = said;
    const at = document.activeElement?.dataset?.key;
    find("runs").replaceChildren(...list.map((run) => this.#row(run)));
    if (at) find("runs").querySelector(`[data-key="${at}"]`)?.focus();
  }

  #row(run) {
    const tick = make("input", { type: "checkbox", checked: run.on, "aria-label": "Show " + run.name, "data-key": "show" + run.id, onchange: () => { run.on = tick.checked; this.changed(); } });
    const line = make("span", { kind: "line" });
    line.style.background = run.colour;
    const facts = [WORDS[run.state], ...(run.verdict ? [run.verdict] : []), ...run.tags.map((t) => "#" + t), ...(run.notes ? [run.notes] : []), ...(/unreadable|died/.test(run.state) ? [run.why] : [])];
    const who = make("span", { kind: "who" }, make("a", { href: `?run=${run.id}`, text: run.name }), make("small", { text: facts.join(" · ") }));
    const pin = make("button", {
      type: "button", kind: "ghost", text: "pin", "aria-pressed": String(run.pinned), "aria-label": "Pin " + run.name, "data-key": "pin" + run.id,
      onclick: () => { run.pinned = !run.pinned; this.changed(); },
    });
    return make("li", { kind: (run.on ? "" : "off ") + (run.pinned ? "pinned" : "") }, tick, line, who, pin);
  }

  #settings() {
    const runs = this.shown().sort((a, b) => b.pinned - a.pinned).slice(0, MOST_SETTINGS);
    const keys = [...new Set(runs.flatMap((run) => Object.keys(run.config)))].sort();
    const differ = keys.filter((key) => new Set(runs.map((run) => run.config[key])).size > 1);
    find("config").hidden = runs.length < 2 || !keys.length;
    const more = this.shown().length - runs.length;
    const alike = keys.length - differ.length;
    put(find("config-same"), `${alike === 1 ? "1 setting is" : `${alike} settings are`} alike${more > 0 ? `; ${more} more runs: pin those to compare` : ""}`);
    const table = find("config").querySelector("table");
    table.tHead.replaceChildren(make("tr", {}, make("th", { text: "setting" }), ...runs.map((run) => make("th", { text: run.name }))));
    table.tBodies[0].replaceChildren(...differ.map((key) => make("tr", {}, make("td", { text: key }),
      ...runs.map((run) => make("td", { text: run.config[key] ?? "–", kind: run.config[key] !== runs[0].config[key] ? "other" : "" })))));
  }
}

/** Insert an element before the first whose rank is higher. */
function insert(list, element, rank) {
  element.dataset.rank = rank;
  list.insertBefore(element, [...list.children].find((other) => Number(other.dataset.rank) > rank) ?? null);
}

/** Colours as far apart as their number allows: the golden angle. */
function colour(i) {
  return `hsl(${(212 + i * 137.508) % 360} ${62 + 12 * ((i >> 3) % 2)}% ${50 - 8 * ((i >> 2) % 2)}%)`;
}

const query = new URLSearchParams(location.search);
const page = new Page(query);
// The token has become a cookie by now: keep it out of sight and of bookmarks.
history.replaceState(null, "", location.pathname + (query.has("run") ? "?run=" + query.get("run") : ""));

find("search").oninput = () => page.changed();
find("all").onclick = () => { for (const run of page.runs) if (run.found) run.on = true; page.changed(); };
find("none").onclick = () => { for (const run of page.runs) if (run.found && !run.pinned) run.on = false; page.changed(); };
find("axis").onchange = (e) => { page.axis = e.target.value; page.zoom(null); };
find("log").onchange = (e) => { page.log = e.target.checked; page.draw(); };
find("smooth").oninput = (e) => { page.weight = Number(e.target.value); put(find("smooth-is"), page.weight ? e.target.value : "off"); page.draw(); };
find("whole").onclick = () => { page.zoom(null); find("span").focus(); };
find("span").onchange = (e) => page.zoom(e.target.value === "1" ? null : Number(e.target.value));
find("metric").oninput = () => page.filter();

const THEMES = ["auto", "light", "dark"];
let themed = "auto";
try { themed = THEMES.includes(localStorage.theme) ? localStorage.theme : "auto"; } catch { /* storage may be off: the choice then lasts for this visit */ }
function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  find("theme").title = "Colours: " + (name === "auto" ? "as the system" : name);
  find("theme").setAttribute("aria-label", find("theme").title);
  page.draw();
}
theme(themed);
find("theme").onclick = () => {
  themed = THEMES[(THEMES.indexOf(themed) + 1) % THEMES.length];
  try { localStorage.theme = themed; } catch { /* as above */ }
  theme(themed);
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.draw());
// A page out of sight asks nothing.
document.addEventListener("visibilitychange", () => { if (document.hidden) page.details.pause(); else page.ask(); });
page.ask();
