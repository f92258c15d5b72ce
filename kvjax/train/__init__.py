"""Training what a policy learns: a forward pass that can be differentiated, what gates add to it, losses, and the loop."""

from kvjax.train.artefact import artefact_of
from kvjax.train.attention import causal_attention
from kvjax.train.batch import Batch, Example, Source, stacked
from kvjax.train.decisions import draw_log_probability, gumbel_sigmoid, gumbel_top_k, noisy_logit, straight_through
from kvjax.train.forward import Attend, Hook, by_blocks, forward, plain
from kvjax.train.frozen import Frozen
from kvjax.train.held_out import mean_grade
from kvjax.train.learner import Graded, Learner, Moment
from kvjax.train.losses import cross_entropy, forward_kl, hidden_error, masked_mean, reverse_kl
from kvjax.train.rates import l1, of_ratio, rate_deviation, rate_hinge, ratio_ramp
from kvjax.train.regression import neighbours, score_kl, smooth_l1, smooth_l1_with_neighbours
from kvjax.train.run import Trained, train, untrained
from kvjax.train.schedules import cosine, trapezoid
from kvjax.train.source import Examples
from kvjax.train.trim_kv import capacity, decay, decaying, retained
from kvjax.train import learners

__all__ = [
    "Attend", "Batch", "Example", "Examples", "Frozen", "Graded", "Hook", "Learner", "Moment", "Source", "Trained", "artefact_of",
    "by_blocks", "capacity", "causal_attention", "cosine", "cross_entropy", "decay", "decaying", "draw_log_probability", "forward",
    "forward_kl", "gumbel_sigmoid", "gumbel_top_k", "hidden_error", "l1", "learners", "masked_mean", "mean_grade", "neighbours",
    "noisy_logit", "of_ratio", "plain", "rate_deviation", "rate_hinge", "ratio_ramp", "retained", "reverse_kl", "score_kl",
    "smooth_l1", "smooth_l1_with_neighbours", "stacked", "straight_through", "train", "trapezoid",
    "untrained",
]  # fmt: skip
