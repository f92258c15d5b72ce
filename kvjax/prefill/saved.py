"""A prefilled prompt as one file, so that the costly pass over a long prompt is paid once.

The file is safetensors: every array under its path in the pytree, and one JSON header (version, model, needs, buckets). What is
static comes from the model on loading, evidence from a description of its needs; nothing in the file is ever executed.
"""

import dataclasses
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.flax import save_file

from kvjax import evidence as ev
from kvjax.artefacts.artefact import model_facts
from kvjax.prefill.prefilled import Prefilled, PrefilledRow
from kvjax.prefill.run import buffers

#: Raised whenever the header's or a tensor's meaning changes.
VERSION = 1
_NEEDS = {kind.__name__: kind for kind in (ev.WindowQueries, ev.QueryMoments, ev.ColumnSums, ev.HiddenStates, ev.RawKeys)}


def save_prefilled(pre: Prefilled, path: str | Path, lm: Any) -> Path:
    """Write prompts, keys, values, evidence and logits to one file; a file that is there is replaced whole, or not at all.

    Args:
        pre: from `kvjax.prefill`.   path: the file to write.
        lm: the model `pre` came from: the file remembers its name, shape, dtype, tokenizer and a digest of its parameters.

    Raises:
        ValueError: another model's prefill, or evidence that is none of `kvjax.evidence`'s own.
        OSError: the file cannot be written.
    """
    path = Path(path)
    if pre.decoder != lm.decoder or pre.rows[0].k[0].dtype != _dtype(lm):
        raise ValueError(f"this prefill is not of {lm.name!r} in {_dtype(lm)}: pass the model that kvjax.prefill was given")
    header = {
        "version": VERSION,
        "model": _facts(lm),
        "needs": [_describe(need) for need in sorted(pre.needs, key=repr)],
        "buckets": [row.ids.shape[0] for row in pre.rows],
        "all_logits": pre.rows[0].all_logits is not None,
    }
    _write(dict(_named(pre)), path, {"kvjax": json.dumps(header)})
    return path


def load_prefilled(path: str | Path, lm: Any) -> Prefilled:
    """Read what `save_prefilled` wrote: the same arrays to the bit, ready for `kvjax.compress`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: cut short, damaged or no such file of kvjax; another version; another model (all that differs is listed).
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file: write one with kvjax.save_prefilled(pre, path, lm)")
    try:
        with safe_open(path, framework="flax") as file:
            header = _header(path, file.metadata())
            _check_model(path, header["model"], _facts(lm))
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is cut short, damaged or no safetensors file ({error}): save the prefill again") from error
    needs = frozenset(map(_need, header["needs"]))
    empty = lambda buckets: _empty(lm, buckets, needs, header["all_logits"])  # noqa: E731
    _check_tensors(path, tensors, jax.eval_shape(lambda: dict(_named(empty(header["buckets"])))))
    return jax.tree_util.tree_map_with_path(lambda at, _: tensors[_name(at)], empty([1] * len(header["buckets"])))


def _dtype(lm: Any) -> np.dtype:
    return lm.params["embed"]["weight"].dtype


def _facts(lm: Any) -> dict[str, Any]:
    """All of a model that its keys and values depend on, as JSON gives it back."""
    config = dataclasses.asdict(lm.decoder.config)
    facts = model_facts(lm) | config | {"dtype": str(_dtype(lm)), "parameters": _parameter_digest(lm.params)}
    return json.loads(json.dumps(facts))


def _parameter_digest(params: Any) -> str:
    """Twelve hexadecimal digits over the middle row of every parameter: cheap, and training leaves no parameter's row alone."""
    found = hashlib.sha256()
    for name, x in _named(params):
        found.update(f"{name} {x.dtype} {x.shape}".encode() + np.asarray(x[x.shape[0] // 2]).tobytes())
    return found.hexdigest()[:12]


def _named(tree: Any) -> list[tuple[str, Any]]:
    """Every leaf with its path: `rows.0.k.3`."""
    return [(_name(at), x) for at, x in jax.tree_util.tree_leaves_with_path(tree)]


def _name(at: Any) -> str:
    return jax.tree_util.keystr(at, simple=True, separator=".")


def _describe(need: Any) -> dict[str, Any]:
    """A need as its name and fields."""
    if type(need) not in _NEEDS.values():
        known = ", ".join(_NEEDS)
        raise ValueError(f"{need!r} cannot be saved: only {known} can; prefill with these, or for policies that read these")
    return {"need": type(need).__name__, **dataclasses.asdict(need)}


def _need(found: dict[str, Any]) -> Any:
    """A described need as the object it was."""
    fields = dict(found)
    kind = fields.pop("need")
    if kind not in _NEEDS:
        raise ValueError(f"the file holds unknown evidence {kind!r}; this kvjax knows {', '.join(_NEEDS)}")
    return _NEEDS[kind](**fields)


def _write(tensors: dict[str, Any], path: Path, metadata: dict[str, str]) -> None:
    """Write beside the name, flush to the disk, rename."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete_on_close=False) as draft:
            save_file(tensors, draft.name, metadata)
            with open(draft.name, "rb+") as written:
                os.fsync(written.fileno())
            os.chmod(draft.name, 0o644)
            os.replace(draft.name, path)
    except (OSError, SafetensorError) as error:
        raise OSError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error


def _header(path: Path, metadata: dict[str, str] | None) -> dict[str, Any]:
    if "kvjax" not in (metadata or {}):
        raise ValueError(f"{path} holds no prefilled prompt: write one with kvjax.save_prefilled(pre, path, lm)")
    header = json.loads(metadata["kvjax"])
    if header["version"] != VERSION:
        raise ValueError(f"{path} has version {header['version']}, this kvjax reads {VERSION}: prefill and save again")
    return header


def _check_model(path: Path, theirs: dict[str, Any], mine: dict[str, Any]) -> None:
    """Raise ValueError naming every fact in which the model differs."""
    differ = [name for name in mine | theirs if mine.get(name) != theirs.get(name)]
    short = lambda x: text if len(text := repr(x)) <= 48 else text[:45] + "..."  # noqa: E731
    if differ:
        found = "; ".join(f"{name}: the model has {short(mine.get(name))}, the file {short(theirs.get(name))}" for name in differ)
        raise ValueError(f"{path} was saved from another model ({found}): load that model, or prefill with this one")


def _empty(lm: Any, buckets: list[int], needs: frozenset, all_logits: bool) -> Prefilled:
    """A prefill of these buckets, all zeros: its structure, names, shapes and dtypes are those of the file."""

    def row(n: int) -> PrefilledRow:
        k, v, evidence = buffers(lm.decoder, n, _dtype(lm), needs)
        vocab = lm.decoder.vocab
        return PrefilledRow(
            ids=jnp.zeros(n, jnp.int32), length=jnp.zeros(1, jnp.int32), k=tuple(k), v=tuple(v), evidence=tuple(evidence),
            logits=jnp.zeros(vocab), all_logits=jnp.zeros((n, vocab)) if all_logits else None,
        )  # fmt: skip

    return Prefilled(rows=tuple(map(row, buckets)), needs=ev.ordered(needs), decoder=lm.decoder)


def _check_tensors(path: Path, tensors: dict[str, jax.Array], wanted: dict[str, Any]) -> None:
    """Raise ValueError unless the file has just these arrays."""
    kinds = [{name: (x.shape, x.dtype) for name, x in group.items()} for group in (wanted, tensors)]
    wrong = sorted(name for name in wanted | tensors if kinds[0].get(name) != kinds[1].get(name))
    if wrong:
        raise ValueError(f"{path} has arrays that its header does not call for, or lacks some: {', '.join(wrong[:4])}; save again")
