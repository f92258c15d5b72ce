"""PyTorch's own attention over the shapes of `kvjax bench attention`, in the peers' interpreter.

Run by `experiments.bench.beside` as `$KVJAX_PEERS experiments/bench/torch_attention.py JOB.json`; imports nothing of this
project, because the peers need other versions. Tested with torch 2.13. Prints one line of JSON.

A job: {"shapes": {name: {"lengths", "g", "t", "d", "layers"}}, "dtype", "rounds", "threads", "device": "cpu" or "cuda",
        "results": whether operands, and what the work that is timed makes of them, are printed too}
"""

import json
import sys
import time
from importlib.metadata import version

import torch
from torch.nn.functional import scaled_dot_product_attention

#: Runs before those that are counted.
WARM = 3


def main(path):
    with open(path) as file:
        job = json.load(file)
    if job["device"] == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no GPU, and ours ran on one")
    torch.set_num_threads(job["threads"])
    torch.set_grad_enabled(False)
    cells = {name: measure(shape, job) for name, shape in job["shapes"].items()}
    print(json.dumps({"versions": versions(cells), "cells": cells}))


def measure(shape, job):
    """Seconds of every counted run of each way to attend."""
    length = torch.tensor(shape["lengths"], device=job["device"])
    q, k, v = normal(shape, length, getattr(torch, job["dtype"]))
    work = {name: chained(attend, q, k, v) for name, attend in ways(q, length, k.shape[-2]).items()}
    found = {"seconds": {name: timed(run, job["rounds"]) for name, run in work.items()}}
    if job["results"]:
        given = {"q": q, "k": k, "v": v} | {name: run() for name, run in work.items()}
        found["results"] = {name: x.double().tolist() for name, x in given.items()}
    return found


def normal(shape, length, dtype):
    """Queries [b h g t d], and keys and values [layers b h n d] as wide as the longest head."""
    torch.manual_seed(0)
    b, h = length.shape
    kv = (shape["layers"], b, h, int(length.max()), shape["d"])
    q = (b, h, shape["g"], shape["t"], shape["d"])
    return [torch.randn(size, dtype=dtype, device=length.device) for size in (q, kv, kv)]


def ways(q, length, widest):
    """By name: from queries, a layer's keys and its values to what each query attends to."""
    b, h, g, t, d = q.shape
    valid = (torch.arange(widest, device=q.device) < length[..., None])[:, :, None]
    by_query_head = valid.repeat_interleave(g, dim=1)

    def grouped(x, k, v):
        x = x.reshape(b, h * g, t, d)
        return scaled_dot_product_attention(x, k, v, attn_mask=by_query_head, enable_gqa=True).reshape(q.shape)

    def folded(x, k, v):  # nothing here is causal, so that a KV head's query heads can be further queries of one head
        return scaled_dot_product_attention(x.reshape(b, h, g * t, d), k, v, attn_mask=valid).reshape(q.shape)

    return {"torch sdpa": grouped, "torch sdpa, folded": folded} | flash(q, length)


def flash(q, length):
    """flash_attn's attention over a cache, where it is installed; it has lengths by row only: each KV head is a row of its own."""
    if not q.is_cuda or q.dtype == torch.float32:  # it has no other
        return {}
    try:
        from flash_attn import flash_attn_with_kvcache
    except ImportError:
        return {}
    b, h, g, t, d = q.shape
    lengths = length.reshape(-1).to(torch.int32)

    def attend(x, k, v):
        k, v = (part.reshape(b * h, -1, 1, d) for part in (k, v))
        out = flash_attn_with_kvcache(x.reshape(b * h, g, t, d).transpose(1, 2), k, v, cache_seqlens=lengths)
        return out.transpose(1, 2).reshape(q.shape)

    return {"flash_attn": attend}


def chained(attend, q, k, v):
    """All layers, ready to run; a layer's queries follow from the layer's before, as in a decode step."""

    def run():
        x = q
        for keys, values in zip(k, v, strict=True):
            x = x + attend(x, keys, values)
        return x

    return run


def timed(run, rounds):
    finish = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    seconds = []
    for _ in range(WARM + rounds):
        finish()
        began = time.perf_counter()
        run()
        finish()
        seconds.append(time.perf_counter() - began)
    return seconds[WARM:]


def versions(cells):
    used = ["torch"] + ["flash_attn"] * any("flash_attn" in cell["seconds"] for cell in cells.values())
    return {name: version(name) for name in used} | {"python": sys.version.split()[0]}


if __name__ == "__main__":
    main(sys.argv[1])
