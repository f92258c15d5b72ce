/* Tokens shaded by the heads that are shown, and the rows of the curve along the prompt: each counts the heads that hold a position. */
const { layers, heads, tokens, edges, policies } = data.page;
const stride = Math.ceil(tokens / 8), stretch = {{ stretch }};
const masks = policies.map(policy => Uint8Array.from(atob(policy.bits), letter => letter.charCodeAt(0)));
const panels = policies.map(policy => document.querySelector(`.tokens[data-table="${policy.table}"]`));
const tip = Object.assign(document.body.appendChild(document.createElement("div")), { id: "tip", hidden: true });
let shares = [], of = 0;

function held(mask, rows) {
  const found = new Float32Array(tokens);
  for (const { layer, head } of rows) {
    const from = (layer * heads + head) * stride;
    for (let i = 0; i < tokens; i++) found[i] += mask[from + (i >> 3)] >> (7 - (i & 7)) & 1;
  }
  return found.map(count => count / rows.length);
}
function mean(share, from, to) {
  let sum = 0;
  for (let i = from; i < to; i++) sum += share[i];
  return sum / (to - from);
}
const where = (from, to) => to - from > 1 ? `${from} to ${to - 1}` : `${from}`;
function words(from, to) {
  const first = edges.findLastIndex(edge => edge <= from), last = edges.findIndex(edge => edge >= to);
  const text = [...panels[0].children].slice(first, last).map(span => span.textContent).join("").replaceAll("⏎\n", "⏎ ");
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}
const spoken = Array.from({ length: Math.ceil(tokens / stretch) }, (_, j) => {
  const from = j * stretch, to = Math.min(tokens, from + stretch);
  return { from, to, at: from, end: to, where: where(from, to), words: words(from, to) };
});

function shade() {
  policies.forEach((policy, p) => [...panels[p].children].forEach((span, i) => {
    span.style.setProperty("--s", mean(shares[p], edges[i], edges[i + 1]).toFixed(3));
  }));
}
sources.along = rows => {
  const by = Object.groupBy(rows, row => row.table);
  shares = policies.map((policy, p) => held(masks[p], by[policy.table] ?? []));
  of = (by[policies[0].table] ?? []).length;
  shade();
  return policies.flatMap((policy, p) => spoken.map(({ from, to, ...said }) => (
    { ...said, table: policy.table, name: policy.name, unit: "share", share: mean(shares[p], from, to) })));
};

function say(event, i) {
  const from = edges[i], to = edges[i + 1];
  const lines = policies.map((policy, p) => `${policy.name}: kept by ${(100 * mean(shares[p], from, to)).toFixed(1)}% of ${of} heads`);
  tip.textContent = [`position ${where(from, to)} of ${tokens}`, ...lines].join("\n");
  tip.hidden = false;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 4))}px`;
  tip.style.top = `${event.clientY + 18 + tip.offsetHeight < innerHeight ? event.clientY + 18 : event.clientY - tip.offsetHeight - 12}px`;
}
function point(event) {
  for (const panel of panels) panel.querySelector(".at")?.classList.remove("at");
  const i = event.target.parentElement === event.currentTarget ? [...event.currentTarget.children].indexOf(event.target) : -1;
  tip.hidden = true;
  if (i < 0 || shares.length === 0) return;
  for (const panel of panels) panel.children[i].classList.add("at");
  say(event, i);
}
for (const panel of panels) for (const kind of ["mouseover", "mouseleave"]) panel.addEventListener(kind, point);
