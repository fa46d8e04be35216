"""How the report looks: its style sheet and its one script."""

STYLE = """
:root { color-scheme: light dark; --ink:#1b1f24; --soft:#5b6470; --line:#dfe3e8;
 --paper:#fbfbfa; --card:#fff; --s0:#2563c9; --s1:#c2570c; --s2:#15803d; --s3:#9333ea;
 --good:#15803d; --bad:#b91c1c; --unsure:#a16207; }
@media (prefers-color-scheme: dark) { :root { --ink:#e7e9ec; --soft:#9aa4b0;
 --line:#2e343c; --paper:#14171b; --card:#1b1f24; --s0:#6ea8fe; --s1:#f59e5b;
 --s2:#4ade80; --s3:#c084fc; --good:#4ade80; --bad:#f87171; --unsure:#facc15; } }
* { box-sizing: border-box; }
body { margin:0; background:var(--paper); color:var(--ink);
 font:16px/1.5 system-ui, sans-serif; }
main { max-width:860px; margin:0 auto; padding:32px 18px 64px; }
h1 { font-size:1.7rem; margin:0 0 4px; } h2 { font-size:1.15rem; margin:0 0 12px; }
.sub, .note { color:var(--soft); margin:0 0 8px; }
section { background:var(--card); border:1px solid var(--line); border-radius:10px;
 padding:18px 20px; margin-top:18px; }
.tiles { display:grid; gap:12px; margin-top:18px;
 grid-template-columns:repeat(auto-fit, minmax(120px, 1fr)); }
.tile { background:var(--card); border:1px solid var(--line); border-radius:10px;
 padding:12px 14px; } .tile b { display:block; font-size:1.35rem; }
.tile span { color:var(--soft); font-size:.85rem; }
.scroll { overflow-x:auto; }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; }
th, td { text-align:left; padding:7px 10px 7px 0; border-bottom:1px solid var(--line);
 vertical-align:top; } th { font-weight:600; color:var(--soft); font-size:.85rem; }
td.n, th.n { text-align:right; white-space:nowrap; }
.verdict { font-weight:600; white-space:nowrap; padding:1px 9px; border-radius:99px;
 border:1px solid currentColor; font-size:.88rem; }
.kept { color:var(--good); } .broken { color:var(--bad); }
.cannot { color:var(--unsure); }
pre { overflow-x:auto; font-size:.8rem; line-height:1.4; margin:8px 0 0; }
summary { cursor:pointer; color:var(--soft); }
.chart { margin:0; overflow-x:auto; }
.chart svg { width:100%; min-width:520px; height:auto; display:block; }
svg text { fill:var(--soft); font-size:12px; } svg text.value { fill:var(--ink); }
.grid { stroke:var(--line); } .cursor { stroke:var(--soft); stroke-dasharray:3 3; }
.line { fill:none; stroke-width:1.8; } .dot { stroke:none; }
.line.s0 { stroke:var(--s0) } .line.s1 { stroke:var(--s1) }
.line.s2 { stroke:var(--s2) }
.dot.s0, .bar.s0 { fill:var(--s0) } .dot.s1, .bar.s1 { fill:var(--s1) }
.dot.s2, .bar.s2 { fill:var(--s2) } .bar.s3 { fill:var(--s3) }
.bar.plain { fill:var(--soft); opacity:.55 }
line.limit { stroke:var(--bad); stroke-width:1.5; } text.limit { fill:var(--bad); }
figcaption { color:var(--soft); font-size:.85rem; display:flex; gap:16px;
 flex-wrap:wrap; }
.key i { display:inline-block; width:10px; height:10px; border-radius:3px;
 margin-right:6px; } i.s0 { background:var(--s0) } i.s1 { background:var(--s1) }
i.s2 { background:var(--s2) } i.s3 { background:var(--s3) }
.readout { margin-left:auto; font-variant-numeric:tabular-nums; }
caption { text-align:left; font-weight:600; padding:14px 0 4px; }
.album figure { margin:14px 0 0; overflow-x:auto; }
.album svg { display:block; max-width:none; }
.steps { position:sticky; top:0; display:flex; gap:10px; align-items:center; z-index:1;
 background:var(--card); padding:8px 0; color:var(--soft); }
.steps[hidden] { display:none; }
.steps output { color:var(--ink); min-width:3.5em; font-variant-numeric:tabular-nums; }
.steps input { flex:1; min-width:120px; accent-color:var(--s0); }
"""

SCRIPT = """
for (const svg of document.querySelectorAll("svg[data-points]")) {
  const series = JSON.parse(svg.dataset.points);
  const cursor = svg.querySelector(".cursor");
  const out = svg.parentElement.querySelector(".readout");
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const said = [];
    let at = null;
    for (const [name, points] of Object.entries(series)) {
      let best = points[0];
      for (const p of points)
        if (Math.abs(p[0] - x) < Math.abs(best[0] - x)) best = p;
      at = at ?? best;
      said.push(name + " " + best[2]);
    }
    cursor.setAttribute("x1", at[0]);
    cursor.setAttribute("x2", at[0]);
    out.textContent = "at " + at[1] + ": " + said.join(", ");
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("x1", -9);
    cursor.setAttribute("x2", -9);
    out.textContent = "";
  });
}
for (const album of document.querySelectorAll(".album")) {
  const label = album.querySelector(".steps");
  const slider = label.querySelector("input");
  const frames = [...album.querySelectorAll("[data-frame]")];
  label.hidden = false;
  slider.addEventListener("input", () => {
    for (const frame of frames) {
      frame.hidden = frame.dataset.frame !== slider.value;
      if (!frame.hidden)
        label.querySelector("output").textContent = frame.dataset.step;
    }
  });
}
"""
