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
# # Memory and speed
# Bytes that are really allocated, and milliseconds that are really measured on the machine that runs this.

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
ids = lm.encode(topics["with"])[:512]
pre = kvjax.prefill(lm, ids)
decoder = lm.decoder
slot = decoder.head_dim * 2 * 4  # a key and a value in float32
full = decoder.layers * decoder.heads * len(ids) * slot
print(f"{decoder.layers} layers × {decoder.heads} KV heads × {len(ids)} tokens × {slot} bytes = {full / 1e6:.1f} MB in all")

# %%
budgets = [1.0, 0.5, 0.25, 0.1]
methods = {"snapkv": kvjax.methods.snapkv, "adakv": kvjax.methods.adakv, "pyramidkv": kvjax.methods.pyramidkv}
fig, ax = plt.subplots(figsize=(6.5, 3.6))
for (name, method), marker in zip(methods.items(), ("o-", "s:", "d:")):
    ax.plot(budgets, [kvjax.compress(pre, method(budget=b)).nbytes / 1e6 for b in budgets], marker, fillstyle="none", label=name)
ax.plot(budgets, [full * b / 1e6 for b in budgets], "k--", linewidth=1, label="keys and values alone")
ax.set(xlabel="share of the prompt kept", ylabel="MB allocated", ylim=0)
ax.legend()
plt.show()

# %% [markdown]
# The three lines are one. Heads may keep different numbers of tokens, and the bytes still follow: all heads share one packed
# pool, so nothing is padded to the longest. What is above the dashed line are positions, bookkeeping and the rounding of the
# pool to a size class. In numbers:

# %%
print(f"{'':10} {'budget':>6} {'keys+values':>12} {'in use':>12} {'allocated':>12} {'shortest head':>14} {'longest':>8}")
for name, method in methods.items():
    for budget in (0.5, 0.1):
        cache = kvjax.compress(pre, method(budget=budget))
        held = cache.lengths
        numbers = f"{held.sum() * slot:12,} {cache.used_nbytes:12,} {cache.nbytes:12,} {held.min():14} {held.max():8}"
        print(f"{name:10} {budget:6} {numbers}")

# %% [markdown]
# Values can live in host memory instead (`encode=Stored(placement=OnHost())`): the device keeps keys, and values cross when they
# are read. On a machine without an accelerator both are the same memory, but the books are kept apart.

# %%
from kvjax.encode import OnHost, Stored

here = kvjax.methods.snapkv(budget=0.5)
there = here.replace(encode=Stored(placement=OnHost()))
for name, policy in (("values on the device", here), ("values on the host", there)):
    cache = kvjax.compress(pre, policy)
    print(f"{name:21} device {cache.nbytes / 1e6:6.2f} MB, host {cache.host_nbytes / 1e6:6.2f} MB")

# %% [markdown]
# Speed. Weights are read for every token whatever the cache holds, so on a short prompt they are most of the time. Copies of
# the prompt as rows of one batch share that cost: watch the time for a token of *one* row fall. The time is without compilation.
# The picture is of the machine that runs the cell, so none is stored here.

# %% tags=["measured-here"]
def milliseconds(budget, rows):
    """ms for a token of one row."""
    policy = kvjax.methods.snapkv(budget=budget)
    cache = kvjax.stack([kvjax.compress(pre, policy)] * rows)
    out = kvjax.decode(lm, cache, policy, max_new_tokens=16, stop=(), pool_budget=1.0)
    return out.info["ms_per_token"] / rows


batches = [1, 4]
fig, ax = plt.subplots(figsize=(6.5, 3.4))
for shift, (budget, color) in enumerate([(1.0, "#999999"), (0.1, "#0072b2")]):
    spent = [milliseconds(budget, rows) for rows in batches]
    bars = ax.bar(np.arange(len(batches)) + 0.35 * shift, spent, 0.35, color=color, label=f"{budget:.0%} kept")
    ax.bar_label(bars, fmt="%.1f")
ax.set_xticks(np.arange(len(batches)) + 0.175, [f"{rows} row{'s' * (rows > 1)}" for rows in batches])
ax.set(ylabel="ms per token of a row", title=f"{len(ids)} tokens in the prompt")
ax.legend()
plt.show()

# %% [markdown]
# Times on a shared machine wander. `kvjax bench attention`, `kvjax bench decode` and `kvjax bench prefill` measure with
# repeats, print the machine and the commit, and take long contexts, where the cache outweighs the weights.
