"""What happens when in a decode: layers as they begin, readings of the host as they are begun, run and waited for."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

import kvjax
from kvjax.placement import by_callback
from kvjax.placement.begun import BegunReads
from kvjax.placement.on_device import OnDevice
from kvjax.retrieve.elsewhere import once_begun
from models.decoder import Decoder
from tests.artefacts import toy

#: Seconds after which a reading gives up waiting for the device: a program that does not overlap would wait for ever.
PATIENCE = 20


def heterocache(home: OnDevice) -> kvjax.Policy:
    """Satellites of a pivot are read anew when it drifts."""
    return kvjax.methods.heterocache(budget=0.6, artefact=toy("heterocache"), theta=1.5, host=home)


def infinigen(home: OnDevice) -> kvjax.Policy:
    """A layer's tokens are read while the one before it is at work; all layers but the first are read so."""
    return kvjax.methods.infinigen(part=0.5, alpha=1.5, cap=20, home=home, skip_layers=1)


@dataclass
class Log:
    """Events in their order.

    Attributes:
        events: "layer", "begin" or "take".   met: for each reading of a thread whether the device's work that it waited for began.
        direct: readings that nobody had begun.   nbytes: of the rows that came.
    """

    events: list[str] = field(default_factory=list)
    met: list[bool] = field(default_factory=list)
    direct: int = 0
    nbytes: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    over: bool = False

    def end(self) -> None:
        """Let go of readings that wait for layers which will not come."""
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def note(self, event: str) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def between(self) -> list[int]:
        """Layers that began between each reading's beginning and its being waited for."""
        return between(self.events, "layer")


def between(events: Iterable[str], work: str) -> list[int]:
    """Events of `work` between each "begin" and its "take"; what is begun first is taken first, a take of nothing is left out."""
    begun, found, done = [], [], 0
    for event in events:
        done += event == work
        if event == "begin":
            begun.append(done)
        elif event == "take" and begun:
            found.append(done - begun.pop(0))
    return found


_LOG: list[Log] = []


def _layer_begins(x) -> np.ndarray:
    _LOG[-1].note("layer")
    return np.int32(0)


@dataclass(frozen=True)
class Watched(Decoder):
    """A decoder whose layers say when their work begins."""

    def layer(self, weights, x, positions, attend):
        begun = jax.pure_callback(_layer_begins, jax.ShapeDtypeStruct((), jnp.int32), x.reshape(-1)[:1])
        return super().layer(weights, once_begun(begun, x), positions, attend)


def watched(lm):
    """The same model, watched."""
    return lm.replace(decoder=Watched(lm.decoder.config))


def slow_reads(monkeypatch, layers: int, read: Callable = by_callback._Rows.read) -> Log:
    """The log of what follows. A reading in a thread of the host ends only when `layers` more layers have begun."""
    log, begin, take = Log(), BegunReads.begin, BegunReads.take
    _LOG.append(log)

    def slow(rows, slots):
        if not threading.current_thread().name.startswith("kvjax-host-rows"):
            return read(rows, slots)
        with log.changed:
            wanted = waited.pop((id(rows.begun), slots.tobytes()))
            log.met.append(log.changed.wait_for(lambda: log.over or log.events.count("layer") >= wanted, PATIENCE))
        return read(rows, slots)

    waited: dict[tuple[int, bytes], int] = {}

    def begins(self, asked, reading, nbytes):
        with log.changed:
            waited[id(self), asked[2]] = log.events.count("layer") + layers
        log.note("begin")
        begin(self, asked, reading, nbytes)

    def takes(self, asked, reading):
        log.direct += asked not in self
        log.note("take")
        rows = take(self, asked, reading)
        log.nbytes += rows.nbytes
        return rows

    monkeypatch.setattr(by_callback._Rows, "read", slow)
    monkeypatch.setattr(BegunReads, "begin", begins)
    monkeypatch.setattr(BegunReads, "take", takes)
    return log
