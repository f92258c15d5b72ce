/* Charts over the rows that the table shows: data.charts[unit][name] is a specification, data.rows the rows by their number. */
const data = JSON.parse(document.getElementById("data").textContent);
const drawn = {};
async function draw(rows) {
  const unit = rows.length ? rows[0].unit : Object.keys(data.charts)[0];
  for (const [name, specification] of Object.entries(data.charts[unit])) {
    const place = document.getElementById(`chart-${name}`);
    const known = structuredClone(rows.filter(row => row[name] > 0));
    place.hidden = known.length === 0;
    if (place.hidden) continue;
    if (drawn[name]?.unit === unit) {
      await drawn[name].view.data("rows", known).resize().runAsync();
      continue;
    }
    drawn[name]?.view.finalize();
    const filled = { ...specification, data: { name: "rows", values: known } };
    const actions = { export: true, source: false, compiled: false, editor: false };
    drawn[name] = { unit, view: (await vegaEmbed(place, filled, { mode: "vega-lite", renderer: "svg", ast: true, actions })).view };
  }
  document.body.dataset.drawn = rows.length;
}
let waiting = Promise.resolve();
document.addEventListener("shown", event => {
  const rows = event.detail.map(row => data.rows[Number(row.dataset.row)]);
  waiting = waiting.then(() => draw(rows));
});
