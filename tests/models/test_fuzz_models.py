"""Damaged model files, drawn from a seed: each ends in one line, or in the model that the file still describes."""

import json
import random
import struct
from itertools import product

import jax
import numpy as np
import pytest

import models
from models import llama
from models.safetensors_folder import SafetensorsFolder
from tests.damage import NAMED, STRANGE, bounded_memory, of_bytes, of_json, of_text, said
from tests.experiments.conftest import byte_tokenizer
from tests.models.test_models_gguf import tokenizer, write

#: Fields of a config.json that change nothing of a decoder.
FREE = ("architectures", "torch_dtype", "use_cache", "eos_token_id")
LARGE = 3 * 10**8
#: Strange values that a decoder can have; null is a field's default.
POSSIBLE = {
    "vocab_size": (LARGE,), "hidden_size": (LARGE,), "intermediate_size": (LARGE,), "max_position_embeddings": (LARGE, None),
    "num_attention_heads": (LARGE,), "num_key_value_heads": (1, None), "head_dim": (None,), "hidden_act": (None,),
    "rope_theta": (1.5, LARGE, None), "tie_word_embeddings": (True, False, None), "attention_bias": (True, False, None),
}  # fmt: skip


@pytest.fixture
def whole(llama_hf):
    """A config.json in which every field matters but those of FREE."""
    more = {"vocab_size": 257, "rope_theta": 1e4, "tie_word_embeddings": False, "attention_bias": False}
    return {**llama_hf, **more, "eos_token_id": 0, "torch_dtype": "float32", "use_cache": True}


@pytest.fixture
def where(whole, tensors, folder):
    made = folder(whole, tensors(whole))
    (made / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 1], "temperature": 0.5}))
    inner = byte_tokenizer().inner
    inner.chat_template = "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}{% endfor %}"
    inner.save_pretrained(made)
    return made


def outcomes(damaged, load):
    """How many of the damages were named and how many loaded; anything else fails here."""
    count = {"named": 0, "loaded": 0}
    for one in damaged:
        try:
            with bounded_memory():
                load(one)
            count["loaded"] += 1
        except NAMED as error:
            said(error)
            count["named"] += 1
    return count


def test_configs(whole):
    """Every field with every strange value: refused, unless it is one that a decoder can have."""
    undamaged, count = llama.config(whole), 0
    for name, value in product(whole, STRANGE):
        if (name, value) in (("num_hidden_layers", LARGE), ("head_dim", LARGE)):
            continue  # held against the weights, before anything of such a size is made
        possible = name in FREE or any(type(value) is type(x) and value == x for x in POSSIBLE.get(name, ()))
        count += 1
        try:
            found = llama.config({**whole, name: value})
        except NAMED as error:
            assert name in said(error) and not possible, (name, value)
        else:
            assert possible and (found == undamaged or name not in FREE), (name, value)
    assert count > 350


def test_configs_before_their_weights(whole, where):
    draw = random.Random(2)

    def load(text):
        (where / "config.json").write_bytes(text)
        lm = models.load(where)
        assert {leaf.dtype.name for leaf in jax.tree.leaves(lm.params)} == {"float32"}

    count = outcomes([of_text(whole, draw) for _ in range(120)], load)
    assert count["named"] > 60 and count["loaded"] > 5


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_files_beside_the_weights(where, name):
    draw, value = random.Random(3), json.loads((where / name).read_text())

    def load(text):
        (where / name).write_bytes(text)
        lm = models.load(where)
        assert isinstance(lm.decode(lm.encode("hello")[:3]), str) and all(isinstance(i, int) for i in lm.stop_ids)

    count = outcomes([of_text(value, draw) for _ in range(40)], load)
    assert count["named"] > 8 and count["loaded"] > 5


def test_indexes(where):
    draw, index = random.Random(4), {"metadata": {}, "weight_map": {f"model.{i}": "model-0.safetensors" for i in range(4)}}
    (where / "model.safetensors").rename(where / "model-0.safetensors")
    undamaged = models.load(where).params

    def load(text):
        (where / "model.safetensors.index.json").write_bytes(text)
        jax.tree.map(np.testing.assert_array_equal, models.load(where).params, undamaged)

    count = outcomes([of_text(index, draw) for _ in range(80)], load)
    assert count["named"] > 20 and count["loaded"] > 2


def by_hand(data):
    """The float32 tensors of a safetensors file, read without its library."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    spans = {name: (8 + size + entry["data_offsets"][0], entry["shape"]) for name, entry in header.items()}
    return {name: np.frombuffer(data, "<f4", int(np.prod(shape)), at).reshape(shape) for name, (at, shape) in spans.items()}


def test_safetensors_headers(where, whole):
    draw, file = random.Random(5), where / "model.safetensors"
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    undamaged = models.load(where).params

    def damaged():
        if draw.random() < 0.5:
            return of_bytes(data, draw, 8 + size)
        text = json.dumps(of_json(header, draw)).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + size :]

    def load(content):
        file.write_bytes(content)
        jax.tree.map(np.testing.assert_array_equal, models.load(where).params, undamaged)

    count = outcomes([damaged() for _ in range(250)], load)
    assert count["named"] > 200


def test_safetensors_bodies(where):
    """The format has no checksums: what loads is what the file holds, number for number, or it is no number at all."""
    draw, file = random.Random(6), where / "model.safetensors"
    data = file.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]

    def load(content):
        file.write_bytes(content)
        models.load(where)
        read, held = SafetensorsFolder(where), by_hand(content)
        assert read.shapes.keys() == held.keys()
        for name, value in held.items():
            np.testing.assert_array_equal(read.read(name), value)

    def damaged():
        return data[:start] + of_bytes(data[start:], draw, len(data) - start)

    count = outcomes([damaged() for _ in range(40)], load)
    assert count["named"] > 5 and count["loaded"] > 5


def test_gguf(llama_hf, tensors, tmp_path):
    """Headers: a metadata value that flips into another possible one is not to be told; weights are the file's, whole."""
    values = tensors(llama_hf)
    file = write(tmp_path / "m.gguf", "llama", llama_hf, values, more=tokenizer("smollm"))
    draw, data, undamaged = random.Random(7), file.read_bytes(), models.load(file)
    end = len(data) - sum(-(-value.nbytes // 32) * 32 for value in values.values())

    def load(content):
        file.write_bytes(content)
        lm = models.load(file)
        jax.tree.map(np.testing.assert_array_equal, lm.params, undamaged.params)
        assert isinstance(lm.encode("hi 12"), list)

    count = outcomes([of_bytes(data, draw, end) for _ in range(220)], load)
    assert count["named"] > 130 and count["loaded"] > 20
