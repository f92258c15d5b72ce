"""Who is better than whom, as published: a method -> those that are put below it.

TABLES are read off published tables: those of HeteroCache, HCAttention, D2O and CompressKV, and DefensiveKV's repository. BASELINES
are what a method's own paper compares it with and says that it beats; no table stands behind them here. A method that was measured
in other settings stands here with them (`kivi:bits=3`).
"""

from collections.abc import Iterator, Mapping

TABLES: Mapping[str, tuple[str, ...]] = {
    "heterocache": ("quest", "shadowkv", "omnikv", "cake"),
    "hcattention": ("streaming_llm", "h2o", "tova"),
    "d2o": ("local_window", "streaming_llm", "h2o", "roco", "cam", "snapkv"),
    "compresskv": ("streaming_llm", "snapkv", "pyramidkv", "cake"),
    "streaming_llm": ("local_window",),
    "h2o": ("local_window", "streaming_llm"),
    "tova": ("streaming_llm", "h2o"),
    "snapkv": ("streaming_llm", "h2o"),
    "pyramidkv": ("streaming_llm",),
    "cake": ("streaming_llm", "snapkv", "pyramidkv"),
    "adakv": ("snapkv",),
    "critical_adakv": ("adakv",),
    "defensive_kv": ("adakv", "critical_adakv"),
    "layer_defensive_kv": ("critical_adakv", "defensive_kv"),
}

BASELINES: Mapping[str, tuple[str, ...]] = {
    "tova": ("local_window",),
    "roco": ("streaming_llm", "h2o", "tova", "scissorhands"),
    "keyformer": ("local_window", "streaming_llm", "h2o"),
    "nacl": ("streaming_llm", "h2o"),
    "sirllm": ("streaming_llm",),
    "pyramid_infer": ("streaming_llm", "h2o"),
    "pyramidkv": ("h2o", "snapkv"),
    "cake": ("h2o", "tova"),
    "chunkkv": ("streaming_llm", "h2o", "snapkv", "pyramidkv"),
    "cur": ("snapkv", "chunkkv"),
    "dapq": ("streaming_llm", "h2o", "snapkv", "pyramidkv"),
    "expected_attention": ("streaming_llm", "tova", "snapkv"),
    "keydiff": ("streaming_llm", "h2o", "tova", "snapkv"),
    "qfilters": ("streaming_llm", "knorm"),
    "lagkv": ("h2o", "knorm"),
    "compactor": ("snapkv",),
    "kvzip": ("h2o", "snapkv", "pyramidkv"),
    "attention_matching": ("h2o", "snapkv", "pyramidkv", "kvzip"),
    "cam": ("h2o",),
    "kvmerger": ("h2o", "cam"),
    "zeromerge": ("streaming_llm", "h2o"),
    "keepkv": ("streaming_llm", "h2o", "cam", "d2o"),
    "rkv": ("snapkv",),
    "lazy_eviction": ("h2o", "tova", "rkv"),
    "triattention": ("snapkv", "rkv"),
    "duo_attention": ("streaming_llm", "h2o", "tova"),
    "lookahead_kv": ("snapkv", "pyramidkv"),
    "locret": ("sirllm", "infllm"),
    "kvzap": ("snapkv", "expected_attention"),
    "less": ("h2o",),
    "lococo": ("streaming_llm", "h2o"),
    "dms": ("h2o", "tova"),
    "trim_kv": ("snapkv", "rkv"),
    "infllm": ("streaming_llm",),
    "shadowkv": ("quest", "infinigen"),
    "omnikv": ("quest", "infllm"),
    "fasa": ("quest",),
}

QUANTISED: Mapping[str, tuple[str, ...]] = {
    "gear": ("gear:rank=0", "kivi"),
    "kvquant:bits=2": ("kvquant:bits=2,outliers=0",),
    "kvquant:bits=3": ("kivi:bits=3",),
    "turboquant:key_bits=3,value_bits=3": ("kivi:bits=3", "kivi"),
    "zipcache": ("mikv", "kivi", "h2o"),
    "asymkv": ("kivi:bits=1",),
    "coupled_quantization": ("kivi:bits=1",),
    "qjl": ("kivi",),
    "mikv": ("h2o",),
}


def pairs(*published: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """(better, worse), in the order in which they stand here."""
    for claims in published:
        for better, below in claims.items():
            yield from ((better, worse) for worse in below)
