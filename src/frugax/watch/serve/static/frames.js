// Frames in time: one at a time on a canvas, moved through by hand, keys or play.
import { ask } from "./ask.js";
import { find, format, make, number, put } from "./format.js";
import { paint, unpack } from "./paint.js";
import { Player } from "./player.js";

const HELD = 48; // frames kept here, so that moving back and forth asks nobody

export class Frames {
  #picked = ""; // stream and column, as in the <select>
  #known = new Map(); // -> {stream, column, count}
  #follows = true; // stays at the newest
  #cache = new Map();
  #shown = null;
  #before = null; // the frame before it, if what changed is asked for
  #wanted = null; // the number asked for while another is under way
  #busy = false;

  constructor(page) {
    this.page = page;
    page.onPick = (step) => this.#goToStep(step);
    const player = new Player(find("scrub"), find("play"), {
      show: (number) => { this.#follows = number === player.count - 1; this.#show(number); },
      told: (isPlaying) => {
        find("play").classList.toggle("playing", isPlaying);
        find("play").setAttribute("aria-label", isPlaying ? "Pause" : "Play");
        find("play").title = find("play").getAttribute("aria-label") + " (space)";
      },
      perSecond: () => Number(find("speed").value),
      isBusy: () => this.#busy,
    });
    this.player = player;
    const buttons = { "to-first": () => 0, back: () => player.at - 1, on: () => player.at + 1, "to-last": () => Infinity };
    for (const [id, to] of Object.entries(buttons)) find(id).onclick = () => { player.pause(); player.go(to()); };
    find("palette").value = document.documentElement.dataset.palette ?? "arc";
    for (const id of ["palette", "numbers"]) find(id).onchange = () => this.#paint();
    find("changes").onchange = () => this.#show(player.at);
    find("frames-pick").onchange = (e) => this.#pick(e.target.value);
    document.addEventListener("keydown", (e) => this.#key(e));
    find("frame").addEventListener("pointermove", (e) => this.#point(e));
    find("frame").addEventListener("pointerleave", () => put(find("frame-cell"), ""));
    let width = 0;
    new ResizeObserver(() => {
      const now = find("frame").parentElement.clientWidth;
      if (now && now !== width) { width = now; this.#paint(); }
    }).observe(find("frame").parentElement);
  }

  /** What the server has. */
  told(streams) {
    const pick = find("frames-pick");
    if ([...this.#known.values()].some(({ stream, column }) => !streams[stream]?.frames[column])) {
      // Another journal.
      this.#known.clear();
      this.#picked = "";
      pick.replaceChildren();
    }
    for (const [stream, about] of Object.entries(streams)) {
      for (const [column, frames] of listed(about.frames)) {
        const key = stream + "/" + column;
        const before = this.#known.get(key);
        if (before && frames.count < before.count) { this.#cache.clear(); if (key === this.#picked) this.#shown = null; }
        this.#known.set(key, { stream, column, ...frames });
        if (!before) {
          const text = frames.columns ? stream : stream === column || !stream ? column : column.startsWith(stream) ? column : stream + " · " + column;
          pick.append(make("option", { value: key, text }));
        }
      }
    }
    const any = this.#known.size > 0;
    if (find("frames").hidden === any) find("frames").hidden = !any;
    find("frames-pick-label").hidden = this.#known.size < 2;
    if (any && !this.#picked) this.#pick([...this.#known.keys()][0]);
    else if (any) this.#fit();
  }

  /** What was held may be void: the run was rewound, or it is another one. */
  forget() {
    this.#cache.clear();
    this.#shown = null;
  }

  #pick(key) {
    this.#picked = key;
    this.player.at = -1;
    this.#follows = true;
    find("frames-pick").value = key;
    this.#fit();
  }

  #fit() {
    const { player } = this;
    const { count } = this.#about();
    player.count = count;
    player.slider.max = Math.max(count - 1, 0);
    player.slider.value = player.at;
    if (!count) return;
    if (this.#follows && !player.isPlaying) player.go(Infinity);
    else if (player.at >= count || player.at < 0 || !this.#shown) player.go(player.at);
    else this.#label();
  }

  #about() {
    return this.#known.get(this.#picked) ?? { count: 0 };
  }

  pause() {
    this.player.pause();
  }

  #key(event) {
    if (find("frames").hidden || event.ctrlKey || event.metaKey || event.altKey) return;
    const { target: at, key } = event;
    const isScrub = at.id === "scrub";
    const isInside = find("frames").contains(at);
    const isElsewhere = at !== document.body && at.id !== "charts" && !isInside;
    if (isElsewhere || (at.matches("select, input, textarea") && !isScrub)) return;
    const isMeant = key === " " ? isInside && (!at.matches("button") || at.id === "play")
      : /^(Home|End)$/.test(key) ? isInside : isScrub || /^Arrow(Left|Right)$/.test(key);
    if (isMeant) this.player.press(event);
  }

  async #show(number) {
    this.#wanted = number;
    if (this.#busy) return; // the one under way shows the newest wish when it is here
    this.#busy = true;
    try {
      while (this.#wanted !== null) {
        const wanted = this.#wanted;
        this.#wanted = null;
        const frame = await this.#fetch(wanted);
        this.#before = find("changes").checked && wanted > 0 ? await this.#fetch(wanted - 1) : null;
        if (frame) { this.#shown = frame; this.#paint(); this.#label(); }
      }
    } catch (error) {
      put(find("frame-what"), "This frame could not be had: " + error.message);
    } finally {
      this.#busy = false;
    }
    if (this.player.at + 1 < this.#about().count) this.#fetch(this.player.at + 1).catch(() => {});
  }

  async #fetch(number) {
    const { stream, column, columns, hasMask } = this.#about();
    const key = this.#picked + "/" + number;
    if (this.#cache.has(key)) {
      const held = this.#cache.get(key);
      this.#cache.delete(key);
      this.#cache.set(key, held);
      return held;
    }
    const get = async (column) => unpack(await (await ask("frame", { run: this.page.alone.id, stream, column, number })).arrayBuffer());
    const frame = await get(column);
    if (hasMask) frame.mask = (await get("mask")).values;
    if (columns) frame.table = await Promise.all(columns.map(async (name) => [name, (await get(name)).values]));
    this.#cache.set(key, frame);
    const most = Math.max(2, Math.min(HELD, Math.floor(8e6 / (frame.values.byteLength + 1))));
    while (this.#cache.size > most) this.#cache.delete(this.#cache.keys().next().value);
    return frame;
  }

  async #goToStep(step) {
    const { stream, column, count } = this.#about();
    if (!count) return;
    this.player.pause();
    const answer = await ask("frame", { run: this.page.alone.id, stream, column, step: Math.floor(step) }).catch(() => null);
    if (answer) this.player.go(unpack(await answer.arrayBuffer()).number);
  }

  #paint() {
    if (!this.#shown) return;
    const canvas = find("frame");
    const isText = this.#about().column === "utf8";
    const { table } = this.#shown;
    canvas.hidden = isText || Boolean(table);
    find("frame-text").hidden = !isText;
    find("frame-table").hidden = !table;
    if (table) {
      find("frame-table").replaceChildren(tableOf(table));
      find("frame-key").replaceChildren();
      return;
    }
    if (isText) {
      const all = this.#shown.values;
      put(find("frame-text"), new TextDecoder().decode(all.slice(0, all.findLastIndex((c) => c) + 1)));
      find("frame-key").replaceChildren();
      return;
    }
    const room = Math.max(80, Math.min(canvas.parentElement.clientWidth - 22, 420));
    const choices = { palette: find("palette").value, hasNumbers: find("numbers").checked, before: this.#before };
    this.painted = paint(canvas, this.#shown, room, choices);
    const { labels, low, high, colours, isPicture } = this.painted;
    const parts = labels.map(({ value, colour }) => {
      const swatch = make("i");
      swatch.style.background = colour;
      return make("span", {}, swatch, this.#shown.bool ? (value ? "true" : "false") : String(value));
    });
    if (colours && !isPicture) {
      const strip = make("canvas", { width: colours.length, height: 1 });
      const pen = strip.getContext("2d");
      colours.forEach((c, i) => { pen.fillStyle = `rgb(${c.join(",")})`; pen.fillRect(i, 0, 1, 1); });
      parts.push(number(low), strip, number(high));
    }
    find("frame-key").replaceChildren(...parts);
  }

  #label() {
    const { column, columns, count, seen = count } = this.#about();
    const frame = this.#shown;
    if (!frame) return;
    put(find("frame-step"), "step " + frame.step.toLocaleString("en"));
    put(find("frame-number"), `frame ${(frame.number + 1).toLocaleString("en")} of ${count.toLocaleString("en")}${seen > count ? `, of ${seen.toLocaleString("en")} that were recorded` : ""}`);
    const cell = columns ? "row" : "cell";
    const size = (frame.of.length ? frame.of : [1]).join(" × ");
    const every = frame.every > 1 ? `, every ${frame.every}th ${cell} shown` : "";
    put(find("frame-what"), column === "utf8" ? "text" : columns ? `table, ${size} rows${every}` : `${column}, ${size}${every}`);
    const words = `${column} at step ${frame.step}, ${size}`;
    if (find("frame").getAttribute("aria-label") !== words) find("frame").setAttribute("aria-label", words);
    find("scrub").setAttribute("aria-valuetext", `step ${frame.step}, frame ${frame.number + 1} of ${count}`);
    this.page.setMark(frame.step);
    this.#values(frame.step);
  }

  /** The numbers of the step whose frame is shown, or of the last one before it. */
  async #values(step) {
    const { stream } = this.#about();
    const streams = stream ? [stream, ""] : [""];
    const rows = await Promise.all(streams.map(async (name) => {
      const answer = await ask("rows", { run: this.page.alone.id, stream: name, before: step + 1, count: 1 }).catch(() => null);
      return (await answer?.json())?.rows[0] ?? {};
    }));
    if (this.#shown?.step !== step) return;
    const values = rows.flatMap((row) => Object.entries(row)).slice(0, 8);
    find("frame-values").replaceChildren(...values.map(([name, value]) => make("div", {}, make("dt", { text: name }), make("dd", { text: format(name, value) }))));
  }

  #point(event) {
    const box = event.target.getBoundingClientRect();
    const cell = this.painted?.cell(event.clientX - box.left, event.clientY - box.top);
    if (!cell) return put(find("frame-cell"), "");
    const tile = cell.tile === null ? "" : `${cell.tile}: `;
    put(find("frame-cell"), `[${tile}${cell.y}, ${cell.x}] = ${cell.values.map((v) => number(v)).join(", ")}`);
  }
}

/** The frames of a stream; columns of one length are one table. */
function listed(frames) {
  const { mask, ...others } = frames;
  const all = Object.entries(Object.keys(others).length ? others : frames);
  const [first = []] = all;
  const isTable = all.length > 1 && all.every(([, f]) => f.shape.length === 1 && f.shape[0] === first[1].shape[0] && f.count === first[1].count);
  return isTable ? [[first[0], { ...first[1], columns: all.map(([name]) => name) }]] : all.map(([name, about]) => [name, { ...about, hasMask: mask?.count === about.count }]);
}

function tableOf(columns) {
  const cells = (tag, texts) => make("tr", {}, ...texts.map((text) => make(tag, { text, kind: "n", ...(tag === "th" && { scope: "col" }) })));
  const rows = [...columns[0][1]].map((_, i) => cells("td", columns.map(([, values]) => number(values[i]))));
  return make("table", {}, make("thead", {}, cells("th", columns.map(([name]) => name))), make("tbody", {}, ...rows));
}
