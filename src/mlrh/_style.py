"""Colours of plots and the style sheet of the report's page. Knows nothing of what is drawn or written.

The series' colours keep a contrast of 3 to the background and stay apart under simulated colour blindness, in both
schemes; the tests compute both.
"""

LIGHT = {
    "paper": "#ffffff",
    "raised": "#f4f6f8",
    "ink": "#1c2128",
    "muted": "#57606a",
    "line": "#d0d7de",
    "link": "#0a58a8",
    "truth": "#7a828c",
    "series-1": "#0072b2",
    "series-2": "#d55e00",
    "series-3": "#009e73",
    "series-4": "#332288",
}
DARK = {
    "paper": "#14171c",
    "raised": "#1d2229",
    "ink": "#e6e9ed",
    "muted": "#a3adb8",
    "line": "#3a424c",
    "link": "#79b8f3",
    "truth": "#8b949e",
    "series-1": "#4aa3e0",
    "series-2": "#ef7d33",
    "series-3": "#45d6a5",
    "series-4": "#f3d9fa",
}


def colour(name):
    """The colour as a CSS variable of the page, with the light colour where a plot stands alone."""
    return f"var(--{name}, {LIGHT[name]})"


def page_css():
    """The style sheet of the report's page."""
    return (
        f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}\n"
        f"{_RULES}"
        f"@media print {{\n  :root {{ color-scheme: light; {_variables(LIGHT)} }}\n{_PRINT_RULES}}}\n"
    )


def _variables(colours):
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


_RULES = """\
*, *::before, *::after { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; scroll-behavior: smooth; }
body {
  margin: 0 auto; max-width: 78rem; padding: 2rem 1.5rem 3rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
h1, h2, h3 { line-height: 1.25; text-wrap: balance; overflow-wrap: anywhere; }
h1 { margin: 0 0 1rem; font-size: 2rem; letter-spacing: -0.01em; }
h2 { margin: 3rem 0 1rem; padding-top: 1.25rem; border-top: 1px solid var(--line); font-size: 1.4rem; }
h3 { margin: 2rem 0 0.6rem; font-size: 1.05rem; }
p { margin: 0 0 0.9rem; max-width: 46rem; overflow-wrap: anywhere; }
a { color: var(--link); text-underline-offset: 0.15em; }
code {
  padding: 0.1em 0.3em; border-radius: 4px; background: var(--raised); overflow-wrap: anywhere;
  font: 0.9em ui-monospace, "SF Mono", Menlo, Consolas, monospace;
}
nav { margin: 1.75rem 0 0; padding: 0.9rem 1.2rem; border-radius: 8px; background: var(--raised); }
nav h2 { margin: 0 0 0.3rem; padding: 0; border: 0; font-size: 0.9rem; font-weight: 600; color: var(--muted); }
nav ol { margin: 0; padding-left: 1.4rem; columns: 18rem auto; column-gap: 2rem; }
nav li { padding: 0.12rem 0; break-inside: avoid; overflow-wrap: anywhere; }
.scroll {
  max-width: 100%; width: fit-content; overflow-x: auto; border: 1px solid var(--line); border-radius: 8px;
}
.scroll:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: separate; border-spacing: 0; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.42rem 0.6rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }
thead th {
  border-top: 0; background: var(--raised); font-weight: 600; vertical-align: bottom; white-space: normal;
  text-wrap: balance;
}
th:first-child {
  position: sticky; left: 0; z-index: 1; text-align: left; white-space: normal; background: var(--paper);
}
th:first-child > div { width: max-content; max-width: 16rem; overflow-wrap: anywhere; }
th:first-child:not(:only-child) { border-right: 1px solid var(--line); }
tbody th { font-weight: 400; }
thead th:first-child { background: var(--raised); }
tbody tr:hover > * { background: var(--raised); }
strong { font-weight: 700; }
.note { margin: 0.5rem 0 0; font-size: 0.875rem; color: var(--muted); }
.figures {
  display: grid; gap: 1.5rem; margin: 1.75rem 0 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr));
}
figure { margin: 0; padding: 1rem; border: 1px solid var(--line); border-radius: 8px; align-self: start; }
figure svg { display: block; width: 100%; height: auto; max-width: 34rem; margin: 0 auto; }
figcaption { margin-top: 0.7rem; font-size: 0.875rem; color: var(--muted); overflow-wrap: anywhere; }
footer {
  margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: 0.875rem; color: var(--muted);
}
footer p { margin: 0 0 0.25rem; max-width: none; }
@media (max-width: 40rem) {
  body { padding: 1.25rem 0.9rem 2rem; }
  h1 { font-size: 1.55rem; }
  h2 { margin-top: 2.25rem; font-size: 1.25rem; }
  table { font-size: 0.85rem; }
  th, td { padding: 0.4rem 0.5rem; }
  th:first-child > div { max-width: 8.5rem; }
  figure { padding: 0.7rem 0.5rem; }
  figcaption { margin-left: 0.3rem; margin-right: 0.3rem; }
}
"""
_PRINT_RULES = """\
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav { display: none; }
  h2, h3 { break-after: avoid; }
  figure, tr { break-inside: avoid; }
  .scroll { overflow: visible; width: auto; border: 0; }
  table { font-size: 7.5pt; }
  th, td { padding: 0.2rem 0.35rem; white-space: normal; }
  th:first-child { position: static; }
  th:first-child > div { width: auto; }
  a { color: inherit; }
"""
