"""Learning rates over a run, as optax schedules: functions of the step."""

import jax.numpy as jnp
import optax


def trapezoid(rate: float, steps: int) -> optax.Schedule:
    """rate · min(1, max((s + 1) / (N/5), 0.1), max((N - s) / (N/5), 0.1)): up a fifth of the run, down the last fifth.

    Source: DuoAttention, arXiv 2410.10819, as released.
    """
    fifth = steps / 5

    def at(step):
        up = jnp.maximum((step + 1) / fifth, 0.1)
        down = jnp.maximum((steps - step) / fifth, 0.1)
        return rate * jnp.minimum(1.0, jnp.minimum(up, down))

    return at


def cosine(rate: float, steps: int, *, warmup: int, floor: float) -> optax.Schedule:
    """0 → rate over `warmup` steps, at most a tenth of the run, then along a cosine down to `floor`."""
    up = max(1, min(warmup, steps // 10))
    return optax.warmup_cosine_decay_schedule(0.0, rate, up, max(steps, up + 1), floor)


def rise_and_fall(rate: float, steps: int, *, rise: float) -> optax.Schedule:
    """0 → rate over the first share `rise` of the run, then straight back to 0."""
    up = max(1, round(rise * steps))
    return optax.join_schedules([optax.linear_schedule(0.0, rate, up), optax.linear_schedule(rate, 0.0, max(1, steps - up))], [up])
