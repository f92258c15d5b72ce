"""What the documents say runs: following docs/add_a_method.md in a package of one's own."""

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest

import kvjax
import models
from tests.artefacts import toy
from tests.conftest import ids_of, toy_config

DOCS = Path(__file__).parents[1] / "docs"


def blocks(document: Path) -> dict[str, str]:
    """Python blocks whose first line names their file."""
    found = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", document.read_text(), re.S)
    return dict(found)


@pytest.fixture
def beside_toy(tmp_path, monkeypatch):
    """A folder with toy.py of the first page, in which a reader runs the code of the others."""
    (tmp_path / "toy.py").write_text(blocks(DOCS / "index.md")["toy.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("mine", "toy")]:
        del sys.modules[name]


@pytest.fixture(params=["add_a_method.md"])
def package(request, beside_toy):
    """The files of a page, as its reader would have them."""
    (beside_toy / "mine").mkdir()
    for name, text in blocks(DOCS / request.param).items():
        (beside_toy / name).write_text(text)
    return beside_toy


def run(path: Path) -> dict:
    """The names that a file leaves: nothing is there before it."""
    scope = {}
    exec(compile(path.read_text(), path.name, "exec"), scope)
    return scope


def test_the_toy_of_the_first_page_is_the_tests_toy(beside_toy):
    scope = run(beside_toy / "toy.py")
    assert models.llama.config(scope["CONFIG"]) == models.llama.config(toy_config())
    assert (scope["ids"], scope["question"]) == (ids_of(90), ids_of(7, 3))


def test_the_three_examples_work_by_following_the_page(package):
    scope = run(package / "use.py")
    outputs = scope["outputs"]
    assert list(outputs) == ["peaks", "gate", "one-bit values", "peaks over one-bit values"]
    for name in ("peaks", "gate", "peaks over one-bit values"):
        assert (outputs[name].cache.lengths == 32).all()
    pre, peaks = scope["pre"], scope["policies"]["peaks"]
    kept = kvjax.compress(pre, peaks.replace(when=kvjax.AfterPrefill()))
    rows = np.asarray(pre.rows[0].evidence[0].data["attention_max"])[0, :, :, :90].max(1)
    protected = {*range(4), 89}
    for h in range(2):
        best = sorted(set(range(90)) - protected, key=lambda j: (-rows[h, j], j))[: 32 - 5]
        np.testing.assert_array_equal(kept.kept(0)[0][h], sorted(protected | set(best)))
    plain = kvjax.compress(pre, scope["policies"]["one-bit values"].replace(encode=kvjax.encode.Stored()))
    bits = outputs["one-bit values"].cache
    assert bits.slot_nbytes == plain.slot_nbytes - 16 * 4 + 2 + 2


@pytest.mark.parametrize("name", ["talk.py", "rest.py", "prompt.py"])
def test_the_examples_of_saving_work(beside_toy, name):
    text = blocks(DOCS / "saving.md")[name]
    if name == "rest.py":  # of the toy, in place of a checkpoint
        lines = {
            "lm = models.load": "from toy import ids, lm, question",
            "policy =": "policy = kvjax.methods.kvtc(artefact=KVTC, ratio=2)",
        }
        given = lambda line: next((new for old, new in lines.items() if line.startswith(old)), line)  # noqa: E731
        text = "\n".join(given(line) for line in text.splitlines() if not line.startswith("ids, question = lm.encode"))
    scope = {"KVTC": toy("kvtc")}
    exec(compile(text, name, "exec"), scope)
    lm = scope["lm"]
    if name != "prompt.py":
        policy, whole = scope["policy"], scope["answer"].cache
        same = kvjax.decode(lm, kvjax.extend(lm, whole, scope["question"], policy).cache, policy, max_new_tokens=8)
        np.testing.assert_array_equal(scope["more"].tokens, same.tokens)
    else:
        half, quarter = (cache.lengths.sum() for cache in scope["kept"])
        assert half == 45 * 6 and quarter in (22 * 6, 23 * 6)


@pytest.mark.parametrize("package", ["add_a_gate.md"], indirect=True)
def test_a_gate_is_trained_kept_and_served_by_following_the_page(package):
    scope = run(package / "train_it.py")
    assert scope["after"]["loss"] < 0.5 * scope["before"]["loss"]
    assert [line["step"] for line in scope["trained"].log] == list(range(60))
    for want, got in zip(jax.tree.leaves(scope["trained"].weights), jax.tree.leaves(scope["values"].weights), strict=True):
        np.testing.assert_array_equal(want, got)
    pre = kvjax.prefill(scope["lm"], scope["drawn"][0], needs={scope["values"]})
    assert (pre.rows[0].evidence[0].of(scope["values"])[:, :, :56] > 0).all()


def test_documents_hold_no_history():
    for path in [*DOCS.glob("*.md"), DOCS.parent / "README.md"]:
        words = re.findall(r"\b[0-9a-f]{7,40}\b", path.read_text())
        assert not [word for word in words if re.search("[a-f]", word) and re.search("[0-9]", word)], path
        assert "by hand" not in path.read_text(), path


@pytest.mark.parametrize("name", ["architecture.md", "serving.md", "stages.md"])
def test_files_that_documents_name_exist(name):
    root = DOCS.parent / "kvjax"
    for found in re.findall(r"`([a-z_/]+\.py)`", (DOCS / name).read_text()):
        assert any((base / found).exists() for base in (root, root.parent)), found


def test_the_page_of_the_api_has_every_name_of_the_library():
    page = (DOCS / "api.md").read_text()
    told = set(re.findall(r"^::: (\S+)$", page, re.M)) | set(re.findall(r"`(kvjax\.[a-z_]+)`", page))
    for name in kvjax.__all__:
        given = getattr(kvjax, name)
        assert (given.__name__ if isinstance(given, ModuleType) else f"{given.__module__}.{given.__qualname__}") in told, name
    for name in kvjax.episodes.__all__:
        assert f"{getattr(kvjax.episodes, name).__module__}.{name}" in told, name


#: Pages whose blocks follow each other, beside toy.py.
HERE = ("transforms.md", "from_kvpress.md", "stages.md")
#: Pages that other tests run: above, on eight devices (tests/sharding), with the real model (tests/test_real_model.py).
ELSEWHERE = ("README.md", "add_a_gate.md", "add_a_method.md", "index.md", "saving.md", "sharding.md")


@pytest.mark.parametrize("name", HERE)
def test_the_code_of_a_page_runs_from_top_to_bottom(name, beside_toy):
    scope = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.S):
        exec(compile(block, name, "exec"), scope)
    if name == "transforms.md":
        lm = scope["lm"]
        for budget, tokens in zip([8, 12, 16, 24, 32, 48, 64, 80], scope["tokens"], strict=True):
            policy = kvjax.methods.snapkv(budget=budget)
            want = kvjax.decode(lm, kvjax.compress(scope["pre"], policy), policy, max_new_tokens=4, stop=())
            np.testing.assert_array_equal(tokens, want.tokens)
        assert max(float(abs(x).max()) for x in jax.tree.leaves(scope["gradient"])) > 0
    if name == "from_kvpress.md":
        assert {name: out.shape for name, out in scope["answers"].items()} == {"snapkv": (1, 8), "knorm": (1, 8)}


PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_are_commands_with_such_options(page):
    """Every `kvjax ...` in a block of bash; the text behind # is not read, `...` stands for what is left out."""
    from typer.main import get_command

    from experiments.cli import app

    for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.S):
        for line in block.replace("\\\n", " ").splitlines():
            for words in re.findall(r"(?:^|[ /])kvjax ([a-z][^&|;#]*)", line):
                command, rest = get_command(app), words.split()
                while rest and rest[0] in vars(command).get("commands", {}):
                    command = command.commands[rest.pop(0)]
                assert "commands" not in vars(command), line
                known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
                given = {word.partition("=")[0] for word in rest if word.startswith("--")}
                assert given <= known, (page.name, line, given - known)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_calls_that_a_page_names_take_such_arguments(page):
    """Every call of what `import kvjax` gives, between backticks; calls within its arguments are not read."""
    for name, given in re.findall(r"`(?:kvjax\.)?(\w+)\(([^`]*)\)`", page.read_text()):
        while (outer := re.sub(r"\([^()]*\)", "", given)) != given:
            given = outer
        if callable(called := getattr(kvjax, name, None)):
            assert set(re.findall(r"(\w+)=", given)) <= inspect.signature(called).parameters.keys(), (page.name, name, given)


def test_every_page_with_code_has_a_test_that_runs_it():
    with_code = {page.name for page in PAGES if "```python\n" in page.read_text()}
    assert with_code == {*HERE, *ELSEWHERE}
