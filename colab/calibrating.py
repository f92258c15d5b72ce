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
# # Calibrating a method
# Some methods measure the model once and keep a small table: HeteroCache the *role* of each head, HCAttention a *codebook* of
# its keys. Here both are made on a very small scale; `kvjax calibrate` makes real ones.

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
import tempfile
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

import kvjax
import models
from experiments.calibrate import hcattention, heterocache
from experiments.tasks.text import Haystack
from kvjax.artefacts import artefact
from kvjax.calibrate.roles import NAMES

lm = models.load("smollm2-135m")
text = Haystack("\n\n".join(topics[name] for name in sorted(topics)), "pydoc_data.topics")


def quiet(stage, done, total):
    """Calibrations report how far they are; here nobody listens."""


# %% [markdown]
# **HeteroCache.** The model reads a text and goes on with it for a few tokens. A head that keeps looking at the same tokens is
# *stable* and may keep few of them (an anchor); an unstable one keeps everything (volatile). Of heads that look at the same
# tokens one keeps everything (the pivot), and the others (satellites) are told by it when the focus moves.

# %%
settings = heterocache.DEFAULTS | dict(samples=1, length=320, k=40, steps=8)
roles = heterocache.calibrate(lm, text, settings, seed=0, progress=quiet)

fig, axes = plt.subplots(1, 2, figsize=(8, 5), sharey=True)
image = axes[0].imshow(roles.tables["stability"], aspect="auto", cmap="viridis", vmin=0, vmax=1)
fig.colorbar(image, ax=axes[0], label="overlap with where it looked first")
colors = ListedColormap(["#999999", "#d55e00", "#0072b2", "#56b4e9"])
image = axes[1].imshow(roles.tables["role"], aspect="auto", cmap=colors, vmin=0.5, vmax=4.5)
fig.colorbar(image, ax=axes[1], ticks=list(NAMES)).set_ticklabels(list(NAMES.values()))
axes[0].set(title="stability", xlabel="KV head", ylabel="layer", xticks=range(3))
axes[1].set(title="role", xlabel="KV head", xticks=range(3))
plt.show()

# %% [markdown]
# The tables are an *artefact*: they say which model, text and settings they come from, and are refused where they are loaded
# with another model, as below. A method takes the object, the folder it was saved to, or the name of a model whose artefact comes
# with the library; it meets the model later, and refuses tables of other sizes than the model's.

# %%
with tempfile.TemporaryDirectory() as folder:
    artefact.save(roles, f"{folder}/roles")
    roles = artefact.load(f"{folder}/roles", "heterocache", lm)
print(roles.header["data"])

ids = lm.encode(topics["with"])[:384]
pre = kvjax.prefill(lm, ids)
policy = kvjax.methods.heterocache(budget=0.7, artefact=roles)
cache = kvjax.compress(pre, policy)
print(f"slots kept by the heads of layer 10: {cache.lengths[10, 0]} of {len(ids)}")
print(f"device {cache.nbytes / 1e6:.2f} MB, host {cache.host_nbytes / 1e6:.2f} MB")

# %% [markdown]
# **HCAttention** stores each key as a few small numbers: the key is cut into groups of channels, and each group becomes the
# index of the nearest entry of a codebook, found by k-means. More groups, less error, more bytes. How much of the keys is lost?

# %%
books = {}
for groups in (4, 16):
    settings = hcattention.DEFAULTS | dict(samples=1, length=320, groups=groups, centroids=16, max_iter=20, batch=320)
    books[groups] = hcattention.calibrate(lm, text, settings, seed=0, progress=quiet)

plt.figure(figsize=(7, 3.2))
for groups, book in books.items():
    lost = book.tables["inertia"] / book.tables["energy"]
    plt.plot(lost.mean(1), "o-", markersize=3, label=f"{groups} groups of {lm.decoder.head_dim // groups} channels")
plt.ylim(0)
plt.xlabel("layer")
plt.ylabel("share of the keys' energy lost")
plt.legend()
plt.show()

# %% [markdown]
# And what does it do to the answers? The next tokens of the text, in nats a token, with keys as codes and the values on the
# host.

# %%
known = lm.encode(topics["with"])[384:400]


def surprise(policy):
    """Mean -log p of the tokens after the first, given the compressed prompt."""
    logits = np.asarray(kvjax.extend(lm, kvjax.compress(pre, policy), known[:-1], policy, return_logits=True).logits[0])
    logp = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
    return float(-logp[np.arange(len(known) - 1), known[1:]].mean())


print(f"{'keys as they are':24} {surprise(kvjax.methods.full()):.3f}")
print(f"{'16 groups, 16 entries':24} {surprise(kvjax.methods.hcattention(artefact=books[16], tau=0.95)):.3f}")

# %% [markdown]
# Sixteen entries from 320 tokens are far too few; the artefact that comes with the library has 256 entries for each of 32
# groups, from 8,192 tokens: `kvjax calibrate hcattention --model smollm2-135m --out FOLDER`.
