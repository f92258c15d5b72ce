"""The page of `kvjax show`; `[[NAME]]` is where `experiments.page` fills something in."""

TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>[[TITLE]]</title>
<style>
body { font: 16px/1.7 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem;
  padding: 0 1rem; color: #111; background: #fff; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; font-size: 0.85rem; line-height: 1.4; }
dt { color: #555; } dd { margin: 0; overflow-wrap: anywhere; }
nav { position: sticky; top: 0; background: #fff; padding: 0.5rem 0; border-bottom: 1px solid #ccc; }
#text { white-space: pre-wrap; overflow-wrap: anywhere; }
#text span { background: rgb(0 114 178 / calc(var(--s) * 0.75)); border-radius: 2px; }
#text span:hover { outline: 2px solid #d55e00; }
.key { display: inline-block; width: 8rem; height: 0.8em;
  background: linear-gradient(90deg, transparent, rgb(0 114 178 / 0.75)); }
</style>
</head>
<body>
<h1>[[TITLE]]</h1>
<dl>[[FACTS]]</dl>
<nav>
<label>layer <select id="layer">[[LAYERS]]</select></label>
<label>KV head <select id="head">[[HEADS]]</select></label>
kept by none <span class="key"></span> all heads
<output id="about"></output>
</nav>
<p id="text">[[TOKENS]]</p>
<script type="application/json" id="data">[[DATA]]</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const bytes = Uint8Array.from(atob(data.bits), c => c.charCodeAt(0));
const stride = Math.ceil(data.tokens / 8);
const spans = document.getElementById("text").children;
const pick = id => Number(document.getElementById(id).value);
const held = (layer, head, i) => bytes[(layer * data.heads + head) * stride + (i >> 3)] >> (7 - (i & 7)) & 1;
const range = (chosen, count) => chosen < 0 ? [...Array(count).keys()] : [chosen];
let counts = [], of = 0;
function shade() {
  const layers = range(pick("layer"), data.layers), heads = range(pick("head"), data.heads);
  of = layers.length * heads.length;
  counts = Array.from(spans, (_, i) => 
    layers.reduce((n, l) => n + heads.reduce((m, h) => m + held(l, h, i), 0), 0));
  counts.forEach((n, i) => spans[i].style.setProperty("--s", n / of));
  const kept = counts.reduce((a, b) => a + b, 0);
  document.getElementById("about").textContent = ` ${kept} of ${of * data.tokens} slots kept here`;
}
document.getElementById("text").addEventListener("mouseover", event => {
  const i = Array.prototype.indexOf.call(spans, event.target);
  if (i < 0) return;
  document.getElementById("about").textContent = ` position ${i}: kept by ${counts[i]} of ${of} heads`;
});
for (const id of ["layer", "head"]) document.getElementById(id).addEventListener("change", shade);
shade();
</script>
</body>
</html>
"""
