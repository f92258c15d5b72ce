"""Commands that write, each killed at 50 random moments: nothing is torn, and what goes on ends as if nobody had disturbed it."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import kvjax
import models
from experiments.row_checks import result, trace
from experiments.rows import key, read
from kvjax.artefacts.artefact import load
from tests.experiments.conftest import MEASURED, lines
from tests.kills.conversation import policy
from tests.kills.kit import Command, Warm, Whole, furnish, killed

pytestmark = pytest.mark.slow

#: Of each command, in as many processes beside each other as machines of CI have cores.
KILLS, CHAINS = 50, 2
SMALL = "--model HOME/model --text HOME/text.txt"
TRIM = "--budget 8 --set hidden=8 --set bias=4.0 --set rate=0.01"
COMMANDS = {
    "calibrate": Command(
        f"calibrate fasa {SMALL} --samples 2 --length 64 --set count=4 --set tokens=16 --set queries=8 --out FOLDER/art"
    ),
    "sweep": Command(
        f"sweep {SMALL} --tasks ppl --lengths 420 --policies streaming_llm --budgets 0.5 --prompts 3 --out FOLDER/rows.jsonl"
    ),
    "ablate": Command(
        f"ablate compresskv_table3 {SMALL} --artefact HOME/compresskv --tasks ppl --lengths 420 --prompts 2 --budget 0.5 "
        "--out FOLDER"
    ),
    "train": Command(
        "train trim_kv --model HOME/model --data text --text HOME/prose.txt --length 64 --samples 4 --steps 6 --every 2 "
        f"--held-out 0 {TRIM} --resume --out FOLDER/gate"
    ),
    "save_cache": Command("HOME/model FOLDER", command="converse"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kills")
    furnish(folder)
    return folder


@pytest.fixture(scope="module")
def warm(home) -> Iterator[list[Warm]]:
    with Warm(home, "first") as first, Warm(home, "second") as second:
        yield [first, second]


def fifty(name: str, warm: list[Warm], intact, former: Path | None = None) -> tuple[Path, list[Path]]:
    """The folder of an undisturbed run of a command, and those of runs that were killed 50 times in all."""
    home, command = warm[0].home, COMMANDS[name]
    for number in range(2):  # the second finds every program compiled
        undisturbed = home / f"{name}-whole-{number}"
        undisturbed.mkdir()
        whole = Whole(undisturbed, warm[0].run(command.attempt(home, undisturbed)))

    def chain(number: int) -> list[tuple[Path, list[str]]]:
        folder, share = home / f"{name}-{number}", KILLS // CHAINS
        return killed(warm[number], command, folder, whole, kills=share, seed=f"{name} {number}", former=former, intact=intact)

    with ThreadPoolExecutor(CHAINS) as pool:
        made = [run for runs in pool.map(chain, range(CHAINS)) for run in runs]
    found = [files for _, kills in made for files in kills]
    print(f"{name}: undisturbed {whole.ended}, {whole.size} bytes; {len(made)} runs, {len(set(found))} kinds of what was left")
    assert len(found) == KILLS and len(set(found)) > 4, set(found)
    return undisturbed, [folder for folder, _ in made]


def same_artefacts(one: Path, other: Path) -> None:
    """To the bit: `load` compares the tables with the header's digest. Orbax's files say when they were written."""
    assert load(one).header == load(other).header


def artefacts_are_whole(folder: Path) -> None:
    """Whatever may be asked for as an artefact is whole, or said to be none."""
    for path in (path for path in folder.iterdir() if path.is_dir() and not path.name.endswith(".run")):
        try:
            load(path)
        except FileNotFoundError as error:
            assert path.name.startswith(".") and "holds no artefact" in str(error)


def rows_are_whole(folder: Path) -> None:
    for path in folder.glob("*.jsonl"):
        read(path, trace if ".traces." in path.name else result)


#: Of a row: what is measured, how many were decoded together, and whether the checkout was changed meanwhile.
STAMPS = (*MEASURED, "rows", "commit")


def without_stamps(path: Path) -> list[dict]:
    return [{name: x for name, x in row.items() if name not in STAMPS} for row in lines(path)]


def same_rows(one: Path, other: Path) -> None:
    """Row for row and to the bit, all but stamps."""
    mine, theirs = map(without_stamps, (one, other))
    assert mine == theirs and len(mine) == len({key(row) for row in mine})


def test_fifty_kills_of_calibrate_leave_the_former_artefact_or_the_new_one(warm, home):
    former, seen = home / "former", set()
    shutil.copytree(home / "compresskv", former / "art")

    def whole(folder: Path) -> None:
        artefacts_are_whole(folder)
        seen.add(load(folder / "art").method)

    undisturbed, folders = fifty("calibrate", warm, whole, former)
    assert seen == {"compresskv", "fasa"}
    for folder in folders:
        same_artefacts(folder / "art", undisturbed / "art")


def test_fifty_kills_of_sweep_change_no_row(warm):
    undisturbed, folders = fifty("sweep", warm, rows_are_whole)
    for folder in folders:
        for name in ("rows.jsonl", "rows.traces.jsonl"):
            same_rows(folder / name, undisturbed / name)


def test_fifty_kills_of_ablate_change_neither_rows_nor_page_nor_picture(warm):
    def whole(folder: Path) -> None:
        rows_are_whole(folder)
        for path in folder.glob("[!.]*.png"):
            assert path.read_bytes().endswith(b"IEND\xaeB`\x82")
        for path in folder.glob("[!.]*.md"):
            assert path.read_text().endswith("\n")

    undisturbed, folders = fifty("ablate", warm, whole)
    for folder in folders:
        for name in ("compresskv_table3.jsonl", "compresskv_table3.traces.jsonl"):
            same_rows(folder / name, undisturbed / name)
        for name in ("compresskv_table3.md", "compresskv_table3.png"):
            assert (folder / name).read_bytes() == (undisturbed / name).read_bytes()


def test_fifty_kills_of_train_change_no_weight(warm):
    def whole(folder: Path) -> None:
        artefacts_are_whole(folder)
        run = folder / "gate.run"
        if (run / "run.json").is_file():
            json.loads((run / "run.json").read_text())
        assert all((path / "commit_success.txt").is_file() for path in run.glob("step-*"))

    undisturbed, folders = fifty("train", warm, whole)
    for folder in folders:
        same_artefacts(folder / "gate", undisturbed / "gate")
        assert (folder / "gate.run/log.jsonl").read_bytes() == (undisturbed / "gate.run/log.jsonl").read_bytes()
        assert not list((folder / "gate.run").glob(".*"))


def test_fifty_kills_of_save_cache_leave_a_cache_that_loads(warm):
    lm = models.load(warm[0].home / "model")

    def loads(folder: Path) -> None:
        if (folder / "talk").exists():
            kvjax.load_cache(folder / "talk", lm, policy())

    undisturbed, folders = fifty("save_cache", warm, loads)
    for folder in folders:
        assert parts(folder / "talk") == parts(undisturbed / "talk")


def parts(path: Path) -> tuple[dict, bytes]:
    """Header and body of a safetensors file, whose header has its names in any order."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]
