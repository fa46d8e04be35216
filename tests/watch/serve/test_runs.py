"""Many runs on one page: found, summarised, cached, compared."""

import os

import numpy as np
import pytest

from chromium import BROWSER, chromium
from frugax import watch
from frugax.watch.serve import RunCollection
from refusals import refuses, warns
from watched_pages import shown


def write_run(folder, *, lr, n=500, hole=None, tags=()):
    steps = np.arange(n)
    loss = np.exp(-steps * lr / 50).astype("f4")
    if hole is not None:
        loss[hole] = np.nan
    folder.mkdir(parents=True)
    meta = {
        "name": folder.name,
        "started": 1000.0,
        "config": {"lr": lr, "opt": {"name": "adam"}},
        "tags": list(tags),
    }
    with watch.Journal.create(folder / "journal", meta) as journal:
        journal.write_many(steps, {"loss": loss, "val/loss": loss + 1})
        status = {
            "time": 1000.0 + steps[::50] / 10,
            "seconds per step": np.full(10, 0.1),
        }
        journal.write_many(steps[::50], status, "watch")
        counts = np.tile(np.arange(8, dtype=np.int32), (10, 1))
        edges = {"low": np.full(10, -1.0), "high": np.full(10, 1.0)}
        journal.write_many(steps[::50], {"counts": counts, **edges}, "weights")
        journal.write_many(steps[::50], {"grid": np.zeros((10, 3, 3), np.int8)}, "grid")


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    write_run(folder / "slow", lr=0.1, tags=["night"])
    write_run(folder / "fast", lr=0.3, hole=250)
    write_run(folder / "many" / "process0", lr=0.2)
    return folder


def curves_of(monitor, **given):
    return monitor.curves([("", "loss")], **given)[0]


def read_all(monitor):
    while monitor.poll():
        pass
    return monitor


def test_runs_are_found_and_described(runs):
    monitor = RunCollection(runs)
    monitor.stop()  # a server that is still reading stops at once
    assert not monitor.poll()
    unread = monitor.describe()["runs"][2]
    assert (unread["read"], unread["config"]) == (False, {})
    monitor = read_all(RunCollection(runs))
    told = monitor.describe()
    assert [r["name"] for r in told["runs"]] == ["fast", "many/process0", "slow"]
    slow = told["runs"][2]
    assert slow["config"] == {"lr": "0.1", "opt.name": "adam"}
    assert slow["tags"] == ["night"]
    assert slow["state"] == "closed"
    assert slow["read"]
    assert ["", "loss", pytest.approx(np.exp(-0.998))] in slow["columns"]
    assert slow["histograms"] == ["weights"]
    # No event is sent twice.
    assert monitor.describe(told["changes"]) == {"changes": told["changes"]}


def test_curves_of_several_runs_share_an_axis_of_steps_or_time(runs):
    monitor = read_all(RunCollection(runs))
    curves = curves_of(monitor)
    assert set(curves) == {"0", "1", "2"}
    assert curves["0"]["hole_steps"] == [250]
    time = curves_of(monitor, axis="time")["2"]["x"]
    assert time[0] == pytest.approx(0.1, abs=0.05)
    assert time[-1] == pytest.approx(49.9, abs=0.1)  # beyond the last look at the clock
    assert curves_of(monitor, axis="clock")["2"]["x"][0] == pytest.approx(1000.1)
    assert monitor.curves([("", "nothing")]) == [{}]


def test_read_curves_are_cached_for_the_next_server(runs, monkeypatch):
    first = read_all(RunCollection(runs))

    def refuse(*_):
        raise AssertionError("the journal is read again")

    with monkeypatch.context() as patched:
        patched.setattr("frugax.watch.serve._run_store.Follower", refuse)
        again = RunCollection(runs)
        assert curves_of(again) == curves_of(first)
        assert not again.poll()
    # A journal that has grown is read again; until then the old curves stay.
    with watch.Journal.append_to(runs / "slow" / "journal") as journal:
        journal.write(1000, {"loss": 7.0})
    grown = RunCollection(runs)
    assert curves_of(grown)["2"] == curves_of(first)["2"]
    assert curves_of(read_all(grown))["2"]["y"][-1] == 7.0


def test_a_damaged_cache_and_a_foreign_file_do_no_harm(runs):
    read_all(RunCollection(runs))
    for file in (runs.parent / "cache").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-7])
    (runs / "notes.txt").write_text("not a journal")
    with warns(UserWarning, "summary of a run"):
        monitor = read_all(RunCollection(runs))
    assert len(monitor.describe()["runs"]) == 3
    assert set(curves_of(monitor)) == {"0", "1", "2"}


def test_a_run_that_comes_later_is_found_and_one_run_has_its_own_page(runs):
    monitor = read_all(RunCollection(runs))
    write_run(runs / "a new one", lr=1.0)
    monitor._next_scan = 0.0
    read_all(monitor)
    assert monitor.describe()["runs"][3]["name"] == "a new one"  # numbers stay
    for folder in ("slow", "many"):
        assert len(RunCollection(runs / folder).describe()["runs"]) == 1
    assert monitor.details(3)["title"] == "a new one"
    for number in range(4, 9):
        write_run(runs / f"run {number}", lr=1.0)
    monitor._next_scan = 0.0
    read_all(monitor)
    for number in range(9):
        monitor.index(number)
    assert sum(run.index is not None for run in monitor._runs) == 4  # open at a time
    with refuses(LookupError, 9):
        monitor.index(9)


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
def test_the_page_compares_runs_in_a_browser(runs):
    with chromium() as page, shown(page, runs) as server:
        page.wait_for("performance.getEntriesByName('first-chart').length")
        page.wait_for(
            "document.querySelector('#alive-word').textContent == 'all ended'"
        )
        assert page.run("document.querySelectorAll('#runs li').length") == 3
        groups = "[...document.querySelectorAll('.group')].map((g) => g.dataset.name)"
        assert page.run(groups) == ["metrics", "val", "watch"]
        # lr differs, the optimiser does not.
        settings = "document.querySelector('#config tbody').innerText"
        assert page.run(settings).split() == ["lr", "0.3", "0.2", "0.1"]
        page.run("document.querySelector('#runs input').click()")
        told = "document.querySelector('#count').textContent"
        page.wait_for(f"{told} === '2 of 3 shown'")
        type_in = (
            "(() => { const s = document.querySelector('#search');"
            " s.value = 'night'; s.dispatchEvent(new Event('input')); })()"
        )
        page.run(type_in)
        page.wait_for(f"{told} === '1 of 3 shown'")
        page.run("document.querySelector('#runs button').click()")
        assert page.run("document.querySelectorAll('.pinned').length") == 1
        drawn = "document.querySelector('.chart canvas').toDataURL()"
        raw = page.run(drawn)
        page.run(
            "(() => { const s = document.querySelector('#smooth');"
            " s.value = 0.9; s.dispatchEvent(new Event('input')); })()"
        )
        assert page.run("document.querySelector('#smooth-is').textContent") == "0.9"
        assert page.run(drawn) != raw
        # What the two buttons of a chart save, caught on its way to the disk.
        page.run(
            "(() => { window.saved = []; const make = URL.createObjectURL;"
            " URL.createObjectURL = (b) => { saved.push(b); return make(b); };"
            " HTMLAnchorElement.prototype.click = function () {"
            " saved.push(this.download); }; })()"
        )
        for button in ("CSV", "Picture"):
            label = f'[aria-label="{button} of loss"]'
            page.run(f"document.querySelector('{label}').click()")
        page.wait_for("saved.length === 4")
        assert page.run("[saved[1], saved[3]]") == ["loss.csv", "loss.png"]
        rows = page.run("saved[0].text()").splitlines()
        assert rows[0] == "run,step,mean,low,high"
        assert {row.split(",")[0] for row in rows[1:]} == {"slow"}  # the one shown
        values = np.array([row.split(",")[1:3] for row in rows[1:]], float)
        assert np.allclose(values[:, 1], np.exp(-values[:, 0] / 500), atol=0.01)
        size = page.run("createImageBitmap(saved[2]).then((p) => [p.width, p.height])")
        assert size[0] > 200
        assert size[1] > 100
        page.size(400, 800)
        page.run("new Promise((done) => setTimeout(done, 200))")
        assert page.run("document.documentElement.scrollWidth") <= 400
        page.open(f"http://127.0.0.1:{server.port}/?run=0&step=250")
        page.wait_for(
            "document.querySelector('#frame-step')?.textContent == 'step 250'"
        )
        page.wait_for("document.querySelectorAll('#histograms canvas').length == 1")
        assert page.complaints == []
    assert os.environ["XDG_CACHE_HOME"]  # not the user's own
