"""Tables that methods measure of a model once: their schema, files, and those that come with the library."""

from kvjax.artefacts.retrofit import retrofitted

__all__ = ["retrofitted"]
