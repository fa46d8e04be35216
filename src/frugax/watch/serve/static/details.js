// What is shown of a run besides its curves: whether it is alive, its figures and its facts.
import { bytes, duration, family, find, format, make, number, percent, put } from "./format.js";
import { Frames } from "./frames.js";
import { Histograms } from "./histogram.js";
import { Tables, isTable, losses, meter, showFacts } from "./tables.js";

export const WORDS = {
  running: "running", quiet: "quiet", finished: "finished", finishing: "finishing",
  closed: "ended", waiting: "waiting", died: "died", unreadable: "cannot be read",
};
const SILENT_AFTER_MS = 12000;
const isHighBetter = (column) => /acc|reward|score/.test(column);

export class Details {
  #run = null; // the run that is shown alone
  #word = ["waiting", "connecting"];
  #heard = performance.now();
  #ahead = 0; // seconds that the server's clock is ahead of ours
  #offline = "";
  #said = {};

  constructor(page) {
    this.page = page;
    this.frames = new Frames(page);
    this.tables = new Tables(find("tables"), page);
    this.histograms = new Histograms(find("histograms"), page);
    setInterval(() => this.#showAlive(), 1000);
  }

  /** The server has answered, at a time by its own clock. */
  hear(date) {
    this.#heard = performance.now();
    this.#offline = "";
    if (date) this.#ahead = (Date.parse(date) - Date.now()) / 1000;
    this.#showAlive();
  }

  lost(error) {
    this.#offline = error instanceof TypeError ? "The connection to the server is lost." : `The server says: ${error.message}`;
    this.#showAlive();
  }

  /** The page of many runs counts them. */
  toldAll(runs) {
    const reading = runs.filter((run) => !run.read && run.state !== "waiting" && run.state !== "unreadable").length;
    const alive = runs.filter((run) => run.state === "running").length;
    this.#word = reading ? ["waiting", `reading ${reading}`] : alive ? ["running", `${alive} running`] : ["finished", "all ended"];
    this.#showAlive();
  }

  told(run) {
    this.#run = run;
    this.#word = [run.state, WORDS[run.state]];
    this.#showAlive();
    const { facts, streams } = run;
    const main = streams[""] ?? { records: 0, latest: {}, columns: [] };
    const done = main.last ?? 0;
    put(find("title"), run.title);
    put(find("folder"), run.folder);
    document.title = `${main.records ? "step " + number(done) + " · " : ""}${run.title} · frugax`;
    find("progress").hidden = !facts.steps;
    if (facts.steps) {
      const share = Math.min(100, (100 * done) / facts.steps);
      find("progress").firstElementChild.style.width = share + "%";
      find("progress").setAttribute("aria-valuenow", share.toFixed(0));
    }
    this.#limits();
    this.#tiles(main);
    this.frames.told(streams);
    this.tables.told(streams);
    this.histograms.told(streams);
    this.#once("facts", [facts, streams.watch?.latest, run.state], () => {
      showFacts(run);
      for (const [name, points] of Object.entries(facts.evaluations)) if (points.x.length) this.page.chart("", family(name)).dots = points;
    });
    find("spending").hidden = false;
    const isReading = run.read_bytes < run.journal_bytes;
    put(find("nothing"), isReading ? `Reading the journal: ${bytes(run.read_bytes)} of ${bytes(run.journal_bytes)}` : "Nothing has been recorded yet.");
    put(find("journal"), `Journal: ${bytes(run.journal_bytes)}, ${number(main.records)} steps${run.closed ? ", closed" : ""}.`);
    const troubles = run.damage.map((text) => "Damage in the journal: " + text.replace(/\.?$/, "."));
    if (main.latest.loss === null) troubles.unshift(`The loss is not a number any more (step ${number(done)}).`);
    this.#once("troubles", troubles, () => find("troubles").replaceChildren(...troubles.map((text) => make("p", { text, kind: "notice bad", role: "alert" }))));
  }

  /** What was shown may be void: the run was rewound, or it is another one. */
  forget() {
    this.tables.clear();
    this.frames.forget();
  }

  draw() {
    this.histograms.redraw();
  }

  pause() {
    this.frames.pause();
  }

  /** Do something if what it shows has changed. */
  #once(key, shown, act) {
    const said = JSON.stringify(shown);
    if (this.#said[key] === said) return;
    this.#said[key] = said;
    act();
  }

  #showAlive() {
    const isSilent = performance.now() - this.#heard > SILENT_AFTER_MS && !document.hidden;
    const offline = this.#offline || (isSilent ? "The server does not answer." : "");
    const [kind, word] = offline ? ["offline", "no connection"] : this.#word;
    if (find("alive").className !== "pill " + kind) find("alive").className = "pill " + kind;
    put(find("alive-word"), word);
    const age = this.#run?.grown_at ? Date.now() / 1000 + this.#ahead - this.#run.grown_at : NaN;
    const hasAge = age >= 0 && ["running", "quiet", "died"].includes(kind);
    put(find("alive-age"), hasAge ? (age < 3 ? "just now" : duration(Math.round(age)) + " ago") : "");
    put(find("alive-why"), offline ? offline + " The page goes on by itself when it is back." : (this.#run?.why ?? ""));
  }

  #limits() {
    const { facts, streams } = this.#run;
    const watch = streams.watch?.latest ?? {};
    this.page.limits = {};
    this.page.stride = watch.stride ?? 1;
    const share = facts.budgets.find((b) => b.unit === "share" && /watching/.test(b.name))?.limit;
    if (watch.budget ?? share) this.page.limits["watch/overhead"] = watch.budget ?? share;
  }

  #tiles(main) {
    const run = this.#run;
    const { facts, streams } = run;
    const list = [];
    const add = (name, value, note = "", bar = null) => list.push([name, value, note, bar]);
    const has = main.records > 0;
    add("step", has ? number(main.last) : null, facts.steps ? `of ${number(facts.steps)}${has ? `, ${Math.floor((100 * main.last) / facts.steps)} %` : ""}` : has ? `${number(main.records)} recorded` : "");
    const ranked = [...main.columns].sort((a, b) => score(b) - score(a));
    const shown = ranked.filter((c, i) => ranked.findIndex((d) => family(d) === family(c)) === i).slice(0, 2);
    for (const column of shown) {
      const ends = run.extremes[column];
      const best = ends && (isHighBetter(column) ? `highest ${format(column, ends[1])}` : `lowest ${format(column, ends[0])}`);
      add(column, column in main.latest ? format(column, main.latest[column]) : "–", best ?? "");
    }
    const typical = run.step_seconds;
    add("time per step", typical === null ? null : duration(typical), typical === null ? "the run was too short to tell" : `${number(1 / typical, 3)} a second${this.#remaining(main)}`);
    const watch = streams.watch?.latest ?? {};
    const spend = facts.budgets.find((b) => b.unit === "share" && /watching/.test(b.name));
    const limit = watch.budget ?? spend?.limit ?? null;
    // As in a receipt, an interval around the limit does not tell.
    const isUnsure = limit !== null && watch.overhead_low <= limit && limit < watch.overhead_high;
    const overhead = spend?.measured ?? (isUnsure ? null : watch.overhead) ?? null;
    add("watching takes", overhead === null ? null : percent(overhead), limit === null ? "no budget stated" : `of at most ${percent(limit)}`, overhead === null || !limit ? null : overhead / limit);
    const { memory } = facts;
    // Without a plan: the fullest device, or the process.
    const system = Object.entries(streams.system?.latest ?? {}).filter(([name]) => name.endsWith(" memory, bytes"));
    const seen = system.length ? Math.max(...system.map(([, value]) => value)) : streams.system?.latest["peak memory of the process, bytes"];
    const used = memory?.planned_bytes ?? seen ?? null;
    const most = memory?.limit_bytes ?? null;
    add("memory", used === null ? null : bytes(used), most === null ? (used === null ? "not measured" : seen === used && !system.length ? "of the process, at most" : "no budget stated") : `of ${bytes(most)}`, used === null || !most ? null : used / most);
    const lost = losses(streams);
    add("records lost", lost && number(lost.reduce((sum, [, , n]) => sum + n, 0)), lost ? lost.map(([kind, , n]) => `${kind} ${number(n)}`).join(", ") : "no ledger here");
    this.#once("tiles", list, () => find("tiles").replaceChildren(...list.map(([name, value, note, bar]) => make("div", { kind: "tile" },
      make("span", { text: name }), make("b", { text: value ?? "not known", kind: value === null ? "none" : "" }),
      ...(bar === null ? [] : [meter(bar, bar > 1 ? "over" : "")]), make("small", { text: note })))));
  }

  #remaining(main) {
    const { facts, state, step_seconds: typical } = this.#run;
    if (!facts.steps || state !== "running" || main.last >= facts.steps) return "";
    return `, ${duration((facts.steps - main.last) * typical)} left`;
  }
}

const score = (column) => (column === "loss" ? 4 : /loss/.test(column) ? 3 : isHighBetter(column) ? 2 : 1);
