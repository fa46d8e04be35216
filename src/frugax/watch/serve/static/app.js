// The page: listens to the server's events and hands them on.
import { Alive, duration, put } from "./alive.js";
import { Board, STEP_SECONDS, bytes, family, format, number } from "./charts.js";
import { Frames } from "./frames.js";
import { Histograms, isHistogram } from "./histogram.js";
import { Tables, isTable, losses, meter, showFacts } from "./tables.js";

const find = (id) => document.getElementById(id);
const board = new Board(find("charts"));
const alive = new Alive();
const frames = new Frames(board);
const tables = new Tables(find("tables"));
const histograms = new Histograms(find("histograms"));
const wanted = new URLSearchParams(location.search).getAll("column");
let asked = new URLSearchParams(location.search).get("step"); // from a mark of the page of all runs
let cursor = "";
let state = null;
let source = null;
let factsShown = "";

// The token has become a cookie by now: keep it out of sight and of bookmarks.
if (new URLSearchParams(location.search).has("token")) {
  const query = new URLSearchParams(wanted.map((column) => ["column", column]));
  history.replaceState(null, "", location.pathname + (wanted.length ? "?" + query : ""));
}

function listen() {
  source?.close();
  const query = new URLSearchParams([["cursor", cursor], ...wanted.map((column) => ["column", column])]);
  source = new EventSource("api/events?" + query);
  source.addEventListener("state", (event) => told(JSON.parse(event.data)));
  source.addEventListener("beat", (event) => { alive.hear(JSON.parse(event.data).now); alive.show(); });
  source.addEventListener("delta", (event) => {
    const delta = JSON.parse(event.data);
    cursor = delta.cursor;
    alive.hear();
    if (delta.reset || Object.keys(delta.cut).length) {
      tables.clear();
      frames.forget(delta.reset);
    }
    board.take(delta);
    if (delta.reset) factsShown = "";
    if (state) told(state);
    else find("no-metrics").hidden = board.charts.size > 0;
  });
  source.onopen = () => alive.hear();
  source.onerror = () => {
    alive.lost("The connection to the server is lost.");
    // Refused outright (the server is new and wants its new token, say): the browser
    // gives up then, so ask again by hand.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 2000);
  };
}

function told(news) {
  state = news;
  const { facts, streams } = state;
  board.histograms = new Set(Object.keys(streams).filter((name) => isHistogram(streams[name])));
  alive.told(state);
  put(find("title"), state.title);
  put(find("folder"), state.folder);
  const main = streams[""] ?? { records: 0, latest: {}, columns: [] };
  const done = main.last ?? 0;
  document.title = `${main.records ? "step " + number(done) + " · " : ""}${state.title} · frugax`;
  const progress = find("progress");
  progress.hidden = !facts.steps;
  if (facts.steps) {
    const percent = Math.min(100, (100 * done) / facts.steps);
    progress.firstElementChild.style.width = percent + "%";
    progress.setAttribute("aria-valuenow", percent.toFixed(0));
  }
  tiles(main);
  frames.told(streams);
  tables.told(streams);
  histograms.told(streams);
  if (asked !== null && main.records) { board.setMark(Number(asked)); board.onPick(Number(asked)); asked = null; }
  limits(facts);
  const said = JSON.stringify([facts, streams.watch?.latest]);
  if (said !== factsShown) {
    factsShown = said;
    showFacts(state);
    for (const [name, points] of Object.entries(facts.evaluations)) if (points.x.length) board.dots(name, points);
  }
  const reading = state.read_bytes < state.journal_bytes;
  find("no-metrics").hidden = board.charts.size > 0;
  put(find("no-metrics"), reading ? `Reading the journal: ${bytes(state.read_bytes)} of ${bytes(state.journal_bytes)}` : "Nothing has been recorded yet.");
  const hidden = Object.entries(streams).filter(([name]) => !isTable(name)).reduce((n, [, s]) => n + Math.max(0, s.columns.length - 32), 0);
  find("more-columns").hidden = !hidden || wanted.length > 0;
  put(find("more-columns"), `${hidden} more columns are not drawn. Choose up to 32 by name in the address: ?column=loss&column=accuracy`);
  put(find("journal"), `Journal: ${bytes(state.journal_bytes)}, ${number(main.records)} steps${state.closed ? ", closed" : ""}.`);
  const troubles = [...(state.trouble ? [state.trouble] : []), ...state.damage.map((text) => "Damage in the journal: " + text.replace(/\.?$/, "."))];
  const latest = main.latest.loss;
  if (latest === null && main.columns.includes("loss")) troubles.unshift(`The loss is not a number any more (step ${number(done)}).`);
  const box = find("troubles");
  if (box.dataset.said !== troubles.join("\n")) {
    box.dataset.said = troubles.join("\n");
    box.replaceChildren(...troubles.map((text) => {
      const made = document.createElement("p");
      made.className = "notice bad";
      made.setAttribute("role", "alert");
      made.textContent = text;
      return made;
    }));
  }
}

function limits(facts) {
  const of = (unit) => facts.budgets.find((b) => b.unit === unit)?.limit;
  const watch = state.streams.watch?.latest ?? {};
  board.limits = {};
  board.stride = watch.stride ?? 1;
  const share = facts.budgets.find((b) => b.unit === "share" && /watching/.test(b.name))?.limit;
  if (watch.budget ?? share) board.limits["watch/overhead"] = watch.budget ?? share;
  for (const name of ["host", "device"]) {
    const limit = watch[name + "_limit_bytes"] ?? (name === "device" ? of("bytes") : undefined);
    if (limit) board.limits[`watch/${name}_bytes`] = limit;
  }
}

function tiles(main) {
  const { facts, streams } = state;
  const list = [];
  const add = (name, value, note = "", bar = null) => list.push([name, value, note, bar]);
  const has = main.records > 0;
  add("step", has ? number(main.last) : null, facts.steps ? `of ${number(facts.steps)}${has ? `, ${Math.floor((100 * main.last) / facts.steps)} %` : ""}` : has ? `${number(main.records)} recorded` : "");
  const ranked = main.columns.filter((c) => c !== "seconds").sort((a, b) => score(b) - score(a));
  const shown = ranked.filter((c, i) => ranked.findIndex((d) => family(d) === family(c)) === i).slice(0, 2);
  for (const column of shown) {
    const series = board.store.get("")?.get(column);
    const low = series ? extreme(series.y, /acc|reward|score/.test(column)) : null;
    add(column, column in main.latest ? format(column, main.latest[column]) : "–", low === null ? "" : `${/acc|reward|score/.test(column) ? "highest" : "lowest"} ${format(column, low)}`);
  }
  const times = board.store.get("")?.get(STEP_SECONDS) ?? board.store.get("watch")?.get(STEP_SECONDS);
  const typical = times ? median(times.y.slice(-400)) : null;
  add("time per step", typical === null ? null : duration(typical), typical === null ? "the run was too short to tell" : `${number(1 / typical, 3)} a second${remaining(facts, main, typical)}`);
  const watch = streams.watch?.latest ?? {};
  const spend = facts.budgets.find((b) => b.unit === "share" && /watching/.test(b.name));
  const limit = watch.budget ?? spend?.limit ?? null;
  // As in a receipt, an interval around the limit does not tell.
  const unsure = limit !== null && watch.overhead_low <= limit && limit < watch.overhead_high;
  const overhead = spend?.measured ?? (unsure ? null : watch.overhead) ?? null;
  add("watching takes", overhead === null ? null : percent(overhead), limit === null ? "no budget stated" : `of at most ${percent(limit)}`, overhead === null || !limit ? null : overhead / limit);
  const memory = facts.memory;
  // Without a plan: the fullest device, or the process.
  const system = Object.entries(streams.system?.latest ?? {}).filter(([name]) => name.endsWith(" memory, bytes"));
  const seen = system.length ? Math.max(...system.map(([, value]) => value)) : streams.system?.latest["peak memory of the process, bytes"];
  const used = watch.device_bytes ?? watch.host_bytes ?? memory?.planned_bytes ?? seen ?? null;
  const most = watch.device_limit_bytes ?? watch.host_limit_bytes ?? memory?.limit_bytes ?? null;
  add("memory", used === null ? null : bytes(used), most === null ? (used === null ? "not measured" : seen === used && !system.length ? "of the process, at most" : "no budget stated") : `of ${bytes(most)}`, used === null || !most ? null : used / most);
  const lost = losses(facts, streams);
  const sum = (t) => Object.values(t?.dropped ?? {}).reduce((a, b) => a + b, 0);
  add("records lost", lost === null ? null : number(Object.values(lost).reduce((n, t) => n + sum(t), 0)), lost === null ? "no ledger here" : Object.entries(lost).map(([kind, t]) => `${kind} ${number(sum(t))}`).join(", "));
  const said = JSON.stringify(list);
  const root = find("tiles");
  if (root.dataset.said === said) return;
  root.dataset.said = said;
  root.replaceChildren(...list.map(([name, value, note, bar]) => {
    const [tile, label, big, small] = ["div", "span", "b", "small"].map((tag) => document.createElement(tag));
    tile.className = "tile";
    label.textContent = name;
    big.textContent = value ?? "not known";
    if (value === null) big.className = "none";
    small.textContent = note;
    tile.append(label, big, ...(bar === null ? [] : [meter(bar, bar > 1 ? "over" : "")]), small);
    return tile;
  }));
}

function remaining(facts, main, typical) {
  if (!facts.steps || state.alive.state !== "running" || main.last >= facts.steps) return "";
  return `, ${duration((facts.steps - main.last) * typical)} left`;
}

const percent = (share) => Number((100 * share).toPrecision(3)) + " %";
const score = (column) => (column === "loss" ? 4 : /loss/.test(column) ? 3 : /acc|reward|score/.test(column) ? 2 : 1);

function extreme(values, highest) {
  let found = null;
  for (const v of values) if (v !== null && (found === null || (highest ? v > found : v < found))) found = v;
  return found;
}

function median(values) {
  const sorted = values.filter((v) => v !== null).sort((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1] : null;
}

board.onZoom = (what) => {
  const isStretch = Array.isArray(what);
  find("whole").hidden = what === null;
  find("span").lastElementChild.hidden = !isStretch;
  find("span").value = isStretch ? "zoom" : String(what ?? 1);
};
find("whole").onclick = () => { board.zoom(null); find("span").focus(); };
find("span").onchange = (event) => board.zoom(event.target.value === "1" ? null : Number(event.target.value));

const THEMES = ["auto", "light", "dark"];
function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  find("theme").setAttribute("aria-label", "Colours: " + (name === "auto" ? "as the system" : name));
  find("theme").title = find("theme").getAttribute("aria-label");
  board.redraw();
  histograms.redraw();
}
let themed = "auto";
try { themed = THEMES.includes(localStorage.theme) ? localStorage.theme : "auto"; } catch { /* storage may be off: the choice then lasts for this visit */ }
theme(themed);
find("theme").onclick = () => {
  themed = THEMES[(THEMES.indexOf(themed) + 1) % THEMES.length];
  try { localStorage.theme = themed; } catch { /* as above */ }
  theme(themed);
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { board.redraw(); histograms.redraw(); });
addEventListener("beforeprint", () => board.drawAll());

// A browser allows few connections to one server: a page out of sight gives its back.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { source?.close(); frames.pause(); } else { alive.hear(); listen(); }
});
listen();
