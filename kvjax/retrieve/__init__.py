"""Retrievers: query → the slots it reads."""

from kvjax.retrieve.everything import Everything

__all__ = ["Everything"]
