"""The journals of many processes are read as one run, in bounded memory."""

import tracemalloc

import numpy as np
import pytest

from frugax.watch.journal import Appended, Follower, Journal, merge, process_journals


def write(folder, processes, steps):
    for number in range(processes):
        path = folder / f"process{number}" / "journal"
        path.parent.mkdir(parents=True)
        with Journal.create(path, {}) as journal:
            every = number % 3 + 1  # the processes do not record the same steps
            chosen = range(0, steps, every)
            journal.write_many(chosen, {"loss": [float(number + s) for s in chosen]})


@pytest.mark.parametrize(
    "processes", [12, pytest.param(1000, marks=pytest.mark.thorough)]
)
def test_nothing_is_lost_and_steps_come_in_order(tmp_path, processes):
    steps = 200
    write(tmp_path, processes, steps)
    paths = process_journals(tmp_path)
    assert len(paths) == processes
    assert paths[-1].parent.name == f"process{processes - 1}"
    seen, last = 0, (-1, -1)
    for row in merge(paths):
        assert (row.step, row.process) > last
        last = row.step, row.process
        assert row.values["loss"] == row.process + row.step
        seen += 1
    assert seen == sum(len(range(0, steps, n % 3 + 1)) for n in range(processes))


def test_memory_does_not_grow_with_the_length(tmp_path):
    def peak(steps):
        path = tmp_path / f"{steps}"
        rng = np.random.default_rng(0)
        with Journal.create(path, {}) as journal:
            journal.write_many(range(steps), {"loss": rng.normal(size=steps)})
        tracemalloc.start()
        try:
            for _ in merge([path]):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # A header of up to 16 MiB is searched first, before other content.
    assert peak(27_000) < 1.2 * peak(9000)


def test_a_merge_goes_on_after_a_journal_was_closed_and_continued(
    tmp_path, monkeypatch
):
    path = tmp_path / "journal"
    with Journal.create(path, {}) as journal:
        journal.write(0, {"loss": 0.0})
    (first,) = [c for c in Follower(path).poll() if isinstance(c, Appended)]
    with Journal.append_to(path) as journal:
        journal.write_many(range(1, 65), {"loss": np.random.default_rng(0).random(64)})
    # A reading that ends at the mark of the end, which is no record.
    monkeypatch.setattr("frugax.watch.journal._merge._READ_BYTES", first.size)
    assert [row.step for row in merge([path])] == [*range(65)]
