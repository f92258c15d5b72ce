"""Reading config.json: both spellings, the families' departures, and nothing passed over in silence."""

import pytest

from models import llama, mistral, qwen2, qwen3
from models.families import family_of

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def test_both_spellings_of_the_rope_agree(llama_hf):
    old = llama.config({**llama_hf, "rope_theta": 5e5, "rope_scaling": LLAMA3})
    new = llama.config({**llama_hf, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}})
    both = llama.config({**llama_hf, "rope_theta": 5e5, "rope_scaling": LLAMA3, "rope_parameters": {**LLAMA3}})
    assert old == new == both != llama.config(llama_hf)


def test_spellings_that_disagree(llama_hf):
    given = {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    with pytest.raises(ValueError, match="disagrees"):
        llama.config({**llama_hf, **given})


def test_all_problems_at_once(llama_hf):
    wrong = {
        "hidden_act": "gelu",
        "mlp_bias": True,
        "rope_scaling": {"type": "dynamic"},
        "quantization_config": {"b": 4},
    }
    wrong |= {"attention_softcap": 30.0, "vocab_size": None, "pretraining_tp": 2}
    with pytest.raises(ValueError) as error:
        llama.config({**llama_hf, **wrong})
    words = (
        "hidden_act",
        "mlp_bias",
        "dynamic",
        "quantization_config",
        "attention_softcap",
        "vocab_size",
        "pretraining_tp",
    )
    assert all(word in str(error.value) for word in words)


def test_what_does_not_matter_is_accepted(hf):
    harmless = {"torch_dtype": "bfloat16", "attention_dropout": 0.1, "eos_token_id": [1, 2], "use_cache": True}
    family = family_of(hf)
    assert family.config({**hf, **harmless, "some_future_field": None}) == family.config(hf)


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
