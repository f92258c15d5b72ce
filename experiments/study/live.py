"""The most bytes that were held on the device: by its own counter, or by the arrays that are alive now and then."""

import gc

import jax

from experiments.study.cell import COUNTED, LIVE
from kvjax.placement.store import on_host


class Peak:
    """Begins with the model alone on the device; `look` is called when much is held.

    A device's counter never falls: it tells this peak only where it rose meanwhile. Elsewhere the arrays count that were alive when
    somebody looked; what a program holds while it runs is not among them.

    Args:
        held: bytes of what is there and counts, such as the model's weights.
    """

    def __init__(self, held: int) -> None:
        gc.collect()
        self._held, self._before, self._counted, self._most = held, _alive(), _counter(), 0

    def look(self) -> None:
        """Count what is alive now."""
        self._most = max(self._most, _alive() - self._before)

    @property
    def found(self) -> tuple[int, str]:
        """Bytes, and who counted them: COUNTED or LIVE."""
        now = _counter()
        return (now, COUNTED) if now > self._counted else (self._held + self._most, LIVE)


def _alive() -> int:
    """Bytes of all arrays that are not in host memory."""
    return sum(x.nbytes for x in jax.live_arrays() if not on_host(x))


def _counter() -> int:
    """The most the device held since the process began; 0 where it does not tell."""
    return int((jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))
