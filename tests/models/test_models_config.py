"""Reading config.json: both spellings, the families' departures, and nothing passed over in silence."""

import pytest

from models import llama, mistral, qwen2, qwen3
from models.families import family_of
from models.tokenizer import transformers

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def test_both_spellings_of_the_rope_agree(llama_hf):
    old = llama.config({**llama_hf, "rope_theta": 5e5, "rope_scaling": LLAMA3})
    new = llama.config({**llama_hf, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}})
    both = llama.config({**llama_hf, "rope_theta": 5e5, "rope_scaling": LLAMA3, "rope_parameters": {**LLAMA3}})
    assert old == new == both != llama.config(llama_hf)


@pytest.mark.parametrize(
    "inner",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    ],
)
def test_spellings_that_disagree(inner, llama_hf):
    with pytest.raises(ValueError, match="disagree"):
        llama.config({**llama_hf, "rope_theta": 5e5, **inner})


def test_a_null_among_the_parameters_is_as_if_it_were_absent(llama_hf):
    null = {"rope_type": "default", "rope_theta": None, "partial_rotary_factor": None}
    assert llama.config({**llama_hf, "rope_theta": 5e5, "rope_parameters": null}) == llama.config({**llama_hf, "rope_theta": 5e5})
    with pytest.raises(ValueError, match="partial_rotary_factor 0.5 is not supported"):
        llama.config({**llama_hf, "partial_rotary_factor": 0.5, "rope_parameters": null})


def test_all_problems_at_once(llama_hf):
    wrong = {
        "hidden_act": "gelu",
        "mlp_bias": True,
        "rope_scaling": {"type": "dynamic"},
        "quantization_config": {"b": 4},
    }
    wrong |= {"attention_softcap": 30.0, "vocab_size": None, "pruned_heads": {"1": [0]}}
    with pytest.raises(ValueError) as error:
        llama.config({**llama_hf, **wrong})
    words = (
        "hidden_act",
        "mlp_bias",
        "dynamic",
        "quantization_config",
        "attention_softcap",
        "vocab_size",
        "pruned_heads",
    )
    assert all(word in str(error.value) for word in words)


def test_what_does_not_matter_is_accepted(hf):
    harmless = {"torch_dtype": "bfloat16", "attention_dropout": 0.1, "eos_token_id": [1, 2], "use_cache": True}
    family = family_of(hf)
    assert family.config({**hf, **harmless, "some_future_field": None}) == family.config(hf)


def test_a_full_dump_is_accepted(hf):
    """What transformers 4 wrote into every config.json of its own, and what a forward pass no longer reads."""
    dump = {
        "return_dict": True, "output_hidden_states": False, "torchscript": False, "tf_legacy_loss": False, "pruned_heads": {},
        "chunk_size_feed_forward": 0, "is_encoder_decoder": False, "is_decoder": False, "add_cross_attention": False,
        "tie_encoder_decoder": False, "cross_attention_hidden_size": None, "max_length": 20, "early_stopping": False,
        "num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0, "encoder_no_repeat_ngram_size": 0, "bad_words_ids": None,
        "num_return_sequences": 1, "output_scores": False, "return_dict_in_generate": False, "forced_eos_token_id": None,
        "remove_invalid_values": False, "suppress_tokens": [3], "sep_token_id": 2, "prefix": None, "pretraining_tp": 2,
        "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip
    family = family_of(hf)
    assert family.config({**hf, **dump}) == family.config(hf)


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_absent_sizes_are_those_of_transformers(name, llama_hf):
    """A config.json of one family's defaults, with a field and without it."""
    theirs = getattr(transformers(), f"{name}Config")()
    full = {**theirs.to_dict(), "architectures": [f"{name}ForCausalLM"]}
    family, found = family_of(full), family_of(full).config(full)
    for absent in ("max_position_embeddings", "num_key_value_heads", "head_dim", "rms_norm_eps", "sliding_window"):
        assert family.config({field: value for field, value in full.items() if field != absent}) == found
    assert (found.max_positions, found.heads, found.eps) == (
        theirs.max_position_embeddings, theirs.num_key_value_heads, theirs.rms_norm_eps
    )  # fmt: skip
    assert family.config({**llama_hf, "num_key_value_heads": None}).heads == llama_hf["num_attention_heads"]


@pytest.mark.parametrize("family, heads", [(mistral, 8), (qwen2, 32), (qwen3, 32)])
def test_a_default_that_does_not_fit_is_named(family, heads, llama_hf):
    bare = {name: value for name, value in llama_hf.items() if name != "num_key_value_heads"}
    with pytest.raises(ValueError, match=f"num_attention_heads 4 is no multiple of num_key_value_heads {heads}, the family's"):
        family.config(bare)
    assert llama.config(bare).heads == 4


@pytest.mark.parametrize("family", [mistral, qwen2])
def test_biases_that_a_family_has_not(family, llama_hf):
    assert family.config({**llama_hf, "attention_bias": False}) == family.config(llama_hf)
    with pytest.raises(ValueError, match="attention_bias = True is not supported"):
        family.config({**llama_hf, "attention_bias": True})


def test_unsupported_architecture_names_the_four():
    with pytest.raises(ValueError, match="Gemma.*LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3"):
        family_of({"architectures": ["GemmaForCausalLM"], "model_type": "gemma"})
    assert family_of({"model_type": "qwen3"}) is qwen3


def test_mistral_window(llama_hf):
    assert mistral.config(llama_hf).windows == (4096, 4096)
    assert mistral.config({**llama_hf, "sliding_window": None}).windows == (None, None)
    assert mistral.config({**llama_hf, "sliding_window": 32}).windows == (32, 32)


@pytest.mark.parametrize("family", [qwen2, qwen3])
def test_qwen_windows(family, llama_hf):
    used = {**llama_hf, "use_sliding_window": True, "sliding_window": 16}
    assert family.config({**used, "use_sliding_window": False}).windows == (None, None)
    assert family.config(used).windows == (None, None)
    assert family.config({**used, "max_window_layers": 1}).windows == (None, 16)
    listed = {**used, "layer_types": ["sliding_attention", "full_attention"]}
    assert family.config(listed).windows == (16, None)
    with pytest.raises(ValueError, match="layer_types"):
        family.config({**listed, "use_sliding_window": False})
    with pytest.raises(ValueError, match="layer_types"):
        family.config({**used, "layer_types": ["full_attention"]})


def test_what_tells_the_families_apart(llama_hf):
    bare = {name: value for name, value in llama_hf.items() if name != "head_dim"}
    assert [family.config(bare).head_dim for family in (llama, mistral, qwen2, qwen3)] == [6, 6, 6, 128]
    qwen = qwen2.config(llama_hf)
    assert qwen.qkv_bias and not qwen.out_bias and not qwen.qk_norm
    assert qwen3.config(llama_hf).qk_norm and not qwen3.config(llama_hf).qkv_bias
    biased = llama.config({**llama_hf, "attention_bias": True})
    assert biased.qkv_bias and biased.out_bias and not llama.config(llama_hf).qkv_bias
