/* Charts over the rows that the table shows: data.charts[unit][name] is a specification, data.rows the rows by their number. */
const data = JSON.parse(document.getElementById("data").textContent);
const drawn = {};
async function draw(rows) {
  const unit = rows.length ? rows[0].unit : Object.keys(data.charts)[0];
  for (const [name, specification] of Object.entries(data.charts[unit])) {
    const place = document.getElementById(`chart-${name}`);
    if (drawn[name]?.unit !== unit) {
      drawn[name]?.view.finalize();
      const actions = { export: true, source: false, compiled: false, editor: false };
      const made = await vegaEmbed(place, structuredClone(specification), { renderer: "svg", ast: true, actions });
      drawn[name] = { unit, view: made.view };
    }
    await drawn[name].view.data("rows", structuredClone(rows)).resize().runAsync();
  }
  document.body.dataset.drawn = rows.length;
}
let waiting = Promise.resolve();
document.addEventListener("shown", event => {
  const rows = event.detail.map(row => data.rows[Number(row.dataset.row)]);
  waiting = waiting.then(() => draw(rows));
});
