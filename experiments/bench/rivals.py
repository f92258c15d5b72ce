"""llama.cpp's and OpenVINO's side of a benchmark, in their own interpreter.

Run by `experiments.bench` as `$KVJAX_RIVALS experiments/bench/rivals.py JOB.json`; imports nothing of this project. Tested with
llama-cpp-python 0.3.36 and openvino-genai 2026.4. Prints one line of JSON. An engine that is not installed or fails says why.

A job: {"gguf": file, "dtype", "threads", "rounds", "new", "context": ids, "slots": of OpenVINO's eviction, or null}. The file's
tensors are written anew: for llama.cpp in float32, or in float16 for a 16-bit dtype; for OpenVINO, which reads no float32 file, in
float16, and it multiplies in the dtype that is asked for.
"""

import importlib.metadata
import json
import os
import sys
import tempfile
import time
from pathlib import Path

#: llama.cpp's number of a type, of files and of caches alike, by our dtype.
FLOAT32, FLOAT16 = 0, 1
TYPES = {"float32": FLOAT32, "float16": FLOAT16, "bfloat16": FLOAT16}
#: OpenVINO's words for the same.
PRECISIONS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
#: Of OpenVINO's eviction: tokens that stay at the beginning and at the end; blocks of a cache are 32 tokens.
FIRST, LAST, BLOCK = 32, 128, 32


def main(path):
    job = json.loads(Path(path).read_text())
    cells, missing = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, engine in (("llama.cpp", llama_cpp), ("openvino", openvino)):
            try:
                cells |= engine(job, Path(folder))
            except Exception as error:  # the other one, and our own figures, are worth having
                missing[name] = f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"
    print(json.dumps({"versions": versions(), "cells": cells, "missing": missing}))


def written(job, folder, kind):
    """The model's file in one of llama.cpp's types, made by llama.cpp unless it was before."""
    import llama_cpp

    file = folder / f"{kind}.gguf"
    if not file.exists():
        wanted = llama_cpp.llama_model_quantize_default_params()
        wanted.ftype, wanted.allow_requantize, wanted.nthread = kind, True, job["threads"]
        with quiet():
            failed = llama_cpp.llama_model_quantize(job["gguf"].encode(), str(file).encode(), wanted)
        if failed:
            raise OSError(f"llama.cpp cannot write {job['gguf']} anew")
    return str(file)


def llama_cpp(job, folder):
    """Prefill, then greedy steps, with a cache of the job's dtype."""
    import llama_cpp
    import numpy as np

    kind, size = TYPES[job["dtype"]], len(job["context"]) + job["new"] + 1
    threads = {"n_threads": job["threads"], "n_threads_batch": job["threads"]}
    llm = llama_cpp.Llama(written(job, folder, kind), n_ctx=size, type_k=kind, type_v=kind, verbose=False, **threads)
    runs = []
    for count in range(job["rounds"] + 1):
        llm.reset()
        marks, tokens = [time.perf_counter()], []
        llm.eval(job["context"])
        marks.append(time.perf_counter())
        for _ in range(job["new"]):
            logits = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
            tokens.append(int(np.ctypeslib.as_array(logits, (llm.n_vocab(),)).argmax()))
            llm.eval(tokens[-1:])
            marks.append(time.perf_counter())
        if count:
            took = [after - before for before, after in zip(marks, marks[1:], strict=False)]
            runs.append({"prefill": took[0], "steps": took[1:], "tokens": tokens})
    return {"llama.cpp, full cache": runs}


def openvino(job, folder):
    """The full cache, and where the job names a size OpenVINO's own eviction to it, rounded up to blocks."""
    import openvino_genai as genai

    file = written(job, folder, FLOAT16)
    found = {"openvino, full cache": genai_runs(job, file, scheduler(job))}
    if job["slots"]:
        slots, plan = max(-(-job["slots"] // BLOCK) * BLOCK, FIRST + LAST + BLOCK), scheduler(job)
        plan.use_cache_eviction = True
        plan.cache_eviction_config = genai.CacheEvictionConfig(FIRST, LAST, slots, genai.AggregationMode.SUM)
        found[f"openvino, evicting to {slots}"] = genai_runs(job, file, plan)
    return found


def scheduler(job):
    """The prompt read at once, and in every round: nothing is kept from one to the next."""
    import openvino_genai as genai

    plan = genai.SchedulerConfig()
    plan.enable_prefix_caching, plan.cache_size = False, 2
    plan.max_num_batched_tokens = len(job["context"]) + job["new"] + 1
    return plan


def genai_runs(job, file, plan):
    """The rounds of one OpenVINO pipeline; times are those that it keeps of each token."""
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    precision = PRECISIONS[job["dtype"]]
    properties = {"INFERENCE_NUM_THREADS": job["threads"], "INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision}
    with quiet():
        pipeline = genai.LLMPipeline(file, "CPU", scheduler_config=plan, **properties)
    wanted = genai.GenerationConfig()
    wanted.max_new_tokens, wanted.ignore_eos, wanted.do_sample = job["new"] + 1, True, False
    prompt, runs = ov.Tensor(np.array([job["context"]], np.int64)), []
    for count in range(job["rounds"] + 1):
        done = pipeline.generate(prompt, wanted)
        if count:
            took = done.perf_metrics.raw_metrics
            first, steps = took.m_times_to_first_token[0], list(took.m_durations)[-job["new"] :]
            runs.append({"prefill": first / 1e6, "steps": [x / 1e6 for x in steps], "tokens": list(done.tokens[0])})
    return runs


class quiet:
    """What an engine's own code prints goes nowhere: the last line of this process is the answer."""

    def __enter__(self):
        sys.stdout.flush()
        self.kept = os.dup(1), os.dup(2)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.close(nowhere)

    def __exit__(self, *error):
        for mine, theirs in zip(self.kept, (1, 2), strict=True):
            os.dup2(mine, theirs)
            os.close(mine)


def versions():
    found = {"python": sys.version.split()[0]}
    for name in ("llama-cpp-python", "openvino-genai"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main(sys.argv[1])
