// Reads values off line charts, by pointer or arrow keys. The one script of a page begins
// with this file. It defines `charts`, the charts of the page; `show(step)` of a chart
// reads its values at a step.
"use strict";
document.documentElement.classList.add("scripted");

// Show the values under the pointer, at the arrow keys, or at the step of a film.
const charts = [...document.querySelectorAll("svg[data-points]")].map((svg) => {
  const series = JSON.parse(svg.dataset.points);
  const [low, high, left, right] = JSON.parse(svg.dataset.axis);
  const cursor = svg.querySelector(".cursor");
  const out = svg.parentElement.querySelector(".readout");
  const before = out.textContent;
  const steps = [...new Set(Object.values(series).flat().map((p) => p[0]))]
    .sort((a, b) => a - b);
  let at = steps.length - 1;
  const nearest = (points, step) => {
    let a = 0, b = points.length - 1;
    while (b - a > 1) {
      const m = (a + b) >> 1;
      if (points[m][0] <= step) a = m; else b = m;
    }
    return Math.abs(points[a][0] - step) <= Math.abs(points[b][0] - step) ? a : b;
  };
  const show = (step) => {
    at = nearest(steps.map((s) => [s]), step);
    const x = left + (steps[at] - low) / (high - low || 1) * (right - left);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    const values = Object.values(series).map((points) => {
      const value = points[nearest(points, steps[at])][1];
      return value === null ? "not finite" : String(value);
    });
    const step_text = steps[at].toLocaleString("en");
    out.textContent = "step " + step_text + ": " + values.join(", ");
  };
  const hide = () => {
    cursor.setAttribute("x1", -9);
    cursor.setAttribute("x2", -9);
    out.textContent = before;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    show(low + (x - left) / (right - left) * (high - low));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0,
      End: steps.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(steps[Math.max(0, Math.min(steps.length - 1, to))]);
  });
  return { show, low, high };
});
