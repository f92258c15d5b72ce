"""NaCL (arXiv 2408.03675): sinks, recent tokens, the best by a few proxy queries, and a sample of the rest.

Readings of what is open:
- Proxies are the prompt's last p queries, p = max(int(0.01 n), 5); without a causal mask they see later keys too.
- s' = min(s, p - 1) sinks and r_p = p - s' recent tokens, so that int(0.01 n) slots hold both; the release's int(0.01 n) - s is
  not positive for short prompts.
- Counts are floors of shares of n. Heads may have different samples; noise is given for every head and position.
- Scores are averaged over the group. The sample's softmax is over summed probabilities as they are.
- Where the candidates are fewer than the counts, all of them stay.
"""

import numpy as np
from jaxtyping import Float, Int

from .highest import floor_share, highest, highest_of
from .softmax import softmax


def proxies(n: int) -> int:
    """p = max(int(0.01 n), 5), at most n."""
    return min(max(floor_share(n, 0.01), 5), n)


def protected(n: int, sinks: int = 256) -> tuple[int, int]:
    """(s', r_p): p slots for the first and the last tokens."""
    p = proxies(n)
    first = min(sinks, p - 1)
    return first, p - first


def proxy_scores(q: Float[np.ndarray, "h g p d"], k: Float[np.ndarray, "h n d"]) -> Float[np.ndarray, "h n"]:
    """u: probabilities over all n keys, no mask, summed over the proxies, mean over the group."""
    z = np.einsum("hgpd,hnd->hgpn", q.astype(np.float64), k.astype(np.float64)) / np.sqrt(q.shape[-1])
    return softmax(z).sum(axis=2).mean(axis=1)


def chances(u: Float[np.ndarray, "r"]) -> Float[np.ndarray, "r"]:
    """p = softmax(u of the rest)."""
    return softmax(u)


def kept(
    u: Float[np.ndarray, "n"], noise: Float[np.ndarray, "n"], *, sinks: int, recent: int, best: int, sampled: int
) -> Int[np.ndarray, "k"]:
    """Positions of one head: sampling without replacement is the top of log p + Gumbel noise."""
    at = np.arange(len(u))
    candidates = (at >= sinks) & (at < len(u) - recent)
    top = highest_of(u, best, candidates)
    rest = np.setdiff1d(np.flatnonzero(candidates), top)
    drawn = rest[highest(np.log(chances(u[rest])) + noise[rest], sampled)] if len(rest) else rest
    return np.union1d(np.flatnonzero(~candidates), np.union1d(top, drawn)).astype(int)


def compress(
    q: Float[np.ndarray, "h g n d"],
    k: Float[np.ndarray, "h n d"],
    noise: Float[np.ndarray, "h n"],
    *,
    sinks: int = 256,
    best: float = 0.12,
    sampled: float = 0.07,
) -> list[Int[np.ndarray, "k"]]:
    """Positions that each head keeps of a prompt: 20 % of it."""
    n = k.shape[1]
    first, last = protected(n, sinks)
    u = proxy_scores(q[:, :, n - proxies(n) :], k)
    most, draws = floor_share(n, best), floor_share(n, sampled)
    return [kept(u[h], noise[h], sinks=first, recent=last, best=most, sampled=draws) for h in range(len(k))]
