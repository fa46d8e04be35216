// One metric on one canvas: the lines of a run or of many, the band of the raw values, the
// steps that are not finite, the limit, and the step whose frame is shown.
import { clearedPen } from "./cells.js";
import { STEP_SECONDS, css, duration, family, format, isBytes, last, make, number, place } from "./format.js";

const PAD = { left: 62, right: 12, top: 8, bottom: 24 };
const NOISY_POINTS = 200; // of a run alone, more are smoothed

/** Streams that count something else than training steps: seconds, or episodes. */
const hasOwnAxis = (stream) => stream === "system" || /episode|summary/.test(stream);

function ticks(low, high, most, isBinary) {
  const rough = (high - low) / Math.max(most, 1) || 1;
  const base = isBinary ? 2 : 10;
  const power = base ** Math.floor(Math.log(rough) / Math.log(base));
  const by = (isBinary ? [1, 2] : [1, 2, 5, 10]).map((n) => n * power).find((n) => n >= rough) ?? power;
  const found = [];
  for (let t = Math.ceil(low / by) * by; t <= high + by * 1e-9; t += by) found.push(Math.abs(t) < by * 1e-9 ? 0 : t);
  return found;
}

/** Ticks of logarithms: powers of ten, or round values of a short stretch. */
function powers(low, high) {
  if (high - low < 1.2) return ticks(10 ** low, 10 ** high, 4).filter((t) => t > 0).map(Math.log10);
  const found = [];
  const by = Math.max(1, Math.ceil((high - low) / 5));
  for (let t = Math.ceil(low); t <= high; t += by) found.push(t);
  return found;
}

/** The mean of the points so far, each weighing less than the next (Kingma & Ba, 2015). */
function smoothed(y, weight) {
  if (!weight) return y;
  let [sum, norm] = [0, 0];
  return y.map((v) => {
    if (v === null) return v;
    sum = weight * sum + (1 - weight) * v;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

function nearest(x, at) {
  let i = x.findIndex((v) => v >= at);
  if (i < 0) i = x.length - 1;
  return i && at - x[i - 1] < x[i] - at ? i - 1 : i;
}

export class Chart {
  columns = new Map(); // column -> its curves by run: {x, y, low, high, holes, hole_steps}
  dots = null; // further points {x, y}, such as evaluations
  at = null; // the place under the pointer
  isLoaded = false;
  #log = null;
  #drag = null;

  constructor(page, stream, name) {
    Object.assign(this, { page, stream, name });
    this.isOwn = hasOwnAxis(stream);
    this.title = (stream && stream !== "watch" ? stream + " · " : "") + (name === STEP_SECONDS ? "time per step" : name);
    const button = (text, label, onclick) => make("button", { text, kind: "ghost", type: "button", onclick, "aria-label": `${label} of ${this.title}` });
    this.read = make("span", { kind: "read" });
    const log = button("log", "Logarithmic axis", () => {
      this.#log = !this.isLog;
      log.setAttribute("aria-pressed", String(this.isLog));
      this.draw();
    });
    log.setAttribute("aria-pressed", "false");
    const cap = make("div", { kind: "cap" }, make("h3", { text: this.title }), log,
      button("picture", "Picture", () => this.picture()), button("CSV", "CSV", () => this.csv()), this.read);
    this.canvas = make("canvas", { kind: "plot", role: "img", "aria-label": this.title });
    this.root = make("div", { kind: "chart" }, cap, this.canvas);
    this.canvas.addEventListener("pointermove", (e) => {
      if (this.#drag) this.#drag[1] = e.offsetX;
      if (this.scale) page.hover(this, this.scale.x(e.offsetX));
    });
    this.canvas.addEventListener("pointerleave", () => { this.#drag = null; page.hover(this, null); });
    this.canvas.addEventListener("pointerdown", (e) => { this.#drag = [e.offsetX, e.offsetX]; });
    this.canvas.addEventListener("pointerup", (e) => this.#drop(e.offsetX));
    this.canvas.addEventListener("dblclick", () => page.zoom(null));
  }

  get isLog() {
    return this.#log ?? this.page.log;
  }

  get axis() {
    if (this.isOwn) return this.stream === "system" ? "time" : "step";
    return this.page.axis;
  }

  /** The lines as they are drawn; runs by their colours, or the columns of one run. */
  lines() {
    const found = [];
    const { alone } = this.page;
    const add = (line) => found.push(alone ? { ...line, colour: css("--s" + (found.length % 6)) } : line);
    for (const run of this.page.shown()) {
      for (const [column, curves] of this.columns) {
        const curve = curves[run.id];
        if (!curve?.x.length) continue;
        const n = curve.x.length;
        const weight = this.page.weight ?? (alone && n > NOISY_POINTS ? 1 - 25 / n : 0);
        const value = this.page.latest(run, this.stream, column);
        add({ label: alone ? column : run.name, colour: run.colour, run, curve, weight, isPinned: run.pinned, last: value === undefined ? last(curve.y) : value });
      }
    }
    if (alone && this.dots) add({ label: "test set", curve: this.dots, weight: 0, isDots: true, last: last(this.dots.y) });
    for (const line of found) line.y = smoothed(line.curve.y, line.weight).map((v) => this.#value(v));
    return found;
  }

  #value(v) {
    return this.isLog && v !== null ? (v > 0 ? Math.log10(v) : null) : v;
  }

  #drop(x) {
    const drag = this.#drag;
    this.#drag = null;
    if (!drag || !this.scale || this.isOwn) return;
    if (Math.abs(x - drag[0]) > 5) return this.page.zoom([drag[0], x].sort((a, b) => a - b).map((at) => this.scale.x(at)));
    // A click on the mark of a hole leads to the run, at that step.
    for (const { run, curve } of this.lines()) {
      const at = (curve.holes ?? []).findIndex((h) => Math.abs(this.scale.px(h) - x) < 6);
      if (at >= 0) return this.page.pick(run, curve.hole_steps[at]);
    }
    if (this.page.alone && this.page.axis === "step") this.page.pick(this.page.alone, Math.round(this.scale.x(x)));
  }

  /** The ends of both axes, a little beyond the values. */
  #ends(lines) {
    let [x0, x1] = [Infinity, -Infinity];
    const values = [];
    for (const { curve, y } of lines) {
      x0 = Math.min(x0, curve.x[0]);
      x1 = Math.max(x1, last(curve.x));
      for (const v of y) if (v !== null) values.push(v);
      // Of one run the raw values are in sight, too.
      if (this.page.alone) for (const v of [...(curve.low ?? curve.y), ...(curve.high ?? [])]) if (v !== null && this.#value(v) !== null) values.push(this.#value(v));
    }
    values.sort((a, b) => a - b);
    let [y0, y1] = values.length ? [values[0], last(values)] : [0, 1];
    if (!this.page.alone && values.length) {
      // A single spike must not press all lines flat: the ends leave out one in 500.
      const out = Math.floor(values.length / 500);
      [y0, y1] = [values[out], values[values.length - 1 - out]];
      // Nor may a run that diverged: thousands of times the range of most values.
      const tenth = Math.floor(values.length / 10);
      const [low, high] = [values[tenth], values[values.length - 1 - tenth]];
      if (high > low && y1 - y0 > 1000 * (high - low)) [y0, y1] = [Math.max(y0, low - 2 * (high - low)), Math.min(y1, high + 2 * (high - low))];
    }
    if (Array.isArray(this.page.stretch) && !this.isOwn) [x0, x1] = this.page.stretch;
    if (!(x0 < x1)) [x0, x1] = Number.isFinite(x0) ? [x0 - 1, x0 + 1] : [0, 1];
    const room = (y1 - y0 || Math.abs(y0) || 1) * 0.06;
    return [x0, x1, !this.isLog && y0 >= 0 && y0 < 0.35 * y1 ? 0 : y0 - room, y1 + room];
  }

  draw() {
    const { canvas } = this;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width || !this.isLoaded) return;
    const pen = clearedPen(canvas, width, height);
    const lines = this.lines();
    const [x0, x1, y0, y1] = this.#ends(lines);
    const [right, bottom] = [width - PAD.right, height - PAD.bottom];
    const px = (x) => PAD.left + ((x - x0) / (x1 - x0)) * (right - PAD.left);
    const py = (y) => bottom - ((y - y0) / (y1 - y0)) * (bottom - PAD.top);
    this.scale = { px, py, right, bottom, x: (at) => x0 + ((at - PAD.left) / (right - PAD.left)) * (x1 - x0) };
    this.#axes(pen, x0, x1, y0, y1, width);
    pen.save();
    pen.beginPath();
    pen.rect(PAD.left, PAD.top, right - PAD.left, bottom - PAD.top);
    pen.clip();
    const isPinned = lines.some((line) => line.isPinned);
    const faint = (line) => (isPinned && !line.isPinned ? 0.3 : 1);
    for (const line of lines) this.#band(pen, line, faint(line) * (lines.length > 12 ? 0.05 : 0.18));
    for (const line of [...lines].sort((a, b) => Boolean(a.isPinned) - Boolean(b.isPinned))) this.#line(pen, line, faint(line), lines.length);
    pen.globalAlpha = 1;
    this.#levels(pen);
    pen.restore();
    for (const line of lines) this.#holes(pen, line);
    if (this.#drag) {
      pen.fillStyle = css("--tint");
      pen.globalAlpha = 0.6;
      pen.fillRect(Math.min(...this.#drag), PAD.top, Math.abs(this.#drag[1] - this.#drag[0]), bottom - PAD.top);
      pen.globalAlpha = 1;
    }
    this.#say(lines, pen);
    if (lines.length && !performance.getEntriesByName("first-chart").length) performance.mark("first-chart");
  }

  #line(pen, { curve, y, colour, isPinned, isDots }, alpha, many) {
    const { px, py } = this.scale;
    pen.strokeStyle = pen.fillStyle = colour;
    pen.globalAlpha = alpha;
    pen.lineWidth = isPinned ? 2.4 : many > 30 ? 1 : 1.6;
    pen.beginPath();
    let isOpen = false;
    for (let i = 0; i < y.length; i++) {
      if (y[i] === null || isDots) { isOpen = false; continue; }
      if (isOpen) pen.lineTo(px(curve.x[i]), py(y[i])); else pen.moveTo(px(curve.x[i]), py(y[i]));
      isOpen = true;
    }
    pen.stroke();
    if (y.length > (this.page.alone ? 40 : 3) && !isDots) return;
    for (let i = 0; i < y.length; i++) {
      if (y[i] === null) continue;
      pen.beginPath();
      pen.arc(px(curve.x[i]), py(y[i]), 3, 0, 7);
      pen.fill();
    }
  }

  /** The range of the values that a point stands for, or else the line before smoothing. */
  #band(pen, { curve, weight, colour }, alpha) {
    if (!weight && !curve.low) return;
    const { px, py } = this.scale;
    pen.fillStyle = pen.strokeStyle = colour;
    pen.globalAlpha = curve.low ? alpha : 1.6 * alpha;
    pen.lineWidth = 1;
    pen.beginPath();
    if (!curve.low) {
      curve.y.forEach((v, i) => { if (v !== null && this.#value(v) !== null) pen.lineTo(px(curve.x[i]), py(this.#value(v))); });
      return pen.stroke();
    }
    const there = curve.x.map((_, i) => i).filter((i) => curve.low[i] !== null && this.#value(curve.low[i]) !== null);
    for (const i of there) pen.lineTo(px(curve.x[i]), py(this.#value(curve.high[i])));
    for (const i of there.reverse()) pen.lineTo(px(curve.x[i]), py(this.#value(curve.low[i])));
    pen.fill();
  }

  /** The limit of the values, and the step whose frame is shown. */
  #levels(pen) {
    const { px, py, right, bottom } = this.scale;
    const limit = this.#value(this.page.limits[this.stream + "/" + this.name] ?? null);
    pen.lineWidth = 1;
    const rule = (colour, dash, ...ends) => {
      pen.strokeStyle = css(colour);
      pen.setLineDash(dash);
      pen.beginPath();
      pen.moveTo(...ends[0]);
      pen.lineTo(...ends[1]);
      pen.stroke();
    };
    if (limit !== null) rule("--bad", [], [PAD.left, Math.round(py(limit))], [right, Math.round(py(limit))]);
    if (this.page.mark === null || this.isOwn || this.axis !== "step") return;
    const x = Math.round(px(this.page.mark));
    rule("--s3", [4, 3], [x, PAD.top], [x, bottom]);
    pen.setLineDash([]);
  }

  /** Values that are not finite: a click there leads to the frame of that step. */
  #holes(pen, { curve, colour }) {
    const { px, right, bottom } = this.scale;
    pen.fillStyle = colour;
    pen.strokeStyle = css("--bad");
    pen.lineWidth = 1.5;
    for (const hole of curve.holes ?? []) {
      const x = px(hole);
      if (x < PAD.left || x > right) continue;
      pen.beginPath();
      pen.moveTo(x, bottom - 9);
      pen.lineTo(x + 5, bottom);
      pen.lineTo(x - 5, bottom);
      pen.closePath();
      pen.fill();
      pen.stroke();
    }
  }

  #axes(pen, x0, x1, y0, y1, width) {
    const { px, py, right, bottom } = this.scale;
    pen.strokeStyle = css("--line");
    pen.fillStyle = css("--soft");
    pen.lineWidth = pen.globalAlpha = 1;
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const t of this.isLog ? powers(y0, y1) : ticks(y0, y1, 5, isBytes(this.name))) {
      const y = Math.round(py(t)) + 0.5;
      pen.beginPath();
      pen.moveTo(PAD.left, y);
      pen.lineTo(right, y);
      pen.stroke();
      pen.fillText(format(this.name, Number((this.isLog ? 10 ** t : t).toPrecision(12))), PAD.left - 6, y, PAD.left - 8);
    }
    pen.textBaseline = "top";
    pen.textAlign = "center";
    let free = 0;
    for (const t of ticks(x0, x1, Math.max(2, Math.floor(width / 110)))) {
      const text = place(this.axis, t, x1 - x0);
      const half = pen.measureText(text).width / 2;
      const x = Math.min(Math.max(px(t), half + 2), width - half - 2);
      if (x - half < free) continue;
      free = x + half + 10;
      pen.fillText(text, x, bottom + 7);
    }
  }

  #say(lines, pen) {
    const value = (text) => make("b", { text: format(this.name, text) });
    const named = ({ label, colour }, text) => {
      const swatch = make("i", { kind: "swatch" });
      swatch.style.background = colour;
      return [swatch, label + " ", value(text), " "];
    };
    const words = lines.slice(0, 20).map((line) => `${line.label}: ${format(this.name, line.curve.y[0])} at ${this.#word(line.curve.x[0])}, ${format(this.name, line.last)} at ${this.#word(last(line.curve.x))}`);
    const label = `Chart of ${words.join("; ") || this.title}`;
    if (this.canvas.getAttribute("aria-label") !== label) this.canvas.setAttribute("aria-label", label);
    if (this.at === null || !lines.length) {
      const parts = lines.length === 1 ? [value(lines[0].last)] : this.page.alone ? lines.flatMap((line) => named(line, line.last)) : [lines.length ? `${lines.length} runs` : "hidden"];
      // Short steps are thinned: the curve says so.
      if (this.page.alone && !this.stream && this.page.stride > 1) parts.unshift(`every ${number(this.page.stride)}th step  `);
      return this.read.replaceChildren(...parts);
    }
    const x = this.scale.px(this.at);
    pen.strokeStyle = css("--faint");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x, PAD.top);
    pen.lineTo(x, this.scale.bottom);
    pen.stroke();
    const near = [...lines].sort((a, b) => Boolean(b.isPinned) - Boolean(a.isPinned)).slice(0, 4).map((line) => [line, nearest(line.curve.x, this.at)]);
    const [[first, i]] = near;
    const parts = lines.length === 1 && this.page.alone ? [value(first.curve.y[i])] : near.flatMap(([line, i]) => named(line, line.curve.y[i]));
    this.read.replaceChildren(`${this.#word(first.curve.x[i])}  `, ...parts);
  }

  #word(x) {
    return this.axis === "step" && !this.isOwn ? "step " + number(x) : place(this.axis, x, 0);
  }

  /** The chart as a picture, on the colour of the page and with the names of the lines. */
  picture() {
    const dense = window.devicePixelRatio || 1;
    const lines = this.lines();
    const row = 18 * dense;
    const made = make("canvas", { width: this.canvas.width, height: this.canvas.height + row * (1 + Math.min(lines.length, 24)) + 8 * dense });
    const pen = made.getContext("2d");
    pen.fillStyle = css("--card");
    pen.fillRect(0, 0, made.width, made.height);
    pen.fillStyle = css("--ink");
    pen.font = `600 ${14 * dense}px system-ui, sans-serif`;
    pen.fillText(this.title, 8 * dense, 15 * dense);
    pen.drawImage(this.canvas, 0, row + 4 * dense);
    pen.font = `${12 * dense}px system-ui, sans-serif`;
    lines.slice(0, 24).forEach(({ label, colour }, i) => {
      const y = row + this.canvas.height + i * row + 14 * dense;
      pen.fillStyle = colour;
      pen.fillRect(10 * dense, y - 9 * dense, 10 * dense, 10 * dense);
      pen.fillStyle = css("--ink");
      pen.fillText(label, 26 * dense, y);
    });
    made.toBlob((blob) => this.page.download(blob, this.title + ".png"));
  }

  csv() {
    const quote = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const rows = [`${this.page.alone ? "column" : "run"},${this.isOwn ? "step" : this.page.axis},mean,low,high`];
    for (const { label, curve: { x, y, low, high } } of this.lines()) {
      for (let i = 0; i < x.length; i++) rows.push([quote(label), x[i], y[i] ?? "nan", (low ?? y)[i] ?? "nan", (high ?? y)[i] ?? "nan"].join(","));
    }
    this.page.download(new Blob([rows.join("\n") + "\n"], { type: "text/csv" }), this.title + ".csv");
  }
}

/** The name of the chart that shows a column; empty if none does. */
export function chartOf(run, stream, column, isAlone) {
  // Of a histogram they are its edges, which its own picture shows.
  if (/^(low|high|not_finite)$/.test(column) && run.histograms.includes(stream)) return "";
  if (stream === "watch" && column !== "overhead" && column !== STEP_SECONDS) return "";
  return isAlone ? family(column) : column;
}

/** Charts in order: what is looked at most comes first. */
export function rankOf(stream, name) {
  if (name === STEP_SECONDS) return 50;
  if (stream) return stream === "watch" ? 80 : 60;
  return 10 * [/^loss$/, /loss/, /acc/, /./].findIndex((pattern) => pattern.test(family(name)));
}
