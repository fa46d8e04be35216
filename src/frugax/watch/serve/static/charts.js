// Curves over steps: what the page holds of each series, and the charts that show them.
/* global uPlot */
import { duration } from "./alive.js";

const MOST_POINTS = 10000;
const THINNED_POINTS = 5000;
const NOISY_POINTS = 400; // with more, a line of means lies over the raw one
export const STEP_SECONDS = "seconds per step";
const CLOCKED = "system"; // a stream whose steps are seconds since the start
const BINARY = Array.from({ length: 60 }, (_, i) => 2 ** i); // round steps of bytes
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "not a number";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return value.toExponential(digits - 2).replace("e+", "e");
  return Number(value.toPrecision(digits)).toString();
}

function isBytes(column) {
  return /(_|\b)bytes$/.test(column);
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < units.length - 1) { value /= 1024; at++; }
  return Number(value.toPrecision(4)) + " " + units[at];
}

/** How values of a column are written. */
export function format(column, value) {
  if (value === null || value === undefined) return "not a number";
  if (column === STEP_SECONDS || /(^|_)seconds$/.test(column)) return duration(value);
  if (isBytes(column)) return bytes(value);
  if (/overhead|share$/.test(column)) return Number((100 * value).toPrecision(3)) + " %";
  return number(value);
}

/** One column's points, steps rising; thinned to its peaks when they become many. */
export class Series {
  x = [];
  y = [];

  add(x, y) {
    for (let i = 0; i < x.length; i++) { this.x.push(x[i]); this.y.push(y[i]); }
    if (this.x.length > MOST_POINTS) this.#thin();
  }

  cut(step) {
    let n = this.x.length;
    while (n && this.x[n - 1] > step) n--;
    this.x.length = this.y.length = n;
  }

  /** The value at a step or the last one before it. */
  at(step) {
    let low = 0;
    let high = this.x.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.x[middle] <= step) low = middle + 1; else high = middle;
    }
    return low ? this.y[low - 1] : undefined;
  }

  #thin() {
    const size = Math.ceil((2 * this.x.length) / THINNED_POINTS);
    const kept = [];
    for (let start = 0; start < this.x.length; start += size) {
      const stop = Math.min(start + size, this.x.length);
      let low = -1;
      let high = -1;
      let hole = -1;
      for (let i = start; i < stop; i++) {
        const v = this.y[i];
        if (v === null) { if (hole < 0) hole = i; continue; }
        if (low < 0 || v < this.y[low]) low = i;
        if (high < 0 || v > this.y[high]) high = i;
      }
      kept.push(...new Set([low, high, hole].filter((i) => i >= 0).sort((a, b) => a - b)));
    }
    if (kept[kept.length - 1] !== this.x.length - 1) kept.push(this.x.length - 1);
    this.x = kept.map((i) => this.x[i]);
    this.y = kept.map((i) => this.y[i]);
  }
}

/** The mean of the points so far, each weighing less than the next (Kingma & Ba, 2015). */
export function smoothed(y, weight) {
  if (!weight) return y;
  let [sum, norm] = [0, 0];
  return y.map((v) => {
    if (v === null || v === undefined) return v;
    sum = weight * sum + (1 - weight) * v;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

/** "train/loss" and "val_loss" belong into the chart "loss". */
export function family(column) {
  return column.replace(/^(train|training|val|valid|validation|test|eval)[/_.]/, "") || column;
}

class Chart {
  lines = new Map(); // label -> {series, column, dots}
  #plot = null;
  #log = false;
  #seen = false;
  #window = null;
  #due = null;

  constructor(board, stream, name) {
    this.board = board;
    this.stream = stream;
    this.name = name;
    this.isTimed = stream === CLOCKED; // its axis is the time, not the step
    const title = (stream && stream !== "watch" ? stream + " · " : "") + (name === STEP_SECONDS ? "time per step" : name);
    this.root = document.createElement("div");
    this.root.className = "chart";
    const cap = document.createElement("div");
    cap.className = "cap";
    const head = document.createElement("h3");
    head.textContent = title;
    this.button = document.createElement("button");
    this.button.type = "button";
    this.button.className = "log";
    this.button.textContent = "log";
    this.button.setAttribute("aria-pressed", "false");
    this.button.setAttribute("aria-label", "Logarithmic axis for " + title);
    this.button.onclick = () => {
      this.#log = !this.#log;
      this.button.setAttribute("aria-pressed", String(this.#log));
      this.rebuild();
    };
    this.read = document.createElement("span");
    this.read.className = "read";
    cap.append(head, this.button, this.read);
    this.place = document.createElement("div");
    this.place.className = "plot";
    this.place.setAttribute("role", "img");
    this.place.setAttribute("aria-label", title);
    this.root.append(cap, this.place);
    this.title = title;
    board.watchSize.observe(this.place);
    board.watchView.observe(this.place);
  }

  seen(now) {
    this.#seen = now;
    if (now) this.draw();
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.#plot && width && width !== this.#plot.width) this.#plot.setSize({ width, height: this.place.clientHeight });
  }

  rebuild() {
    this.#plot?.destroy();
    this.#plot = null;
    this.draw();
  }

  #data() {
    const tables = [...this.lines.values()].map((line) => {
      const from = (this.#window && !line.dots && this.#window[line.column]) || line.series;
      const y = this.#log ? from.y.map((v) => (v > 0 ? v : null)) : from.y;
      return [from.x, y];
    });
    const raw = tables.length === 1 ? tables[0] : uPlot.join(tables);
    if (!this.#isNoisy()) return raw;
    return [...raw, ...raw.slice(1).map((y) => smoothed([...y], 1 - 50 / y.length))];
  }

  #isNoisy() {
    return [...this.lines.values()].some((line) => !line.dots && line.series.x.length > NOISY_POINTS);
  }

  draw() {
    if (!this.#seen || !this.lines.size || !this.place.clientWidth) return;
    const data = this.#data();
    if (this.#plot && this.#plot.series.length !== data.length) { this.#plot.destroy(); this.#plot = null; }
    if (!this.#plot) this.#make(data);
    else this.#plot.setData(data, false);
    this.#scale();
    this.#say(null);
  }

  #scale() {
    const [x] = this.#plot.data;
    const range = this.isTimed ? { min: 0, max: Math.max(last(x) ?? 0, 1) } : this.board.range();
    if (range) this.#plot.setScale("x", range);
  }

  #make(data) {
    const axis = { stroke: () => css("--soft"), grid: { stroke: () => css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const names = [...this.lines.keys()];
    const stroke = (i) => () => css("--s" + (i % 6));
    this.#plot = new uPlot({
      width: this.place.clientWidth,
      height: this.place.clientHeight,
      legend: { show: false },
      padding: [10, 20, 0, 0],
      cursor: {
        sync: this.isTimed ? undefined : { key: "frugax" },
        drag: { x: true, y: false, setScale: false },
        points: { size: 7 },
        bind: { dblclick: () => () => { this.board.zoom(null); return null; } },
      },
      scales: { x: { time: false, range: (u, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) }, y: this.#log ? { distr: 3 } : { range: nice } },
      axes: [
        { ...axis, size: 30, values: (u, ticks) => ticks.map((t) => (this.isTimed ? duration(t) : Number.isInteger(t) ? short(t) : "")) },
        { ...axis, size: wide, incrs: isBytes(this.name) ? BINARY : undefined, values: (u, ticks) => ticks.map((t) => (t === null ? "" : format(this.name, t))) },
      ],
      series: [{}, ...names.map((label, i) => ({
        label,
        stroke: stroke(i),
        width: this.#isNoisy() ? 1 : 1.6,
        alpha: this.#isNoisy() ? 0.3 : 1,
        spanGaps: false,
        paths: this.lines.get(label).dots ? () => null : undefined,
        points: { show: this.lines.get(label).dots || data[0].length <= 40, size: 6, fill: stroke(i), stroke: stroke(i) },
      })), ...(this.#isNoisy() ? names.map((label, i) => ({ label: label + ", mean", stroke: stroke(i), width: 2, points: { show: false }, paths: this.lines.get(label).dots ? () => null : undefined })) : [])],
      hooks: {
        setCursor: [(u) => this.#say(u.cursor.idx)],
        setSelect: [(u) => {
          if (u.select.width < 4 || this.isTimed) return;
          const [low, high] = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          this.board.zoom([low, high]);
        }],
        draw: [(u) => this.#marks(u)],
        ready: [(u) => {
          u.over.addEventListener("click", () => {
            if (!this.isTimed && u.cursor.idx !== null && u.cursor.idx !== undefined) this.board.onPick(u.data[0][u.cursor.idx]);
          });
        }],
      },
    }, data, this.place);
    if (!performance.getEntriesByName("first-chart").length) performance.mark("first-chart");
  }

  #marks(u) {
    const pen = u.ctx;
    pen.save();
    pen.lineWidth = devicePixelRatio;
    const step = this.board.mark;
    const { min, max } = u.scales.x;
    if (step !== null && !this.isTimed && step >= min && step <= max) {
      const x = Math.round(u.valToPos(step, "x", true));
      pen.strokeStyle = css("--s3");
      pen.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
      pen.beginPath();
      pen.moveTo(x, u.bbox.top);
      pen.lineTo(x, u.bbox.top + u.bbox.height);
      pen.stroke();
    }
    // Values that are not finite: a click there leads to the frame of that step.
    pen.fillStyle = css("--bad");
    for (const line of this.lines.values()) {
      const { x: steps, y: values } = (this.#window && !line.dots && this.#window[line.column]) || line.series;
      for (let i = 0; i < steps.length; i++) {
        if (values[i] !== null || steps[i] < min || steps[i] > max) continue;
        const [x, y, size] = [u.valToPos(steps[i], "x", true), u.bbox.top + u.bbox.height, 6 * devicePixelRatio];
        pen.beginPath();
        pen.moveTo(x, y - 1.6 * size);
        pen.lineTo(x + size * 0.8, y);
        pen.lineTo(x - size * 0.8, y);
        pen.fill();
      }
    }
    const limit = this.board.limits[this.stream + "/" + this.name];
    if (limit !== undefined && limit >= u.scales.y.min && limit <= u.scales.y.max) {
      const y = Math.round(u.valToPos(limit, "y", true));
      pen.strokeStyle = css("--bad");
      pen.setLineDash([]);
      pen.beginPath();
      pen.moveTo(u.bbox.left, y);
      pen.lineTo(u.bbox.left + u.bbox.width, y);
      pen.stroke();
    }
    pen.restore();
  }

  #say(at) {
    const parts = [];
    const data = this.#plot.data;
    const there = at !== null && at !== undefined;
    if (there) parts.push(span((this.isTimed ? duration(data[0][at]) : "step " + number(data[0][at])) + "  "));
    // Short steps are thinned: the curve says so.
    else if (!this.stream && this.board.stride > 1) parts.push(span(`every ${number(this.board.stride)}th step  `));
    [...this.lines].forEach(([label, line], i) => {
      const value = there ? data[i + 1][at] : last(line.series.y);
      if (this.lines.size > 1) {
        if (there && value === undefined) return;
        const swatch = span("");
        swatch.className = "swatch";
        swatch.style.background = `var(--s${i % 6})`;
        parts.push(swatch, span(label + " "));
      }
      const strong = document.createElement("b");
      strong.textContent = format(this.name, value);
      parts.push(strong);
    });
    this.read.replaceChildren(...parts);
    // For screen readers; not at each new point.
    if (there || this.#due !== null) return;
    const tell = () => this.place.setAttribute("aria-label", [...this.lines].map(([label, line]) => this.#words(label, line)).join("; "));
    if (this.place.getAttribute("aria-label") === this.title) tell();
    this.#due = setTimeout(() => { this.#due = null; tell(); }, 3000);
  }

  #words(label, { series }) {
    const { x, y } = series;
    let low = Infinity;
    let high = -Infinity;
    for (const v of y) if (v !== null) { if (v < low) low = v; if (v > high) high = v; }
    if (!x.length) return label + ": nothing recorded";
    const say = (v) => format(this.name, v);
    return `Chart of ${label}: ${say(y[0])} at step ${x[0]}, ${say(last(y))} at step ${last(x)}; lowest ${say(low)}, highest ${say(high)}`;
  }

  show(window) {
    this.#window = window;
    this.draw();
  }

  columns() {
    return [...this.lines.values()].filter((line) => !line.dots).map((line) => line.column);
  }

  isSeen() {
    return this.#seen;
  }

  redraw() {
    this.#plot?.redraw(false);
  }
}

/** All charts of the page; they share zoom, cursor and the mark of the frame shown. */
export class Board {
  store = new Map(); // stream -> Map(column -> Series)
  charts = new Map();
  mark = null;
  limits = {};
  histograms = new Set();
  onPick = () => {};
  #zoom = null; // [low, high], or a share of the newest steps, or null
  #asked = 0;
  #due = null;

  constructor(root) {
    this.root = root;
    const of = (entry) => [...this.charts.values()].find((chart) => chart.place === entry.target);
    this.watchSize = new ResizeObserver((entries) => entries.forEach((e) => { const c = of(e); if (c) { c.resize(); c.draw(); } }));
    this.watchView = new IntersectionObserver((entries) => entries.forEach((e) => of(e)?.seen(e.isIntersecting)), { rootMargin: "200px" });
  }

  series(stream, column) {
    if (!this.store.has(stream)) this.store.set(stream, new Map());
    const columns = this.store.get(stream);
    if (!columns.has(column)) columns.set(column, new Series());
    return columns.get(column);
  }

  take(delta) {
    if (delta.reset) {
      this.store.clear();
      this.charts.clear();
      this.root.replaceChildren();
    }
    for (const [stream, step] of Object.entries(delta.cut)) for (const series of this.store.get(stream)?.values() ?? []) series.cut(step);
    for (const [stream, columns] of Object.entries(delta.streams)) {
      for (const [column, { x, y }] of Object.entries(columns)) {
        this.series(stream, column).add(x, y);
        this.#place(stream, column, column, this.series(stream, column), false);
      }
    }
    this.draw();
    if (this.#zoom) this.#refetch();
  }

  /** Points that come from the receipt, such as evaluations. */
  dots(column, { x, y }) {
    const series = new Series();
    series.add(x, y);
    this.#place("", column, "test set", series, true);
    this.draw();
  }

  #place(stream, column, label, series, dots) {
    if (!stream && column === "seconds") return;
    if (stream && /episode|summary/.test(stream)) return;
    // Of a histogram they are its edges, which its own picture shows.
    if (stream && /^(low|high|not_finite)$/.test(column) && this.histograms.has(stream)) return;
    // Pictures that lost no pixel to clipping need no chart that says so.
    if (stream && column === "clipped" && !series.y.some((share) => share > 0)) return;
    if (stream === "watch" && (!/overhead$|bytes|seconds per step/.test(column) || /limit/.test(column))) return;
    if (stream === "watch" && column === STEP_SECONDS && this.store.get("")?.has(STEP_SECONDS)) return;
    const key = stream + "/" + family(column);
    let chart = this.charts.get(key);
    if (!chart) {
      chart = new Chart(this, stream, family(column));
      this.charts.set(key, chart);
      // What is looked at most comes first.
      const before = [...this.root.children].find((other) => Number(other.dataset.rank) > rank(stream, column));
      chart.root.dataset.rank = rank(stream, column);
      this.root.insertBefore(chart.root, before ?? null);
    }
    if (chart.lines.get(label)?.series === series) return;
    const grown = !chart.lines.has(label);
    chart.lines.set(label, { series, column, dots });
    if (grown) chart.rebuild();
  }

  draw() {
    for (const chart of this.charts.values()) chart.draw();
    // Charts below the fold come when nothing else is to do: a print shows all of them.
    clearTimeout(this.rest);
    this.rest = setTimeout(() => this.drawAll(), 600);
  }

  drawAll() {
    for (const chart of this.charts.values()) if (!chart.isSeen()) chart.seen(true);
  }

  redraw() {
    for (const chart of this.charts.values()) chart.redraw();
  }

  setMark(step) {
    if (step === this.mark) return;
    this.mark = step;
    this.redraw();
  }

  #ends() {
    let low = Infinity;
    let high = -Infinity;
    for (const [stream, columns] of this.store) for (const { x } of columns.values()) if (x.length && stream !== CLOCKED) { low = Math.min(low, x[0]); high = Math.max(high, last(x)); }
    return low <= high ? [low, high] : null;
  }

  range() {
    const ends = this.#ends();
    let [low, high] = ends ?? [0, 1];
    if (Array.isArray(this.#zoom)) [low, high] = this.#zoom;
    else if (this.#zoom) low = high - this.#zoom * (high - low);
    return { min: low, max: high > low ? high : low + 1 };
  }

  zoom(what) {
    this.#zoom = what;
    this.onZoom?.(what);
    if (what === null) for (const chart of this.charts.values()) chart.show(null);
    else { this.draw(); this.#refetch(0); }
  }

  /** Finer points of the stretch shown, for the charts in sight; at most every 2 s. */
  #refetch(wait = 2000) {
    if (this.#due !== null && wait) return;
    clearTimeout(this.#due);
    this.#due = setTimeout(async () => {
      this.#due = null;
      const asked = ++this.#asked;
      const { min, max } = this.range();
      await Promise.all([...this.charts.values()].filter((c) => c.isSeen() && !c.isTimed && c.columns().length).map(async (chart) => {
        const query = new URLSearchParams({ stream: chart.stream, from: Math.floor(min), to: Math.ceil(max), points: Math.min(4000, 2 * Math.round(chart.place.clientWidth)) });
        for (const column of chart.columns()) query.append("column", column);
        const answer = await fetch("api/series?" + query);
        if (answer.ok && asked === this.#asked && this.#zoom) chart.show(await answer.json());
      })).catch(() => {});
    }, wait);
  }
}

function rank(stream, column) {
  if (stream) return stream === "watch" ? 80 : 60;
  if (column === STEP_SECONDS) return 50;
  const at = [/^loss$/, /loss/, /acc/, /./].findIndex((pattern) => pattern.test(family(column)));
  return 10 * at;
}

function nice(u, low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === high) { const by = Math.abs(low) / 10 || 1; return [low - by, high + by]; }
  const by = 0.06 * (high - low);
  return [low >= 0 && low < 0.35 * high ? 0 : low - by, high + by];
}

/** As wide as the longest label, so that none is cut off and charts of a kind line up. */
function wide(u, labels) {
  const longest = Math.max(...(labels ?? []).map((label) => label.length), 0);
  return Math.max(50, 16 + 7 * longest);
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return Number((value / 1e6).toPrecision(4)) + "M";
  if (size >= 1e4) return Number((value / 1e3).toPrecision(4)) + "k";
  return String(value);
}

function span(text) {
  const made = document.createElement("span");
  made.textContent = text;
  return made;
}

const last = (list) => list[list.length - 1];
