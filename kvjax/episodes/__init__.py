"""Episodes: a conversation kept as one small cache an episode, and the nearest one read for each turn (EpiCache).

*EpiCache: Episodic KV Cache Management for Long Conversational Question Answering*, arXiv 2509.17396. `build` cuts the conversation
into segments, clusters them, and reads it once for every episode, chunk by chunk, in at most budget + chunk + patch slots a head on
average: after each chunk the episode's own text is read behind it, and what it looks at stays. `answer` reads a query behind the
cache of the episode whose centroid its embedding has the largest product with.
Differs: segments are embedded by the mean of the model's own token embeddings, the paper has a sentence encoder (`embed=` takes
one); k-means is a small one in JAX, with no further dependency and a key for a seed; budgets of layers sum exactly. A patch is
medoids alone unless `instruction=` is given, where the release always puts a demand for the essential information, and the chat
template's header of an assistant's turn, before them; it begins at the position behind the chunk, the release's at its last.

BibTeX:
    @article{kim2025epicache,
      title={{EpiCache}: Episodic {KV} Cache Management for Long Conversational Question Answering},
      author={Kim, Minsoo and Kundu, Arnav and Kim, Han-Byul and Dixit, Richa and Cho, Minsik},
      journal={arXiv preprint arXiv:2509.17396},
      year={2025}
    }

Example:
    lines = [lm.encode(line, add_special_tokens=i == 0) for i, line in enumerate(conversation)]
    episodes = kvjax.episodes.build(lm, lines, budget=512)
    query = lm.encode("Where did Ann go in May?", add_special_tokens=False)
    out = kvjax.episodes.answer(lm, episodes, query, max_new_tokens=32)
"""

from kvjax.episodes.build import Episodes, answer, build
from kvjax.episodes.kmeans import kmeans
from kvjax.episodes.layer_budgets import layer_budgets, sensitivity

__all__ = ["Episodes", "answer", "build", "kmeans", "layer_budgets", "sensitivity"]
