# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # kvjax in five minutes
# A prompt is read once. Then a *policy* decides what of it stays in memory, and the model answers from what is left.

# %%
import importlib
import importlib.metadata
import pathlib
import subprocess
import sys

SOURCE = "kvjax"  # a clone of this repository, as seen from the working folder: on Colab /content/kvjax

# An installed kvjax has metadata; a folder of that name beside the notebook imports as an empty package and is none.
if not any(importlib.metadata.distributions(name="kvjax")):  # where kvjax is installed already, this cell does nothing
    source = pathlib.Path(SOURCE).resolve()
    if not (source / "constraints.txt").is_file():
        raise FileNotFoundError(f"{source} is no clone of kvjax: clone the repository there, or change SOURCE")
    tpu = any(pathlib.Path(chip).exists() for chip in ("/dev/accel0", "/dev/vfio/0"))
    extra = "[gpu]" if pathlib.Path("/dev/nvidiactl").exists() else "[tpu]" if tpu else ""
    command = [sys.executable, "-m", "pip", "install", "-q", "-c", f"{source}/constraints.txt", f"{source}{extra}"]
    subprocess.run(command, check=True)
    importlib.invalidate_caches()

# %%
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np

import kvjax
import models

lm = models.load("smollm2-135m")
question = topics["with"][:1200] + "\n\nIn one sentence: what is the with statement used for?"
ids = lm.encode([{"role": "user", "content": question}])
pre = kvjax.prefill(lm, ids)  # read once; nothing changes it
print(lm, pre, sep="\n")

# %% [markdown]
# Now answer from the whole cache, from half of it and from a fifth. `budget` is the share of the prompt that is kept (an
# integer would be slots per KV head). `pool_budget` gives all three the same size of memory pool, so that the parts share one
# compiled program; the whole cache, which stores no positions, has its own.

# %%
caches = {}
for budget in (1.0, 0.5, 0.2):
    policy = kvjax.methods.snapkv(budget=budget)
    cache = caches[budget] = kvjax.compress(pre, policy)
    out = kvjax.decode(lm, cache, policy, max_new_tokens=32, pool_budget=1.0)
    print(f"--- {budget:.0%} kept: {cache}\n{out.text[0]}\n")

# %%
fig, ax = plt.subplots(figsize=(7, 3))
for i, cache in enumerate(caches.values()):
    for position in cache.kept(layer=15)[0][0]:
        ax.barh(i, 1, left=position, color="#0072b2")
ax.set_yticks(range(3), [f"{budget:.0%}" for budget in caches])
ax.set(xlabel="position in the prompt", title="kept by layer 15, head 0")
plt.show()

# %% [markdown]
# Every published method is one line, and all of them use the prefill that is there already.

# %%
names = ["streaming_llm", "knorm", "tova", "h2o", "snapkv", "adakv", "expected_attention", "keydiff"]
kept = {}
for name in names:
    cache = kvjax.compress(pre, getattr(kvjax.methods, name)(budget=0.2))
    share = np.zeros(len(ids))
    for layer in range(lm.decoder.layers):
        for positions in cache.kept(layer)[0]:
            share[positions] += 1
    kept[name] = share / (lm.decoder.layers * lm.decoder.heads)

fig, ax = plt.subplots(figsize=(9, 3.2))
image = ax.imshow(np.stack(list(kept.values())), aspect="auto", interpolation="nearest", cmap="Blues", vmin=0, vmax=1)
ax.set(yticks=range(len(names)), yticklabels=names, xlabel="position in the prompt")
fig.colorbar(image, label="share of heads that kept it")
plt.show()

# %% [markdown]
# Where to go from here: `write_your_own_stage` changes one part of a method, `ablation_in_ten_lines` measures such changes,
# `what_was_kept` looks closer at pictures like this one.
