"""What a decoder is made of, and the reader that lets no field of a config.json pass unnoticed."""

from dataclasses import dataclass
from typing import Any

from kvjax.checks import brief
from models.numbers import number, whole
from models.rope import Rope
from models.rope_config import resolve

#: Fields that change nothing of what a forward pass at inference computes.
IRRELEVANT = frozenset(
    """architectures model_type transformers_version torch_dtype dtype _name_or_path use_cache
    initializer_range attention_dropout bos_token_id eos_token_id pad_token_id unk_token_id output_attentions
    output_hidden_states return_dict chunk_size_feed_forward id2label label2id problem_type tokenizer_class
    is_llama_config transformers.js_config unsloth_version unsloth_fixed max_length max_sequence_length do_sample
    temperature top_p top_k keys_to_ignore_at_inference _attn_implementation _attn_implementation_autoset
    is_decoder num_beams repetition_penalty length_penalty no_repeat_ngram_size min_length typical_p
    decoder_start_token_id torchscript use_bfloat16 finetuning_task task_specific_params pretraining_tp num_labels
    sep_token_id tf_legacy_loss tie_encoder_decoder cross_attention_hidden_size output_scores return_dict_in_generate
    num_return_sequences num_beam_groups diversity_penalty early_stopping bad_words_ids suppress_tokens
    begin_suppress_tokens forced_bos_token_id forced_eos_token_id encoder_no_repeat_ngram_size
    encoder_repetition_penalty exponential_decay_length_penalty remove_invalid_values epsilon_cutoff eta_cutoff""".split()
)

#: Fields of which one value is supported, in all families.
_ONLY = {
    "hidden_act": "silu", "is_encoder_decoder": False, "add_cross_attention": False, "mlp_bias": False, "pruned_heads": {},
}  # fmt: skip


@dataclass(frozen=True)
class DecoderConfig:
    """The numbers and choices that tell one decoder of the Llama kind from another; frozen, so a static argument.

    Attributes:
        vocab, width, layers, hidden: v, e, number of layers, width of the gated MLP.
        heads, groups, head_dim: KV heads h, query heads per KV head g, d. g * h * d may differ from e.
        rope: the resolved rotary embedding.
        windows: per layer, how many positions a query sees, itself included (i - window < j <= i); None: all of them.
        eps: added to the mean square in every RMSNorm.
        qkv_bias, out_bias: biases on the q, k, v and on the output projection.
        qk_norm: RMSNorm of every query and key head, before the rotary embedding.
        tied: the head is the embedding.
        max_positions: how many positions the rotary embedding was made for.
    """

    vocab: int
    width: int
    layers: int
    hidden: int
    heads: int
    groups: int
    head_dim: int
    rope: Rope
    windows: tuple[int | None, ...]
    eps: float = 1e-6
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    max_positions: int = 2048

    def __post_init__(self) -> None:
        if len(self.windows) != self.layers:
            raise ValueError(f"expected one window (or None) for each of {self.layers} layers, got {len(self.windows)}")
        if self.rope.dim != self.head_dim:
            raise ValueError(f"the rotary embedding has {self.rope.dim} dimensions, a head {self.head_dim}: make equal")


def _inside(outer: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The fields of `rope_parameters`, with those beside it that it leaves out or gives as null."""
    return given | {name: value for name, value in outer.items() if given.get(name) is None}


class Fields:
    """A config.json being read: notes what was asked for, so that `finish` can name all that was not, in one error."""

    def __init__(self, hf: dict[str, Any]) -> None:
        self._hf = hf
        self._read: set[str] = set()
        self.problems: list[str] = []

    def get(self, name: str, default: Any = None) -> Any:
        """Return the field's value; `default` where it is absent (a null is a value, as in transformers)."""
        self._read.add(name)
        return self._hf.get(name, default)

    def size(self, name: str, default: int | None = None) -> int:
        """Return a positive int; where there is none, note it and return 1, so that reading goes on to the end."""
        value = self.get(name)
        try:
            return whole(name, default if value is None else value)
        except ValueError as error:
            self.problems.append(str(error))
            return 1

    def flag(self, name: str) -> bool:
        """Return a true or false, false where it is absent or null; where it is another value, note it and return false."""
        value = self.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        self.problems.append(f"{name}: expected true or false, got {brief(value)}")
        return False

    def expect(self, name: str, only: Any) -> None:
        """Note a problem unless the field is absent, null or equal to the one value that is supported."""
        value = self.get(name)
        if value is not None and value != only:
            self.problems.append(f"{name} = {brief(value)} is not supported; only {only!r} is")

    def base(self, *, head_dim: int | None = None, kv_heads: int | None = None, positions: int = 2048) -> DecoderConfig:
        """Return the part that all families share.

        Args:
            head_dim, kv_heads, positions: a family's defaults of head_dim, num_key_value_heads and max_position_embeddings
                where the file names none; None: width over query heads, and as many KV heads as query heads.
        """
        for name, only in _ONLY.items():
            self.expect(name, only)
        width, query_heads = self.size("hidden_size"), self.size("num_attention_heads")
        heads, layers = self._kv_heads(query_heads, kv_heads), self.size("num_hidden_layers")
        dim = self.size("head_dim", head_dim or max(width // query_heads, 1))
        if dim % 2:
            self.problems.append(f"head_dim {dim} is odd; the rotary embedding needs it even")
        rope, positions = self._rope(dim + dim % 2, self.size("max_position_embeddings", positions))
        return DecoderConfig(
            vocab=self.size("vocab_size"),
            width=width,
            layers=layers,
            hidden=self.size("intermediate_size"),
            heads=heads,
            groups=max(query_heads // heads, 1),
            head_dim=dim + dim % 2,
            rope=rope,
            windows=(None,) * layers,
            eps=self._number("rms_norm_eps", 1e-6),
            tied=self.flag("tie_word_embeddings"),
            max_positions=positions,
        )

    def _kv_heads(self, query_heads: int, default: int | None) -> int:
        """Read num_key_value_heads: absent it is the family's default, null as many as query heads."""
        absent = default is not None and "num_key_value_heads" not in self._hf
        heads = self.size("num_key_value_heads", default if absent else query_heads)
        if query_heads % heads:
            why = ", the family's default: give it" if absent else ""
            self.problems.append(f"num_attention_heads {query_heads} is no multiple of num_key_value_heads {heads}{why}")
        return heads

    def _number(self, name: str, default: float) -> float:
        try:
            return number(name, self.get(name, default), most=1.0)
        except ValueError as error:
            self.problems.append(str(error))
            return default

    def _rope(self, dim: int, positions: int) -> tuple[Rope, int]:
        """Read both spellings; where a file has both they must say the same."""
        outer = {name: self.get(name) for name in ("rope_theta", "partial_rotary_factor")}
        try:
            spellings = [self._object(name) for name in ("rope_parameters", "rope_scaling")]
            ropes = [resolve(_inside(outer, given), dim, positions) for given in spellings if given]
            ropes = ropes or [resolve(outer, dim, positions)]
            thetas = [s["rope_theta"] for s in (outer, *spellings) if s.get("rope_theta") is not None]
            if any(theta != thetas[0] for theta in thetas) or len(set(ropes)) > 1:
                raise ValueError("rope_theta, rope_parameters and rope_scaling disagree; keep one of them")
            return ropes[0]
        except ValueError as error:
            self.problems.append(str(error))
            return resolve({}, dim, positions)

    def _object(self, name: str) -> dict[str, Any]:
        value = self.get(name)
        if value is None or isinstance(value, dict):
            return value or {}
        raise ValueError(f"{name}: expected an object or null, got {brief(value)}")

    def finish(self, config: DecoderConfig) -> DecoderConfig:
        """Return `config`, or raise one ValueError with every problem and every field that nothing has read."""
        unread = [n for n, value in self._hf.items() if n not in self._read | IRRELEVANT and value is not None]
        problems = self.problems + [f"{brief(n)} = {brief(self._hf[n])} is not a field this library honours" for n in unread]
        if problems:
            advice = "Remove a field from config.json only if you are sure that it does not change the model's outputs."
            raise ValueError(f"this config.json cannot be honoured: {'; '.join(problems)}. {advice}")
        return config
