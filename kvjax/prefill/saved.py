"""A prefilled prompt as one file, so that the costly pass over a long prompt is paid once.

The file is safetensors: every array under its path in the pytree with a checksum, and one JSON header (version, model, needs,
buckets). What is static comes from the model on loading, evidence from a description of its needs.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from kvjax import evidence as ev
from kvjax.checks import check_finite
from kvjax.files import tensors as files
from kvjax.files.model_facts import check_facts, dtype_of, facts_of, name_of, named
from kvjax.prefill.prefilled import Prefilled, PrefilledRow
from kvjax.prefill.run import buffers
from kvjax.protocols import LanguageModel

#: Raised whenever the header's or a tensor's meaning changes.
VERSION = 2
_KIND = files.Kind(holds="prefilled prompt", made_by="kvjax.save_prefilled(pre, path, lm)")
_NEEDS = {kind.__name__: kind for kind in (ev.WindowQueries, ev.QueryMoments, ev.ColumnSums, ev.HiddenStates, ev.RawKeys)}


def save_prefilled(pre: Prefilled, path: str | Path, lm: LanguageModel) -> Path:
    """Write prompts, keys, values, evidence and logits to one file; a file that is there is replaced whole, or not at all.

    Args:
        pre: from `kvjax.prefill`.   path: the file to write.
        lm: the model `pre` came from: the file remembers its name, shape, dtype, tokenizer and a digest of its parameters.

    Raises:
        ValueError: another model's prefill, or evidence that is none of `kvjax.evidence`'s own.
        OSError: the file cannot be written.
    """
    path = Path(path)
    if pre.decoder != lm.decoder or pre.rows[0].k[0].dtype != dtype_of(lm):
        raise ValueError(f"this prefill is not of {lm.name!r} in {dtype_of(lm)}: pass the model that kvjax.prefill was given")
    header = {
        "version": VERSION,
        "model": facts_of(lm),
        "needs": [_describe(need) for need in sorted(pre.needs, key=repr)],
        "buckets": [row.ids.shape[0] for row in pre.rows],
        "all_logits": pre.rows[0].all_logits is not None,
    }
    files.write(dict(named(pre)), path, header)
    return path


def load_prefilled(path: str | Path, lm: LanguageModel) -> Prefilled:
    """Read what `save_prefilled` wrote: the same arrays to the bit, ready for `kvjax.compress`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: cut short, damaged or no such file of kvjax; another version; another model (all that differs is listed).
        FloatingPointError: keys or values that are not finite.
    """
    path = Path(path)
    header = files.header_of(path, kind=_KIND)
    if header["version"] != VERSION:
        raise ValueError(f"{path} has version {header['version']}, this kvjax reads {VERSION}: prefill and save again")
    check_facts(path, header["model"], facts_of(lm))
    needs = frozenset(map(_need, header["needs"]))
    header, tensors = files.read(path, kind=_KIND)

    def empty(buckets: list[int]) -> Prefilled:
        return _empty(lm, buckets, needs, header["all_logits"])

    _check_tensors(path, tensors, jax.eval_shape(lambda: dict(named(empty(header["buckets"])))))
    pre = jax.tree_util.tree_map_with_path(lambda at, _: tensors[name_of(at)], empty([1] * len(header["buckets"])))
    check_finite(jnp.stack([row.logits for row in pre.rows]), f"the logits in {path}")
    return pre


def _describe(need: object) -> dict[str, object]:
    """A need as its name and fields."""
    if type(need) not in _NEEDS.values():
        known = ", ".join(_NEEDS)
        raise ValueError(f"{need!r} cannot be saved: only {known} can; prefill with these, or for policies that read these")
    return {"need": type(need).__name__, **dataclasses.asdict(need)}


def _need(found: dict[str, object]) -> PyTree:
    """A described need as the object it was."""
    fields = dict(found)
    kind = fields.pop("need")
    if kind not in _NEEDS:
        raise ValueError(f"the file holds unknown evidence {kind!r}; this kvjax knows {', '.join(_NEEDS)}")
    return _NEEDS[kind](**fields)


def _empty(lm: LanguageModel, buckets: list[int], needs: Iterable[ev.Need], all_logits: bool) -> Prefilled:
    """A prefill of these buckets, all zeros: its structure, names, shapes and dtypes are those of the file."""

    def row(n: int) -> PrefilledRow:
        k, v, evidence = buffers(lm.decoder, n, dtype_of(lm), needs)
        vocab = lm.decoder.vocab
        return PrefilledRow(
            ids=jnp.zeros(n, jnp.int32), length=jnp.zeros(1, jnp.int32), k=tuple(k), v=tuple(v), evidence=tuple(evidence),
            logits=jnp.zeros(vocab), all_logits=jnp.zeros((n, vocab)) if all_logits else None,
        )  # fmt: skip

    return Prefilled(rows=tuple(map(row, buckets)), needs=ev.ordered(needs), decoder=lm.decoder)


def _check_tensors(path: Path, tensors: dict[str, jax.Array], wanted: dict[str, object]) -> None:
    """Raise ValueError unless the file has just these arrays."""
    kinds = [{name: (x.shape, x.dtype) for name, x in group.items()} for group in (wanted, tensors)]
    wrong = sorted(name for name in wanted | tensors if kinds[0].get(name) != kinds[1].get(name))
    if wrong:
        raise ValueError(f"{path} has arrays that its header does not call for, or lacks some: {', '.join(wrong[:4])}; save again")
