// The script of a report, after charts.js: films, and tables that sort. The page's policy
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
    this.strip = element.querySelector(".strip");
    this.range = element.querySelector("input[type=range]");
    this.out = element.querySelector("output");
    this.button = element.querySelector(".play");
    this.label = element.getAttribute("aria-label");
    this.at = meta.steps.length - 1;
    this.small = document.createElement("canvas");
    this.small.width = meta.columns;
    this.small.height = meta.rows;
    this.range.addEventListener("input", () => this.go(Number(this.range.value), true));
    this.button.addEventListener("click", () => this.play());
    element.addEventListener("keydown", (event) => this.key(event));
    this.strip.addEventListener("pointerdown", (event) => this.drag(event));
    this.strip.addEventListener("pointermove", (event) => {
      if (event.buttons) this.drag(event);
    });
    if (meta.steps.length < 2) {
      this.strip.hidden = true;
      this.strip.style.display = "none";
      this.button.disabled = this.range.disabled = true;
    }
  }
  key(event) {
    if (event.target === this.button && event.key === " ") return;
    const last = this.meta.steps.length - 1;
    const to = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1,
      ArrowDown: this.at - 1, ArrowUp: this.at + 1,
      PageUp: this.at + 10, PageDown: this.at - 10, Home: 0, End: last }[event.key];
    if (event.key === " ") this.play();
    else if (to !== undefined) this.go(to, true);
    else return;
    event.preventDefault();
  }
  drag(event) {
    const box = this.strip.getBoundingClientRect();
    const part = (event.clientX - box.left) / box.width;
    this.go(Math.round(part * (this.meta.steps.length - 1)), true);
  }
  play() {
    if (this.timer) return this.stop();
    if (this.at === this.meta.steps.length - 1) this.go(0, true);
    this.button.textContent = "❚❚";
    this.button.setAttribute("aria-label", "pause");
    const wait = Math.max(40, Math.min(250, 12000 / this.meta.steps.length));
    this.timer = setInterval(() => {
      if (this.at >= this.meta.steps.length - 1) this.stop();
      else this.go(this.at + 1, true);
    }, wait);
  }
  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.button.textContent = "▶";
    this.button.setAttribute("aria-label", "play");
  }
  go(to, asked) {
    this.at = Math.max(0, Math.min(this.meta.steps.length - 1, to));
    this.range.value = this.at;
    this.draw();
    this.mark();
    if (!asked) return;
    const step = this.meta.steps[this.at];
    for (const chart of charts)
      if (chart.low <= step && step <= chart.high) chart.show(step);
  }
  frame(i) {
    const size = this.codes.length / this.meta.steps.length;
    return this.codes.subarray(i * size, (i + 1) * size);
  }
  paint(i) {
    const { rows, columns, kind } = this.meta;
    const codes = this.frame(i);
    const image = new ImageData(columns, rows);
    const table = (kind === "ramp" ? tables.ramp : tables.palettes[palette.value])
      .map(rgb);
    for (let c = 0; c < rows * columns; c++) {
      let colour;
      if (kind === "colours") colour = codes.subarray(3 * c, 3 * c + 3);
      else if (codes[c] === UNKNOWN) continue;
      else colour = table[codes[c]];
      image.data.set([colour[0], colour[1], colour[2], 255], 4 * c);
    }
    this.small.getContext("2d").putImageData(image, 0, 0);
    this.pixels = image.data;
    return codes;
  }
  draw() {
    const { rows, columns, kind } = this.meta;
    const dense = window.devicePixelRatio || 1;
    const room = Math.min(this.element.clientWidth - 24, 460);
    let cell = Math.max(1, Math.floor(Math.min(room / columns, 460 / rows, 40)));
    const wide = Math.min(cell * columns, room);
    cell = wide / columns;
    const high = cell * rows;
    const screen = this.screen;
    screen.width = Math.round(wide * dense);
    screen.height = Math.round(high * dense);
    screen.style.width = wide + "px";
    screen.style.height = high + "px";
    const pen = screen.getContext("2d");
    pen.scale(dense, dense);
    const codes = this.paint(this.at);
    pen.fillStyle = style("--pad");
    pen.fillRect(0, 0, wide, high);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.small, 0, 0, wide, high);
    const step = this.meta.steps[this.at];
    const [low, top] = this.meta.ranges[this.at];
    if (cell >= 5) {
      pen.strokeStyle = "rgba(122,130,140,.5)";
      pen.lineWidth = 1;
      pen.beginPath();
      for (let r = 0; r <= rows; r++) {
        pen.moveTo(0, r * cell);
        pen.lineTo(wide, r * cell);
      }
      for (let c = 0; c <= columns; c++) {
        pen.moveTo(c * cell, 0);
        pen.lineTo(c * cell, high);
      }
      if (kind !== "colours")
        for (let i = 0; i < codes.length; i++)
          if (codes[i] === UNKNOWN) {
            const x = (i % columns) * cell, y = Math.floor(i / columns) * cell;
            pen.moveTo(x + cell / 4, y + 3 * cell / 4);
            pen.lineTo(x + 3 * cell / 4, y + cell / 4);
          }
      pen.stroke();
    }
    if (numbers.checked && cell >= 9 && kind !== "colours") {
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      for (let i = 0; i < codes.length; i++) {
        if (codes[i] === UNKNOWN) continue;
        const said = kind === "digits" ? String(codes[i])
          : (low + codes[i] / 254 * (top - low)).toPrecision(2);
        const [r, g, b] = this.pixels.subarray(4 * i, 4 * i + 3);
        pen.fillStyle = 0.2126 * r + 0.7152 * g + 0.0722 * b > 140 ? "#000" : "#fff";
        const size = Math.min(cell * 0.62, 1.5 * cell / said.length);
        pen.font = size + "px system-ui, sans-serif";
        const x = i % columns + 0.5, y = Math.floor(i / columns) + 0.54;
        pen.fillText(said, x * cell, y * cell);
      }
    }
    if (changes.checked && this.at > 0) {
      const past = this.frame(this.at - 1);
      const channels = kind === "colours" ? 3 : 1;
      for (let i = 0; i < rows * columns; i++) {
        let same = true;
        for (let k = 0; k < channels; k++)
          same = same && codes[channels * i + k] === past[channels * i + k];
        if (same) continue;
        const inset = Math.max(1, cell / 8);
        const x = (i % columns) * cell, y = Math.floor(i / columns) * cell;
        const side = cell - 2 * inset;
        const box = [x + inset, y + inset, side, side];
        pen.lineWidth = 3; pen.strokeStyle = "#fff"; pen.strokeRect(...box);
        pen.lineWidth = 1; pen.strokeStyle = "#000"; pen.strokeRect(...box);
      }
    }
    const range = kind === "ramp" ? ", " + low + " to " + top : "";
    this.out.textContent = "step " + step.toLocaleString("en");
    this.range.setAttribute("aria-valuetext", "step " + step);
    const [r, c] = this.meta.sizes[this.at];
    const said = r + " × " + c + range;
    screen.setAttribute("aria-label", this.label + ", step " + step + ", " + said);
    screen.title = said;
  }
  tile() {
    const count = this.meta.steps.length;
    if (count < 2) return;
    const dense = window.devicePixelRatio || 1;
    const wide = this.element.clientWidth, high = 46;
    const natural = high / this.meta.rows * this.meta.columns;
    const each = Math.max(20, Math.min(natural, wide / 4));
    const fit = Math.max(2, Math.min(count, Math.floor(wide / (each + 4))));
    const sheet = document.createElement("canvas");
    sheet.width = Math.round(wide * dense);
    sheet.height = Math.round((high + 6) * dense);
    const pen = sheet.getContext("2d");
    pen.scale(dense, dense);
    pen.imageSmoothingEnabled = false;
    const gap = (wide - each) / (fit - 1);
    const tall = Math.min(high, each * this.meta.rows / this.meta.columns);
    for (let n = 0; n < fit; n++) {
      this.paint(Math.round(n * (count - 1) / (fit - 1)));
      pen.fillStyle = style("--pad");
      pen.fillRect(n * gap, (high - tall) / 2, each, tall);
      pen.drawImage(this.small, n * gap, (high - tall) / 2, each, tall);
    }
    this.sheet = sheet;
    this.each = each;
    this.mark();
  }
  mark() {
    if (!this.sheet) return;
    const dense = window.devicePixelRatio || 1;
    this.strip.width = this.sheet.width;
    this.strip.height = this.sheet.height;
    this.strip.style.width = this.sheet.width / dense + "px";
    this.strip.style.height = this.sheet.height / dense + "px";
    const pen = this.strip.getContext("2d");
    pen.drawImage(this.sheet, 0, 0);
    pen.scale(dense, dense);
    const part = this.at / (this.meta.steps.length - 1);
    const x = part * (this.sheet.width / dense - this.each);
    pen.fillStyle = style("--s0");
    pen.fillRect(x, 49, this.each, 3);
  }
  whole() { this.tile(); this.draw(); }
}

(async () => {
  const films = [];
  for (const element of document.querySelectorAll(".film")) {
    const meta = JSON.parse(element.querySelector(".film-data").textContent);
    films.push(new Film(element, meta, await unpack(meta.data)));
  }
  const all = () => films.forEach((film) => film.whole());
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
