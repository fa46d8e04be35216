// Arrays as coloured cells on a canvas, of the live page and of reports.

/** A canvas with one pixel for each cell; `colour(x, y)` is [r, g, b], or null for none. */
function pixels(width, height, colour) {
  const image = new ImageData(width, height);
  for (let y = 0, to = 0; y < height; y++) {
    for (let x = 0; x < width; x++, to += 4) {
      const rgb = colour(x, y);
      if (rgb === null) continue;
      image.data[to] = rgb[0];
      image.data[to + 1] = rgb[1];
      image.data[to + 2] = rgb[2];
      image.data[to + 3] = 255;
    }
  }
  const made = document.createElement("canvas");
  made.width = width;
  made.height = height;
  made.getContext("2d").putImageData(image, 0, 0);
  return made;
}

/** The pen of a canvas of this size in CSS pixels, on which nothing is drawn yet. */
export function clearedPen(canvas, width, height) {
  const dense = window.devicePixelRatio || 1;
  const [wide, high] = [width, height].map((length) => Math.max(1, Math.round(length * dense)));
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
  const pen = canvas.getContext("2d");
  pen.setTransform(dense, 0, 0, dense, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

/**
 * Draw cells of `scale` px. Besides their colour, functions of x and y may tell their text,
 * and whether they are missing, or have changed.
 */
export function drawCells(canvas, width, height, scale, { colour, ground = "", hasLines = false, isMissing, text, hasChanged }) {
  canvas.style.width = width * scale + "px";
  canvas.style.height = height * scale + "px";
  const pen = clearedPen(canvas, width * scale, height * scale);
  pen.fillStyle = ground;
  if (ground) pen.fillRect(0, 0, width * scale, height * scale);
  pen.imageSmoothingEnabled = scale < 1;
  pen.drawImage(pixels(width, height, colour), 0, 0, width * scale, height * scale);
  const each = (act) => { for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) act(x, y); };
  if (hasLines && scale >= 5) {
    pen.strokeStyle = "rgba(122,130,140,.5)";
    pen.lineWidth = 1;
    pen.beginPath();
    for (let x = 1; x < width; x++) { pen.moveTo(x * scale, 0); pen.lineTo(x * scale, height * scale); }
    for (let y = 1; y < height; y++) { pen.moveTo(0, y * scale); pen.lineTo(width * scale, y * scale); }
    if (isMissing) each((x, y) => {
      if (!isMissing(x, y)) return;
      pen.moveTo((x + 0.25) * scale, (y + 0.75) * scale);
      pen.lineTo((x + 0.75) * scale, (y + 0.25) * scale);
    });
    pen.stroke();
  }
  if (text && scale >= 9) {
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    each((x, y) => {
      const rgb = colour(x, y);
      if (rgb === null) return;
      const said = text(x, y);
      pen.fillStyle = 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2] > 140 ? "#000" : "#fff";
      pen.font = Math.min(scale * 0.62, (1.5 * scale) / said.length) + "px system-ui, sans-serif";
      pen.fillText(said, (x + 0.5) * scale, (y + 0.54) * scale);
    });
  }
  if (hasChanged) each((x, y) => {
    if (!hasChanged(x, y)) return;
    const inset = Math.max(1, scale / 8);
    const box = [x * scale + inset, y * scale + inset, scale - 2 * inset, scale - 2 * inset];
    for (const [wide, colour] of [[3, "#fff"], [1, "#000"]]) {
      pen.lineWidth = wide;
      pen.strokeStyle = colour;
      pen.strokeRect(...box);
    }
  });
}
