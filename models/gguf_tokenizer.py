"""The tokenizer inside a .gguf file, for the kinds that can be rebuilt exactly."""

from collections.abc import Callable
from typing import Any

from kvjax.checks import brief
from models.numbers import one_line
from models.tokenizer import transformers

_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTROL, _USER_DEFINED = 3, 4
#: Texts by which llama.cpp knows a control token that ends a text, a turn or a message, where no key of the file names it.
_ENDS = frozenset(
    """<|eot_id|> <|eom_id|> <|im_end|> <|end|> <|endoftext|> <|end_of_text|> <end_of_turn> <end_of_utterance> <EOT>
    <｜end▁of▁sentence｜>""".split()
)


def build(meta: dict[str, Any]) -> Any:
    """Return a transformers tokenizer (fast, byte-level BPE) made of GGUF metadata.

    `tokenizer.ggml.pre` names how text is cut before BPE: "smollm" splits off every digit, then cuts as GPT-2 does;
    "qwen2" and "llama-bpe" cut by a pattern (digits one by one, or by up to three). The beginning-of-sequence token is
    put first where `add_bos_token` says so, and with "llama-bpe" unless it says no; the end-of-sequence token last where
    `add_eos_token` says so. Token type 3 is special.

    Raises:
        ValueError: another kind; a tokenizer that is nearly right would be worse than none.
    """
    kind, pre = meta["tokenizer.ggml.model"], meta.get("tokenizer.ggml.pre")
    if kind != "gpt2" or not isinstance(pre, str) or pre not in _CUTS:
        known = ", ".join(_CUTS)
        raise ValueError(
            f"the tokenizer in this GGUF (model {brief(kind)}, pre {brief(pre)}) cannot be rebuilt exactly; known are model "
            f"'gpt2' with pre {known}. Pass models.load(..., tokenizer=FOLDER) with the model's Hugging Face folder"
        )
    try:
        return _build(meta)
    except Exception as error:  # of damaged lists tokenizers and transformers raise whatever they meet
        reason = f"{type(error).__name__}: {one_line(error)}"
        advice = "download it again, or pass models.load(..., tokenizer=FOLDER)"
        raise ValueError(f"the tokenizer in this GGUF is damaged ({reason}); {advice}") from error


def ends(meta: dict[str, Any]) -> list[int]:
    """Return the ids of control tokens whose text says that they end a text, a turn or a message."""
    tokens, types = (meta.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    if not isinstance(tokens, list) or not isinstance(types, list):
        return []
    return [i for i, (text, kind) in enumerate(zip(tokens, types, strict=False)) if kind == _CONTROL and text in _ENDS]


def _build(meta: dict[str, Any]) -> Any:
    names = {
        f"{ours}_token": meta["tokenizer.ggml.tokens"][meta[f"tokenizer.ggml.{theirs}_token_id"]]
        for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if f"tokenizer.ggml.{theirs}_token_id" in meta
    }
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=_bpe(meta),
        chat_template=meta.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **names,
    )


def _bpe(meta: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models

    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    pre = meta["tokenizer.ggml.pre"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    # Llama 3 takes a whole word that is a token as it is, even where no merges lead to it
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    _CUTS[pre](tok)
    tok.decoder = decoders.ByteLevel()
    kinds = [(token, int(kind)) for token, kind in zip(tokens, types, strict=True)]
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, kind in kinds if kind == _CONTROL])
    tok.add_tokens([AddedToken(t, normalized=False) for t, kind in kinds if kind == _USER_DEFINED])
    begin, end = meta.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe"), meta.get("tokenizer.ggml.add_eos_token", False)
    first, last = (
        [tokens[meta[f"tokenizer.ggml.{name}_token_id"]]] if added else [] for name, added in (("bos", begin), ("eos", end))
    )
    if begin or end:
        _frame(tok, first, last)
    return tok


def _frame(tok: Any, first: list[str], last: list[str]) -> None:
    """Put special tokens before and behind every text."""
    from tokenizers import processors

    one, two = [*first, "$A", *last], [*first, "$B", *last]
    added = [(token, tok.token_to_id(token)) for token in dict.fromkeys(first + last)]
    tok.post_processor = processors.TemplateProcessing(single=one, pair=one + two, special_tokens=added)


def _smollm(tok: Any) -> None:
    from tokenizers import pre_tokenizers as pre

    gpt2 = pre.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), gpt2])


def _pattern(tok: Any, digits: str) -> None:
    from tokenizers import Regex
    from tokenizers import pre_tokenizers as pre

    cut = pre.Split(Regex(_LETTERS + digits + _REST), behavior="isolated")
    tok.pre_tokenizer = pre.Sequence([cut, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def _qwen2(tok: Any) -> None:
    from tokenizers import normalizers

    tok.normalizer = normalizers.NFC()
    _pattern(tok, r"\p{N}")


def _llama3(tok: Any) -> None:
    _pattern(tok, r"\p{N}{1,3}")


_CUTS: dict[str, Callable[[Any], None]] = {"smollm": _smollm, "qwen2": _qwen2, "llama-bpe": _llama3}
