"""Training what a policy learns: a forward pass that can be differentiated, what gates add to it, losses, and the loop."""

from kvjax.artefacts.retrofit import own_weights, with_weights
from kvjax.train.answer_attention import answer_attention
from kvjax.train.artefact import artefact_of
from kvjax.train.attention import causal_attention, causal_weights
from kvjax.train.batch import Batch, Example, Source, stacked
from kvjax.train.decisions import draw_log_probability, gumbel_sigmoid, gumbel_top_k, noisy_logit, straight_through
from kvjax.train.delayed import delayed_penalty
from kvjax.train.forward import Attend, Hook, by_blocks, forward, plain
from kvjax.train.frozen import Frozen
from kvjax.train.held_out import mean_grade
from kvjax.train.learner import Graded, Learner, Moment
from kvjax.train.losses import cross_entropy, forward_kl, hidden_error, masked_mean, reverse_kl
from kvjax.train.rates import l1, of_ratio, rate_deviation, rate_hinge, ratio_ramp
from kvjax.train.ranks import rank_correlation
from kvjax.train.reading import reading
from kvjax.train.regression import neighbours, score_kl, smooth_l1, smooth_l1_with_neighbours, squared_error
from kvjax.train.routed import random_sources, routed_forward
from kvjax.train.run import Trained, train, untrained
from kvjax.train.schedules import cosine, rise_and_fall, trapezoid
from kvjax.train.source import Examples
from kvjax.train.taught import taught
from kvjax.train.trim_kv import capacity, decay, decaying, model_capacity, retained
from kvjax.train import learners

__all__ = [
    "Attend", "Batch", "Example", "Examples", "Frozen", "Graded", "Hook", "Learner", "Moment", "Source", "Trained",
    "answer_attention", "artefact_of", "by_blocks", "capacity", "causal_attention", "causal_weights", "cosine",
    "cross_entropy", "decay", "decaying", "delayed_penalty", "draw_log_probability", "forward", "forward_kl",
    "gumbel_sigmoid", "gumbel_top_k", "hidden_error", "l1", "learners", "masked_mean", "mean_grade", "model_capacity",
    "neighbours", "noisy_logit", "of_ratio", "own_weights", "plain", "random_sources", "rank_correlation", "rate_deviation",
    "rate_hinge", "ratio_ramp", "reading", "retained", "reverse_kl", "rise_and_fall", "routed_forward", "score_kl",
    "smooth_l1", "smooth_l1_with_neighbours", "squared_error", "stacked", "straight_through", "taught", "train",
    "trapezoid", "untrained", "with_weights",
]  # fmt: skip
