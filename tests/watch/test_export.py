"""An export holds the content of the journal, and never replaces other files."""

import csv
import json
from typing import Literal

import ml_dtypes
import numpy as np
import pytest

from forked import frugax
from frugax import watch
from frugax.errors import OutputError
from frugax.watch.journal import export
from refusals import refuses

GRIDS = np.arange(150 * 4).reshape(150, 2, 2).astype(np.int8)


@pytest.fixture
def journal(tmp_path):
    with watch.Journal.create(tmp_path / "run" / "journal", {"seed": 1}) as made:
        for i in range(100):
            made.write(i, {"loss": np.float32(i / 3)} | ({"acc": i} if i % 2 else {}))
        low = np.arange(150, dtype=np.float32).astype(ml_dtypes.bfloat16)[:, None]
        steps = range(0, 1500, 10)
        made.write_many(steps, {"grid": GRIDS, "low": low}, stream="../grid")
    return tmp_path / "run" / "journal"


def test_npz(journal, tmp_path):
    told = []
    done = export(journal, tmp_path / "a.npz", progress=lambda *n: told.append(n))
    assert done.records == {"": 100, "../grid": 150}
    assert (done.lost, done.closed) == ((), True)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        assert list(file["steps"]) == list(range(100))
        assert file["loss"].dtype == np.float32
        np.testing.assert_array_equal(file["loss"], watch.read(journal)["loss"])
        assert list(file["acc@steps"]) == list(range(1, 100, 2))
        assert list(file["../grid/steps"]) == list(range(0, 1500, 10))
        np.testing.assert_array_equal(file["../grid/grid"], GRIDS)
        assert list(file["../grid/low"][:, 0]) == list(range(150))
        assert json.loads(file["journal.json"])["meta"] == {"seed": 1}
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > 0


def test_csv_has_a_file_for_each_stream(journal, tmp_path):
    done = export(journal, tmp_path / "out" / "a.csv", "csv")
    assert [p.name for p in done.paths] == ["a.csv", "a...%2Fgrid.csv"]
    assert {p.parent for p in done.paths} == {tmp_path / "out"}
    main, grids = (list(csv.reader(p.read_text().splitlines())) for p in done.paths)
    assert main[:3] == [["step", "loss", "acc"], ["0", "0.0", ""], main[2]]
    assert np.float32(main[2][1]) == np.float32(1 / 3)
    assert main[2][2] == "1"
    cells = [f"grid[{i} {j}]" for i in (0, 1) for j in (0, 1)]
    assert grids[0] == ["step", *cells, "low[0]"]
    assert grids[2] == ["10", "4", "5", "6", "7", "1.0"]
    assert len(grids) == 151
    with watch.Journal.create(tmp_path / "wide", {}) as wide:
        wide.write(0, {"x": np.zeros(10_001)}, stream="s")
    with refuses(ValueError, "10,001"):
        export(tmp_path / "wide", tmp_path / "b.csv", "csv")


def test_a_metric_named_like_another_csv_column_keeps_both(tmp_path):
    with watch.Journal.create(tmp_path / "journal", {}) as journal:
        journal.write(7, {"step": 0.5, "step.1": 2.0})
        journal.write(8, {"g[0]": 3}, stream="s")
        journal.write(9, {"g[0]": 3, "g": np.array([4])}, stream="s")
    paths = export(tmp_path / "journal", tmp_path / "a.csv").paths
    main, others = (list(csv.DictReader(p.read_text().splitlines())) for p in paths)
    assert main == [{"step": "7", "step.1": "0.5", "step.1.1": "2.0"}]
    assert others[1] == {"step": "9", "g[0]": "3", "g[0].1": "4"}


def test_nothing_is_overwritten_unasked(journal, tmp_path):
    formats: tuple[Literal["npz", "csv"], ...] = ("npz", "csv")
    for format in formats:
        name = f"a.{format}"
        (tmp_path / name).write_text("mine")
        with refuses(OutputError):
            export(journal, tmp_path / name, format)
        assert (tmp_path / name).read_text() == "mine"
        export(journal, tmp_path / name, format, overwrite=True)
        assert (tmp_path / name).read_bytes() != b"mine"
    (tmp_path / "folder").mkdir()
    with refuses(OutputError, "folder"):
        export(journal, tmp_path / "folder", "npz", overwrite=True)
    with watch.Journal.create(tmp_path / "twice", {}) as twice:
        twice.write(0, {"a/steps": 1})
        twice.write(0, {"x": 1}, stream="a")
    with refuses(ValueError, "a/steps"):
        export(tmp_path / "twice", tmp_path / "b.npz")


@pytest.mark.parametrize("form", ["npz", "csv"])
def test_the_journal_itself_is_never_overwritten(tmp_path, form):
    folder = tmp_path / "folder"
    source = folder / "j"
    with watch.Journal.create(source, {}) as journal:
        journal.write(1, {"x": 1.0})
    before = source.read_bytes()
    (tmp_path / "soft").symlink_to(source)
    (tmp_path / "hard").hardlink_to(source)
    for target in (source, tmp_path / "soft", tmp_path / "hard", folder):
        with refuses(OutputError):
            watch.export(source, target, form, overwrite=True)
    assert source.read_bytes() == before


def test_losses_are_exported_too(journal, tmp_path):
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    journal.write_bytes(data)
    done = export(journal, tmp_path / "a.npz")
    assert len(done.lost) == 1
    with np.load(tmp_path / "a.npz") as file:
        assert len(json.loads(file["journal.json"])["lost"]) == 1


def test_the_command(journal, tmp_path):
    run = journal.parent
    ran = frugax("watch", "export", run, "--to", tmp_path / "a.npz")
    assert ran.returncode == 0, ran.stderr
    assert "100 records, 150 records of ../grid" in ran.stdout
    again = frugax("watch", "export", journal, "--to", tmp_path / "a.npz")
    assert again.returncode == 2
    assert "--force" in again.stderr
    forced = frugax("watch", "export", run, "--to", tmp_path / "a.npz", "--force")
    assert forced.returncode == 0
    unnamed = frugax("watch", "export", run, "--to", tmp_path / "a")
    assert unnamed.returncode == 2
    assert "--format" in unnamed.stderr
    nothing = frugax("watch", "export", tmp_path / "none", "--to", tmp_path / "b.npz")
    assert nothing.returncode == 2
    assert "no journal" in nothing.stderr
    assert "watch" in frugax("--help").stdout


def test_a_text_is_one_cell(tmp_path):
    path = tmp_path / "journal"
    with watch.Journal.create(path, {}) as journal:
        data = np.frombuffer('grün, "x"\n'.encode().ljust(64, b"\0"), np.uint8)
        journal.write(3, {"utf8": data}, stream="note")
    export(path, tmp_path / "out.csv")
    with open(tmp_path / "out.note.csv", newline="", encoding="utf8") as file:
        assert list(csv.reader(file)) == [["step", "utf8"], ["3", 'grün, "x"\n']]
