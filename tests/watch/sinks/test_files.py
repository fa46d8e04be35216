"""Lines of JSON and trees of SVG files: whole, safe, and equal to the records."""

import json
import os
import xml.etree.ElementTree as ET

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fault_injection import full_disk
from frugax.errors import OutputError
from frugax.watch.sinks import JsonLines, Sink, SvgFiles, safe_file_name
from refusals import refuses

from ..watching import event


def frame(step, **values):
    return event("frame", "grid", step, values)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_holds_the_whole_record(tmp_path):
    path = tmp_path / "deep" / "run.jsonl"
    sink = JsonLines(path)
    assert isinstance(sink, Sink)
    odd = np.ma.array([np.nan, np.inf, -np.inf, 1.0, 5.0])  # numbers that JSON lacks
    odd[4] = np.ma.masked  # of a lane without a record
    events = [
        event("scalar", "", 3, {"loss": np.float32(0.5), "n": np.int64(2**60)}),
        event("summary", "é\n", 4, {"ok": True, "h": ml_dtypes.bfloat16(2)}),
        frame(5, grid=[[1, 2], [3, 0]]),
        event("scalar", "", 6, {"x": odd, "y": np.float32("nan")}),
    ]
    sink.write(events)
    sink.close()
    sink.close()
    values = [
        {"loss": 0.5, "n": 2**60},
        {"ok": True, "h": 2.0},
        {"grid": [[1, 2], [3, 0]]},
        {"x": ["NaN", "Infinity", "-Infinity", 1.0, None], "y": "NaN"},
    ]
    assert lines(path) == [
        {"kind": e.kind, "stream": e.stream, "step": e.step, "values": value}
        for e, value in zip(events, values, strict=True)
    ]
    with refuses(ValueError, "closed"):
        sink.write(events)


def test_a_file_is_continued(tmp_path):
    path = tmp_path / "a"
    path.write_text('{"step": 1}\n{"step":')  # another process died here
    sink = JsonLines(path)
    sink.write([event("scalar", "", 6, {})])
    sink.close()
    texts = path.read_text().splitlines()
    assert texts[:2] == ['{"step": 1}', '{"step":']
    assert json.loads(texts[2])["step"] == 6
    assert len(texts) == 3


def test_a_full_disk_removes_the_half_written_line_and_is_reported(tmp_path):
    path = tmp_path / "a"
    sink = JsonLines(path)
    sink.write([event("scalar", "", 0, {"x": np.zeros(10)})])
    whole = path.read_bytes()
    with full_disk(len(whole) + 50), refuses(OutputError, "write"):
        sink.write([event("scalar", "", 1, {"x": np.zeros(1000)})])
    assert path.read_bytes() == whole
    sink.write([event("scalar", "", 2, {})])  # there is space again
    sink.close()
    assert [line["step"] for line in lines(path)] == [0, 2]
    with pytest.raises(OutputError):
        JsonLines(path / "not in a folder")


def tree(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*.svg"))


def test_frames_become_files_in_a_tidy_tree(tmp_path):
    sink = SvgFiles(tmp_path)
    assert isinstance(sink, Sink)
    sink.write(
        [
            frame(7, grid=[[1, 2]], mask=[[True, False]]),
            frame(8, grid=[[1]], episode=12),
            frame(9, one=[[1]], two=[[2]]),
            frame(10, before=[[1]], operation=3, after=[[2]], episode=12),
            event("scalar", "", 1, {"loss": np.float32(1)}),
        ]
    )
    sink.close()
    assert tree(tmp_path) == [
        "grid/episode_0012/step_000008.svg",
        "grid/episode_0012/step_000010.svg",
        "grid/step_000007.svg",
        "grid/step_000009_one.svg",
        "grid/step_000009_two.svg",
    ]
    assert sink.written == 5
    assert "1 masked" in (tmp_path / "grid/step_000007.svg").read_text()
    whole = (tmp_path / "grid/episode_0012/step_000010.svg").read_text()
    assert "operation 3" in whole
    assert "episode 12, step 10" in whole
    for path in tmp_path.rglob("*.svg"):
        ET.parse(path)


def test_after_max_files_no_file_is_written_or_deleted(tmp_path):
    sink = SvgFiles(tmp_path, max_files=2)
    sink.write([frame(i, grid=[[1]]) for i in range(5)])
    assert (sink.written, sink.skipped) == (2, 3)
    assert tree(tmp_path) == ["grid/step_000000.svg", "grid/step_000001.svg"]
    with refuses(ValueError, "max_files", 0):
        SvgFiles(tmp_path, max_files=0)


@pytest.mark.parametrize(
    "stream", ["../../etc", "/etc/x", "a/b", "..", "", "\0", "é" * 300]
)
def test_no_stream_leaves_the_folder(tmp_path, stream):
    folder = tmp_path / "inside"
    values = {"../g": np.eye(2, dtype=int), "b": np.eye(2)}
    SvgFiles(folder).write([event("frame", stream, 1, values)])
    assert len(tree(folder)) == 2
    assert os.listdir(tmp_path) == ["inside"]


@settings(max_examples=200, deadline=None)
@given(st.text(), st.text())
def test_two_names_never_become_one_file(a, b):
    names = safe_file_name(a), safe_file_name(b)
    assert (names[0] == names[1]) == (a == b)
    for name in names:
        assert 0 < len(name.encode()) < 100 or name == a == "" or name == b == ""
        assert "/" not in name
        assert name not in {".", ".."}
