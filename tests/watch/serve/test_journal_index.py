"""Records that are found again equal those of the journal, through rewinds."""

import random

import numpy as np
import pytest

from frugax.watch.journal import Follower, Journal, read
from frugax.watch.serve import JournalIndex, RunCollection
from refusals import refuses
from watched_pages import write_random


def index_of(path):
    follower = Follower(path)
    index = JournalIndex(follower.read_block)
    while changes := follower.poll(1000):
        for change in changes:
            index.apply(change)
    return index


def collection_of(path):
    runs = RunCollection(path)
    runs.index(0)  # opens the run
    while runs.poll():
        pass
    return runs


@pytest.mark.parametrize(
    "seed",
    [*range(4), *(pytest.param(s, marks=pytest.mark.thorough) for s in range(4, 12))],
)
def test_what_is_found_equals_the_journal_through_rewinds(tmp_path, seed):
    rng = random.Random(seed)
    path = tmp_path / "journal"
    with Journal.create(path, {}) as journal:
        runs = RunCollection(path)
        runs.index(0)
        for _ in range(12):
            write_random(journal, rng)
            while rng.random() < 0.8 and runs.poll():
                pass
    while runs.poll():
        pass
    index, outline = runs.index(0), runs.details(0)["streams"]
    records = read(path)
    for stream, found in {"": records, **records.streams}.items():
        assert outline[stream]["records"] == len(found)
        assert [outline[stream]["first"], outline[stream]["last"]] == [
            *found.steps[[0, -1]]
        ]
        rows = index.rows(stream, before=None, count=10**6)
        assert rows["steps"] == found.steps[::-1].tolist()
        for name in found.names:
            steps, values = found.steps_with(name), found[name]
            if values.ndim > 1:
                assert outline[stream]["frames"][name]["count"] == len(values)
                for number in rng.sample(range(len(values)), min(9, len(values))):
                    told = index.frame(stream, name, number=number, step=None)
                    assert told[:2] == (number, steps[number])
                    np.testing.assert_array_equal(told[2], values[number])
                    by_step = {"number": None, "step": int(steps[number])}
                    assert index.frame(stream, name, **by_step)[0] == number
                continue
            of_name = [row[name] for row in rows["rows"][::-1] if name in row]
            as_told = np.array([np.nan if v is None else v for v in of_name])
            np.testing.assert_allclose(
                as_told, np.where(np.isfinite(values), values, np.nan), rtol=1e-6
            )
            assert outline[stream]["latest"][name] == of_name[-1]
            (curve,) = runs.curves([(stream, name)], max_points=10_000)
            # A bucket that a rewind cuts keeps its place; of few records none is cut.
            if len(found) < 1000:
                assert set(steps) >= set(curve["0"]["x"])


def test_a_short_stretch_of_a_long_curve_is_exact(tmp_path):
    steps = np.arange(1, 50_001)
    values = np.sin(steps / 50).astype(np.float32)
    with Journal.create(tmp_path / "journal", {"started": 1e9}) as journal:
        # A metric of that name is not the clock.
        journal.write_many(steps, {"loss": values, "seconds": values})
        clock = {"time": 1e9 + steps / 8, "seconds per step": np.full(50_000, 0.125)}
        journal.write_many(steps, clock, "watch")
    runs = collection_of(tmp_path)
    ((told,),) = ([one["0"]] for one in runs.curves([("", "loss")], max_points=400))
    assert 200 <= len(told["x"]) <= 400
    assert max(told["high"]) == pytest.approx(1)
    keys = [("", "loss"), ("watch", "seconds per step")]
    fine, pace = runs.curves(keys, low=20_000, high=20_100)
    # One more at each side, so that the line leaves the picture.
    assert fine["0"]["x"] == list(range(19_999, 20_102))
    np.testing.assert_allclose(fine["0"]["y"], values[19_998:20_101], rtol=1e-6)
    assert pace["0"]["x"] == fine["0"]["x"]
    assert set(pace["0"]["y"]) == {0.125}
    # By the clock the same, and by buckets where the run has not been opened.
    by_time = runs.curves(keys[:1], axis="time", low=2500.0, high=2512.5)[0]["0"]
    assert len(by_time["x"]) == 103
    coarse = RunCollection(tmp_path).curves(keys[:1], low=20_000, high=20_100)
    assert len(coarse[0]["0"]["x"]) < 10


def test_rows_come_newest_first_and_in_pages(folder):
    index = index_of(folder / "journal")
    newest = index.rows("episode_summary", before=None, count=2)
    assert newest["steps"] == [5, 4]
    assert newest["rows"][0] == {"total_reward": 50.0, "success": 1.0}
    assert newest["older"] == 3
    older = index.rows("episode_summary", before=4, count=10)
    assert older["steps"] == [3, 2, 1]
    assert older["rows"][-1]["success"] == 0.0
    assert older["older"] == 0
    assert index.rows("episode_summary", before=1, count=10)["rows"] == []


def test_a_frame_is_found_by_number_and_by_step(folder):
    index = index_of(folder / "journal")
    number, step, array = index.frame("grid", "grid", number=3, step=None)
    assert (number, step, array[0, 0]) == (3, 40, 4)
    assert index.frame("grid", "grid", number=None, step=57)[:2] == (4, 50)
    assert index.frame("grid", "grid", number=None, step=1)[:2] == (0, 10)
    assert index.frame("grid", "grid", number=None, step=None)[:2] == (9, 100)
    with refuses(LookupError, 10):
        index.frame("grid", "grid", number=10, step=None)
    with pytest.raises(LookupError):
        index.frame("grid", "other", number=0, step=None)


def test_records_of_a_journal_that_is_gone_are_reported(folder):
    index = index_of(folder / "journal")
    (folder / "journal").unlink()
    with refuses(LookupError, "journal"):
        index.frame("grid", "grid", number=3, step=None)
