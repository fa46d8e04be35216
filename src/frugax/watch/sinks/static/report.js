// The script of a report, after charts.js, cells.js and player.js: films, and tables that sort. The page's policy
// allows it by its hash.
// Films.
const style = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const colours = document.querySelector(".film-colours");
const tables = colours ? JSON.parse(colours.textContent) : null;
const palette = document.querySelector("select.palette");
const numbers = document.querySelector("input.numbers");
const changes = document.querySelector("input.changes");
const UNKNOWN = 255;

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream()
    .pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

class Film {
  constructor(element, meta, codes) {
    Object.assign(this, { element, meta, codes });
    this.screen = element.querySelector(".screen");
    this.out = element.querySelector("output");
    this.label = element.getAttribute("aria-label");
    const slider = element.querySelector("input[type=range]");
    const button = element.querySelector(".play");
    this.player = new Player(slider, button, {
      show: () => { this.draw(); this.readCharts(); },
      told: (isPlaying) => {
        button.textContent = isPlaying ? "❚❚" : "▶";
        button.setAttribute("aria-label", isPlaying ? "pause" : "play");
      },
      perSecond: () => Math.min(25, Math.max(4, meta.steps.length / 12)),
    });
    this.player.count = meta.steps.length;
    this.player.at = meta.steps.length - 1;
    element.addEventListener("keydown", (event) => {
      if (event.target !== button || event.key !== " ") this.player.press(event);
    });
    button.disabled = slider.disabled = meta.steps.length < 2;
  }
  readCharts() {
    const step = this.meta.steps[this.player.at];
    for (const chart of charts)
      if (chart.low <= step && step <= chart.high) chart.show(step);
  }
  frame(i) {
    const size = this.codes.length / this.meta.steps.length;
    return this.codes.subarray(i * size, (i + 1) * size);
  }
  colours(codes) {
    const { columns, kind } = this.meta;
    const table = (kind === "ramp" ? tables.ramp : tables.palettes[palette.value]).map(rgb);
    if (kind === "colours") return (x, y) => codes.subarray(3 * (y * columns + x));
    return (x, y) => table[codes[y * columns + x]] ?? null;
  }
  draw() {
    const { rows, columns, kind } = this.meta;
    const at = this.player.at;
    const room = Math.min(this.element.clientWidth - 24, 460);
    const cell = Math.max(1, Math.floor(Math.min(room / columns, 460 / rows, 40)));
    const codes = this.frame(at);
    const before = changes.checked && at > 0 ? this.frame(at - 1) : null;
    const [low, high] = this.meta.ranges[at];
    const depth = kind === "colours" ? 3 : 1;
    const code = (x, y) => codes[y * columns + x];
    drawCells(this.screen, columns, rows, Math.min(cell, room / columns), {
      colour: this.colours(codes),
      ground: style("--pad"),
      hasLines: true,
      isMissing: kind !== "colours" && ((x, y) => code(x, y) === UNKNOWN),
      text: numbers.checked && kind !== "colours" && ((x, y) => (kind === "digits"
        ? String(code(x, y)) : (low + code(x, y) / 254 * (high - low)).toPrecision(2))),
      hasChanged: before && ((x, y) => {
        const place = depth * (y * columns + x);
        for (let i = place; i < place + depth; i++) if (codes[i] !== before[i]) return true;
        return false;
      }),
    });
    const step = this.meta.steps[at].toLocaleString("en");
    this.out.textContent = "step " + step;
    this.player.slider.setAttribute("aria-valuetext", "step " + this.meta.steps[at]);
    const range = kind === "ramp" ? ", " + low + " to " + high : "";
    const said = this.meta.sizes[at].join(" × ") + range;
    this.screen.setAttribute("aria-label", this.label + ", step " + step + ", " + said);
    this.screen.title = said;
  }
}

(async () => {
  const films = [];
  for (const element of document.querySelectorAll(".film")) {
    const meta = JSON.parse(element.querySelector(".film-data").textContent);
    films.push(new Film(element, meta, await unpack(meta.data)));
  }
  const all = () => films.forEach((film) => film.draw());
  all();
  if (!films.length) return;
  palette.addEventListener("change", all);
  numbers.addEventListener("change", all);
  changes.addEventListener("change", all);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(all);
  });
  document.documentElement.classList.add("ready");
})();

// Tables: a click on a heading sorts by it.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, i) => {
    const cell = row.cells[i];
    const text = cell.dataset.v ?? cell.textContent.replace(/,/g, "");
    return text === "" ? NaN : Number(text);
  };
  heads.forEach((head, i) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const x = value(a, i), y = value(b, i);
      if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
      return down ? y - x : x - y;
    });
    table.tBodies[0].append(...rows);
  }));
}
