"""The last records are kept on the device and written when something goes wrong."""

import contextlib

import jax.numpy as jnp
import numpy as np
import pytest

from frugax import OverheadBudget, watch
from frugax.watch import FlightRecorder
from frugax.watch.probes import Probe
from refusals import refuses

from .watching import Given, finished


def flight_of(journal, path):
    journal.flush()
    return watch.read(path).streams["flight"]


def test_only_the_last_records_are_kept_and_within_the_bytes():
    recorder = FlightRecorder(5)
    for step in range(20):
        recorder.keep(step, {"x": jnp.float32(step)})
    assert len(recorder) == 5
    assert recorder.nbytes == 20
    small = FlightRecorder(100, max_bytes=1000)
    for step in range(20):
        small.keep(step, {"x": np.zeros(300, np.uint8)})
    assert (len(small), small.nbytes) == (3, 900)
    small.keep(20, {"x": np.zeros(1001, np.uint8)})
    assert len(small) == 3
    with refuses(ValueError, "max_records"):
        FlightRecorder(max_records=0)
    with refuses(ValueError, "max_bytes"):
        FlightRecorder(max_bytes=0)


def test_a_nan_writes_the_flight_record_up_to_it(journal, tmp_path):
    recorder = FlightRecorder(4)
    watcher = watch.Watcher(journal, OverheadBudget("100%"), flight=recorder)
    for step in range(10):
        loss = np.nan if step == 7 else 1.0 / (step + 1)
        recorder.keep(step, {"loss": jnp.float32(loss), "w": {"a": jnp.full(3, step)}})
        watcher.record(step, {"loss": loss})
    watcher.finish()
    assert "'loss' was not finite at step 7" in recorder.why
    records = flight_of(journal, tmp_path / "journal")
    assert recorder.written == len(records) > 0
    assert 7 in records.steps
    last = list(records.steps).index(7)
    assert np.isnan(records["loss"][last])
    assert records["w/a"][last].tolist() == [7, 7, 7]


def test_it_writes_once_until_all_is_well_again(journal):
    recorder = FlightRecorder(3)
    wrote = []
    for step in range(20):
        recorder.keep(step, {"x": jnp.float32(step)})
        x = np.inf if step in {3, 4, 5, 15} else 0.0
        wrote.append(recorder.inspect(step, {"x": np.float32(x)}, journal))
    assert [step for step, did in enumerate(wrote) if did] == [3, 15]


def test_an_exception_in_the_run_writes_it_and_comes_out_as_it_was(tmp_path):
    recorder = FlightRecorder(8)

    def run(journal):
        with watch.Watcher(journal, OverheadBudget("1%"), flight=recorder) as watcher:
            for step in range(5):
                recorder.keep(step, {"grid": jnp.full((2, 2), step)})
                watcher.record(step, {"loss": 1.0})
            raise ZeroDivisionError

    journal = watch.Journal.create(tmp_path / "a", {})
    with pytest.raises(ZeroDivisionError):
        run(journal)
    journal.close()
    found = watch.read(tmp_path / "a", strict=True)
    assert recorder.why == "ZeroDivisionError was raised"
    assert found.streams["flight"]["grid"][:, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert len(found) == 5  # and the watcher was finished


def test_a_donated_or_reshaped_value_loses_only_itself(journal, tmp_path):
    recorder, gone, changing = FlightRecorder(), jnp.zeros(3), np.ones(3, np.float32)
    recorder.keep(1, {"x": changing, "y": (state := {"z": 1.0})})
    changing += 6
    state["z"] = 7.0
    recorder.keep(2, {"x": gone})
    recorder.keep(3, {"x": jnp.ones(4)})
    recorder.keep(4, {"x": jnp.full(3, 4.0)})
    gone.delete()
    assert recorder.write(journal, "asked") == 2
    assert (recorder.unreadable, recorder.refused) == (1, 1)
    back = flight_of(journal, tmp_path / "journal")
    assert back.steps.tolist() == [1, 4]
    assert back["x"].tolist() == [[1.0] * 3, [4.0] * 3]  # as they were when kept
    assert back["y/z"].tolist() == [1.0]


def test_it_keeps_records_of_programs_at_every_level(journal):
    recorder = FlightRecorder(4)

    probe = Probe.of("norm", "scalar", None, 1.0)
    watcher = watch.Watcher(
        journal, OverheadBudget("1%"), level="minimal", flight=recorder
    )
    assert watcher.rate.due(3) == 1
    for step in range(6):
        watcher.ingest(step, Given({"norm": probe}, {"norm": jnp.float32(step)}))
    watcher.finish()
    assert watcher.losses.tally("scalar").left_out == 6
    assert recorder.write(journal, "asked") == 4
    back = finished(watcher, journal)
    assert back.streams["flight"]["norm"].tolist() == [2, 3, 4, 5]
    assert "norm" not in back.names


def test_what_a_program_and_its_caller_kept_of_a_step_is_one_record(journal, tmp_path):
    recorder = FlightRecorder(6)
    step = watch.jit(lambda x: watch.record("loss", x) or x + 1)
    budget = OverheadBudget("5%")
    with (
        contextlib.suppress(KeyError),
        watch.Watcher(journal, budget, level="full", flight=recorder),
    ):
        for i in range(5):
            out = step(jnp.float32(i))
            recorder.keep(i, {"w": out})
        raise KeyError
    back = flight_of(journal, tmp_path / "journal")
    for name in ("loss", "w"):
        assert back.steps_with(name).tolist() == [2, 3, 4]
    assert back["w"].tolist() == [3, 4, 5]
