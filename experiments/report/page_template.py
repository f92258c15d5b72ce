"""The page of `kvjax report`, a Jinja template that `experiments.report.page` fills."""

TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; --text: #111; --soft: #555; --ground: #fff; --line: #ccc; --mark: #eef4f9; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --soft: #aaa; --ground: #16181b; --line: #444; --mark: #222a33; } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: var(--text); background: var(--ground); }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); } h3 { margin: 1.5rem 0 0.5rem; }
p, figcaption, .note { max-width: 46rem; } .note, figcaption { color: var(--soft); font-size: 0.85rem; }
a { color: inherit; } nav a { margin-right: 1rem; }
.pictures { display: flex; flex-wrap: wrap; gap: 1.5rem; align-items: flex-start; }
figure { margin: 0; width: 22rem; max-width: 100%; }
figure img { width: 100%; height: auto; background: #fff; border-radius: 6px; }
.block { display: flex; flex-wrap: wrap; gap: 1.5rem; align-items: flex-start; }
.wide { overflow-x: auto; max-width: 100%; flex: 0 1 auto; }
table { border-collapse: collapse; font-size: 0.8rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.5rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
th[aria-sort=ascending] button::after { content: " ▲"; } th[aria-sort=descending] button::after { content: " ▼"; }
tr.baseline td { background: var(--mark); }
pre { overflow-x: auto; padding: 0.7rem; background: var(--mark); border-radius: 6px; font-size: 0.8rem; }
@media print { .pictures figure { break-inside: avoid; } }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<nav>{% for section in sections %}<a href="#{{ section.id }}">{{ section.title }}</a>{% endfor %}
<a href="#repeat">How to repeat this</a></nav>
{% for section in sections %}
<section id="{{ section.id }}">
<h2>{{ section.title }}</h2>
{% if section.note %}<p class="note">{{ section.note }}</p>{% endif %}
{{ figures(section.pictures) }}
{% for table in section.tables %}
<h3>{{ table.title }}</h3>
<div class="block"><div class="wide">{% if table.rows %}<table>
<thead><tr>{% for head in table.heads %}<th scope="col"><button type="button">{{ head }}</button></th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}<tr{% if row.marked %} class="baseline"{% endif %}>
{%- for cell in row.cells %}<td{% if cell.value is not none %} data-value="{{ cell.value }}"{% endif %}>{{ cell.text }}</td>
{%- endfor %}</tr>
{% endfor %}</tbody></table>{% endif %}
<p class="note">{{ table.note }}</p></div>
{{ figures(table.pictures) }}</div>
{% endfor %}
</section>
{% endfor %}
<section id="repeat">
<h2>How to repeat this</h2>
<p>This page:</p>
<pre>{{ command }}</pre>
{% for name, lines in commands %}
<p>The rows of {{ name }}, with what is in the file kept:</p>
<pre>{{ lines | join("\\n") }}</pre>
{% endfor %}
{% if origins %}<p>Versions and machines that measured them:</p>
<div class="wide"><table><thead><tr>{% for head in origins[0] %}<th scope="col"><button type="button">{{ head }}</button></th>
{%- endfor %}</tr></thead><tbody>
{% for origin in origins %}<tr>{% for value in origin.values() %}<td>{{ value }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>{% endif %}
</section>
<script>
"use strict";
const number = cell => cell.dataset.value === undefined ? NaN : Number(cell.dataset.value);
function order(a, b) {
  const x = number(a), y = number(b);
  if (isNaN(x) && isNaN(y)) return a.textContent.localeCompare(b.textContent);
  return isNaN(x) ? 1 : isNaN(y) ? -1 : x - y;
}
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => {
  const head = button.parentElement, body = head.closest("table").tBodies[0], at = head.cellIndex;
  const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
  body.append(...[...body.rows].sort((a, b) => way * order(a.cells[at], b.cells[at])));
});
</script>
</body>
</html>
"""

#: A row of pictures, each with what it shows in words.
FIGURES = """\
{% macro figures(pictures) %}{% if pictures %}<div class="pictures">
{% for picture in pictures %}<figure><img src="{{ picture.data }}" alt="{{ picture.alt }}">
<figcaption>{{ picture.caption }}</figcaption></figure>
{% endfor %}</div>{% endif %}{% endmacro %}
"""
