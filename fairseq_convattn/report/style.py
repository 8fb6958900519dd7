"""The looks of the page: for screens small and large, light and dark, and for paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fff; --ink: #1d1d1f; --soft: #5b5b60; --rule: #c9c9ce; --faint: #ececef;
  --c0: #0060a8; --c1: #b84a00; --c2: #00795b; --c3: #a1407f; --c4: #6f5a00; --c5: #4f4fb0;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #17181a; --ink: #e6e6e8; --soft: #a5a5ac; --rule: #4a4b50; --faint: #2a2b2f;
    --c0: #6cb6f5; --c1: #f5a25d; --c2: #56c9a5; --c3: #e69acb; --c4: #d9c25a; --c5: #a9a9f2;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 62rem;
  background: var(--paper); color: var(--ink);
  font: 1rem/1.5 Charter, "Bitstream Charter", "Iowan Old Style", "Source Serif 4", Georgia, serif;
}
h1 { font-size: 1.7rem; font-weight: 600; line-height: 1.2; margin: 0 0 .5rem; }
h2.recipe { font-size: 1.3rem; font-weight: 600; line-height: 1.25; margin: 3rem 0 .4rem;
  padding-top: 1rem; border-top: 1px solid var(--rule); }
.part { font-size: 1.02rem; font-weight: 600; margin: 2rem 0 .5rem; }
.stage { font-size: .875rem; font-weight: 600; margin: 1rem 0 .2rem; }
p { margin: .4rem 0; max-width: 44rem; }
.soft, figcaption, .notes { color: var(--soft); font-size: .875rem; }
.warning { border-left: 3px solid var(--c1); padding-left: .8rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; line-height: 1.35;
  font-variant-numeric: lining-nums tabular-nums; border-bottom: 1px solid var(--ink); }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; }
thead th { border-top: 1px solid var(--ink); border-bottom: 1px solid var(--rule);
  vertical-align: bottom; }
th { font-weight: 600; text-align: left; }
tbody th { font-weight: normal; }
th, td { padding: .32rem .7rem .32rem 0; vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
th.number, td.number { text-align: right; white-space: nowrap; }
thead th.number { white-space: normal; }
tr.first > * { border-top: 1px solid var(--faint); }
.missing { color: var(--soft); font-style: italic; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr));
  gap: 1rem 2rem; }
figure { margin: 0; break-inside: avoid; }
figure > svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 12.5px; }
svg .grid { stroke: var(--faint); } svg .frame { stroke: var(--rule); fill: none; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: butt; }
svg .seed { fill: none; stroke-width: 1; opacity: .35; }
.c0 { stroke: var(--c0); } .c1 { stroke: var(--c1); } .c2 { stroke: var(--c2); }
.c3 { stroke: var(--c3); } .c4 { stroke: var(--c4); } .c5 { stroke: var(--c5); }
.legend { list-style: none; padding: 0; margin: .4rem 0 .6rem; font-size: .875rem; display: flex;
  flex-wrap: wrap; gap: .2rem 1.4rem; }
.swatch { width: 36px; height: 10px; margin-right: .45rem; vertical-align: .05em; }
.notes { padding-left: 1.1rem; margin: .6rem 0; }
code { font: .8125em/1.4 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  overflow-wrap: anywhere; }
pre { margin: .3rem 0 .8rem; padding: .6rem .75rem; background: var(--faint); overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; border-radius: 3px; line-height: 1.25; }
.sample { margin: 0 0 1.1rem; break-inside: avoid; border-color: var(--rule); }
.sample th { width: 9.5rem; color: var(--soft); overflow-wrap: anywhere; padding-right: 1rem; }
.sample td { overflow-wrap: anywhere; }
details { margin: .5rem 0; } summary { cursor: pointer; }
details.run { border-bottom: 1px solid var(--faint); padding-bottom: .5rem; }
dl { display: grid; grid-template-columns: minmax(6rem, 11rem) 1fr; gap: .2rem 1rem;
  font-size: .875rem; margin: .6rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
footer { margin-top: 3rem; color: var(--soft); font-size: .8125rem; }
@media (max-width: 40rem) {
  body { padding: 1.25rem .9rem 3rem; }
  .scroll table { min-width: 34rem; }
  svg text { font-size: 14.5px; }
  .sample th { width: 5.8rem; }
  dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; }
}
@media print {
  @page { margin: 18mm 16mm; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  h2, h3, h4 { break-after: avoid; } tr { break-inside: avoid; } .scroll { overflow: visible; }
}
"""
