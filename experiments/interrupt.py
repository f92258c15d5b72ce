"""Ctrl-C ends a command with 130, whatever it is doing; imports nothing but the standard library, so that it can be there first.

The interpreter is not taken down: XLA's threads may still compute, and end a process that takes its interpreter from under them.
"""

import _thread
import os
import random
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn

CODE = 130
SAID = "interrupted; rows already written are safe, the same command goes on from there"
#: Seconds that the main thread has to leave by itself; inside a long computation it hears of no signal until that has ended.
PATIENCE = 2.0
#: How often an interruption that was dropped is raised again, each time with that patience.
TIMES = 300

_pressed, _raised, _lost = threading.Event(), threading.Event(), threading.Event()


def watch() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, once, and ends the process if the main thread is not gone after `PATIENCE`.

    Where the process was started to ignore it, as shells start what runs in the background, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    threading.Thread(target=_end, args=(heard,), daemon=True).start()
    signal.signal(signal.SIGINT, _once)
    sys.unraisablehook = _dropped


def interrupted() -> bool:
    """Whether Ctrl-C was pressed since `watch`."""
    return _pressed.is_set()


def leave(code: int) -> NoReturn:
    """End the process, its output written, but nothing else: no other thread is waited for."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more
            pass
    os._exit(code)


def _once(number: int, frame: FrameType | None) -> None:
    _pressed.set()
    if not _raised.is_set():  # what is cleaned up after the first is not to be interrupted
        _raised.set()
        raise KeyboardInterrupt


def _dropped(lost: Any) -> None:
    """Python drops what is raised inside a destructor or a callback of its collector: an interruption is raised once more."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        _lost.set()
    else:
        sys.__unraisablehook__(lost)


def _end(heard: int) -> None:
    while os.read(heard, 1)[0] != signal.SIGINT:
        pass
    for _ in range(TIMES):
        if not _lost.wait(PATIENCE):
            break
        # the main thread leaves the place where it was dropped; never in step with a loop that is mostly in such places
        time.sleep(random.uniform(0.005, 0.03))
        _lost.clear()
        _raised.clear()
        _thread.interrupt_main()
    if "kvjax.kernels.native.library" in sys.modules:
        sys.modules["kvjax.kernels.native.library"].abandon()
    print(f"error: {SAID}", file=sys.stderr)
    leave(CODE)
