"""Any task of EleutherAI's lm-eval on any policy: the context is compressed, what is scored or generated is not.

The last token of a context is fed after the compression, so that even an answer of one token is predicted from the compressed
cache; where the budget is the whole context this is the model itself. Needs the extra `lm-eval`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows
from tqdm import tqdm

import kvjax
from experiments.full_cache import full_nbytes
from experiments.tasks.chat import continuation, dated
from experiments.tasks.example import block
from kvjax.types import size_class

Ids = list[int]
#: Tokens generated between two looks for the strings that end an answer.
_LOOK = 64
#: Bytes of logits kept at a time.
_LOGITS = 2**30


class CompressedLM(TemplateLM):
    """A language model whose contexts are compressed by a policy, as lm-eval wants models.

    Args:
        lm: the language model, with a tokenizer.   policy: a kvjax policy.
        max_length: tokens of context and answer at most (default: the model's context); longer contexts lose their beginning.

    Attributes:
        nbytes: of each distinct context's cache, device and host together: "used" by the slots kept, "allocated" (pools come in few
            sizes, with room for the answer, so that contexts share programs), and "full", what the whole context would take.
    """

    def __init__(self, lm: Any, policy: Any, max_length: int | None = None) -> None:
        super().__init__()
        if lm.tokenizer is None:
            raise ValueError(f"{lm.name!r} has no tokenizer, and lm-eval asks in text: load a folder with tokenizer.json")
        self.lm, self.policy, self.tokenizer = lm, policy, lm.tokenizer.inner
        self.max_length = max_length or lm.decoder.max_positions
        self.nbytes: dict[str, list[int]] = {"used": [], "allocated": [], "full": []}

    @property
    def eot_token_id(self) -> int:
        """The first id that ends an answer."""
        return self.lm.stop_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """What an empty context is: the beginning-of-sequence token, else the end-of-text token."""
        begin = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else begin

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval files built requests under."""
        return self.lm.name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> Ids:
        """Ids of a text; by default with the tokenizer's own special tokens, unless a chat template has written them already."""
        begin = self.tokenizer.bos_token
        own = not (begin and string.startswith(begin)) if add_special_tokens is None else add_special_tokens
        return list(self.tokenizer(string, add_special_tokens=own, verbose=False).input_ids)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as one text, up to where the answer begins; a template that writes the day gets that of the tasks."""
        how = dict(add_generation_prompt=add_generation_prompt, continue_final_message=not add_generation_prompt)
        template = dated(self.tokenizer.get_chat_template())
        return self.tokenizer.apply_chat_template(chat_history, chat_template=template, tokenize=False, **how)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """log p(continuation | context) and whether greedy decoding gives it, for (texts, context ids, continuation ids) each."""
        shared: dict[tuple[int, ...], list[int]] = {}
        for i, (_, context, _) in enumerate(requests):
            shared.setdefault(tuple(context), []).append(i)
        found: list[Any] = [None] * len(requests)
        for context, members in tqdm(shared.items(), disable=disable_tqdm, desc="contexts"):
            answers = [requests[i][2] for i in members]
            for i, result in zip(members, self._score(list(context), answers), strict=True):
                found[i] = result
                self.cache_hook.add_partial("loglikelihood", requests[i][0], result)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """log p(text), in windows of the context's length.

        The first half of a window is scored by the prefill, then compressed, and the second half scored after it; so a policy that
        compresses prompts is measured at all, and one that keeps everything gives the model's own number.
        """
        found = []
        for (text,) in tqdm([request.args for request in requests], disable=disable_tqdm, desc="texts"):
            windows = get_rolling_token_windows(
                self.tok_encode(text), prefix_token=self.prefix_token_id, max_seq_len=self.max_length, context_len=1
            )
            found.append(sum(self._score_window(read, scored) for read, scored in windows))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), found[-1])
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Text after each context, up to one of its stop strings, the model's own end, or the most tokens allowed."""
        found = []
        for number, request in enumerate(tqdm(requests, disable=disable_tqdm, desc="answers")):
            context, asked = request.args
            how = normalize_gen_kwargs(asked)
            ids = self.tok_encode(context) or [self.prefix_token_id]
            ids = ids[-self._room(how["max_gen_toks"]) :]
            text = self._generate(ids, how, jax.random.fold_in(jax.random.key(0), number))
            found.append(text)
            self.cache_hook.add_partial("generate_until", (context, asked), text)
        return found

    def _room(self, answer: int) -> int:
        """Tokens of context that leave room for an answer.

        Raises:
            ValueError: none.
        """
        if answer >= self.max_length:
            raise ValueError(f"an answer of {answer} tokens leaves no room for a context: at most {self.max_length} tokens in all")
        return self.max_length - answer

    def _compressed(self, context: Ids, new: int) -> tuple[Any, Ids, int]:
        """(the cache of all but the context's last token, that token, slots to reserve); a single token stays in the cache."""
        kept, last = (context[:-1], context[-1:]) if len(context) > 1 else (context, [])
        # few sizes of pool, hence few programs, whatever the lengths of contexts and answers
        reserve = size_class(self.policy.mean_budget(len(kept)) + len(last) + new, steps=4)
        if self.policy.select.leaves:
            cache = kvjax.prefill(self.lm, kept, streaming=self.policy)
        else:
            pre = kvjax.second_pass(self.lm, kvjax.prefill(self.lm, kept, needs=self.policy), self.policy)
            cache = kvjax.compress(pre, self.policy, pool_budget=reserve)
        self._account(cache, len(kept))
        return cache, last, reserve

    def _account(self, cache: Any, length: int) -> None:
        self.nbytes["used"].append(cache.used_nbytes + cache.host_nbytes)
        self.nbytes["allocated"].append(cache.nbytes + cache.host_nbytes)
        self.nbytes["full"].append(full_nbytes(self.lm, length))

    def _score(self, context: Ids, answers: Sequence[Ids]) -> Iterator[tuple[float, bool]]:
        """Every continuation of one context, as rows of batches."""
        longest = max(map(len, answers))
        cache, last, reserve = self._compressed(context[-self._room(longest) :], longest)
        step = max(1, _LOGITS // (4 * (1 + longest) * self.lm.decoder.vocab))
        for at in range(0, len(answers), step):
            part = answers[at : at + step]
            rows = kvjax.stack([cache] * len(part)) if len(part) > 1 else cache
            logits = self._read(rows, [[*last, *answer[:-1]] for answer in part], reserve)[:, len(last) :]
            targets = np.zeros(logits.shape[:2], np.int32)
            for row, answer in zip(targets, part, strict=True):
                row[: len(answer)] = answer
            for logp, greedy, answer in zip(*map(np.asarray, _judge(logits, targets)), part, strict=True):
                yield float(logp[: len(answer)].sum()), bool(greedy[: len(answer)].all())

    def _read(self, cache: Any, fed: list[Ids], reserve: int) -> Float32[Array, "b t v"]:
        """Logits before and after each of the tokens fed."""
        how = dict(return_logits=True, block=block(self.policy), pool_budget=max(1, reserve - max(map(len, fed))))
        after = kvjax.extend(self.lm, cache, fed, self.policy, **how).logits
        before = cache.logits[:, None]
        return before if after is None else jnp.concatenate([before, after], 1)

    def _score_window(self, read: Ids, scored: Ids) -> float:
        """log p of `scored`, the last tokens of a window; `read` is what the model has read before each of them."""
        half = max(1, len(read) // 2)
        pre = kvjax.prefill(self.lm, read[:half], needs=self.policy, all_logits=True)
        pre = kvjax.second_pass(self.lm, pre, self.policy)
        cache = kvjax.compress(pre, self.policy)
        self._account(cache, half)
        logits = [pre.rows[0].all_logits[: half - 1], self._read(cache, [read[half:]], 0)[0]]
        targets = np.split(np.asarray([*read[1:], scored[-1]], np.int32), [half - 1])
        logp = [_judge(x[None], t[None])[0][0] for x, t in zip(logits, targets, strict=True)]
        return float(np.concatenate(logp)[-len(scored) :].sum())

    def _generate(self, context: Ids, how: Mapping[str, Any], key: Any) -> str:
        most, stops = how["max_gen_toks"], [x for x in how["until"] if x]
        cache, last, reserve = self._compressed(context, most)
        cache = kvjax.extend(self.lm, cache, [last], self.policy, block=block(self.policy), pool_budget=reserve).cache
        tokens: Ids = []
        text, sampler = "", _sampler(how)
        while len(tokens) < most:
            new = min(_LOOK, most - len(tokens))
            how = dict(sampler=sampler, key=jax.random.fold_in(key, len(tokens)), pool_budget=max(1, reserve - new))
            out = kvjax.decode(self.lm, cache, self.policy, max_new_tokens=new, **how)
            cache, ended = out.cache, int(out.tokens[0, -1]) in self.lm.stop_ids
            tokens += [int(i) for i in out.tokens[0]]
            text = continuation(self.lm, context, tokens[:-1] if ended else tokens)
            if ended or any(stop in text for stop in stops):
                break
        return text[: min([text.find(stop) for stop in stops if stop in text], default=len(text))]


def _sampler(how: Mapping[str, Any]) -> Any:
    if not how["do_sample"]:
        return kvjax.Greedy()
    given = {name: how[name] for name in ("temperature", "top_k", "top_p") if name in how}
    return kvjax.Sample(**given)


@jax.jit
def _judge(logits: Float32[Array, "b t v"], targets: Int32[np.ndarray, "b t"]) -> tuple[Float32[Array, "b t"], Bool[Array, "b t"]]:
    """log p of each target, and whether it is the likeliest token."""
    logp = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)[..., 0]
    return logp, logits.argmax(-1) == targets
