"""Where the k largest keys of every row are, with a traced k."""

from .api import list_top

__all__ = ["list_top"]
