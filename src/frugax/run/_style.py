"""The style sheet and the script of a run's HTML report."""

from frugax.report import CHART_SCRIPT, PAGE_STYLE

STYLE = (
    PAGE_STYLE
    + """
main { max-width:860px; }
pre { overflow-x:auto; font-size:.8rem; line-height:1.4; margin:8px 0 0; }
.chart text { font-size:12px; }
.wide { overflow-x:auto; } .wide th { overflow-wrap:anywhere; min-width:6em; }
.wide td::before { overflow-wrap:anywhere; max-width:55%; }
caption { text-align:left; font-weight:600; padding:14px 0 4px; }
.snapshots figure { margin:14px 0 0; overflow-x:auto; }
.snapshots svg { display:block; max-width:none; }
.steps { position:sticky; top:0; display:flex; gap:10px; align-items:center; z-index:1;
 background:var(--card); padding:8px 0; color:var(--soft); }
.steps[hidden] { display:none; }
.steps output { color:var(--ink); min-width:3.5em; font-variant-numeric:tabular-nums; }
.steps input { flex:1; min-width:120px; accent-color:var(--s0); }
"""
)

SCRIPT = (
    CHART_SCRIPT
    + """
for (const snapshots of document.querySelectorAll(".snapshots")) {
  const label = snapshots.querySelector(".steps");
  const slider = label.querySelector("input");
  const frames = [...snapshots.querySelectorAll("[data-frame]")];
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
)
