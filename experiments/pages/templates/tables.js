"use strict";
/* Tables that sort by a click on a head, rows that a form filters, buttons that copy a command. */
const number = cell => cell.dataset.value === undefined ? NaN : Number(cell.dataset.value);
function order(a, b, way) {
  const x = number(a), y = number(b);
  if (isNaN(x) && isNaN(y)) return way * a.textContent.localeCompare(b.textContent);
  return isNaN(x) ? 1 : isNaN(y) ? -1 : way * (x - y); /* what is not known stays below */
}
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => {
  const head = button.parentElement, body = head.closest("table").tBodies[0], at = head.cellIndex;
  const before = head.getAttribute("aria-sort"), first = head.dataset.first ?? "ascending";
  const now = before === null ? first : before === "ascending" ? "descending" : "ascending";
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", now);
  const way = now === "ascending" ? 1 : -1;
  body.append(...[...body.rows].sort((a, b) => order(a.cells[at], b.cells[at], way)));
});

async function copied(button) {
  const text = button.dataset.copy;
  try { await navigator.clipboard.writeText(text); } catch {
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
  }
  button.textContent = "copied";
  setTimeout(() => { button.textContent = "copy"; }, 1200);
}
document.addEventListener("mouseover", event => {
  if (event.target.matches("button.copy")) event.target.title = event.target.dataset.copy;
});
document.addEventListener("click", event => { if (event.target.matches("button.copy")) copied(event.target); });

/* A control named x shows the rows whose data-x it has chosen; nothing, or of checkboxes none, means all. */
function chosen(form) {
  const tests = [...form.querySelectorAll("select")].filter(s => s.value !== "").map(s => row => row.dataset[s.name] === s.value);
  const boxes = Object.groupBy(form.querySelectorAll("input[type=checkbox]:checked"), box => box.name);
  for (const [name, on] of Object.entries(boxes)) {
    const values = new Set(on.map(box => box.value));
    tests.push(row => row.dataset[name].split(" | ").some(value => values.has(value)));
  }
  for (const box of form.querySelectorAll("input[type=search]")) {
    const words = box.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    if (words.length) tests.push(row => words.some(word => row.dataset[box.name].toLowerCase().includes(word)));
  }
  return row => tests.every(test => test(row));
}
function filter(form) {
  const rows = [...document.querySelectorAll("tr[data-method]")], keep = chosen(form);
  for (const row of rows) row.hidden = !keep(row);
  const shown = rows.filter(row => !row.hidden);
  const output = form.querySelector("output");
  output.textContent = `${shown.length} of ${rows.length} ${output.dataset.of ?? "rows"}`;
  document.dispatchEvent(new CustomEvent("shown", { detail: shown }));
}
for (const form of document.querySelectorAll("form.filter")) {
  form.addEventListener("input", () => filter(form));
  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => filter(form)));
  document.addEventListener("DOMContentLoaded", () => filter(form));
}
