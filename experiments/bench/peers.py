"""The peers' side of a benchmark: transformers' cache and kvpress's presses, in their own interpreter.

Run by `experiments.bench` as `$KVJAX_PEERS experiments/bench/peers.py JOB.json`; imports nothing of this project, because
the peers need other versions. Tested with torch 2.13, transformers 5.2, kvpress 0.5.5. Prints one line of JSON.

A job: {"model": folder, "dtype", "threads", "rounds", "new", "stop": ids, "cells": [{"name", "press", "ratio"}],
        "prompts": [{"context": ids, "fed": ids}]}; a cell without a press is transformers' dynamic cache.
"""

import contextlib
import functools
import json
import logging
import sys
import time
import warnings
from pathlib import Path

EPSILON = 2e-2


def main(path):
    job = json.loads(Path(path).read_text())
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(job["threads"])
    torch.set_grad_enabled(False)
    model = load(job)
    sides = {cell["name"]: [] for cell in job["cells"]}
    for count in range(job["rounds"] + 1):
        for cell in job["cells"]:
            for prompt in job["prompts"]:
                timed = run(model, cell, prompt, job["new"], job["stop"])
                if count or job["rounds"] == 0:
                    sides[cell["name"]].append(timed)
    print(json.dumps({"versions": versions(), "cells": sides}))


def load(job):
    import kvpress  # noqa: F401 (patches the attention functions of transformers, for all cells alike)
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"])).eval()


def run(model, cell, prompt, new, stop):
    """Prefill, then the fed tokens, then greedy steps: seconds of the prefill, of the feeding and of each step."""
    import torch
    from transformers import DynamicCache

    context, fed = torch.tensor([prompt["context"]]), prompt["fed"]
    cache, at = DynamicCache(), context.shape[1]
    press = make_press(cell)
    began = time.perf_counter()
    with press(model) if press else contextlib.nullcontext():
        logits = model(input_ids=context, past_key_values=cache, logits_to_keep=1).logits
    marks = [time.perf_counter()]
    if fed:
        logits = feed(model, cache, fed, at)
        at += len(fed)
    marks.append(time.perf_counter())
    tokens = []
    for step in range(new):
        if tokens and tokens[-1] in stop:
            break
        tokens.append(int(logits[0, -1].argmax()))
        logits = feed(model, cache, tokens[-1:], at + step)
        marks.append(time.perf_counter())
    steps = [after - before for before, after in zip(marks[1:], marks[2:], strict=False)]
    held = sum(2 * layer.keys.numel() * layer.keys.element_size() for layer in cache.layers)
    return {"prefill": marks[0] - began, "fed": marks[1] - marks[0], "steps": steps, "bytes": held, "tokens": tokens}


def feed(model, cache, ids, at):
    import torch

    positions = torch.arange(at, at + len(ids))[None]
    out = model(input_ids=torch.tensor([ids]), past_key_values=cache, position_ids=positions, logits_to_keep=1)
    return out.logits


def make_press(cell):
    """kvpress's press of one of our method names; its ratio is the share removed."""
    if cell.get("press") is None:
        return None
    import kvpress

    ratio, name = cell["ratio"], cell["press"]
    simple = {
        "snapkv": kvpress.SnapKVPress,
        "pyramidkv": kvpress.PyramidKVPress,
        "streaming_llm": kvpress.StreamingLLMPress,
        "local_window": functools.partial(kvpress.StreamingLLMPress, n_sink=0),
        "knorm": kvpress.KnormPress,
        "keydiff": kvpress.KeyDiffPress,
        "tova": kvpress.TOVAPress,
    }
    if name in simple:
        return simple[name](compression_ratio=ratio)
    if name == "adakv":
        return kvpress.AdaKVPress(kvpress.SnapKVPress(compression_ratio=ratio))
    expected = kvpress.ExpectedAttentionPress(compression_ratio=ratio, epsilon=EPSILON)
    return expected if name == "expected_attention" else kvpress.AdaKVPress(expected)


def versions():
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "kvpress")} | {"python": sys.version.split()[0]}


if __name__ == "__main__":
    main(sys.argv[1])
