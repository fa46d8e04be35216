"""How the report looks: the page's own style, and films and tables."""

from frugax.report import PAGE_STYLE

STYLE = (
    PAGE_STYLE
    + """
main { max-width:1100px; }
h3 { font-size:1rem; margin:0 0 8px; overflow-wrap:anywhere; }
h3 small { font-weight:400; color:var(--soft); }
.tall { max-height:420px; overflow-y:auto; }
.tall th { position:sticky; top:0; background:var(--card); }
th button { all:unset; cursor:pointer; } th button:hover { color:var(--ink); }
th[aria-sort=ascending] button::after { content:" ▲"; }
th[aria-sort=descending] button::after { content:" ▼"; }
.options { display:flex; flex-wrap:wrap; gap:8px 20px; align-items:center;
 margin-bottom:14px; font-size:.92rem; } .options .note { margin:0; }
select, .play { font:inherit; color:inherit; background:var(--paper);
 border:1px solid var(--line); border-radius:7px; padding:4px 9px; }
.play { width:44px; height:36px; padding:0; cursor:pointer; flex:none; }
kbd { border:1px solid var(--line); border-radius:4px; padding:0 5px;
 font:.85em system-ui, sans-serif; }
.films { display:grid; gap:26px; grid-template-columns:repeat(auto-fit,
 minmax(min(100%, 340px), 1fr)); }
.film { min-width:0; } .stage { display:flex; justify-content:center;
 background:var(--paper); border:1px solid var(--line); border-radius:8px;
 padding:10px; } .stage svg { max-width:100%; height:auto; }
canvas { display:block; max-width:100%; }
.controls { display:flex; gap:12px; align-items:center; margin-top:10px; }
.controls input { flex:1; min-width:0; height:28px; accent-color:var(--s0); }
.controls output { min-width:5.5em; text-align:right; font-variant-numeric:tabular-nums;
 font-size:.9rem; color:var(--soft); }
.strip { margin-top:8px; cursor:pointer; }
:focus-visible { outline:2px solid var(--s0); outline-offset:3px; border-radius:6px; }
.charts { display:grid; gap:20px 26px; grid-template-columns:repeat(auto-fit,
 minmax(min(100%, 380px), 1fr)); }
html:not(.scripted) .needs-script { display:none; }
@media (max-width: 480px) { .keys { display:none; } }
@media print { .needs-script.options, .controls { display:none; } }
"""
)
