// How numbers, times and places of an axis are written, and small elements of the page.

export const STEP_SECONDS = "seconds per step";
export const find = (id) => document.getElementById(id);
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const last = (list) => list[list.length - 1];

/** An element; `text` and `kind` are its text and its class, names with "-" attributes. */
export function make(tag, { text, kind, ...rest } = {}, ...children) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  for (const [name, value] of Object.entries(rest)) {
    if (/-|^(role|scope)$/.test(name)) made.setAttribute(name, value); else made[name] = value;
  }
  made.append(...children);
  return made;
}

/** Set a text only if it is another, so that screen readers are told of news alone. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "not a number";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return value.toExponential(digits - 2).replace("e+", "e");
  return Number(value.toPrecision(digits)).toString();
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < units.length - 1) { value /= 1024; at++; }
  return Number(value.toPrecision(4)) + " " + units[at];
}

export function duration(seconds) {
  if (!(seconds >= 0)) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return (seconds * 1e6).toPrecision(3) + " µs";
  if (seconds < 1) return Number((seconds * 1e3).toPrecision(3)) + " ms";
  if (seconds < 60) return Number(seconds.toPrecision(3)) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min " + Math.round(seconds % 60) + " s";
  if (seconds < 86400) return Math.floor(seconds / 3600) + " h " + Math.round((seconds % 3600) / 60) + " min";
  return Number((seconds / 86400).toPrecision(3)) + " d";
}

export const percent = (share) => Number((100 * share).toPrecision(3)) + " %";
export const isBytes = (column) => /(_|\b)bytes$/.test(column);

/** How values of a column are written. */
export function format(column, value) {
  if (value === null || value === undefined) return "not a number";
  if (column === STEP_SECONDS || /(^|_)seconds$/.test(column)) return duration(value);
  if (isBytes(column)) return bytes(value);
  if (/overhead|share$/.test(column)) return percent(value);
  return number(value);
}

/** How a place of the axis is written; `span` is the length of the axis, 0 for a value. */
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

/** "train/loss" and "val_loss" belong into the chart "loss". */
export function family(column) {
  return column.replace(/^(train|training|val|valid|validation|test|eval)[/_.]/, "") || column;
}
