"""Scores of new tokens against keys that are stored as codebook indices, without decoding a key."""

from .api import codebook_scores

__all__ = ["codebook_scores"]
