"""While a program compiles, the progress of a command says so: of what takes long, the first call is mostly that."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

#: Where JAX says, at the level of debugging, that a program begins to be compiled, and that it is.
_LOGGERS = tuple(map(logging.getLogger, ("jax._src.interpreters.pxla", "jax._src.dispatch")))


@contextmanager
def heard(tell: Callable[[bool], None]) -> Iterator[None]:
    """Inside the block `tell` hears True when a program begins to compile and False when it is there. Nothing more is printed."""
    with ExitStack() as stack:
        for logger in _LOGGERS:
            stack.enter_context(_listening(logger, tell))
        yield


@contextmanager
def _listening(logger: logging.Logger, tell: Callable[[bool], None]) -> Iterator[None]:
    own, shown = logger.level, logger.getEffectiveLevel()

    def listen(record: logging.LogRecord) -> bool:
        said = str(record.msg)
        if said.startswith("Compiling "):
            tell(True)
        elif said.startswith("Finished XLA compilation"):
            tell(False)
        return record.levelno >= shown

    logger.addFilter(listen)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(own)
        logger.removeFilter(listen)
