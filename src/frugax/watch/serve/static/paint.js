// Numbers to pixels: small whole numbers by a fixed palette, all others by a ramp.
import { drawCells } from "./cells.js";
import { PALETTES, RAMP } from "./palettes.js";

// Of labels above 9, after the ten colours of a palette.
const MORE = [[99, 102, 241], [20, 184, 166], [163, 230, 53], [244, 114, 182], [120, 113, 108], [255, 255, 255]];
const NOT_A_NUMBER = [214, 40, 160];
const ARRAYS = {
  "|u1": Uint8Array, "|i1": Int8Array, "<u2": Uint16Array, "<i2": Int16Array,
  "<u4": Uint32Array, "<i4": Int32Array, "<f4": Float32Array,
};

/** What the server sent: JSON about the frame, padded to 8 bytes, then its numbers. */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const about = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const Kind = ARRAYS[about.dtype];
  if (!Kind) throw new Error("frames of " + about.dtype + " cannot be shown");
  return { ...about, values: new Kind(buffer, 4 + length) };
}

/** Rows, columns and a way to find the value of a cell; stacks lie side by side. */
function layout(frame) {
  const shape = frame.shape.length ? frame.shape : [1];
  const n = shape.length;
  if (n >= 3 && (shape[n - 1] === 3 || shape[n - 1] === 4) && shape[n - 2] > 4) {
    return { colour: shape[n - 1], h: shape[n - 3], w: shape[n - 2], tiles: 1, across: 1 };
  }
  const w = shape[n - 1];
  const h = n >= 2 ? shape[n - 2] : 1;
  const tiles = shape.slice(0, -2).reduce((a, b) => a * b, 1) || 1;
  // Two leading axes, such as pairs and times, are rows and columns of pictures.
  const across = n === 4 ? shape[1] : Math.ceil(Math.sqrt((tiles * h) / w)) || 1;
  return { colour: 0, h, w, tiles, across };
}

/**
 * Draw a frame; gives back what its colours mean and a reader of single cells. Cells that
 * differ from those of the frame `before` are framed.
 */
export function paint(canvas, frame, room, { palette, hasNumbers, before }) {
  const { values, mask } = frame;
  const plan = layout(frame);
  const gap = plan.tiles > 1 ? 1 : 0;
  const width = plan.across * (plan.w + gap) - gap;
  const height = Math.ceil(plan.tiles / plan.across) * (plan.h + gap) - gap;
  let low = Infinity;
  let high = -Infinity;
  for (const v of values) if (Number.isFinite(v)) { if (v < low) low = v; if (v > high) high = v; }
  const table = [...PALETTES[palette], ...MORE];
  const labels = !plan.colour && frame.whole && low >= -1 && high < table.length;
  const bright = plan.colour && !frame.whole && high <= 1 ? 255 : 1;
  const span = high - low || 1;
  /** The place of a cell among the values, or -1 between two pictures. */
  const placeOf = (x, y) => {
    const tx = Math.floor(x / (plan.w + gap));
    const ty = Math.floor(y / (plan.h + gap));
    const [cx, cy, tile] = [x - tx * (plan.w + gap), y - ty * (plan.h + gap), ty * plan.across + tx];
    const isInside = cx >= 0 && cy >= 0 && cx < plan.w && cy < plan.h && tile < plan.tiles;
    return isInside ? (tile * plan.h + cy) * plan.w + cx : -1;
  };
  const each = plan.colour || 1;
  // Masked cells, and -1 among labels: padding.
  const isHidden = (at) => (mask && !mask[at % mask.length]) || (labels && values[at] < 0);
  const colour = (x, y) => {
    const at = gap ? placeOf(x, y) : y * plan.w + x;
    if (at < 0 || isHidden(at)) return null;
    if (plan.colour) return [0, 1, 2].map((c) => values[at * plan.colour + c] * bright);
    if (!Number.isFinite(values[at])) return NOT_A_NUMBER;
    return labels ? table[values[at]] : RAMP[Math.round(((values[at] - low) / span) * (RAMP.length - 1))];
  };
  // Whole pixels for each cell, so that grids stay even.
  const fits = Math.min(room / width, room / height);
  const scale = fits >= 1 ? Math.floor(fits) : fits;
  const isComparable = before?.values.length === values.length;
  drawCells(canvas, width, height, scale, {
    colour,
    hasLines: labels || Boolean(mask),
    isMissing: (x, y) => { const at = placeOf(x, y); return at >= 0 && isHidden(at); },
    text: hasNumbers && !plan.colour && ((x, y) => { const v = values[placeOf(x, y)]; return labels ? String(v) : v.toPrecision(2); }),
    hasChanged: isComparable && ((x, y) => {
      const at = placeOf(x, y) * each;
      for (let i = at; at >= 0 && i < at + each; i++) if (values[i] !== before.values[i]) return true;
      return false;
    }),
  });
  const seen = labels ? [...new Set(values)].filter((v) => v >= 0).sort((a, b) => a - b) : [];
  return {
    labels: seen.map((value) => ({ value, colour: `rgb(${table[value].join(",")})` })),
    low, high,
    isPicture: plan.colour > 0,
    colours: plan.colour || labels ? null : RAMP,
    cell(px, py) {
      const at = placeOf(Math.floor(px / scale), Math.floor(py / scale));
      if (at < 0) return null;
      const [tile, inside] = [Math.floor(at / (plan.h * plan.w)), at % (plan.h * plan.w)];
      return { x: inside % plan.w, y: Math.floor(inside / plan.w), tile: plan.tiles > 1 ? tile : null, values: [...values.slice(at * each, (at + 1) * each)] };
    },
  };
}
