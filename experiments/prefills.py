"""Where a sweep's prefilled prompts come from: made afresh, or kept in a folder so that the next study pays no prefill."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kvjax
from kvjax.prefill import CausalAttention, PrefillAttention
from kvjax.prefill.run import resolve_needs


@dataclass(frozen=True)
class Afresh:
    """Every prompt is prefilled, and read again where a policy needs that."""

    def of(self, lm: Any, ids: Sequence[int], needs: Any, attention: PrefillAttention = CausalAttention()) -> Any:
        return kvjax.second_pass(lm, kvjax.prefill(lm, list(ids), needs=needs, attention=attention), needs)


@dataclass(frozen=True)
class Kept:
    """A prompt whose file is in `folder`, with all the evidence asked for, is read; another is prefilled and written.

    A file that lacks evidence is replaced by one with both, so that studies of different methods share it. A file of another
    model is an error (`kvjax.load_prefilled`). What a second pass records is not kept, nor a prompt read with other than exact
    attention.
    """

    folder: Path

    def of(self, lm: Any, ids: Sequence[int], needs: Any, attention: PrefillAttention = CausalAttention()) -> Any:
        if attention != CausalAttention():
            return Afresh().of(lm, ids, needs, attention)
        return kvjax.second_pass(lm, self._prefilled(lm, ids, needs), needs)

    def _prefilled(self, lm: Any, ids: Sequence[int], needs: Any) -> Any:
        name = hashlib.sha256(json.dumps([lm.name, str(lm.params["embed"]["weight"].dtype), *ids]).encode()).hexdigest()[:24]
        path, wanted = self.folder / f"{name}.prefill", resolve_needs(needs)
        if path.is_file():
            found = kvjax.load_prefilled(path, lm)
            if wanted <= set(found.needs):
                return found
            wanted |= set(found.needs)
        self.folder.mkdir(parents=True, exist_ok=True)
        made = kvjax.prefill(lm, list(ids), needs=wanted)
        kvjax.save_prefilled(made, path, lm)
        return made
