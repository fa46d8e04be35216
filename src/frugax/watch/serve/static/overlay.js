// One metric of many runs on one canvas: lines, the band of the raw values, and holes.
// Not by uPlot, whose lines share one x: a hundred runs of different steps, joined, would be
// a hundred times as many points.
import { duration } from "./alive.js";
import { format, number, smoothed } from "./charts.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const PAD = { left: 58, right: 12, top: 8, bottom: 24 };

function ticks(low, high, most) {
  const rough = (high - low) / Math.max(most, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const by = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let t = Math.ceil(low / by) * by; t <= high + by * 1e-9; t += by) found.push(Math.abs(t) < by * 1e-9 ? 0 : t);
  return found;
}

function powers(low, high) {
  const found = [];
  const by = Math.max(1, Math.ceil((high - low) / 5));
  for (let t = Math.ceil(low); t <= high; t += by) found.push(t);
  return found.length ? found : [low];
}

export class Overlay {
  curves = {}; // run -> {x, y, low, high, holes, hole_steps}
  #hover = null;
  #drag = null;

  constructor(page, stream, column) {
    Object.assign(this, { page, stream, column });
    this.title = (stream ? stream + " · " : "") + column;
    const make = (tag, kind, text) => {
      const made = document.createElement(tag);
      if (kind) made.className = kind;
      if (text) made.textContent = text;
      return made;
    };
    this.root = make("div", "overlay");
    const cap = make("div", "cap");
    this.read = make("span", "read");
    const button = (text, label, act) => {
      const made = make("button", "ghost", text);
      made.type = "button";
      made.setAttribute("aria-label", label + " of " + this.title);
      made.onclick = act;
      return made;
    };
    cap.append(make("h3", "", this.title), button("picture", "Picture", () => this.picture()), button("CSV", "CSV", () => this.csv()), this.read);
    this.canvas = make("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", this.title);
    this.root.append(cap, this.canvas);
    this.canvas.addEventListener("pointermove", (e) => { this.#hover = e.offsetX; if (this.#drag !== null) this.#drag[1] = e.offsetX; this.draw(); });
    this.canvas.addEventListener("pointerleave", () => { this.#hover = this.#drag = null; this.draw(); });
    this.canvas.addEventListener("pointerdown", (e) => { this.#drag = [e.offsetX, e.offsetX]; });
    this.canvas.addEventListener("pointerup", (e) => this.#drop(e.offsetX));
    this.canvas.addEventListener("dblclick", () => page.zoom(null));
  }

  #drop(x) {
    const drag = this.#drag;
    this.#drag = null;
    if (!drag || !this.scale) return;
    const [low, high] = [Math.min(drag[0], x), Math.max(drag[0], x)].map((at) => this.scale.x(at));
    if (Math.abs(x - drag[0]) > 5) return this.page.zoom([low, high]);
    // A click on the mark of a hole leads to the run, at that step.
    for (const [run, curve] of this.shown()) {
      const at = (curve.holes ?? []).findIndex((h) => Math.abs(this.scale.px(h) - x) < 6);
      if (at >= 0) { location.href = `run/${run.id}/?step=${curve.hole_steps[at]}`; return; }
    }
  }

  shown() {
    const found = [];
    for (const run of this.page.shown()) if (this.curves[run.id]?.x.length) found.push([run, this.curves[run.id]]);
    return found;
  }

  value(v) {
    return this.page.log ? (v > 0 ? Math.log10(v) : null) : v;
  }

  draw() {
    const { canvas } = this;
    const dense = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width) return;
    if (canvas.width !== Math.round(width * dense) || canvas.height !== Math.round(height * dense)) {
      canvas.width = Math.round(width * dense);
      canvas.height = Math.round(height * dense);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    pen.clearRect(0, 0, width, height);
    const lines = this.shown().map(([run, curve]) => ({ run, curve, y: smoothed(curve.y, this.page.weight).map((v) => (v === null ? null : this.value(v))) }));
    const finite = [];
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { curve, y } of lines) {
      x0 = Math.min(x0, curve.x[0]);
      x1 = Math.max(x1, curve.x[curve.x.length - 1]);
      for (const v of y) if (v !== null) finite.push(v);
    }
    // A single spike must not press all lines flat: the ends leave out one in 500.
    finite.sort((a, b) => a - b);
    if (finite.length) {
      const out = Math.floor(finite.length / 500);
      [y0, y1] = [finite[out], finite[finite.length - 1 - out]];
      // Nor may a run that diverged: thousands of times the range of most values.
      const tenth = Math.floor(finite.length / 10);
      const [low, high] = [finite[tenth], finite[finite.length - 1 - tenth]];
      if (high > low && y1 - y0 > 1000 * (high - low)) [y0, y1] = [Math.max(y0, low - 2 * (high - low)), Math.min(y1, high + 2 * (high - low))];
    } else [y0, y1] = [0, 1];
    if (this.page.stretch) [x0, x1] = this.page.stretch;
    if (!(x0 < x1)) [x0, x1] = Number.isFinite(x0) ? [x0 - 1, x0 + 1] : [0, 1];
    const room = (y1 - y0 || Math.abs(y0) || 1) * 0.06;
    y0 = !this.page.log && y0 >= 0 && y0 < 0.35 * y1 ? 0 : y0 - room;
    y1 += room;
    const px = (x) => PAD.left + ((x - x0) / (x1 - x0)) * (width - PAD.left - PAD.right);
    const py = (y) => height - PAD.bottom - ((y - y0) / (y1 - y0)) * (height - PAD.top - PAD.bottom);
    this.scale = { px, x: (at) => x0 + ((at - PAD.left) / (width - PAD.left - PAD.right)) * (x1 - x0) };
    this.#axes(pen, { x0, x1, y0, y1, px, py, width, height });
    pen.save();
    pen.beginPath();
    pen.rect(PAD.left, PAD.top, width - PAD.left - PAD.right, height - PAD.top - PAD.bottom);
    pen.clip();
    const pinned = lines.some(({ run }) => run.pinned);
    for (const { run, curve } of lines) this.#band(pen, run, curve, px, py, lines.length, pinned);
    for (const { run, curve, y } of lines.sort((a, b) => a.run.pinned - b.run.pinned)) {
      pen.strokeStyle = run.colour;
      pen.globalAlpha = pinned && !run.pinned ? 0.3 : 1;
      pen.lineWidth = run.pinned ? 2.4 : lines.length > 30 ? 1 : 1.5;
      pen.beginPath();
      let open = false;
      for (let i = 0; i < y.length; i++) {
        if (y[i] === null) { open = false; continue; }
        if (open) pen.lineTo(px(curve.x[i]), py(y[i])); else pen.moveTo(px(curve.x[i]), py(y[i]));
        open = true;
      }
      pen.stroke();
      if (y.length <= 3) for (let i = 0; i < y.length; i++) if (y[i] !== null) { pen.fillStyle = run.colour; pen.beginPath(); pen.arc(px(curve.x[i]), py(y[i]), 3, 0, 7); pen.fill(); }
    }
    pen.restore();
    pen.globalAlpha = 1;
    for (const { run, curve } of lines) {
      for (const hole of curve.holes ?? []) {
        const x = px(hole);
        if (x < PAD.left || x > width - PAD.right) continue;
        pen.fillStyle = run.colour;
        pen.strokeStyle = css("--bad");
        pen.lineWidth = 1.5;
        pen.beginPath();
        pen.moveTo(x, height - PAD.bottom - 9);
        pen.lineTo(x + 5, height - PAD.bottom);
        pen.lineTo(x - 5, height - PAD.bottom);
        pen.closePath();
        pen.fill();
        pen.stroke();
      }
    }
    if (this.#drag) {
      pen.fillStyle = css("--tint");
      pen.globalAlpha = 0.6;
      pen.fillRect(Math.min(...this.#drag), PAD.top, Math.abs(this.#drag[1] - this.#drag[0]), height - PAD.top - PAD.bottom);
      pen.globalAlpha = 1;
    }
    this.#say(lines, pen, height);
    if (lines.length && !performance.getEntriesByName("first-chart").length) performance.mark("first-chart");
  }

  #band(pen, run, curve, px, py, many, pinned) {
    if (!this.page.weight && !curve.low) return;
    pen.fillStyle = pen.strokeStyle = run.colour;
    pen.globalAlpha = (many > 12 ? 0.05 : 0.18) * (pinned && !run.pinned ? 0.4 : 1);
    if (!curve.low) { // each point is one record: the raw line, faintly
      pen.globalAlpha *= 1.6;
      pen.lineWidth = 1;
      pen.beginPath();
      curve.y.forEach((v, i) => { const y = v === null ? null : this.value(v); if (y !== null) pen.lineTo(px(curve.x[i]), py(y)); });
      pen.stroke();
      return;
    }
    pen.beginPath();
    const there = curve.x.map((_, i) => i).filter((i) => curve.low[i] !== null && this.value(curve.low[i]) !== null);
    for (const i of there) pen.lineTo(px(curve.x[i]), py(this.value(curve.high[i])));
    for (const i of there.reverse()) pen.lineTo(px(curve.x[i]), py(this.value(curve.low[i])));
    pen.fill();
  }

  #axes(pen, { x0, x1, y0, y1, px, py, width, height }) {
    pen.strokeStyle = css("--line");
    pen.fillStyle = css("--soft");
    pen.lineWidth = 1;
    pen.globalAlpha = 1;
    pen.font = "12px system-ui, sans-serif";
    const rows = this.page.log ? powers(y0, y1) : ticks(y0, y1, 5);
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const t of rows) {
      const y = Math.round(py(t)) + 0.5;
      pen.beginPath();
      pen.moveTo(PAD.left, y);
      pen.lineTo(width - PAD.right, y);
      pen.stroke();
      pen.fillText(format(this.column, this.page.log ? 10 ** t : Number(t.toPrecision(12))), PAD.left - 6, y, PAD.left - 8);
    }
    pen.textBaseline = "top";
    pen.textAlign = "center";
    let free = 0;
    for (const t of ticks(x0, x1, Math.max(2, Math.floor(width / 110)))) {
      const text = this.page.place(t, x1 - x0);
      const half = pen.measureText(text).width / 2;
      const x = Math.min(Math.max(px(t), half + 2), width - half - 2);
      if (x - half < free) continue;
      free = x + half + 10;
      pen.fillText(text, x, height - PAD.bottom + 7);
    }
  }

  #say(lines, pen, height) {
    if (this.#hover === null || !lines.length) {
      const best = lines.length === 1 ? format(this.column, lines[0].curve.y.findLast((v) => v !== null)) : `${lines.length} runs`;
      this.read.textContent = lines.length ? best : "hidden";
      const words = lines.slice(0, 20).map(({ run, curve }) => `${run.name} ends at ${format(this.column, curve.y.findLast((v) => v !== null))}`);
      this.canvas.setAttribute("aria-label", `Chart of ${this.title}: ${words.join("; ")}`);
      return;
    }
    const at = this.scale.x(this.#hover);
    const near = lines.map(({ run, curve }) => {
      let i = curve.x.findIndex((x) => x >= at);
      if (i < 0) i = curve.x.length - 1;
      if (i && at - curve.x[i - 1] < curve.x[i] - at) i--;
      return { run, x: curve.x[i], y: curve.y[i] };
    }).sort((a, b) => b.run.pinned - a.run.pinned).slice(0, 4);
    pen.strokeStyle = css("--faint");
    pen.beginPath();
    pen.moveTo(this.#hover, PAD.top);
    pen.lineTo(this.#hover, height - PAD.bottom);
    pen.stroke();
    this.read.replaceChildren(`${this.page.place(near[0].x, 0)}: `, ...near.flatMap(({ run, y }, i) => {
      const dot = document.createElement("i");
      dot.className = "swatch";
      dot.style.background = run.colour;
      return [...(i ? [" "] : []), dot, `${run.name} ${format(this.column, y)}`];
    }));
  }

  /** The chart as a picture, on the colour of the page and with the names of the runs. */
  picture() {
    const dense = window.devicePixelRatio || 1;
    const lines = this.shown();
    const made = document.createElement("canvas");
    const row = 18 * dense;
    made.width = this.canvas.width;
    made.height = this.canvas.height + row * (1 + Math.min(lines.length, 24)) + 8 * dense;
    const pen = made.getContext("2d");
    pen.fillStyle = css("--card");
    pen.fillRect(0, 0, made.width, made.height);
    pen.fillStyle = css("--ink");
    pen.font = `600 ${14 * dense}px system-ui, sans-serif`;
    pen.fillText(this.title, 8 * dense, 15 * dense);
    pen.drawImage(this.canvas, 0, row + 4 * dense);
    pen.font = `${12 * dense}px system-ui, sans-serif`;
    lines.slice(0, 24).forEach(([run], i) => {
      const y = row + this.canvas.height + i * row + 14 * dense;
      pen.fillStyle = run.colour;
      pen.fillRect(10 * dense, y - 9 * dense, 10 * dense, 10 * dense);
      pen.fillStyle = css("--ink");
      pen.fillText(run.name, 26 * dense, y);
    });
    made.toBlob((blob) => this.page.download(blob, this.title + ".png"));
  }

  csv() {
    const quote = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const rows = ["run," + this.page.axis + ",mean,low,high"];
    for (const [run, { x, y, low, high }] of this.shown()) {
      for (let i = 0; i < x.length; i++) rows.push([quote(run.name), x[i], y[i] ?? "nan", (low ?? y)[i] ?? "nan", (high ?? y)[i] ?? "nan"].join(","));
    }
    this.page.download(new Blob([rows.join("\n") + "\n"], { type: "text/csv" }), this.title + ".csv");
  }
}

/** How a place of the axis is written. */
export function place(axis, value, span) {
  if (axis === "step") {
    if (Math.abs(value) >= 1e6) return Number((value / 1e6).toPrecision(4)) + "M";
    return Math.abs(value) >= 1e4 && span ? Number((value / 1e3).toPrecision(4)) + "k" : number(value);
  }
  if (axis === "time") return duration(Math.max(value, 0));
  const day = new Date(1000 * value);
  if (span && span < 300) return day.toLocaleTimeString("en-GB");
  const clock = day.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return span && span < 86400 ? clock : `${day.getDate()}.${day.getMonth() + 1}. ${clock}`;
}
