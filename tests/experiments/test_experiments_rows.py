"""Result files after kills, full disks and second runs."""

import os

import pytest

from experiments.rows import RowFile, key, read
from tests.experiments.conftest import lines, row

IDENTITY = dict(model="toy", dtype="float32", seed=0, prompts="1:abc")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.jsonl"


def write(path, count):
    with RowFile(path, IDENTITY) as rows:
        for i in range(count):
            rows.append(row(prompt=i))


def test_cut_anywhere_only_whole_rows_stay(path):
    write(path, 3)
    whole = path.read_bytes()
    second = len(whole) // 3
    for size in [0, 1, second - 1, second, second + 1, len(whole) - 1, len(whole)]:
        path.write_bytes(whole[:size])
        with RowFile(path, IDENTITY) as rows:
            held = len(rows)
            assert held == size // second
            for i in range(held, 3):
                rows.append(row(prompt=i))
        assert path.read_bytes() == whole


def test_every_row_is_on_the_disk_before_the_next(path, monkeypatch):
    """What `fsync` finds in the file is the row that was just appended and all before it."""
    found, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (found.append(len(lines(path))), real(handle)))
    write(path, 3)
    assert found == [1, 2, 3]


def test_a_cell_is_never_written_twice(path):
    write(path, 2)
    with RowFile(path, IDENTITY) as rows:
        assert key(row(prompt=1)) in rows and key(row(prompt=2)) not in rows
        with pytest.raises(ValueError, match="already holds"):
            rows.append(row(prompt=1))
    assert len(lines(path)) == 2


@pytest.mark.parametrize("field, value", [("model", "other"), ("prompts", "2:abc"), ("dtype", "bfloat16")])
def test_unlike_rows_are_refused_and_the_file_stays(path, field, value):
    write(path, 2)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"has rows with {field}.*choose another --out"):
        RowFile(path, IDENTITY | {field: value})
    assert path.read_bytes() == before


def test_rows_of_other_data_are_refused_and_the_file_stays(path):
    write(path, 1)  # a row from before rows named their data
    with RowFile(path, IDENTITY) as rows:
        rows.append(row(task="gsm8k", data="aaa"))
        rows.append(row(task="math", data="bbb"))
        rows.expect("math", "bbb")
        rows.expect("needle", "ccc")
    before = path.read_bytes()
    with RowFile(path, IDENTITY) as rows:
        with pytest.raises(ValueError, match="data files of gsm8k changed: .*measured on aaa .*, here is bbb: put the former"):
            rows.expect("gsm8k", "bbb")
        with pytest.raises(ValueError, match="data files of math changed"):
            rows.append(row(task="math", data="aaa", prompt=1))
    assert path.read_bytes() == before


def test_a_file_that_is_no_result_is_refused(path):
    path.write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match="line 1 is not a result row of kvjax .task: expected text, got nothing.: remove the line"):
        RowFile(path, IDENTITY)
    assert path.read_text() == '{"a": 1}\n'


def test_a_full_disk_is_said():
    with RowFile("/dev/full", IDENTITY) as rows, pytest.raises(OSError, match="cannot write /dev/full: No space left"):
        rows.append(row())


def test_a_write_that_stops_half_way_leaves_whole_rows(path):
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    write(path, 1)
    size = path.stat().st_size
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limit[1]))
        with RowFile(path, IDENTITY) as rows, pytest.raises(OSError, match="rows so far are whole"):
            rows.append(row(prompt=1))
        assert len(lines(path)) == 1 and path.stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    write_more = RowFile(path, IDENTITY)
    write_more.append(row(prompt=1))
    write_more.__exit__()
    assert len(lines(path)) == 2


def test_two_sweeps_cannot_write_one_file(path):
    with RowFile(path, IDENTITY), pytest.raises(OSError, match="another sweep"):
        RowFile(path, IDENTITY)


def test_reading_passes_over_a_torn_end(path):
    write(path, 2)
    path.write_bytes(path.read_bytes()[:-5])
    assert len(read(path)) == 1


def test_a_folder_that_is_not_there_is_made(tmp_path):
    with RowFile(tmp_path / "new" / "deeper" / "rows.jsonl", IDENTITY) as rows:
        assert len(rows) == 0 and rows.path.is_file()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        RowFile(tmp_path / "file" / "rows.jsonl", IDENTITY)


def test_rows_are_not_appended_to_a_packed_file(tmp_path):
    with pytest.raises(ValueError, match="choose an --out that does not end in .xz"):
        RowFile(tmp_path / "rows.jsonl.xz", IDENTITY)
    assert not list(tmp_path.iterdir())


def test_a_number_that_is_none_names_its_cell_and_leaves_the_rows_before_it(path):
    with RowFile(path, IDENTITY) as rows:
        rows.append(row(prompt=0))
        with pytest.raises(ValueError, match=r"the cell \(.*\) was measured as \{'score': nan\}.*--dtype float32"):
            rows.append(row(prompt=1, score=float("nan")))
        rows.append(row(prompt=2))
    assert [found["prompt"] for found in read(path)] == [0, 2]
