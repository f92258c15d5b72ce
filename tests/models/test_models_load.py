"""Loading folders: whole and sharded, every dtype, and every kind of damage named."""

import json
from dataclasses import replace

import jax
import ml_dtypes
import numpy as np
import pytest

import kvjax
import models
from kvjax.artefacts.artefact import save
from kvjax.artefacts.retrofit import own_weights
from kvjax.train import artefact_of
from kvjax.train.learners import DMC

TOKENS = np.arange(10)[None]


def test_round_trip(hf, tensors, folder, forward):
    values = tensors(hf)
    lm = models.load(folder(hf, values))
    assert lm.nbytes == sum(value.nbytes for value in values.values())
    made = models.random(lm.config)
    jax.tree.map(np.testing.assert_array_equal, lm.params, made.params)
    np.testing.assert_array_equal(forward(lm, TOKENS)[0], forward(made, TOKENS)[0])


def test_shards_equal_the_whole(hf, tensors, folder):
    lm = models.load(folder(hf, tensors(hf), files=3))
    jax.tree.map(np.testing.assert_array_equal, lm.params, models.random(lm.config).params)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", jax.numpy.bfloat16])
def test_dtypes(dtype, llama_hf, tensors, folder):
    values = {name: value.astype(ml_dtypes.bfloat16) for name, value in tensors(llama_hf).items()}
    lm = models.load(folder(llama_hf, values), dtype)
    assert {leaf.dtype for leaf in jax.tree.leaves(lm.params)} == {jax.numpy.dtype(dtype)}
    np.testing.assert_array_equal(np.array(lm.params["norm"]["weight"], np.float32), 1)


def test_a_head_that_is_the_embedding_and_old_buffers_are_ignored(llama_hf, tensors, folder):
    values = tensors(llama_hf)
    values["lm_head.weight"] = values["model.embed_tokens.weight"].copy()
    values["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    lm = models.load(folder({**llama_hf, "tie_word_embeddings": True}, values))
    assert "head" not in lm.params and lm.config.tied


def test_a_head_that_differs_from_the_embedding_is_used(llama_hf, tensors, folder):
    """One number apart: as in transformers the two are not tied, and that is said."""
    values = tensors(llama_hf)
    values["lm_head.weight"] = values["model.embed_tokens.weight"].copy()
    values["lm_head.weight"][5, 3] += 1
    with pytest.warns(UserWarning, match="ties the head to the embedding, but the weights hold a lm_head.weight of its own"):
        lm = models.load(folder({**llama_hf, "tie_word_embeddings": True}, values))
    assert not lm.config.tied
    np.testing.assert_array_equal(lm.params["head"]["weight"], values["lm_head.weight"])
    np.testing.assert_array_equal(lm.params["embed"]["weight"], values["model.embed_tokens.weight"])


def test_a_head_of_another_shape_is_named(llama_hf, tensors, folder):
    values = tensors(llama_hf)
    values["lm_head.weight"] = values["lm_head.weight"][:-1]
    where = folder({**llama_hf, "tie_word_embeddings": True}, values)
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=r"lm_head.weight \(expected \(32, 24\), got \(31, 24\)\)"):
        models.load(where)


def test_a_head_without_an_embedding_is_both(llama_hf, tensors, folder):
    values = tensors(llama_hf)
    del values["model.embed_tokens.weight"]
    lm = models.load(folder({**llama_hf, "tie_word_embeddings": True}, values))
    np.testing.assert_array_equal(lm.params["embed"]["weight"], values["lm_head.weight"])
    assert "head" not in lm.params
    with pytest.raises(ValueError, match=r"1 tensors missing: model\.embed_tokens\.weight"):
        models.load(folder(llama_hf, values))


@pytest.mark.parametrize("files", [1, 3])
def test_names_without_their_prefix(hf, tensors, folder, files):
    """A decoder saved without its head: "layers.0...", where a causal model has "model.layers.0..."."""
    values = {name.removeprefix("model."): value for name, value in tensors(hf).items()}
    lm = models.load(folder(hf, values, files))
    jax.tree.map(np.testing.assert_array_equal, lm.params, models.random(lm.config).params)
    del values["lm_head.weight"]
    assert models.load(folder({**hf, "tie_word_embeddings": True}, values)).config.tied


def test_one_whole_file_comes_before_shards(llama_hf, tensors, folder):
    """As in transformers: an index beside model.safetensors is not read."""
    folder(llama_hf, tensors(llama_hf, seed=1), files=2)
    where = folder(llama_hf, tensors(llama_hf))
    lm = models.load(where)
    jax.tree.map(np.testing.assert_array_equal, lm.params, models.random(lm.config).params)
    (where / "model.safetensors.index.json").write_text("{")
    assert models.load(where).config == lm.config


def test_all_misfits_at_once(llama_hf, tensors, folder):
    values = tensors(llama_hf)
    del values["model.norm.weight"], values["model.layers.1.mlp.up_proj.weight"]
    values["model.layers.0.self_attn.q_proj.bias"] = np.zeros(32, np.float32)
    values["lm_head.weight"] = values["lm_head.weight"][:-1]
    with pytest.raises(ValueError) as error:
        models.load(folder(llama_hf, values))
    text = str(error.value)
    for words in (
        "2 tensors missing",
        "model.norm.weight",
        "layers.1.mlp.up_proj",
        "1 tensors unexpected",
        "q_proj.bias",
    ):
        assert words in text
    assert "lm_head.weight (expected (32, 24), got (31, 24))" in text


def test_weights_that_are_not_finite(llama_hf, tensors, folder):
    values = tensors(llama_hf)
    values["model.norm.weight"][3] = np.nan
    values["model.layers.1.mlp.up_proj.weight"][0, 0] = np.inf
    with pytest.raises(ValueError, match=r"NaN or infinite.*model\.layers\.1\.mlp\.up_proj.*model\.norm\.weight"):
        models.load(folder(llama_hf, values))


def test_too_large_for_float16(llama_hf, tensors, folder):
    values = tensors(llama_hf)
    values["model.norm.weight"][3] = 1e5
    where = folder(llama_hf, values)
    models.load(where, "bfloat16")
    with pytest.raises(ValueError, match="float16: try bfloat16.*model.norm.weight"):
        models.load(where, "float16")


@pytest.mark.parametrize("keep", [0, 5, 200, 0.5, 0.999])
def test_truncated_file_is_named(keep, llama_hf, tensors, folder):
    where = folder(llama_hf, tensors(llama_hf))
    file = where / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    with pytest.raises(ValueError, match=r"model\.safetensors is cut short, damaged"):
        models.load(where)


def test_absent_shard_is_named(llama_hf, tensors, folder):
    where = folder(llama_hf, tensors(llama_hf), files=2)
    (where / "model-1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-1\.safetensors"):
        models.load(where)


def test_integer_weights_are_refused(llama_hf, tensors, folder):
    values = {name: value.astype(np.int8) for name, value in tensors(llama_hf).items()}
    with pytest.raises(ValueError, match="int8.*expected one of"):
        models.load(folder(llama_hf, values))


def test_bad_sources(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder or file 'nowhere'"):
        models.load("nowhere")
    with pytest.raises(FileNotFoundError, match="config.json"):
        models.load(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match="expected a folder"):
        models.load(tmp_path / "model.bin")
    with pytest.raises(ValueError, match="dtype must be one of"):
        models.load(tmp_path, "int8")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        models.load(tmp_path)


def test_hub_that_does_not_answer(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FileNotFoundError, match="'nobody/nothing'.*Check the name and the network"):
        models.load("nobody/nothing")


def test_without_a_tokenizer(llama_hf, tensors, folder):
    config = {**llama_hf, "eos_token_id": [5, 7]}
    where = folder(config, tensors(llama_hf))
    (where / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    lm = models.load(where)
    assert lm.stop_ids == (9, 5, 7) and lm.name == str(where)
    with pytest.raises(ValueError, match="has no tokenizer"):
        lm.encode("x")


def test_a_retrofitted_model_is_named_with_its_artefact(llama_hf, tensors, folder, tmp_path):
    """MODEL+FOLDER: the weights that DMC has trained in place of the model's own; of another model they are refused."""
    where = folder(llama_hf, tensors(llama_hf))
    lm = models.load(where)
    weights = jax.tree.map(lambda x: x + 1, own_weights(lm.params, ("attention.q",)))
    made = artefact_of(lm, DMC(), weights, data={}, run={})
    kept = save(made, tmp_path / "dmc")
    found = models.load(f"{where}+{kept}")
    old, new = lm.params["layers"][1]["attention"], found.params["layers"][1]["attention"]
    np.testing.assert_array_equal(new["q"]["weight"], old["q"]["weight"] + 1)
    np.testing.assert_array_equal(new["k"]["weight"], old["k"]["weight"])
    assert found.name == f"{where}+dmc-{made.digest}"
    over = models.load(f"{where}+{kept}", mesh=kvjax.mesh())
    assert over.part is not None and over.decoder == found.decoder
    assert all(x.sharding.mesh == kvjax.mesh() for x in jax.tree.leaves(over.params))
    jax.tree.map(np.testing.assert_array_equal, over.params, found.params)
    with pytest.raises(ValueError, match="name: the model has .*kvjax train dmc"):
        models.load(f"{where}+{save(replace(made, model={**made.model, 'name': 'another'}), tmp_path / 'other')}")
