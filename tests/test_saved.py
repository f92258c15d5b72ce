"""A prefilled prompt comes back from its file to the bit, and only to the model it was made with."""

import hashlib
import json
import re
import resource

import jax
import numpy as np
import pytest
from flax import struct
from safetensors.numpy import load_file, save_file

import kvjax
import models
from kvjax import evidence as ev
from kvjax.prefill.saved import load_prefilled, save_prefilled
from models import llama
from tests.conftest import ids_of, policy_of, prepared, toy_config
from tests.damage import bounded_memory
from tests.decode_loop import unchecked

PROMPTS = [ids_of(90), ids_of(33, seed=1)]


@pytest.fixture(scope="module")
def both(lm):
    return kvjax.prefill(lm, PROMPTS, needs=ev.STANDARD | {ev.HiddenStates()}, all_logits=True)


@pytest.fixture
def file(lm, both, tmp_path):
    return save_prefilled(both, tmp_path / "prompt.safetensors", lm)


def same(one, two) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(two)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def rewritten(file, **changes):
    """The file with other fields in its header."""
    header = json.loads(json.loads(_raw_header(file))["__metadata__"]["kvjax"])
    text = json.dumps({**header, **changes})
    save_file(load_file(file), file, {"kvjax": text, "kvjax_checksum": hashlib.blake2b(text.encode(), digest_size=8).hexdigest()})
    return file


def _raw_header(file) -> bytes:
    data = file.read_bytes()
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


def test_everything_comes_back_to_the_bit(lm, both, file):
    same(both, load_prefilled(file, lm))
    assert list(file.parent.iterdir()) == [file]


def test_sixteen_bits_come_back_too(tmp_path):
    lm = models.random(llama.config(toy_config(num_hidden_layers=1)), dtype="bfloat16")
    pre = kvjax.prefill(lm, ids_of(20), needs=frozenset({ev.WindowQueries(8)}))
    assert pre.rows[0].k[0].dtype == "bfloat16"
    same(pre, load_prefilled(save_prefilled(pre, tmp_path / "p", lm), lm))


@pytest.mark.parametrize("name", ["snapkv", "expected_attention", "h2o"])
def test_it_compresses_as_the_original(lm, both, file, name):
    same(kvjax.compress(both, policy_of(name)), kvjax.compress(load_prefilled(file, lm), policy_of(name)))


def test_it_decodes_as_the_original(lm, both, file):
    policy, outs = policy_of("snapkv"), []
    for pre in (both, load_prefilled(file, lm)):
        outs.append(kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=8, return_logits=True, stop=()))
    assert np.array_equal(outs[0].tokens, outs[1].tokens)
    assert np.array_equal(np.asarray(outs[0].logits), np.asarray(outs[1].logits))


def test_another_model_is_refused_by_name(lm, file):
    other = models.random(llama.config(toy_config(num_hidden_layers=2, head_dim=32)), seed=0, dtype="bfloat16")
    with pytest.raises(ValueError, match="layers: the model has 2, the file 3; .*head_dim: .* 32, .* 16; .*dtype: .*bfloat16"):
        load_prefilled(file, other)


def test_one_changed_matrix_is_refused(lm, file):
    last = lm.params["layers"][-1]
    layers = [*lm.params["layers"][:-1], jax.tree.map(lambda x: x * 1.001, last)]
    tuned = lm.replace(params={**lm.params, "layers": layers})
    with pytest.raises(ValueError, match="another model .parameters: the model has '[0-9a-f]{12}', the file"):
        load_prefilled(file, tuned)


def test_another_tokenizer_and_name_are_refused(lm, file):
    from tests.experiments.conftest import byte_tokenizer

    with pytest.raises(ValueError, match="name: the model has 'mine', the file 'random-0'; tokenizer: .* the file None"):
        load_prefilled(file, lm.replace(tokenizer=byte_tokenizer(), name="mine"))


def test_what_is_no_model_is_refused(tmp_path):
    """Before the prompts or the file are looked at."""
    file = tmp_path / "p"
    for call in (lambda: save_prefilled(None, file, "mine"), lambda: load_prefilled(file, "mine")):
        with unchecked(), pytest.raises(TypeError, match="expected a language model, such as .* got 'mine'"):
            call()


def test_saving_with_another_model_is_refused(both, tmp_path):
    other = models.random(llama.config(toy_config(num_hidden_layers=2)))
    with pytest.raises(ValueError, match="pass the model that kvjax.prefill was given"):
        save_prefilled(both, tmp_path / "p", other)


@pytest.mark.parametrize("left", [0, 5, 300, -1])
def test_a_file_cut_short_is_refused(lm, file, left):
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(ValueError, match="cut short"):
        load_prefilled(file, lm)


def test_two_hundred_bit_flips_are_all_refused(lm, file):
    whole, draw = file.read_bytes(), np.random.default_rng(0)
    for at in draw.integers(0, 8 * len(whole), 200):
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << at % 8
        file.write_bytes(damaged)
        with bounded_memory(), pytest.raises(ValueError, match=re.escape(str(file))):
            load_prefilled(file, lm)


def test_an_edited_header_is_refused(lm, file):
    header = json.loads(json.loads(_raw_header(file))["__metadata__"]["kvjax"])
    save_file(load_file(file), file, {"kvjax": json.dumps(header | {"all_logits": True}), "kvjax_checksum": "0" * 16})
    with pytest.raises(ValueError, match="damaged or was edited"):
        load_prefilled(file, lm)


def test_every_weight_counts(lm, file):
    """A single weight that differs, wherever it stands, makes another model."""
    weight = lm.params["layers"][1]["mlp"]["down"]["weight"]
    params = jax.tree.map(lambda x: x.at[3, 5].add(1e-3) if x is weight else x, lm.params)
    with pytest.raises(ValueError, match="parameters: the model has"):
        load_prefilled(file, lm.replace(params=params))


def test_a_stranger_is_refused(lm, tmp_path):
    text, weights = tmp_path / "text", tmp_path / "weights"
    text.write_text("not a prompt at all, just words\n" * 20)
    save_file({"x": np.zeros(3, np.float32)}, weights)
    with pytest.raises(ValueError, match="no safetensors file"):
        load_prefilled(text, lm)
    with pytest.raises(ValueError, match="holds no prefilled prompt"):
        load_prefilled(weights, lm)
    with pytest.raises(FileNotFoundError, match="save_prefilled"):
        load_prefilled(tmp_path, lm)


def header_in(file) -> dict:
    return json.loads(json.loads(_raw_header(file))["__metadata__"]["kvjax"])


def test_headers_that_lie_are_refused(lm, file):
    tree = header_in(file)["prefilled"]
    row = tree["fields"]["rows"]["tuple"][0]["fields"]
    row["ids"]["shape"] = [128]
    with pytest.raises(ValueError, match="or lacks some: rows.0.ids"):
        load_prefilled(rewritten(file, prefilled=tree), lm)
    row["ids"]["shape"] = [96]
    row["k"]["tuple"][0] = row["ids"]
    with pytest.raises(ValueError, match="or lacks some: rows.0.k.0"):
        load_prefilled(rewritten(file, prefilled=tree), lm)
    with pytest.raises(ValueError, match="version 0, this kvjax reads 4"):
        load_prefilled(rewritten(file, version=0), lm)


def test_a_layer_that_is_not_the_models_is_refused(lm, file):
    tree = header_in(file)["prefilled"]
    row = tree["fields"]["rows"]["tuple"][0]["fields"]
    row["k"]["tuple"].append(row["v"]["tuple"].pop())
    with pytest.raises(ValueError, match="rows that the model does not have"):
        load_prefilled(rewritten(file, prefilled=tree), lm)


STRANGE = ["os:system", "subprocess:Popen", "builtins:eval", "mine.strange:Pickle", "kvjax.policy:Policy.check"]


@pytest.mark.parametrize("name", STRANGE)
def test_only_pytrees_that_are_imported_are_made(lm, file, name):
    tree = header_in(file)["prefilled"]
    tree["fields"]["needs"]["tuple"][0] = {"class": name, "fields": {}}
    with pytest.raises(ValueError, match=f"holds a '{name}', which is no pytree"):
        load_prefilled(rewritten(file, prefilled=tree), lm)


def test_a_need_of_a_function_cannot_be_saved(lm, tmp_path):
    @struct.dataclass
    class Mine(ev.WindowQueries):
        pass

    pre = kvjax.prefill(lm, ids_of(20), needs=frozenset({Mine(8)}))
    with pytest.raises(ValueError, match="Mine at needs.0 cannot be saved: .* at the top of a module"):
        save_prefilled(pre, tmp_path / "p", lm)
    assert not list(tmp_path.iterdir())


@struct.dataclass
class Own(ev.WindowQueries):
    """A need of the user's own."""


@pytest.mark.parametrize("name", ["kvzip", "dapq", "lookahead_kv", "trim_kv", "criticalkv", "own"])
def test_second_passes_gates_and_needs_of_ones_own_come_back(lm, tmp_path, name):
    if name == "own":
        pre = kvjax.prefill(lm, ids_of(40), needs=frozenset({Own(8)}))
    else:
        pre = prepared(lm, kvjax.prefill(lm, ids_of(90), needs=policy_of(name)), name)
    again = load_prefilled(save_prefilled(pre, tmp_path / "p", lm), lm)
    same(pre, again)
    assert again.needs == pre.needs
    if name != "own":
        same(kvjax.compress(pre, policy_of(name)), kvjax.compress(again, policy_of(name)))


def test_a_full_disk_leaves_the_former_file(lm, both, file):
    pre = kvjax.prefill(lm, ids_of(90), needs=ev.STANDARD)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="cannot write .*prompt.safetensors"):
            save_prefilled(pre, file, lm)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    same(both, load_prefilled(file, lm))
    assert list(file.parent.iterdir()) == [file]
