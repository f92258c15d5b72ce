"""llama.cpp files: rows put back where they were, names, metadata, and tokenizers that are known."""

import threading

import gguf
import jax
import numpy as np
import pytest

import models
from models import llama, rope, smollm2
from models.gguf_config import hf_config
from models.gguf_names import to_halves

HEADS, KV, DIM = 4, 2, 8
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
VOCAB = ["<|a|>", "<|b|>", "<use>", *"12Ġhi", "hi", "Ġhi", *[f"t{i}" for i in range(20)]]


def to_pairs(rows, heads):
    """What llama.cpp's converter does to q and k of a llama."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def their_name(name):
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{NAMES[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.{kind}"


def write(path, arch, config, values, **extra):
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_key_length(DIM)
    writer.add_value_length(DIM)
    writer.add_rope_dimension_count(DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    extra.get("more", lambda writer: None)(writer)
    for name, value in values.items():
        heads = HEADS if "q_proj" in name else KV if "k_proj" in name else 0
        writer.add_tensor(their_name(name), to_pairs(value, heads).copy() if heads and arch == "llama" else value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tokenizer(pre, bos=False, eos=None, vocab=VOCAB, types=(3, 3, 4)):
    def add(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(vocab)
        writer.add_token_types([*types] + [1] * (len(vocab) - len(types)))
        writer.add_token_merges(["h i", "Ġ hi"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        if bos is not None:
            writer.add_add_bos_token(bos)
        if eos is not None:
            writer.add_add_eos_token(eos)

    return add


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_round_trip(arch, llama_hf, tensors, tmp_path, forward):
    config = {**llama_hf, "architectures": [f"{arch.capitalize()}ForCausalLM"]}
    values = tensors(config)
    lm = models.load(write(tmp_path / "m.gguf", arch, config, values))
    made = models.random(lm.config)
    jax.tree.map(np.testing.assert_array_equal, lm.params, made.params)
    assert lm.config.eps == 1e-5 and lm.config.windows == (None, None) and not lm.config.tied


def test_rows_of_the_real_permutation():
    rows = np.arange(HEADS * DIM)[:, None]
    np.testing.assert_array_equal(to_halves(to_pairs(rows, HEADS), HEADS), rows)
    assert to_pairs(rows, HEADS)[:4, 0].tolist() == [0, 4, 1, 5]


def test_biases_are_permuted_too(llama_hf, tensors, tmp_path):
    config = {**llama_hf, "attention_bias": True}
    lm = models.load(write(tmp_path / "m.gguf", "llama", config, tensors(config)))
    jax.tree.map(np.testing.assert_array_equal, lm.params, models.random(lm.config).params)
    assert lm.config.qkv_bias and lm.config.out_bias


def test_frequency_divisors(llama_hf, tensors, tmp_path):
    divisors = np.array([1, 1, 2, 8], np.float32)
    file = write(
        tmp_path / "m.gguf", "llama", llama_hf, tensors(llama_hf),
        more=lambda writer: writer.add_tensor("rope_freqs.weight", divisors),
    )  # fmt: skip
    np.testing.assert_allclose(models.load(file).decoder.rope.frequencies, [1, 0.1, 0.005, 0.000125], rtol=1e-6)


def test_quantised_blocks(llama_hf, tensors, tmp_path):
    config = {**llama_hf, "hidden_size": 32}
    values = tensors(config)
    q8 = gguf.GGMLQuantizationType.Q8_0
    packed = gguf.quantize(values["model.embed_tokens.weight"], q8)
    rest = {name: value for name, value in values.items() if "embed" not in name}
    lm = models.load(
        write(
            tmp_path / "m.gguf", "llama", config, rest,
            more=lambda writer: writer.add_tensor("token_embd.weight", packed, raw_dtype=q8),
        )
    )  # fmt: skip
    np.testing.assert_allclose(lm.params["embed"]["weight"], values["model.embed_tokens.weight"], atol=0.03)


def test_what_is_not_honoured(llama_hf, tensors, tmp_path):
    def more(writer):
        writer.add_expert_count(8)
        writer.add_logit_scale(2.0)

    with pytest.raises(ValueError, match="llama.expert_count, llama.logit_scale"):
        models.load(write(tmp_path / "m.gguf", "llama", llama_hf, tensors(llama_hf), more=more))
    with pytest.raises(ValueError, match="'gemma' is not supported"):
        models.load(write(tmp_path / "g.gguf", "gemma", llama_hf, tensors(llama_hf)))
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "m.gguf").read_bytes()[:900])
    with pytest.raises(ValueError, match="cut.gguf is cut short"):
        models.load(tmp_path / "cut.gguf")


@pytest.mark.parametrize("pre, bos", [("smollm", False), ("qwen2", False), ("llama-bpe", True)])
def test_tokenizers(pre, bos, llama_hf, tensors, tmp_path):
    lm = models.load(write(tmp_path / "m.gguf", "llama", llama_hf, tensors(llama_hf), more=tokenizer(pre, bos)))
    ids = lm.encode("hi hi<|b|>12<use>")
    pieces = [VOCAB[i] for i in ids]
    assert pieces == ["<|a|>"] * bos + ["hi", "Ġhi", "<|b|>", "1", "2", "<use>"]
    assert lm.decode(ids[bos:]) == "hi hi<|b|>12<use>" and lm.stop_ids == (1,) and lm.encode("") == [0] * bos
    assert lm.encode("hi hi<|b|>12<use>", add_special_tokens=False) == ids[bos:]
    with pytest.raises(ValueError, match="special tokens of its template"):
        lm.encode([{"role": "user", "content": "hi"}], add_special_tokens=False)
    with pytest.raises(ValueError, match="no chat template"):
        lm.encode([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    "pre, bos, eos, framed",
    [("llama-bpe", None, None, [0, 9]), ("llama-bpe", False, None, [9]), ("qwen2", None, None, [9]), ("smollm", None, None, [9]),
     ("qwen2", None, True, [9, 1]), ("llama-bpe", None, True, [0, 9, 1]), ("smollm", True, False, [0, 9])],
)  # fmt: skip
def test_first_and_last_tokens(pre, bos, eos, framed, llama_hf, tensors, tmp_path):
    """As llama.cpp: a Llama 3 begins with its BOS unless the file says no; an EOS follows only where the file says so."""
    lm = models.load(write(tmp_path / "m.gguf", "llama", llama_hf, tensors(llama_hf), more=tokenizer(pre, bos, eos)))
    assert VOCAB[9] == "Ġhi" and lm.encode(" hi") == framed


def test_tokens_that_end_a_turn_by_their_text(llama_hf, tensors, tmp_path):
    """<|eot_id|> is a control token and ends a turn; <|im_end|> is a plain word here and ends none."""
    vocab = ["<|eot_id|>", "<|end_of_text|>", "<|im_end|>", *VOCAB[3:]]
    more = tokenizer("llama-bpe", vocab=vocab, types=(3, 3, 1))
    file = write(tmp_path / "m.gguf", "llama", llama_hf, tensors(llama_hf), more=more)
    assert models.load(file).stop_ids == (1, 0)
    smollm2.convert(file, tmp_path / "made")
    assert models.load(tmp_path / "made").stop_ids == (1,)


def test_a_part_of_a_split_file(llama_hf, tensors, tmp_path):
    def more(writer):
        writer.add_uint16(gguf.Keys.Split.LLM_KV_SPLIT_NO, 0)
        writer.add_uint16(gguf.Keys.Split.LLM_KV_SPLIT_COUNT, count)

    for count in (1, 3):
        values = {name: value for name, value in tensors(llama_hf).items() if count == 1 or "layers" not in name}
        file = write(tmp_path / f"{count}.gguf", "llama", llama_hf, values, more=more)
        if count == 1:
            models.load(file)
    with pytest.raises(ValueError, match=r"part 1 of 3 .*llama-gguf-split --merge"):
        models.load(file)


def scaled(**given):
    """Metadata `rope.scaling.NAME` -> the rotary embedding that a Llama of head dimension 8 gets."""
    sizes = {"embedding_length": 24, "block_count": 2, "feed_forward_length": 40, "attention.head_count": 3, "context_length": 64}
    meta = {f"llama.{name}": value for name, value in sizes.items()} | {"general.architecture": "llama"}
    meta |= {f"llama.rope.scaling.{name}": value for name, value in given.items()}
    return llama.config(hf_config(meta, {"model.embed_tokens.weight": (32, 24)}))


def test_scaling_without_a_type_is_linear():
    plain = scaled()
    assert plain.rope == rope.plain(1e4, 8) and plain.heads == 3
    assert scaled(factor=4.0) == scaled(factor=4.0, type="linear")
    np.testing.assert_allclose(scaled(factor=4.0).rope.frequencies, [f / 4 for f in plain.rope.frequencies], rtol=1e-6)
    for none in ({"factor": 0.0}, {"factor": 1.0}, {"type": "none", "factor": 4.0}, {"attn_factor": 1.0}):
        assert scaled(**none) == plain


def test_attn_factor_multiplies_the_scale_of_yarn():
    """(1 + 0.1 ln 8) * 0.5, with the scale that YaRN has without it."""
    given = {"type": "yarn", "factor": 8.0, "original_context_length": 64}
    assert scaled(**given).rope.factor == pytest.approx(1 + 0.1 * np.log(8))
    assert scaled(**given, attn_factor=0.5).rope.factor == pytest.approx(0.5 * (1 + 0.1 * np.log(8)))
    for other in ({}, {"type": "none"}, {"factor": 4.0}):
        with pytest.raises(ValueError, match="attn_factor = 0.5 is honoured with YaRN only"):
            scaled(**other, attn_factor=0.5)


def test_no_kv_heads_are_as_many_as_query_heads():
    meta = {"general.architecture": "qwen3", "qwen3.attention.head_count": 3}
    assert hf_config(meta, {})["num_key_value_heads"] == 3


def test_unknown_tokenizer_asks_for_a_folder(llama_hf, tensors, tmp_path):
    file = write(tmp_path / "m.gguf", "llama", llama_hf, tensors(llama_hf), more=tokenizer("tekken"))
    with pytest.raises(ValueError, match="'tekken'.*tokenizer=FOLDER"):
        models.load(file)
    known = write(tmp_path / "k.gguf", "llama", llama_hf, tensors(llama_hf), more=tokenizer("smollm"))
    made = tmp_path / "made"
    smollm2.convert(known, made)
    assert models.load(file, tokenizer=made).encode("hi 1") == models.load(known).encode("hi 1")
    with pytest.raises(FileNotFoundError, match="holds no tokenizer"):
        models.load(file, tokenizer=tmp_path)


def test_two_installs_at_once(llama_hf, tensors, tmp_path):
    gate, target = threading.Barrier(2), tmp_path / "cache" / "model"
    values = tensors(llama_hf)

    def fetch(work):
        gate.wait(timeout=30)
        return write(work / "m.gguf", "llama", llama_hf, values, more=tokenizer("smollm"))

    both = [threading.Thread(target=smollm2.install, args=(target, fetch)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    lm = models.load(target)
    jax.tree.map(np.testing.assert_array_equal, lm.params, models.random(lm.config).params)
    assert [path.name for path in target.parent.iterdir()] == ["model"] and lm.stop_ids == (1,)


def test_a_killed_install_leaves_nothing(tmp_path):
    def fetch(work):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        smollm2.install(tmp_path / "cache" / "model", fetch)
    assert not list((tmp_path / "cache").iterdir())
