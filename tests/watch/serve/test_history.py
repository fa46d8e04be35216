"""A page's data equals the journal, from any earlier state of the page."""

import random

import numpy as np
import pytest

from frugax.watch.journal import Appended, Follower, Journal, read
from frugax.watch.serve import Cursor, FrameStore, History
from refusals import refuses
from watched_pages import Page, write_random


def _history(path, most_bytes=2**20):
    history, follower = History(), Follower(path)
    while changes := follower.poll(most_bytes):
        history.apply(changes)
    return history


@pytest.mark.parametrize(
    "seed",
    [*range(4), *(pytest.param(s, marks=pytest.mark.thorough) for s in range(4, 12))],
)
def test_deltas_add_up_to_the_journal_through_rewinds_and_restarts(tmp_path, seed):
    rng = random.Random(seed)
    path = tmp_path / "journal"
    pages = [Page() for _ in range(3)]
    with Journal.create(path, {}) as journal:
        history, follower = History(), Follower(path)
        for _ in range(12):
            write_random(journal, rng)
            if rng.random() < 0.3:  # the server dies and comes back
                history, follower = History(), Follower(path)
            while changes := follower.poll(rng.choice([1, 500, 10**6])):
                history.apply(changes)
            for page in pages:
                if rng.random() < 0.6:
                    page.take(history.since(page.cursor))
    for page in pages:
        page.take(history.since(page.cursor))
        assert page.resets == 1  # the first word only: never all of it again
        records = read(path)
        for stream, found in {"": records, **records.streams}.items():
            for name in found.names:
                if found[name].ndim == 1:
                    steps = found.steps_with(name).tolist()
                    assert page.steps(stream, name) == steps, (stream, name)
                    values = np.asarray(page.values(stream, name), float)
                    np.testing.assert_allclose(values, found[name], rtol=1e-6)


def test_an_up_to_date_page_gets_an_empty_answer(folder):
    history = _history(folder / "journal")
    page = Page()
    page.take(history.since(Cursor()))
    again = history.since(page.cursor)
    assert again["streams"] == {}
    assert not again["reset"]
    assert again["cursor"] == str(page.cursor)


def test_a_page_of_another_journal_starts_over(folder, tmp_path):
    page = Page()
    page.take(_history(folder / "journal").since(Cursor()))
    other = tmp_path / "other"
    with Journal.create(other, {}) as journal:
        for i in range(500):
            journal.write(i, {"loss": 2.0})
    told = _history(other).since(page.cursor)
    assert told["reset"]
    assert len(told["streams"][""]["loss"]["x"]) == 500


@pytest.mark.parametrize(
    "text",
    ["", "x", "1-2", "0-0-0-0", "f-1-a.b", "-1--2-3", "1-0-" + "9." * 9999, "1--1-5"],
)
def test_an_invalid_cursor_means_the_beginning(text):
    assert Cursor.parse(text) == Cursor()


def test_a_cursor_comes_back_from_its_text():
    cursor = Cursor(2**32 - 1, 7, tuple(range(10**6, 10**6 + 1000)))
    assert Cursor.parse(str(cursor)) == cursor


def test_a_cursor_past_the_end_starts_over(folder):
    history = _history(folder / "journal")
    journal = history.cursor.journal
    assert history.since(Cursor(journal, 0, (10**6,)))["reset"]
    assert history.since(Cursor(journal, 5, (1,)))["reset"]


def test_a_long_series_is_thinned_and_a_window_of_it_is_fine_again(tmp_path):
    path = tmp_path / "journal"
    steps = np.arange(1, 50_001)
    values = np.sin(steps / 50).astype(np.float32)
    with Journal.create(path, {}) as journal:
        journal.write_many(steps, {"loss": values})
    history = _history(path)
    told = history.since(Cursor())["streams"][""]["loss"]
    assert told["of"] == 50_000
    assert 1000 < len(told["x"]) <= 4000
    fine = history.window("", ["loss"], 20_000, 20_100, 2000)["loss"]
    # One more at each side, so that the line leaves the picture.
    assert fine["x"] == list(range(19_999, 20_102))
    np.testing.assert_allclose(fine["y"], values[19_998:20_101], rtol=1e-6)
    coarse = history.window("", ["loss"], 1, 50_000, 100)["loss"]
    assert len(coarse["x"]) <= 100


def test_the_time_per_step_comes_from_the_clock(folder):
    history = _history(folder / "journal")
    told = history.since(Cursor())["streams"][""]["seconds per step"]
    assert told["x"] == list(range(2, 101))
    assert set(told["y"]) == {0.125}
    window = history.window("", ["seconds per step"], 50, 51, 100)
    assert set(window["seconds per step"]["y"]) == {0.125}


def test_values_that_are_not_finite_are_null(tmp_path):
    path = tmp_path / "journal"
    with Journal.create(path, {}) as journal:
        for i, value in enumerate([1.0, np.nan, np.inf, -2.5]):
            journal.write(i, {"loss": value})
    told = _history(path).since(Cursor())["streams"][""]["loss"]
    assert told["y"] == [1.0, None, None, -2.5]


def test_rows_come_newest_first_and_in_pages(folder):
    history = _history(folder / "journal")
    newest = history.rows("episode_summary", before=None, count=2)
    assert newest["steps"] == [5, 4]
    assert newest["rows"][0] == {"total_reward": 50.0, "success": 1.0}
    assert newest["older"] == 3
    older = history.rows("episode_summary", before=4, count=10)
    assert older["steps"] == [3, 2, 1]
    assert older["rows"][-1]["success"] == 0.0
    assert older["older"] == 0


def test_only_the_requested_columns_are_returned(folder):
    told = _history(folder / "journal").since(Cursor(), ["accuracy"])
    assert set(told["streams"][""]) == {"accuracy", "seconds per step"}


def test_a_frame_is_found_by_number_and_by_step(folder):
    history = _history(folder / "journal")
    number, step, array = history.frame("grid", "grid", number=3, step=None)
    assert (number, step, array[0, 0]) == (3, 40, 4)
    assert history.frame("grid", "grid", number=None, step=57)[:2] == (4, 50)
    assert history.frame("grid", "grid", number=None, step=1)[:2] == (0, 10)
    assert history.frame("grid", "grid", number=None, step=None)[:2] == (9, 100)
    with pytest.raises(LookupError):
        history.frame("grid", "grid", number=10, step=None)
    with pytest.raises(LookupError):
        history.frame("grid", "other", number=0, step=None)


def test_frames_beyond_the_cap_give_way_and_a_rewind_takes_them_back(tmp_path):
    path = tmp_path / "journal"
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (300, 16, 16), dtype=np.uint8)
    with Journal.create(path, {}) as journal:
        journal.write_many(np.arange(300), {"p": pictures}, stream="s")
    frames = FrameStore(max_bytes=40_000)  # each block has 64 x 256 bytes
    for change in Follower(path).poll():
        assert isinstance(change, Appended)
        frames.append(change.steps, change.columns["p"])
    assert len(frames) == 300
    assert 0 < frames.first < 300
    for number in (frames.first, 299, frames.first + 70, 298):
        if number < 300:
            np.testing.assert_array_equal(frames.frame(number), pictures[number])
    with refuses(LookupError, "frame"):
        frames.frame(frames.first - 1)
    frames.rewind(280)
    assert len(frames) == 281
    np.testing.assert_array_equal(frames.frame(280), pictures[280])
    with pytest.raises(LookupError):
        frames.frame(281)


def test_the_status_shows_the_duration_of_a_step(tmp_path):
    with Journal.create(tmp_path / "j", {}) as journal:
        journal.write_many(np.arange(100), {"loss": np.ones(100)})
        # Seconds since 1970, which seven digits cannot tell apart.
        times = 1.8e9 + 0.25 * np.arange(0, 100, 4)
        journal.write_many(np.arange(0, 100, 4), {"time": times}, "watch")
    told = _history(tmp_path / "j").since(Cursor())["streams"]["watch"]
    assert set(told["seconds per step"]["y"]) == {0.25}
