/* Charts over the rows that the tables show. A chart draws its table's rows (all, where it has none) that have the field data-cost;
   data.charts[unit][chart] is its specification (data-chart; where there is none, the cost's), data.rows the rows by their data-row. */
const data = JSON.parse(document.getElementById("data").textContent);
const drawn = new Map();
/* What a chart draws of the rows shown, by its data-source; a page adds its own. */
const sources = { rows: shown => shown };
async function draw(place, rows) {
  const { cost, chart = cost, table, source = "rows" } = place.dataset;
  const known = structuredClone(sources[source](rows).filter(row =>
    Number.isFinite(row[cost]) && (table === undefined || row.table === table)));
  place.hidden = known.length === 0;
  if (place.hidden) return;
  const unit = known[0].unit, before = drawn.get(place);
  if (before?.unit === unit) {
    await before.view.data("rows", known).resize().runAsync();
    return;
  }
  before?.view.finalize();
  const filled = { ...data.charts[unit][chart], data: { name: "rows", values: known } };
  const actions = { export: true, source: false, compiled: false, editor: false };
  const made = await vegaEmbed(place, filled, { mode: "vega-lite", renderer: "svg", ast: true, actions });
  drawn.set(place, { unit, view: made.view });
}
async function all(rows) {
  for (const place of document.querySelectorAll(".chart")) await draw(place, rows);
  document.body.dataset.drawn = rows.length;
}
let waiting = Promise.resolve();
document.addEventListener("shown", event => {
  const rows = event.detail.filter(row => row.dataset.row).map(row => data.rows[row.dataset.row]);
  waiting = waiting.then(() => all(rows));
});
