"""How the report looks: the same colours and cards as the report of a run."""

STYLE = """
:root { color-scheme: light dark; --ink:#1b1f24; --soft:#5b6470; --line:#dfe3e8;
 --paper:#fbfbfa; --card:#fff; --s0:#2563c9; --s1:#c2570c; --s2:#15803d; --s3:#9333ea;
 --good:#15803d; --bad:#b91c1c; --unsure:#a16207; --pad:#e6e9ed; }
@media (prefers-color-scheme: dark) { :root { --ink:#e7e9ec; --soft:#9aa4b0;
 --line:#2e343c; --paper:#14171b; --card:#1b1f24; --s0:#6ea8fe; --s1:#f59e5b;
 --s2:#4ade80; --s3:#c084fc; --good:#4ade80; --bad:#f87171; --unsure:#facc15;
 --pad:#2a3038; } }
* { box-sizing: border-box; }
body { margin:0; background:var(--paper); color:var(--ink);
 font:16px/1.5 system-ui, sans-serif; }
main { max-width:1100px; margin:0 auto; padding:32px 18px 64px; }
h1 { font-size:1.7rem; margin:0 0 4px; overflow-wrap:anywhere; }
h2 { font-size:1.15rem; margin:0 0 12px; overflow-wrap:anywhere; }
h3 { font-size:1rem; margin:0 0 8px; overflow-wrap:anywhere; }
h3 small { font-weight:400; color:var(--soft); }
.sub, .note { color:var(--soft); margin:0 0 8px; }
section { background:var(--card); border:1px solid var(--line); border-radius:10px;
 padding:18px 20px; margin-top:18px; }
.tiles { display:grid; gap:12px; margin-top:18px;
 grid-template-columns:repeat(auto-fit, minmax(130px, 1fr)); }
.tile { background:var(--card); border:1px solid var(--line); border-radius:10px;
 padding:12px 14px; } .tile b { display:block; font-size:1.35rem; }
.tile span { color:var(--soft); font-size:.85rem; }
.scroll { overflow-x:auto; } .tall { max-height:420px; overflow-y:auto; }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; }
th, td { text-align:left; padding:7px 10px 7px 0; border-bottom:1px solid var(--line);
 vertical-align:top; } th { font-weight:600; color:var(--soft); font-size:.85rem; }
td.n, th.n { text-align:right; white-space:nowrap; }
.tall th { position:sticky; top:0; background:var(--card); }
th button { all:unset; cursor:pointer; } th button:hover { color:var(--ink); }
th[aria-sort=ascending] button::after { content:" ▲"; }
th[aria-sort=descending] button::after { content:" ▼"; }
.verdict { font-weight:600; white-space:nowrap; padding:1px 9px; border-radius:99px;
 border:1px solid currentColor; font-size:.88rem; }
.kept { color:var(--good); } .broken { color:var(--bad); }
.cannot { color:var(--unsure); }
summary { cursor:pointer; color:var(--soft); margin-top:10px; }
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
.chart { margin:0; min-width:0; } .chart svg { width:100%; height:auto; display:block; }
.chart text { fill:var(--soft); font-size:11px; font-variant-numeric:tabular-nums; }
.chart .grid { stroke:var(--line); }
.chart .cursor { stroke:var(--soft); stroke-dasharray:3 3; }
.line { fill:none; stroke-width:1.7; stroke-linejoin:round; } .dot { stroke:none; }
.line.s0 { stroke:var(--s0) } .line.s1 { stroke:var(--s1) }
.line.s2 { stroke:var(--s2) } .line.s3 { stroke:var(--s3) }
.dot.s0 { fill:var(--s0) } .dot.s1 { fill:var(--s1) } .dot.s2 { fill:var(--s2) }
.dot.s3 { fill:var(--s3) }
figcaption { color:var(--soft); font-size:.85rem; display:flex; gap:4px 14px;
 flex-wrap:wrap; } figcaption b { color:var(--ink); overflow-wrap:anywhere; }
.key i { display:inline-block; width:10px; height:10px; border-radius:3px;
 margin-right:5px; } i.s0 { background:var(--s0) } i.s1 { background:var(--s1) }
i.s2 { background:var(--s2) } i.s3 { background:var(--s3) }
.readout { margin-left:auto; font-variant-numeric:tabular-nums; }
html:not(.scripted) .needs-script { display:none; }
@media (max-width: 480px) { main { padding:20px 10px 48px; } section { padding:14px; }
 .tiles { grid-template-columns:1fr 1fr; } .keys { display:none; }
 .chart text { font-size:13px; } }
@media print { .needs-script.options, .controls { display:none; } }
"""
