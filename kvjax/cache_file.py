"""A conversation as one file: a compressed cache with everything that decoding goes on from.

The file is safetensors: every array under its path in the cache with a checksum, and one JSON header (version, model, policy, what
the cache is made of). Any storage that is a pytree is held, whatever its codecs and stages keep.
"""

from pathlib import Path

import numpy as np

from kvjax.cache import KVCache
from kvjax.checks import check_finite, check_language_model
from kvjax.decode.headroom import check_cache
from kvjax.files import tensors as files
from kvjax.files.facts import differences, facts_of_stage
from kvjax.files.model_facts import check_facts, facts_of, known_of
from kvjax.files.trees import described, restored
from kvjax.policy import Policy
from kvjax.protocols import LanguageModel

#: Raised whenever the header's or a tensor's meaning changes.
VERSION = 4
_KIND = files.Kind(holds="saved conversation", made_by="kvjax.save_cache(cache, path, lm, policy)")


def save_cache(cache: KVCache, path: str | Path, lm: LanguageModel, policy: Policy, *, deflate: bool = False) -> Path:
    """Write a cache to one file; a file that is there is replaced whole, or not at all.

    Keys, values, codes, exact windows, positions, biases, stages' states, evidence, values on the host: all of it to the bit.

    Args:
        cache: from `kvjax.compress`, `extend` or `decode`.   path: the file to write.
        lm: the model it was made with: the file remembers its name, shape, dtype, tokenizer and a digest of its parameters.
        policy: the policy it was made with: the file remembers all its stages and numbers.
        deflate: whether arrays go through DEFLATE, which keeps them to the bit: codes get smaller, and room that is not in use
            nearly vanishes. It takes longer; `load_cache` sees by itself what a file is.

    Raises:
        TypeError, ValueError: no model, no cache, another model's or policy's cache, or state of a class that is not defined at
            the top of a module.
        OSError: the file cannot be written.
    """
    check_language_model(lm)
    path = Path(path)
    check_cache(lm, cache, policy, 0)
    tree, arrays = described(cache, known_of(lm))
    facts = {"model": facts_of(lm), "policy": facts_of_stage(policy)}
    files.write(arrays, path, {"version": VERSION, **facts, "cache": tree}, kind=_KIND, deflate=deflate)
    return path


def load_cache(path: str | Path, lm: LanguageModel, policy: Policy) -> KVCache:
    """Read what `save_cache` wrote: the same cache to the bit, which decodes as the one that was saved.

    Args:
        path: the file.   lm: the model it was made with.   policy: the policy it was made with.

    Raises:
        TypeError: no model, no policy.
        FileNotFoundError: no such file.
        ValueError: cut short, damaged or no such file of kvjax; another version; another model or policy (all that differs is
            listed); state of a module that is not imported.
        FloatingPointError: logits that are not finite.
    """
    check_language_model(lm)
    path = Path(path)
    if not isinstance(policy, Policy):
        raise TypeError(f"expected the policy the cache was made with; got {policy!r}")
    header = files.header_of(path, kind=_KIND)
    files.check_version(path, header, VERSION)
    check_facts(path, header["model"], facts_of(lm))
    _check_policy(path, header["policy"], policy)
    header, arrays = files.read(path, kind=_KIND)
    try:
        cache = restored(header["cache"], arrays, known_of(lm))
        _check_regions(cache)
        check_cache(lm, cache, policy, 0)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} {error}; save it again") from error
    check_finite(cache.logits, f"the logits in {path}")
    return cache


def _check_policy(path: Path, theirs: dict[str, object], policy: Policy) -> None:
    """Raise ValueError naming every part in which the policy differs."""
    if found := differences(facts_of_stage(policy), theirs):
        raise ValueError(f"{path} was saved with another policy ({'; '.join(found)}): load it with the policy it was saved with")


def _check_regions(cache: KVCache) -> None:
    """Raise ValueError for regions that overlap, or lie outside the pool, of the cache or of its parts."""
    if cache.parts:
        for part in cache.parts:
            _check_regions(part)
        return
    start, length, capacity = (np.asarray(x).reshape(-1).astype(np.int64) for x in (cache.start, cache.length, cache.capacity))
    order = np.argsort(start)
    ends = (start + capacity)[order]
    apart = (ends[:-1] <= start[order][1:]).all() and start.min() >= 0 and ends[-1] <= cache.slots
    if not apart or (length < 0).any() or (length > capacity).any():
        raise ValueError("holds regions that overlap or lie outside its pool")
