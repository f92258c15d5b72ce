"""A prefilled prompt as one file, so that the costly pass over a long prompt is paid once.

The file is safetensors: every array under its path in the pytree with a checksum, and one JSON header (version, model, what the
pytree is made of). What belongs to the model comes from the model on loading.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from kvjax.checks import check_finite, check_language_model
from kvjax.files import tensors as files
from kvjax.files.model_facts import check_facts, dtype_of, facts_of, known_of
from kvjax.files.trees import described, restored
from kvjax.prefill.prefilled import Prefilled
from kvjax.protocols import LanguageModel
from kvjax.weights_mark import made_with

#: Raised whenever the header's or a tensor's meaning changes.
VERSION = 4
_KIND = files.Kind(holds="prefilled prompt", made_by="kvjax.save_prefilled(pre, path, lm)")


def save_prefilled(pre: Prefilled, path: str | Path, lm: LanguageModel) -> Path:
    """Write prompts, keys, values, evidence and logits to one file; a file that is there is replaced whole, or not at all.

    Args:
        pre: from `kvjax.prefill` or `kvjax.second_pass`.   path: the file to write.
        lm: the model `pre` came from: the file remembers its name, shape, dtype, tokenizer and a digest of its parameters.

    Raises:
        TypeError: no model.
        ValueError: another model's prefill, or evidence of a class that is not defined at the top of a module.
        OSError: the file cannot be written.
    """
    check_language_model(lm)
    path = Path(path)
    if pre.decoder != lm.decoder or pre.rows[0].k[0].dtype != dtype_of(lm):
        raise ValueError(f"this prefill is not of {lm.name!r} in {dtype_of(lm)}: pass the model that kvjax.prefill was given")
    if not made_with(lm, np.asarray(pre.made_by)):
        raise ValueError(
            f"this prefill was made with other weights than {lm.name!r} has: pass the model that kvjax.prefill was given"
        )
    tree, arrays = described(pre, known_of(lm))
    files.write(arrays, path, {"version": VERSION, "model": facts_of(lm), "prefilled": tree}, kind=_KIND)
    return path


def load_prefilled(path: str | Path, lm: LanguageModel) -> Prefilled:
    """Read what `save_prefilled` wrote: the same arrays to the bit, ready for `kvjax.compress`.

    Raises:
        TypeError: no model.
        FileNotFoundError: no such file.
        ValueError: cut short, damaged or no such file of kvjax; another version; another model (all that differs is listed);
            evidence of a module that is not imported.
        FloatingPointError: keys or values that are not finite.
    """
    check_language_model(lm)
    path = Path(path)
    header = files.header_of(path, kind=_KIND)
    files.check_version(path, header, VERSION)
    check_facts(path, header["model"], facts_of(lm))
    header, arrays = files.read(path, kind=_KIND)
    try:
        pre = restored(header["prefilled"], arrays, known_of(lm))
        _check_rows(pre, lm)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} {error}: save it again") from error
    check_finite(jnp.stack([row.logits for row in pre.rows]), f"the logits in {path}")
    return pre


def _check_rows(pre: Prefilled, lm: LanguageModel) -> None:
    """Raise ValueError for keys and values of other shapes than the model's."""
    for row in pre.rows:
        shapes = {x.shape for x in (*row.k, *row.v)}
        if shapes != {(1, lm.decoder.heads, *row.ids.shape, lm.decoder.head_dim)} or len(row.k) != len(row.v):
            raise ValueError(f"holds rows that the model does not have, of {shapes}")
