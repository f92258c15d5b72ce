"""Artefacts: exact round trips, whole or not at all, and every mismatch named before a table is used."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvjax.artefacts import artefact as module
from kvjax.artefacts import folders
from kvjax.artefacts.artefact import Artefact, check, load, model_facts, resolve, save
from tests.artefacts import TABLES, toy
from tests.damage import NAMED, bounded_memory, of_bytes, of_text, said

FACTS = {"name": "toy", "layers": 3, "heads": 2, "groups": 2, "head_dim": 16, "width": 32, "vocab": 128, "tokenizer": None}
ODD = {
    "half": np.linspace(-1, 1, 6, dtype=np.float16).reshape(2, 3),
    "single": np.array([[np.nextafter(np.float32(1), np.float32(2)), -0.0, np.inf]], np.float32),
    "byte": np.array([-128, 127], np.int8),
    "whole": np.array([[2**31 - 1, -(2**31)]], np.int32),
    "yes": np.array([[True, False]]),
    "scalar": np.float32(3).reshape(()),
}


def made(tables=ODD, method="compresskv", **facts):
    return Artefact(method, FACTS | facts, {"source": "here", "samples": 2}, {"budget": 32, "theta": 0.5}, tables)


@pytest.mark.parametrize("tables", [ODD, {}, {"empty": np.zeros((0, 3), np.float32)}])
def test_round_trips_are_exact(tmp_path, tables):
    kept = made(tables)
    found = load(save(kept, tmp_path / "a" / "b"), "compresskv")
    assert (found.method, found.model, found.data, found.settings) == (kept.method, kept.model, kept.data, kept.settings)
    assert found.digest == kept.digest and found.origin == kept.origin and set(found.tables) == set(tables)
    for name, x in tables.items():
        got = found.tables[name]
        assert type(got) is np.ndarray and (got.dtype, got.shape) == (x.dtype, x.shape) and got.tobytes() == x.tobytes()


@pytest.mark.parametrize("method", sorted(TABLES))
def test_tables_of_every_method_round_trip(tmp_path, method):
    found = load(save(toy(method), tmp_path / "a"), method)
    assert found.digest == toy(method).digest and found.origin == toy(method).origin


def test_the_digest_is_of_method_settings_and_tables():
    one = made()
    assert made(name="elsewhere").digest == one.digest
    others = [made(method="hcattention"), made(ODD | {"byte": np.array([-128, 126], np.int8)})]
    others.append(made(ODD | {"byte": ODD["byte"].view(np.uint8)}))
    others.append(Artefact(one.method, one.model, one.data, {"budget": 33, "theta": 0.5}, one.tables))
    assert len({one.digest, *(x.digest for x in others)}) == 5
    assert "toy" in one.origin and one.digest in one.origin and one.method in one.origin


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="the system exchanges no names")
def test_folders_change_places_in_one_step(tmp_path, monkeypatch):
    """No name is given up in between: nothing is renamed by Python at all."""
    monkeypatch.setattr(Path, "rename", lambda *words: pytest.fail("two steps"))
    changes_places(tmp_path)


def test_folders_change_places_where_the_system_exchanges_no_names(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_exchanged", lambda *words: False)
    changes_places(tmp_path)


def changes_places(tmp_path):
    for name in ("draft", "folder"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    folders.put(tmp_path / "draft", tmp_path / "folder")
    assert [(tmp_path / name / "file").read_text() for name in ("folder", "draft")] == ["draft", "folder"]
    assert len(list(tmp_path.iterdir())) == 2


def test_an_artefact_is_replaced_and_leaves_nothing_behind(tmp_path):
    save(made(), tmp_path / "a")
    save(made({}), tmp_path / "a")
    assert load(tmp_path / "a").tables == {}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_failed_save_leaves_the_former(tmp_path, monkeypatch):
    former = made()
    save(former, tmp_path / "a")

    def broken():
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(module.tables, "checkpointer", broken)
        with pytest.raises(OSError, match="disk full"):
            save(made({"other": np.ones(3, np.float32)}), tmp_path / "a")
    assert load(tmp_path / "a").digest == former.digest
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_is_no_artefact_is_never_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    for folder in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(FileExistsError, match="holds no artefact"):
            save(made(), folder)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    assert load(save(made(), tmp_path / "empty")).digest == made().digest


def test_other_tables_than_the_headers_are_refused(tmp_path):
    folder = save(made(), tmp_path / "a")
    header = json.loads((folder / "header.json").read_text())
    (folder / "header.json").write_text(json.dumps(header | {"settings": {"budget": 64}}))
    with pytest.raises(ValueError, match="damaged or was edited"):
        load(folder)
    del header["checksum"]  # as those written before there was one
    (folder / "header.json").write_text(json.dumps(header | {"settings": {"budget": 64}}))
    with pytest.raises(ValueError, match="not those of the header"):
        load(folder)
    (folder / "header.json").write_text(json.dumps(header | {"schema": 99}))
    with pytest.raises(ValueError, match="schema 99"):
        load(folder)


def test_all_mismatches_come_in_one_message(lm):
    right = model_facts(lm)
    check(Artefact("compresskv", right, {}, {}, {}), "compresskv", lm)
    with pytest.raises(ValueError) as error:
        check(Artefact("compresskv", right | {"layers": 99, "tokenizer": "abc"}, {}, {}, {}), "hcattention", lm)
    message = str(error.value)
    for part in ("method", "layers", "99", str(right["layers"]), "tokenizer", "abc", "kvjax calibrate hcattention"):
        assert part in message
    assert "head_dim" not in message


def test_resolve(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BUILT_IN", tmp_path / "built")
    module._built_in.cache_clear()
    kept = toy("compresskv")
    save(kept, tmp_path / "built" / "small" / "compresskv")
    assert resolve(kept, "compresskv") is kept
    assert resolve("small", "compresskv").digest == kept.digest
    assert resolve("small", "compresskv") is resolve("small", "compresskv")
    assert resolve(tmp_path / "built" / "small" / "compresskv", "compresskv").digest == kept.digest
    with pytest.raises(ValueError, match="method"):
        resolve(kept, "hcattention")
    with pytest.raises(FileNotFoundError, match="small/compresskv"):
        resolve("large", "compresskv")
    with pytest.raises(TypeError, match="small/compresskv"):
        resolve(3, "compresskv")
    module._built_in.cache_clear()


def test_orbax_is_imported_only_when_tables_are_read():
    asked = "import sys, kvjax, kvjax.artefacts.artefact; print('orbax.checkpoint' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("checksums", [True, False])
def test_damages_are_named_or_leave_the_tables_as_they_were(tmp_path, capfd, checksums):
    """A part of the header lost or strange, a byte of a file, a file; without checksums, too, as in artefacts of before."""
    whole, draw, count = save(toy("compresskv"), tmp_path / "whole"), random.Random(8), {"named": 0, "whole": 0}
    if not checksums:
        header = json.loads((whole / "header.json").read_text())
        (whole / "header.json").write_text(json.dumps({name: x for name, x in header.items() if name not in ("checksum", "files")}))
    undamaged, files = load(whole), sorted(path for path in whole.rglob("*") if path.is_file())
    for number in range(160):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        _damage(folder / (draw.choice(files).relative_to(whole) if checksums and number % 2 else "header.json"), draw)
        try:
            with bounded_memory():
                found = load(folder, "compresskv")
            assert found.digest == undamaged.digest
            count["whole"] += 1
        except NAMED as error:
            said(error)
            count["named"] += 1
    few = 5 if checksums else 90  # without the sum, or in parts that say nothing of the tables
    assert count["named"] > 60 and count["whole"] < few and (checksums or count["whole"]), count
    assert capfd.readouterr() == ("", "")


def _damage(file, draw):
    data = file.read_bytes()
    if file.name == "header.json":
        file.write_bytes(of_text(json.loads(data), draw))
    elif not data or draw.random() < 0.2:
        file.unlink()
    else:
        file.write_bytes(of_bytes(data, draw, len(data)))


def test_a_claimed_table_of_a_million_million_numbers_is_refused_at_once(tmp_path):
    folder = save(toy("compresskv"), tmp_path / "a")
    header = json.loads((folder / "header.json").read_text())
    header["tables"]["srh"][1] = [10**6, 10**6]
    del header["checksum"]
    (folder / "header.json").write_text(json.dumps(header))
    found = r"srh: \('int32', \(3, 4\)\) there, \('int32', \(1000000, 1000000\)\) expected"
    with bounded_memory(), pytest.raises(ValueError, match=found):
        load(folder)
