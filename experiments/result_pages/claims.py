"""Who is better than whom, as published: a method -> where it is put above others -> those others.

A source is a paper, of the first method or of another, or a method's repository that has the two in this order, on the benchmark or
in the table or figure that is named; it was read itself or in a summary. `BASELINE` stands where none was found. Where publications
disagree, the paper of one of the two counts more than others. A method that was measured in other settings than the library's own
stands here with them (`kvquant:bits=3`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

#: The first method's own paper compares with the other one; where it has them in this order was not found.
BASELINE = "baseline"

Published = Mapping[str, Mapping[str, tuple[str, ...]]]


@dataclass(frozen=True)
class Claim:
    """One published order.

    Attributes:
        better, worse: methods.   source: where they stand in this order, in few words, or `BASELINE`.
    """

    better: str
    worse: str
    source: str

    @property
    def pair(self) -> tuple[str, str]:
        """The better one and the worse one."""
        return self.better, self.worse


METHODS: Published = {
    "heterocache": {"arXiv 2601.13684, LongBench": ("quest", "shadowkv", "omnikv", "cake")},
    "hcattention": {"arXiv 2507.19823, LongBench": ("streaming_llm", "h2o", "tova")},
    "d2o": {
        "arXiv 2406.13035, Table 1": ("local_window", "streaming_llm", "h2o", "roco", "cam"),
        "arXiv 2406.13035, Table 3": ("snapkv",),
    },
    "compresskv": {"arXiv 2508.02401, LongBench": ("streaming_llm", "snapkv", "pyramidkv", "cake")},
    "streaming_llm": {"arXiv 2406.13035, Table 1": ("local_window",)},
    "h2o": {"arXiv 2406.13035, Table 1": ("local_window", "streaming_llm")},
    "tova": {
        "arXiv 2507.19823, LongBench": ("streaming_llm", "h2o"),
        "arXiv 2401.06104, Figure 3": ("local_window",),
    },
    "snapkv": {"arXiv 2508.02401, LongBench": ("streaming_llm",), "arXiv 2406.13035, Table 3": ("h2o",)},
    "pyramidkv": {"arXiv 2508.02401, LongBench": ("streaming_llm",), "arXiv 2406.02069, Table 1": ("h2o", "snapkv")},
    "cake": {
        "arXiv 2508.02401, LongBench": ("streaming_llm", "snapkv", "pyramidkv"),
        "arXiv 2503.12491, LongBench": ("h2o", "tova"),
    },
    "adakv": {"DefensiveKV's repository": ("snapkv",)},
    "critical_adakv": {"DefensiveKV's repository": ("adakv",)},
    "defensive_kv": {"DefensiveKV's repository": ("adakv", "critical_adakv")},
    "layer_defensive_kv": {"DefensiveKV's repository": ("critical_adakv", "defensive_kv")},
    "roco": {"arXiv 2406.13035, Table 2": ("streaming_llm",), BASELINE: ("h2o", "tova", "scissorhands")},
    "keyformer": {"Keyformer's repository, Figure 7": ("local_window", "h2o"), BASELINE: ("streaming_llm",)},
    "nacl": {BASELINE: ("streaming_llm", "h2o")},
    "sirllm": {"arXiv 2405.12528, Table 1": ("streaming_llm",)},
    "pyramid_infer": {"arXiv 2502.01941, LG-GSM8K": ("streaming_llm", "h2o")},
    "chunkkv": {"arXiv 2502.00299, LongBench": ("streaming_llm", "h2o", "snapkv", "pyramidkv")},
    "cur": {"arXiv 2509.15038, abstract": ("snapkv", "chunkkv")},
    "dapq": {"arXiv 2603.11564, Table 2": ("h2o", "snapkv", "pyramidkv"), BASELINE: ("streaming_llm",)},
    "expected_attention": {
        "arXiv 2510.00636, Table 1": ("tova", "snapkv"),
        "arXiv 2503.02812, Table 1": ("streaming_llm",),
    },
    "keydiff": {
        "arXiv 2504.15364, LongBench": ("streaming_llm", "h2o", "tova"),
        "arXiv 2504.15364, Math-500": ("snapkv",),
    },
    "qfilters": {"arXiv 2503.02812, Table 1": ("streaming_llm", "knorm", "snapkv")},
    "lagkv": {
        "arXiv 2504.04704, section 4.2": ("h2o",),
        "arXiv 2504.04704, Figure 5": ("knorm",),
        "arXiv 2504.04704, Table 1": ("snapkv",),
    },
    "compactor": {"arXiv 2507.08143, Figure 6": ("snapkv",)},
    "kvcompose": {"arXiv 2509.05165, RULER": ("tova", "snapkv", "pyramidkv")},
    "kvzip": {"arXiv 2505.23416, Figure 9": ("h2o", "snapkv", "pyramidkv")},
    "attention_matching": {"arXiv 2602.16284, Figure 1": ("h2o", "snapkv", "pyramidkv", "kvzip")},
    "cam": {"CaM, OpenReview LCTmppB165": ("h2o",)},
    "kvmerger": {"arXiv 2407.08454, abstract": ("h2o", "cam")},
    "zeromerge": {BASELINE: ("streaming_llm", "h2o")},
    "keepkv": {
        "arXiv 2504.09936, Figure 4": ("streaming_llm", "h2o", "cam"),
        "arXiv 2504.09936, Table 3": ("d2o",),
    },
    "rkv": {"R-KV's repository": ("snapkv",)},
    "lazy_eviction": {
        "arXiv 2604.04921, Table A": ("h2o", "tova"),
        "arXiv 2506.15969, LiveCodeBench": ("rkv",),
    },
    "triattention": {
        "TriAttention's repository": ("snapkv", "rkv"),
        "arXiv 2604.04921, Table A": ("lazy_eviction",),
    },
    "duo_attention": {"arXiv 2507.19823, LongBench": ("streaming_llm", "h2o", "tova")},
    "lookahead_kv": {"arXiv 2603.10899, MT-Bench": ("snapkv", "pyramidkv")},
    "locret": {"arXiv 2410.01805, Table 1": ("sirllm", "infllm")},
    "kvzap": {"arXiv 2601.07891, Figure 1": ("expected_attention",), BASELINE: ("snapkv",)},
    "less": {"arXiv 2402.09398, CNN/DailyMail": ("h2o",)},
    "lococo": {BASELINE: ("streaming_llm", "h2o")},
    "dms": {"arXiv 2506.05345, equal ratios": ("h2o", "tova")},
    "trim_kv": {
        "arXiv 2512.03324, Figure 3": ("snapkv", "rkv"),
        "arXiv 2512.03324, Table 3": ("streaming_llm",),
        "arXiv 2512.03324, Table 4": ("locret",),
    },
    "infllm": {"arXiv 2402.04617, Table 1": ("streaming_llm", "h2o")},
    "shadowkv": {"arXiv 2410.21465, Table 1": ("quest", "infinigen")},
    "omnikv": {
        "arXiv 2601.13684, LongBench": ("quest",),
        "OmniKV, ICLR 2025, Table 1": ("infllm", "h2o"),
    },
    "fasa": {"arXiv 2602.03152, Table 2": ("quest",)},
    "pqcache": {"arXiv 2407.12820, InfiniteBench": ("h2o", "infllm"), BASELINE: ("snapkv", "pyramidkv")},
    "magicpig": {"MagicPIG's repository, RULER": ("quest",)},
}

QUANTISED: Published = {
    "gear": {"arXiv 2403.05527, Table 8": ("gear:rank=0",), "arXiv 2403.05527, Table 1": ("kivi",)},
    "kvquant:bits=2": {"arXiv 2401.18079, Table 1": ("kvquant:bits=2,outliers=0",)},
    "kvquant:bits=3": {"arXiv 2401.18079, Tables 2 to 4": ("kivi",)},
    "turboquant:key_bits=3,value_bits=3": {"arXiv 2504.19874, Table 1": ("kivi",)},
    "zipcache": {"arXiv 2405.14256, Table 3": ("mikv", "kivi"), BASELINE: ("h2o",)},
    "coupled_quantization": {"arXiv 2405.03917, Table 1": ("kvquant:bits=2,outliers=0",)},
    "qjl": {"arXiv 2406.03482, Table 1": ("kivi",)},
    "mikv": {"arXiv 2402.18096, line retrieval": ("h2o",)},
}


def claims(published: Published) -> Iterator[Claim]:
    """In the order in which they stand here."""
    for better, sources in published.items():
        for source, below in sources.items():
            yield from (Claim(better, worse, source) for worse in below)
