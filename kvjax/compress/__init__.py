"""From a prefilled prompt to a compressed cache."""

from kvjax.compress.run import compress
from kvjax.compress.score_prompt import PromptScores, score_prompt
from kvjax.compress.scores import scores

__all__ = [
    "PromptScores", "compress", "score_prompt", "scores",
]
