"""Damaged model files: each ends in one line that names the file, what was expected and what came."""

import json
import os
import threading

import gguf
import numpy as np
import pytest

import models
from models import llama, qwen2
from models.gguf_file import GGUFFile
from tests.experiments.conftest import byte_tokenizer
from tests.models.test_models_gguf import tokenizer, write

HUGE = [float("inf"), float("nan"), 1e300, True]


def complaint(where, kind=ValueError):
    """What loading `where` says, on one line."""
    with pytest.raises(kind) as error:
        models.load(where)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def damaged(llama_hf, tensors, folder):
    """(name of a file, its new content) -> the folder of a model with a tokenizer, that file replaced.

    An index is read where there is no model.safetensors: beside one the weights are a shard.
    """
    where = folder({**llama_hf, "vocab_size": 257}, tensors({**llama_hf, "vocab_size": 257}))
    byte_tokenizer().inner.save_pretrained(where)

    def write(name, content):
        if name == "model.safetensors.index.json":
            (where / "model.safetensors").rename(where / "model-0.safetensors")
        (where / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return where

    return write


@pytest.mark.parametrize("value", ["false", "true", 1, 0.0, [], {}])
@pytest.mark.parametrize("name", ["tie_word_embeddings", "attention_bias"])
def test_only_true_and_false_are_flags(llama_hf, name, value):
    with pytest.raises(ValueError, match=f"{name}: expected true or false, got "):
        llama.config({**llama_hf, name: value})
    assert not llama.config({**llama_hf, name: None}).tied


@pytest.mark.parametrize("value", [*HUGE, -1e-5, 0.0, 2.0, "1e-5"])
def test_eps_out_of_range(llama_hf, value):
    with pytest.raises(ValueError, match="rms_norm_eps: expected a number above 0 and at most 1, got "):
        llama.config({**llama_hf, "rms_norm_eps": value})


@pytest.mark.parametrize("value", [*HUGE, 10**400, 0, -1e4, 1, "1e4", [1e4]])
@pytest.mark.parametrize("outer", [True, False])
def test_theta_out_of_range(llama_hf, value, outer):
    given = {"rope_theta": value} if outer else {"rope_parameters": {"rope_type": "default", "rope_theta": value}}
    with pytest.raises(ValueError, match="rope_theta: expected a number above 1 and at most 1e\\+12, got "):
        llama.config({**llama_hf, **given})


@pytest.mark.parametrize("value", [*HUGE, 0, "8", None, []])
@pytest.mark.parametrize("kind", ["linear", "llama3"])
def test_factors_out_of_range(llama_hf, kind, value):
    scaling = {"rope_type": kind, "factor": value} | ({"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {})
    with pytest.raises(ValueError, match="factor"):
        llama.config({**llama_hf, "rope_scaling": scaling})


def test_config_fields_of_other_types(llama_hf):
    for change, said in (
        ({"rope_scaling": "linear"}, "rope_scaling: expected an object or null, got 'linear'"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, r"rope type \['yarn'\] is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "truncate": "no"}}, "truncate: expected true or false, got 'no'"),
        ({"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 0}}, "original_max_.*: expected a positive"),
        ({"vocab_size": 2**31}, r"vocab_size: expected a positive integer below 2\^31, got 2147483648"),
    ):
        with pytest.raises(ValueError, match=said):
            llama.config({**llama_hf, **change})
    for change in ({"use_sliding_window": "no"}, {"sliding_window": -1}, {"max_window_layers": "x"}, {"layer_types": [["a"], {}]}):
        with pytest.raises(ValueError, match=next(iter(change))):
            qwen2.config({**llama_hf, "use_sliding_window": True, **change})


@pytest.mark.parametrize("names", ["LlamaForCausalLM", {"a": 1}, [["LlamaForCausalLM"]], [1]])
def test_architectures_that_are_no_names(damaged, llama_hf, names):
    assert "architectures: expected a list of names" in complaint(damaged("config.json", {**llama_hf, "architectures": names}))


@pytest.mark.parametrize("content", ["[]", "3", '"x"', "null", "[" * 100_000, '{"a":' * 100_000, "{", "\0", ""])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors.index.json"])
def test_json_that_is_no_object(damaged, name, content):
    said = complaint(damaged(name, content))
    assert name in said and ("must hold a JSON object" in said or "not valid JSON" in said) and "download it again" in said


@pytest.mark.parametrize("ids", ["2", True, -1, 1.5, [[2]], {"a": 2}])
def test_stop_ids_that_are_none(damaged, ids):
    said = complaint(damaged("generation_config.json", {"eos_token_id": ids}))
    assert "eos_token_id: expected an integer of at least 0" in said


@pytest.mark.parametrize(
    "where",
    [None, [], {}, "model.safetensors", {"a": 1}, {"a": None}, {"a": ["model.safetensors"]}, {"a": "../model.safetensors"},
     {"a": "/etc/model.safetensors"}, {"a": "b/../../model.safetensors"}, {"a": "model.bin"}, {"a": "\0.safetensors"}],
)  # fmt: skip
def test_an_index_names_files_of_its_folder(damaged, where):
    said = complaint(damaged("model.safetensors.index.json", {"weight_map": where}))
    assert "model.safetensors.index.json: expected" in said and "download it again" in said


def test_an_index_without_its_map(damaged):
    assert 'expected {"weight_map"' in complaint(damaged("model.safetensors.index.json", {"metadata": {}}))


TOKENIZERS = [
    ("tokenizer.json", "[]"), ("tokenizer.json", "{"), ("tokenizer.json", "{}"), ("tokenizer.json", '{"model": null}'),
    ("tokenizer.json", '{"version":"1.0","model":{"type":"BPE","vocab":3,"merges":[]}}'), ("tokenizer.json", "[" * 100_000),
    ("tokenizer_config.json", "[]"), ("tokenizer_config.json", "{"), ("tokenizer_config.json", '{"eos_token": 3}'),
    ("tokenizer_config.json", '{"model_max_length": "long"}'), ("tokenizer_config.json", '{"added_tokens_decoder": [1]}'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content"), TOKENIZERS)
def test_tokenizer_files(damaged, name, content):
    where = damaged(name, content)
    said = complaint(where)
    assert f"{where}: its tokenizer cannot be read (" in said and "download its tokenizer files again" in said


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% for", "{{ messages + 1 }}", "{{ nothing.there }}"])
def test_chat_templates_that_fail(damaged, template):
    lm = models.load(damaged("chat_template.jinja", template))
    with pytest.raises(ValueError, match="chat template cannot write this chat .*; pass a string") as error:
        lm.encode([{"role": "user", "content": "x"}])
    assert "\n" not in str(error.value)


def test_half_of_a_surrogate_pair_is_no_text(damaged):
    lm = models.load(damaged("chat_template.jinja", "{{ messages[0].content }}"))
    for text in ("ab\ud800", [{"role": "user", "content": "ab\ud800"}]):
        with pytest.raises(ValueError, match=r"half of a surrogate pair \('\\ud800'\) at character 2"):
            lm.encode(text)


def test_sizes_are_held_against_the_headers_first(damaged, llama_hf):
    hf = {**llama_hf, "vocab_size": 257}
    for name, size in (("num_hidden_layers", 300_000_000), ("head_dim", 10**9), ("hidden_size", 10**9)):
        said = complaint(damaged("config.json", {**hf, name: size}))
        assert f"the config's {name} is {size}, but" in said and "config and the weights of one model" in said
    assert models.load(damaged("config.json", hf)).config.layers == 2


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "other.safetensors", "config.json", "generation_config.json", "model.safetensors.index.json",
     "tokenizer.json", "tokenizer_config.json"],
)  # fmt: skip
def test_pipes_are_refused_not_waited_for(damaged, llama_hf, name):
    where = damaged("config.json", {**llama_hf, "vocab_size": 257})
    if name in ("other.safetensors", "model.safetensors.index.json"):
        (where / "model.safetensors").unlink()
    (where / name).unlink(missing_ok=True)
    os.mkfifo(where / name)
    said = []
    worker = threading.Thread(target=lambda: said.append(complaint(where, OSError)), daemon=True)
    worker.start()
    worker.join(timeout=60)
    assert said and f"{name} is no regular file" in said[0]


def test_no_such_users_folder():
    with pytest.raises(FileNotFoundError, match="no home folder of that name"):
        models.load("~no-such-user/model")


def claims(path, at, count):
    """The file with another count of eight bytes at a place of its header."""
    data = bytearray(path.read_bytes())
    data[at : at + 8] = count.to_bytes(8, "little")
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("key", [b"tokenizer.ggml.token_type", b"tokenizer.ggml.tokens", b"tokenizer.ggml.merges"])
@pytest.mark.parametrize("count", [2**40, 2**62])
def test_gguf_arrays_longer_than_the_file(llama_hf, tensors, tmp_path, key, count):
    file = write(tmp_path / "m.gguf", "llama", llama_hf, tensors(llama_hf), more=tokenizer("smollm"))
    at = file.read_bytes().index(key) + len(key) + 8  # after the kind of the value and that of its elements
    assert "m.gguf is cut short, damaged or no GGUF file (at byte" in complaint(claims(file, at, count))


def test_gguf_tensors_that_overlap(llama_hf, tensors, tmp_path):
    file = write(tmp_path / "m.gguf", "llama", llama_hf, tensors(llama_hf))
    name = b"blk.1.ffn_up.weight"
    at = file.read_bytes().index(name) + len(name) + 4 + 2 * 8 + 4  # dimensions, sizes, dtype; then the offset
    assert "begins at byte" in (said := complaint(claims(file, at, 0))) and "and the one before it ends at" in said


@pytest.mark.parametrize("lost", ["embedding_length", "attention.head_count", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"])
def test_gguf_metadata_that_is_lost(llama_hf, tensors, tmp_path, lost):
    file = write(tmp_path / "m.gguf", "llama", llama_hf, tensors(llama_hf), more=tokenizer("smollm"))
    file.write_bytes(file.read_bytes().replace(lost.encode(), b"general." + b"x" * (len(lost) - 8)))
    said = complaint(file)
    assert "tokenizer in this GGUF is damaged" in said if "ggml" in lost else "llama.general.x" in said


def test_gguf_divisors_of_another_length(llama_hf, tensors, tmp_path):
    for values in ([1, 1, 2], [1, 1, 0, 2], [1, 1, np.nan, 2]):
        file = write(
            tmp_path / "m.gguf", "llama", llama_hf, tensors(llama_hf),
            more=lambda writer: writer.add_tensor("rope_freqs.weight", np.array(values, np.float32)),  # noqa: B023
        )  # fmt: skip
        assert "rope_freqs.weight must be 4 numbers of at least 1" in complaint(file)


def test_gguf_headers_are_read_as_the_reader_does(llama_hf, tensors, tmp_path):
    file = write(tmp_path / "m.gguf", "llama", llama_hf, tensors(llama_hf), more=tokenizer("smollm"))
    assert len(GGUFFile(file).shapes) == len(gguf.GGUFReader(file).tensors) == 21
