// Histograms over time: a column of colours for each step, darker where values are more.
import { clearedPen } from "./cells.js";
import { ask } from "./ask.js";
import { css, make, number } from "./format.js";

const LEFT = 58;
const BOTTOM = 22;

function isHistogram(about) {
  return "counts" in about.frames && about.columns.includes("low") && about.columns.includes("high");
}

export class Histograms {
  #charts = new Map();

  constructor(root, page) {
    this.root = root;
    this.page = page;
  }

  told(streams) {
    for (const [stream, about] of Object.entries(streams)) {
      if (!isHistogram(about)) continue;
      if (!this.#charts.has(stream)) this.#charts.set(stream, this.#make(stream));
      const chart = this.#charts.get(stream);
      if (chart.count === about.frames.counts.count || chart.busy) continue;
      chart.busy = true;
      ask("histogram", { run: this.page.alone.id, stream, count: 200 })
        .then(async (answer) => { chart.data = await answer.json(); chart.count = about.frames.counts.count; draw(chart); })
        .catch(() => {})
        .finally(() => { chart.busy = false; });
    }
  }

  redraw() {
    for (const chart of this.#charts.values()) draw(chart);
  }

  #make(stream) {
    const canvas = make("canvas", { kind: "plot", role: "img", "aria-label": "Histograms of " + stream });
    const root = make("div", { kind: "chart" }, make("div", { kind: "cap" }, make("h3", { text: stream + " · histogram" })), canvas);
    this.root.parentElement.hidden = false;
    this.root.append(root);
    const chart = { stream, canvas, data: null, count: -1, busy: false };
    new ResizeObserver(() => draw(chart)).observe(root);
    return chart;
  }
}

function draw({ canvas, data, stream }) {
  const width = canvas.parentElement.clientWidth;
  if (!data?.steps.length || !width) return;
  const height = canvas.clientHeight || 220;
  canvas.style.width = "100%";
  const pen = clearedPen(canvas, width, height);
  const { steps, counts } = data;
  const ends = steps.map((_, i) => [data.low[i] ?? 0, data.high[i] ?? 0]);
  let low = Math.min(...ends.map((e) => e[0]));
  let high = Math.max(...ends.map((e) => e[1]));
  if (!(low < high)) { low -= 0.5; high += 0.5; }
  const [w, h] = [width - LEFT - 8, height - BOTTOM - 8];
  const y = (v) => 8 + h - ((v - low) / (high - low)) * h;
  // The density, so that bins of different widths compare.
  const density = counts.map((row, i) => row.map((c) => c / Math.max((ends[i][1] - ends[i][0]) / row.length, 1e-30)));
  const most = density.map((row) => Math.max(...row, 1e-30));
  pen.fillStyle = css("--s0");
  steps.forEach((_, i) => {
    const x = LEFT + (i / steps.length) * w;
    density[i].forEach((d, k) => {
      if (!d) return;
      const [from, to] = ends[i];
      const bottom = from + ((to - from) * k) / density[i].length;
      const top = from + ((to - from) * (k + 1)) / density[i].length;
      pen.globalAlpha = 0.12 + 0.88 * Math.sqrt(d / most[i]);
      const tall = Math.max(y(bottom) - y(top), 1);
      pen.fillRect(x, to > from ? y(top) : y(from) - 1, Math.max(w / steps.length, 1) + 0.5, tall + 0.3);
    });
  });
  pen.globalAlpha = 1;
  pen.fillStyle = css("--soft");
  pen.font = "12px system-ui, sans-serif";
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const share of [0, 0.5, 1]) pen.fillText(number(low + share * (high - low), 3), LEFT - 6, 8 + h - share * h);
  pen.textBaseline = "top";
  pen.textAlign = "left";
  pen.fillText(number(steps[0]), LEFT, height - BOTTOM + 6);
  pen.textAlign = "right";
  pen.fillText(number(steps[steps.length - 1]), width - 8, height - BOTTOM + 6);
  canvas.setAttribute("aria-label", `Histograms of ${stream} from step ${steps[0]} to ${steps[steps.length - 1]}, values from ${number(low, 3)} to ${number(high, 3)}`);
}
