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
# # What was kept?
# Which tokens of a prompt survive, in which layers and heads, and whether the one that matters is among them.

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
text = lm.encode(topics["with"])[:400]
needle = lm.encode(" The secret number of the castle is 48213.")
ids = text[:150] + needle + text[150:]
where = range(150, 150 + len(needle))
pre = kvjax.prefill(lm, ids)


def kept(policy):
    """bool [layer, head, position]: what each head holds."""
    cache = kvjax.compress(pre, policy)
    mask = np.zeros((lm.decoder.layers, lm.decoder.heads, len(ids)), bool)
    for layer in range(lm.decoder.layers):
        for head, positions in enumerate(cache.kept(layer)[0]):
            mask[layer, head, positions] = True
    return mask


# %%
names = ["streaming_llm", "snapkv", "keydiff", "expected_attention"]
fig, axes = plt.subplots(1, 4, figsize=(13, 4), sharey=True)
for ax, name in zip(axes, names):
    mask = kept(getattr(kvjax.methods, name)(budget=0.25))
    ax.imshow(mask.mean(1), aspect="auto", interpolation="nearest", cmap="Blues", vmin=0, vmax=1)
    ax.axvspan(where.start, where.stop, color="#d55e00", alpha=0.4)
    ax.set(title=f"{name}\n{mask[..., where].mean():.0%} of the needle", xlabel="position in the prompt")
axes[0].set_ylabel("layer")
plt.show()

# %% [markdown]
# Orange marks a sentence hidden in the text. Darker blue: more of the layer's heads kept the token. A method that keeps the
# last tokens cannot have the needle; one that looks at keys may, without knowing the question.
#
# The same, token by token: the words around the needle, with the share of all heads that kept each.

# %%
mask = kept(kvjax.methods.keydiff(budget=0.25))
span = range(where.start - 12, where.stop + 12)
share = mask.mean((0, 1))[list(span)]
fig, ax = plt.subplots(figsize=(13, 2.6))
ax.bar(range(len(span)), share, color=["#d55e00" if i in where else "#0072b2" for i in span])
labels = [lm.decode([ids[i]]).replace("\n", "⏎").replace("$", r"\$") for i in span]
ax.set_xticks(range(len(span)), labels, rotation=70, ha="right")
ax.set(ylabel="share of heads", title="keydiff at 25%")
plt.show()

# %% [markdown]
# Budgets need not be equal. AdaKV gives the slots of a layer to the heads whose scores ask for them, PyramidKV gives more to
# early layers.

# %%
fig, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True)
for ax, name in zip(axes, ("snapkv", "adakv", "pyramidkv")):
    slots = kept(getattr(kvjax.methods, name)(budget=0.25)).sum(-1)
    image = ax.imshow(slots, aspect="auto", interpolation="nearest", cmap="viridis", vmin=0, vmax=len(ids))
    ax.set(title=name, xlabel="KV head", xticks=range(lm.decoder.heads))
axes[0].set_ylabel("layer")
fig.colorbar(image, ax=axes, label="slots kept")
plt.show()

# %% [markdown]
# `kvjax show --model smollm2-135m --policy adakv --policy snapkv --budget 0.25 --prompt-file FILE --out page.html` makes a page of
# this, the policies side by side, with a choice of layer and head; its charts want the extra `pages`.
