"""EpiCache as a slow NumPy transcription: scores of a patch, what stays of a layer, budgets of layers."""

import numpy as np

from tests.reference.softmax import softmax


def of_past(z: np.ndarray) -> np.ndarray:
    """Softmax over the keys held before a patch; logits [g t n] of the patch's queries on them alone."""
    return softmax(z) if z.shape[-1] else z


def highest(rows: np.ndarray) -> np.ndarray:
    """u[j] = max over query heads and queries; rows [g t n]."""
    return rows.max((0, 1))


def stays(scores: list[np.ndarray], total: int) -> list[list[int]]:
    """The `total` highest (head, slot) pairs of a layer, every head's best among them, by head."""
    pairs = [(-np.inf if i == int(u.argmax()) else -u[i], h, i) for h, u in enumerate(scores) for i in range(len(u))]
    kept = sorted(pairs, key=lambda x: x[0])[:total]
    return [sorted(i for _, head, i in kept if head == h) for h in range(len(scores))]


def similarity(a: np.ndarray, b: np.ndarray, span: int) -> float:
    """Mean over heads and spans of cos(a, b), the keys of a span one vector; keys [h n d]."""
    cosines = []
    for one, two in zip(a, b, strict=True):
        for at in range(0, one.shape[0], span):
            x, y = one[at : at + span].ravel(), two[at : at + span].ravel()
            cosines.append(x @ y / np.sqrt((x @ x) * (y @ y)))
    return float(np.mean(cosines))


def released_budgets(sens: np.ndarray, budget: int, power: float) -> np.ndarray:
    """int(w / Σ w · budget · L), at least max(1, budget // 4): may sum to more than budget · L."""
    scaled = (sens - sens.min()) / (sens.max() - sens.min())
    w = (1 - scaled) ** power
    return np.maximum((w / w.sum() * budget * len(sens)).astype(int), max(1, budget // 4))


class Bounded:
    """A text through a model's own layers, chunk by chunk: `patch` is read behind each chunk, and what it looks at stays."""

    def __init__(self, layers, embed, heads, total, d=16):
        self.layers, self.embed, self.total = layers, embed, total
        self.held = [[(np.zeros((0, d)), np.zeros((0, d)), np.zeros(0, int)) for _ in range(heads)] for _ in layers]
        self.position = 0

    def read(self, tokens, *, keep=True):
        """Tokens behind what is held; [layer][head] rows [g t n] over what was held before. `layer(x, at, attend)`."""
        x, at, looks, held = self.embed(tokens), self.position + np.arange(len(tokens)), [], [list(row) for row in self.held]
        for index, layer in enumerate(self.layers):
            looks.append([])

            def attend(q, k, v, index=index):
                outs = []
                for h in range(len(k)):
                    old_k, old_v, old_pos = held[index][h]
                    keys, values, pos = np.concatenate([old_k, k[h]]), np.concatenate([old_v, v[h]]), np.concatenate([old_pos, at])
                    held[index][h] = keys, values, pos
                    z = q[h] @ keys.T / np.sqrt(q.shape[-1])
                    p = softmax(np.where(pos <= at[:, None], z, -np.inf))
                    looks[index].append(of_past(z[..., : len(old_pos)]))
                    outs.append(p @ values)
                return np.stack(outs)

            x = layer(x, at, attend)
        if keep:
            self.held, self.position = held, self.position + len(tokens)
        return looks

    def chunk(self, tokens, patch):
        self.read(tokens)
        if not any(sum(len(head[2]) for head in row) > self.total for row in self.held):
            return
        for index, rows in enumerate(self.read(patch, keep=False)):
            chosen = stays([highest(head) for head in rows], self.total)
            self.held[index] = [tuple(x[i] for x in head) for head, i in zip(self.held[index], chosen, strict=True)]
