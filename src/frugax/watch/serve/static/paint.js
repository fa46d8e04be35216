// Numbers to pixels: small whole numbers by a fixed palette, all others by a ramp.
import { drawCells } from "./cells.js";

// The colours of ARC tasks, 0 to 9, then a few more for larger labels.
const PALETTE = [
  [17, 17, 17], [30, 147, 255], [249, 60, 49], [79, 204, 48], [255, 220, 0],
  [153, 153, 153], [229, 58, 163], [255, 133, 27], [135, 216, 241], [146, 18, 49],
  [99, 102, 241], [20, 184, 166], [163, 230, 53], [244, 114, 182], [120, 113, 108], [255, 255, 255],
];
// Viridis at five places; between them colours are mixed.
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
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

function ramp(share) {
  const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  return RAMP[low].map((c, i) => Math.round(c + (RAMP[low + 1][i] - c) * (at - low)));
}

/** Draw a frame; gives back what its colours mean and a reader of single cells. */
export function paint(canvas, frame, room) {
  const { values } = frame;
  const plan = layout(frame);
  const gap = plan.tiles > 1 ? 1 : 0;
  const width = plan.across * (plan.w + gap) - gap;
  const height = Math.ceil(plan.tiles / plan.across) * (plan.h + gap) - gap;
  let low = Infinity;
  let high = -Infinity;
  for (const v of values) if (Number.isFinite(v)) { if (v < low) low = v; if (v > high) high = v; }
  const labels = !plan.colour && frame.whole && low >= 0 && high < PALETTE.length;
  const colours = labels ? null : Array.from({ length: 256 }, (_, i) => ramp(i / 255));
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
  const colour = (x, y) => {
    const at = gap ? placeOf(x, y) : y * plan.w + x;
    if (at < 0) return null;
    if (plan.colour) return [0, 1, 2].map((c) => values[at * plan.colour + c] * bright);
    if (!Number.isFinite(values[at])) return NOT_A_NUMBER;
    return labels ? PALETTE[values[at]] : colours[Math.round(((values[at] - low) / span) * 255)];
  };
  // Whole pixels for each cell, so that grids stay even.
  const fits = Math.min(room / width, room / height);
  const scale = fits >= 1 ? Math.floor(fits) : fits;
  drawCells(canvas, width, height, scale, { colour, hasLines: labels });
  const seen = labels ? [...new Set(values)].sort((a, b) => a - b) : [];
  return {
    labels: seen.map((value) => ({ value, colour: `rgb(${PALETTE[value].join(",")})` })),
    low, high,
    isPicture: plan.colour > 0,
    colours: plan.colour || labels ? null : colours,
    cell(px, py) {
      const at = placeOf(Math.floor(px / scale), Math.floor(py / scale));
      if (at < 0) return null;
      const [tile, inside] = [Math.floor(at / (plan.h * plan.w)), at % (plan.h * plan.w)];
      const of = plan.colour || 1;
      return { x: inside % plan.w, y: Math.floor(inside / plan.w), tile: plan.tiles > 1 ? tile : null, values: [...values.slice(at * of, at * of + of)] };
    },
  };
}
