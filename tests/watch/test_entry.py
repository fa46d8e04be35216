"""Mistakes of a new user are reported where they are written.

Where the run-time type checker would be first, code runs without it in a fork.
"""

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forked import python
from frugax import watch
from refusals import warns


def watched():
    def size(x):
        watch.record("size", x.sum())
        return x.sum() ** 2

    return watch.jit(size)


@pytest.mark.parametrize(
    "around",
    [
        lambda wg: watch.jit(jax.grad(wg)),
        jax.grad,
        lambda wg: jax.vmap(lambda row: wg(row[None])),
        lambda wg: jax.jit(lambda x: wg(x)),
    ],
    ids=["jit of grad", "grad", "vmap", "jit"],
)
def test_a_watched_function_whose_records_are_dropped_warns_once(around):
    program = around(watched())
    with warns(UserWarning, "watch.jit", "(size)") as said:
        [program(jnp.ones(n)) for n in (3, 4)]
    assert len(said) == 1


@pytest.mark.parametrize(
    "around",
    [
        lambda wg: watch.jit(lambda x: wg(x)),
        lambda wg: watch.jit(jax.vmap(lambda row: wg(row[None]))),
        lambda wg: jax.jit(lambda x: watch.collect(wg)(x)[0]),
    ],
    ids=["jit", "vmap", "collect"],
)
def test_a_watched_function_whose_records_arrive_does_not_warn(around):
    around(watched())(jnp.ones(3))  # a warning would be an error


def test_arguments_of_a_wrong_type_are_refused_with_a_remedy(tmp_path):
    done = python(
        textwrap.dedent("""
        import sys
        from pathlib import Path
        from frugax import OverheadBudget, watch
        from frugax.watch import sinks
        folder = Path(sys.argv[1])
        budget = OverheadBudget("1%")
        journal = watch.Journal.create(folder / "a", {})
        journal.write(0, {"loss": 1.0})
        w = watch.Watcher(journal, budget)
        for wrong in (
            lambda: watch.Watcher("/a/run", budget),
            lambda: watch.Watcher(None, budget, sinks=[print]),
            lambda: watch.Watcher(None, budget, sinks=watch.Terminal()),
            lambda: w.record(4, None),
            lambda: w.record(7.5, {}),
            lambda: journal.write(7.5, {}),
            lambda: journal.rewind(7.5),
            lambda: watch.Watcher(journal, "1%"),
            lambda: w.record(8, {"loss": 2**70}),
            lambda: watch.Journal.create(folder / "b", {"a": object()}),
            lambda: watch.Journal.create(folder / "b", [1]),
            lambda: journal.rewind(-1),
            lambda: watch.HtmlReport(folder),
            lambda: watch.sinks.Event("sound", "", 0, {}),
            lambda: watch.export(folder / "a", folder / "o.xlsx"),
            lambda: watch.read(folder / "nowhere"),
            lambda: watch.journal.Follower(folder / "nowhere"),
            lambda: watch.export(folder / "nowhere", folder / "o.npz"),
            lambda: watch.Journal.append_to(folder),
            lambda: watch.read(folder),
            lambda: watch.read(folder / "a").streams["x"],
        ):
            try:
                wrong()
            except Exception as e:
                print(type(e).__name__, e)
            else:
                print("nothing")
        """),
        tmp_path,
    )
    lines = done.stdout.splitlines()
    wanted = (
        "TypeError journal must be a Journal or None, got '/a/run'. Write Journal.cre",
        "TypeError a sink needs name, write(events) and close(), <built-in function p",
        "TypeError sinks must be a list of sinks, such as [Terminal()], got <frugax",
        "TypeError metrics must be numbers by name, such as {'loss': loss}, got None",
        *["TypeError step must be a whole number, got 7.5."] * 3,
        'TypeError budget must be an OverheadBudget, such as OverheadBudget("1%"), ',
        "ValueError 'loss' must fit in int64, got 1180591620717411303424",
        "TypeError meta must hold only values that JSON can represent: ",
        "TypeError meta must be a dict, such as {'seed': 0}, got [1]",
        "ValueError rewind needs a step >= 0, got -1",
        "ValueError path must be the report's file, but ",
        "ValueError kind must be one of summary, scalar, frame, got 'sound'",
        f"ValueError {tmp_path}/o.xlsx has no known suffix: use .npz or .csv",
        "FileNotFoundError [Errno 2] there is no journal: ",
        "FileNotFoundError [Errno 2] there is no journal: ",
        "FileNotFoundError [Errno 2] there is no journal: ",
        "IsADirectoryError [Errno 21] this is a folder; the journal of a run is RUN/jo",
        "IsADirectoryError [Errno 21] this is a folder; the journal of a run is RUN/jo",
        "KeyError \"there is no stream 'x'; there are none",
    )
    assert len(lines) == len(wanted), (done.stdout, done.stderr)
    for line, start in zip(lines, wanted, strict=True):
        assert line.startswith(start)


def test_iterating_over_records_gives_their_names(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        journal.write(0, {"loss": 1.0, "norm": 2.0})
    assert list(watch.read(tmp_path / "a")) == ["loss", "norm"]


def test_large_numbers_are_printed_in_wider_cells(capsys):
    watch.drawing.log_grid_to_console([[100, -7], [3, 12345]], show_numbers=True)
    assert capsys.readouterr().out.splitlines()[:2] == ["  100    -7", "    3 12345"]
    watch.drawing.log_grid_to_console(np.full((2, 2, 2), 50), show_numbers=True)
    assert "only a single grid without colours" in capsys.readouterr().out
