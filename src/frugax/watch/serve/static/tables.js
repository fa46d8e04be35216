// Tables: episodes and other summaries, budgets, memory, and what was lost.
import { ask } from "./ask.js";
import { bytes, find, make, number } from "./format.js";

const PAGE = 50;

export function isTable(stream) {
  return /episode|summary/.test(stream);
}

/** The records of one stream, the newest first; asks only for those it lacks. */
class Rows {
  #newest = null;
  #oldest = null;
  #count = 0;
  #busy = false;
  #latest = null;

  constructor(stream, title, page) {
    this.stream = stream;
    this.page = page;
    const id = "table-" + stream.replace(/\W/g, "-");
    this.count = make("span", { kind: "soft" });
    this.body = make("tbody");
    this.headings = make("tr");
    this.older = make("button", { text: "Older ones", kind: "ghost older", type: "button", hidden: true, onclick: () => this.#more() });
    const scroll = make("div", { kind: "scroll", tabIndex: 0, role: "region", "aria-label": title }, make("table", {}, make("thead", {}, this.headings), this.body));
    this.root = make("section", { "aria-labelledby": id }, make("div", { kind: "head" }, make("h2", { text: title, id }), this.count), scroll, this.older);
  }

  clear() {
    this.#newest = this.#oldest = null;
    this.#count = 0;
    this.body.replaceChildren();
  }

  async told(about) {
    const { records } = about;
    this.#latest = about;
    this.count.textContent = `${records.toLocaleString("en")} in all`;
    if (records < this.#count) this.clear();
    if (this.#busy || records === this.#count) return;
    this.#busy = true;
    try {
      const wanted = Math.min(records - this.#count, this.#newest === null ? PAGE : 500);
      const got = await this.#ask({ count: wanted });
      if (!got) return;
      this.#head(got.columns);
      if (this.#newest !== null && got.steps.length && got.steps.at(-1) > this.#newest + 500 && records - this.#count > 500) this.body.replaceChildren();
      const fresh = got.rows.map((row, i) => [got.steps[i], row]).filter(([step]) => this.#newest === null || step > this.#newest);
      this.body.prepend(...fresh.map(([step, row]) => this.#row(step, row, got)));
      if (this.#oldest === null && got.steps.length) this.#oldest = got.steps.at(-1);
      this.#newest = got.steps[0] ?? this.#newest;
      this.#count = records;
      this.older.hidden = this.body.rows.length >= records;
    } finally {
      this.#busy = false;
    }
    if (this.#latest.records !== records) this.told(this.#latest); // it grew meanwhile
  }

  async #more() {
    const got = await this.#ask({ count: PAGE, before: this.#oldest });
    if (!got) return;
    this.body.append(...got.rows.map((row, i) => this.#row(got.steps[i], row, got)));
    this.#oldest = got.steps.at(-1) ?? this.#oldest;
    this.older.hidden = got.older === 0;
  }

  async #ask(query) {
    const answer = await ask("rows", { run: this.page.alone.id, stream: this.stream, ...query }).catch(() => null);
    return answer?.json() ?? null;
  }

  #head(columns) {
    if (this.headings.cells.length === columns.length + 1) return;
    const cells = ["step", ...columns].map((name, i) => {
      const sort = make("button", { text: name.replaceAll("_", " "), kind: "sort", type: "button", onclick: () => this.#sort(i) });
      return make("th", { kind: "n", scope: "col" }, sort);
    });
    this.headings.replaceChildren(...cells);
    this.clear();
  }

  /** Sort the rows that are here by a column, or the other way round. */
  #sort(i) {
    const heads = [...this.headings.cells];
    const isFalling = heads[i].getAttribute("aria-sort") !== "descending";
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[i].setAttribute("aria-sort", isFalling ? "descending" : "ascending");
    const value = (row) => Number(row.cells[i].dataset.value ?? NaN);
    const sorted = [...this.body.rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
      return isFalling ? y - x : x - y;
    });
    this.body.replaceChildren(...sorted);
  }

  #row(step, row, { columns, whole }) {
    return make("tr", {}, make("td", { text: step.toLocaleString("en"), kind: "n", "data-value": step }), ...columns.map((column) => {
      if (!(column in row)) return make("td", { text: "–", kind: "n" });
      const value = row[column];
      if (/^(success|solved|done|truncated)$/.test(column) && whole.includes(column)) {
        return make("td", { text: value ? "yes" : "no", kind: value ? "n yes" : "n no", "data-value": value });
      }
      return make("td", { text: number(value), kind: "n", "data-value": value ?? NaN });
    }));
  }
}

export class Tables {
  #tables = new Map();

  constructor(root, page) {
    this.root = root;
    this.page = page;
  }

  clear() {
    for (const table of this.#tables.values()) table.clear();
  }

  told(streams) {
    for (const [stream, about] of Object.entries(streams)) {
      if (!isTable(stream) || !about.columns.length) continue;
      if (!this.#tables.has(stream)) {
        const title = /episode/.test(stream) ? "Episodes" : stream.replaceAll("_", " ");
        const table = new Rows(stream, title, this.page);
        this.#tables.set(stream, table);
        this.root.append(table.root);
      }
      this.#tables.get(stream).told(about);
    }
  }
}

function heading(text, kind) {
  return make("th", { text, kind, scope: "col" });
}

function sentence(text) {
  return make("p", { text, kind: "soft" });
}

export function meter(share, kind = "") {
  const fill = make("i");
  fill.style.width = Math.min(Math.max(100 * share, 0), 100) + "%";
  return make("div", { kind: "meter " + kind }, fill);
}

function pill(verdict) {
  return make("span", { text: verdict === "running" ? "not yet" : verdict, kind: "verdict " + verdict.split(" ")[0] });
}

function budgets(facts) {
  if (!facts.budgets.length) return [sentence(facts.finished ? "No budget was stated." : "This journal states no budget; a receipt follows at the end of a run.")];
  const parts = ["limit", "predicted", "measured"];
  const cell = (b, part) => make("td", { text: b[part + "_text"], kind: "n", "data-label": part });
  const rows = facts.budgets.map((b) => make("tr", {},
    make("td", { text: b.name, title: b.source }), make("td", {}, pill(b.verdict)), ...parts.map((part) => cell(b, part))));
  const head = make("tr", {}, heading("budget"), heading("verdict"), ...parts.map((t) => heading(t, "n")));
  const table = make("table", { kind: "stack" }, make("thead", {}, head), make("tbody", {}, ...rows));
  return [make("div", { kind: "scroll", tabIndex: 0, role: "region", "aria-label": "Budgets" }, table)];
}

function memory({ memory: m }, ended) {
  if (!m || !(m.planned_bytes >= 0)) return [sentence(ended ? "Not known: no receipt of this run has XLA's figures." : "Known when the run has ended: XLA's figures come with the receipt.")];
  const rows = [["un-planned", m.unplanned_bytes, "plain"], ["as it ran", m.planned_bytes, m.limit_bytes && m.planned_bytes > m.limit_bytes ? "over" : ""]];
  if (m.limit_bytes) rows.push(["budget", m.limit_bytes, "plain"]);
  const most = Math.max(...rows.map(([, value]) => value));
  const bars = make("div", { kind: "bars" });
  for (const [name, value, kind] of rows) bars.append(make("span", { text: name }), meter(value / most, kind), make("span", { text: bytes(value) }));
  return [bars];
}

/** The newest counts of kept and lost records by class; null where nobody counts. */
export function losses({ watch }) {
  const latest = watch?.latest ?? {};
  const kinds = ["summary", "scalar", "frame"].filter((kind) => "kept_" + kind in latest);
  return kinds.length ? kinds.map((kind) => [kind, latest["kept_" + kind], latest["dropped_" + kind]]) : null;
}

function lossTable(found) {
  if (!found) return [sentence("The journal does not say. It drops nothing itself: what is written here is all that was recorded.")];
  const rows = found.map(([kind, kept, lost]) => make("tr", {}, make("td", { text: kind }), make("td", { text: number(kept + lost), kind: "n" }),
    make("td", { text: number(kept), kind: "n" }), make("td", { text: number(lost), kind: lost ? "n broken" : "n" })));
  const head = make("tr", {}, heading("class"), ...["given", "kept", "lost"].map((t) => heading(t, "n")));
  return [make("div", { kind: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)))];
}

/** Everything from config and receipt. */
export function showFacts({ facts, streams, state }) {
  find("budgets").replaceChildren(...budgets(facts));
  find("verdict").replaceChildren(...(facts.verdict ? [pill(facts.verdict)] : []));
  find("memory").replaceChildren(...memory(facts, state !== "running"));
  find("losses").replaceChildren(...lossTable(losses(streams)));
  const notes = [...facts.notes, ...facts.missing];
  find("notes").replaceChildren(...notes.map((text) => make("li", { text })));
  const rows = Object.entries(facts.environment ?? {}).map(([name, text]) => make("div", {}, make("dt", { text: name }), make("dd", { text: String(text) })));
  find("environment").replaceChildren(...rows);
  find("about").hidden = !notes.length && !rows.length;
}
