// The page that compares runs: the legend, the groups of charts, the settings.
import { put } from "./alive.js";
import { Overlay, place } from "./overlay.js";

const find = (id) => document.getElementById(id);
const ASK_MS = 1000;
const MOST_SETTINGS = 12; // runs side by side in the table of settings

class Page {
  runs = [];
  charts = new Map(); // "stream/column" -> Overlay
  axis = "step";
  weight = 0;
  log = false;
  stretch = null;
  took = 0; // milliseconds that the charts in sight took to load
  #known = -1;
  #seen = new Set();
  #stale = new Set();

  constructor() {
    this.sees = new IntersectionObserver((entries) => entries.forEach((e) => {
      const chart = [...this.charts.values()].find((c) => c.root === e.target);
      if (!chart) return;
      if (e.isIntersecting) this.#seen.add(chart); else this.#seen.delete(chart);
      this.#refresh();
    }), { rootMargin: "300px" });
    this.sizes = new ResizeObserver((entries) => entries.forEach((e) => [...this.charts.values()].find((c) => c.root === e.target)?.draw()));
  }

  /** The runs that are neither hidden nor left out by the search. */
  shown() {
    return this.runs.filter((run) => run.on && run.found);
  }

  place(value, span) {
    return place(this.axis, value, span);
  }

  async ask() {
    try {
      const answer = await fetch("api/runs?known=" + this.#known);
      if (!answer.ok) throw new Error("the server says " + answer.status);
      const news = await answer.json();
      this.#say("running", "");
      if (news.changes !== this.#known) this.#told(news);
    } catch {
      this.#say("offline", "no connection");
    }
    // Curves of many runs take a while: the rest of the time is the server's, to read.
    if (!document.hidden) setTimeout(() => this.ask(), Math.max(ASK_MS, 5 * this.took));
  }

  #say(kind, word) {
    const reading = this.runs.filter((run) => !run.read).length;
    const alive = this.runs.filter((run) => run.state === "running").length;
    const state = kind === "offline" ? kind : reading ? "waiting" : alive ? "running" : "finished";
    if (find("said").className !== "pill " + state) find("said").className = "pill " + state;
    put(find("said-word"), word || (reading ? `reading ${reading}` : alive ? `${alive} running` : "all ended"));
  }

  #told(news) {
    this.#known = news.changes;
    document.title = news.title + " · frugax";
    put(find("title"), news.title);
    put(find("folder"), news.folder);
    news.runs.forEach((told, i) => {
      const run = this.runs[i] ?? { on: true, found: true, pinned: false, colour: colour(i) };
      this.runs[i] = Object.assign(run, told);
    });
    put(find("foot"), `${this.runs.length} runs${this.runs.some((r) => r.left_out) ? "; of some, columns beyond 200 are left out" : ""}.`);
    this.#search();
    for (const run of this.runs) for (const [stream, column] of run.columns) this.#chart(stream, column);
    find("nothing").hidden = this.charts.size > 0;
    for (const chart of this.charts.values()) this.#stale.add(chart);
    this.legend();
    this.#settings();
    this.#refresh();
    this.#say("running", "");
  }

  #chart(stream, column) {
    const key = stream + "/" + column;
    const isEdge = /^(low|high|not_finite)$/.test(column) && this.runs.some((run) => run.histograms.includes(stream));
    if (isEdge || this.charts.has(key) || (stream === "watch" && column !== "overhead") || (!stream && column === "seconds")) return;
    const chart = new Overlay(this, stream, column);
    this.charts.set(key, chart);
    const name = stream || (column.includes("/") ? column.slice(0, column.indexOf("/")) : "metrics");
    let group = [...find("charts").children].find((g) => g.dataset.name === name);
    if (!group) {
      group = document.createElement("section");
      group.className = "group";
      group.dataset.name = name;
      group.dataset.rank = name === "metrics" ? 0 : stream ? (stream === "watch" ? 9 : 5) : 1;
      const head = document.createElement("h2");
      const shut = document.createElement("button");
      shut.type = "button";
      shut.className = "ghost";
      shut.textContent = "fold";
      shut.setAttribute("aria-label", "Fold " + name);
      shut.setAttribute("aria-expanded", "true");
      shut.onclick = () => {
        shut.setAttribute("aria-expanded", String(!group.classList.toggle("shut")));
        shut.textContent = group.classList.contains("shut") ? "unfold" : "fold";
      };
      head.append(name, shut);
      const charts = document.createElement("div");
      charts.className = "charts";
      group.append(head, charts);
      const before = [...find("charts").children].find((g) => g.dataset.rank > group.dataset.rank);
      find("charts").insertBefore(group, before ?? null);
    }
    chart.root.dataset.rank = /loss/.test(column) ? 0 : /acc/.test(column) ? 1 : 2;
    const list = group.lastElementChild;
    const before = [...list.children].find((c) => c.dataset.rank > chart.root.dataset.rank);
    list.insertBefore(chart.root, before ?? null);
    this.sees.observe(chart.root);
    this.sizes.observe(chart.root);
  }

  /** Ask for the curves of the charts in sight, and soon after for those of the others. */
  #refresh() {
    clearTimeout(this.due);
    this.due = setTimeout(async () => {
      const began = performance.now();
      await this.#load([...this.#stale].filter((c) => this.#seen.has(c)));
      this.took = performance.now() - began;
      await this.#load([...this.#stale]);
    }, 20);
  }

  async #load(charts) {
    for (const chart of charts) {
      this.#stale.delete(chart);
      const query = new URLSearchParams({ stream: chart.stream, column: chart.column, axis: this.axis, points: this.runs.length > 20 ? 250 : 800 });
      if (this.stretch) { query.set("from", this.stretch[0]); query.set("to", this.stretch[1]); }
      const answer = await fetch("api/curves?" + query).catch(() => null);
      if (!answer?.ok) continue;
      chart.curves = await answer.json();
      chart.draw();
    }
  }

  draw() {
    for (const chart of this.charts.values()) chart.draw();
  }

  reload() {
    for (const chart of this.charts.values()) this.#stale.add(chart);
    this.#refresh();
  }

  zoom(stretch) {
    this.stretch = stretch;
    find("whole").hidden = stretch === null;
    this.reload();
  }

  download(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name.replaceAll(/[^\w.-]+/g, "_");
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  #search() {
    const words = find("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const run of this.runs) {
      const text = [run.name, run.notes, ...run.tags, ...Object.entries(run.config).map(([k, v]) => k + "=" + v)].join("\n").toLowerCase();
      run.found = words.every((word) => text.includes(word));
    }
  }

  search() {
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
    const make = (tag, given) => Object.assign(document.createElement(tag), given);
    const row = make("li", { className: (run.on ? "" : "off ") + (run.pinned ? "pinned" : "") });
    const tick = make("input", { type: "checkbox", checked: run.on });
    tick.setAttribute("aria-label", "Show " + run.name);
    tick.dataset.key = "show" + run.id;
    tick.onchange = () => { run.on = tick.checked; this.changed(); };
    const line = make("span", { className: "line" });
    line.style.background = run.colour;
    const who = make("span", { className: "who" });
    who.append(make("a", { href: `run/${run.id}/`, textContent: run.name }));
    const facts = [run.state, ...(run.verdict ? [run.verdict] : []), ...run.tags.map((t) => "#" + t), ...(run.notes ? [run.notes] : []), ...(run.why ? [run.why] : [])];
    who.append(make("small", { textContent: facts.join(" · ") }));
    const pin = make("button", { type: "button", className: "ghost", textContent: "pin" });
    pin.setAttribute("aria-pressed", String(run.pinned));
    pin.setAttribute("aria-label", "Pin " + run.name);
    pin.dataset.key = "pin" + run.id;
    pin.onclick = () => { run.pinned = !run.pinned; this.changed(); };
    row.append(tick, line, who, pin);
    return row;
  }

  changed() {
    this.legend();
    this.#settings();
    this.draw();
  }

  #settings() {
    const runs = this.shown().sort((a, b) => b.pinned - a.pinned).slice(0, MOST_SETTINGS);
    const keys = [...new Set(runs.flatMap((run) => Object.keys(run.config)))].sort();
    const differ = keys.filter((key) => new Set(runs.map((run) => run.config[key])).size > 1);
    find("config").hidden = runs.length < 2 || !keys.length;
    const more = this.shown().length - runs.length;
    const alike = keys.length - differ.length;
    put(find("config-same"), `${alike === 1 ? "1 setting is" : `${alike} settings are`} alike${more > 0 ? `; ${more} more runs: pin those to compare` : ""}`);
    const cell = (tag, text, kind) => Object.assign(document.createElement(tag), { textContent: text, className: kind ?? "" });
    const table = find("config").querySelector("table");
    const line = (cells) => { const made = document.createElement("tr"); made.append(...cells); return made; };
    table.tHead.replaceChildren(line([cell("th", "setting"), ...runs.map((run) => cell("th", run.name))]));
    table.tBodies[0].replaceChildren(...differ.map((key) => line([cell("td", key), ...runs.map((run) => cell("td", run.config[key] ?? "–", run.config[key] !== runs[0].config[key] ? "other" : ""))])));
  }
}

/** Colours as far apart as their number allows: the golden angle. */
function colour(i) {
  return `hsl(${(212 + i * 137.508) % 360} ${62 + 12 * ((i >> 3) % 2)}% ${50 - 8 * ((i >> 2) % 2)}%)`;
}

const page = new Page();
find("search").oninput = () => page.search();
find("all").onclick = () => { for (const run of page.runs) if (run.found) run.on = true; page.changed(); };
find("none").onclick = () => { for (const run of page.runs) if (run.found && !run.pinned) run.on = false; page.changed(); };
find("axis").onchange = (e) => { page.axis = e.target.value; page.zoom(null); };
find("log").onchange = (e) => { page.log = e.target.checked; page.draw(); };
find("smooth").oninput = (e) => { page.weight = Number(e.target.value); put(find("smooth-is"), page.weight ? e.target.value : "off"); page.draw(); };
find("whole").onclick = () => page.zoom(null);
find("metric").oninput = (e) => {
  const text = e.target.value.toLowerCase();
  for (const chart of page.charts.values()) chart.root.hidden = !chart.title.toLowerCase().includes(text);
  for (const group of find("charts").children) group.hidden = [...group.lastElementChild.children].every((c) => c.hidden);
};

const THEMES = ["auto", "light", "dark"];
let themed = "auto";
try { themed = THEMES.includes(localStorage.theme) ? localStorage.theme : "auto"; } catch { /* storage may be off */ }
function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  find("theme").setAttribute("aria-label", "Colours: " + (name === "auto" ? "as the system" : name));
  page.draw();
}
theme(themed);
find("theme").onclick = () => {
  themed = THEMES[(THEMES.indexOf(themed) + 1) % THEMES.length];
  try { localStorage.theme = themed; } catch { /* as above */ }
  theme(themed);
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.draw());
document.addEventListener("visibilitychange", () => { if (!document.hidden) page.ask(); });
if (location.search) history.replaceState(null, "", location.pathname);
page.ask();
