"""The watcher drops nothing that it should keep."""

import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fault_injection import full_disk
from frugax import OverheadBudget, watch
from frugax.errors import OutputError
from refusals import refuses

from .watching import Given, finished, kept, probe, taking


def test_a_full_disk_loses_no_record_and_raises_in_the_caller(tmp_path, capfd):
    path = tmp_path / "a"
    journal = watch.Journal.create(path, {})
    watcher = watch.Watcher(journal, OverheadBudget("100%"), level="full")
    values = np.random.default_rng(0).random(500)  # noise does not pack
    failures = 0
    with full_disk(1000):
        for i, value in enumerate(values):
            try:
                watcher.record(i, {"x": value})
            except OutputError:
                failures += 1
            if i == 300:
                with pytest.raises(OutputError):
                    watcher.collect()
        with pytest.raises(OutputError):
            watcher.collect()
        (spend,) = watcher.report().spends
        assert "records are not in it" in spend.problems  # not "0 lost" and no more
    assert failures
    assert "Records wait in memory" in capfd.readouterr().err
    watcher.finish()
    journal.close()
    np.testing.assert_array_equal(watch.read(path, strict=True)["x"], values)


@pytest.mark.parametrize(
    ("metrics", "named"),
    [
        ({"v": "s"}, "'v'"),
        ({"v": jnp.zeros(3)}, "(3,)"),
        ({"v": None}, "'v'"),
        ({"v": 3j}, "'v'"),
        ({"v": jnp.complex64(3j)}, "'v'"),
        ({"v": 2**64 - 1}, "'v'"),
        ({"v": 2**64}, "'v'"),
        ({"": 1.0}, "name"),
        ({str(i): 1.0 for i in range(1000)}, 1000),
    ],
)
def test_a_value_that_is_not_a_number_is_refused_before_the_record_is_kept(
    journal, tmp_path, metrics, named
):
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
    watcher.record(1, {"v": 1.0})
    with refuses((TypeError, ValueError), named):
        watcher.record(2, {"first": 1.0, **metrics})
    with refuses(TypeError, "'traced'"):
        jax.jit(lambda x: watcher.record(2, {"traced": x}))(1.0)
    assert watcher.pending == 1
    watcher.record(2, {"v": 2})
    watcher.finish()
    assert list(watch.read(tmp_path / "journal")["v"]) == [1.0, 2.0]


def test_a_number_of_torch_is_kept_and_what_cannot_be_read_is_named(journal, tmp_path):
    torch = pytest.importorskip("torch")
    loss = torch.ones((), requires_grad=True) * 3
    watcher = watch.Watcher(journal, OverheadBudget(share=1.0), level="full")
    watcher.record(0, {"loss": loss, "half": torch.tensor(0.5, dtype=torch.bfloat16)})
    watcher.record(1, {"loss": loss.double(), "half": torch.tensor(2)})
    with refuses(TypeError, "'meta'"):
        watcher.record(2, {"meta": torch.ones((), device="meta")})
    with refuses(ValueError, "'loss'", (1,)):
        watcher.record(2, {"loss": torch.ones(1, requires_grad=True)})
    watcher.finish()
    back = watch.read(tmp_path / "journal")
    assert back["loss"].tolist() == [3.0, 3.0]
    assert back["half"].tolist() == [0.5, 2]


def test_steps_must_rise_from_record_to_record(journal):
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
    for step in range(2):  # the record before it waits, then it is in the journal
        watcher.record(step, {"x": 1.0})
        with refuses(ValueError, step):
            watcher.record(0, {"x": 1.0})
        watcher.finish()
    assert kept(watcher) == 2


@pytest.mark.parametrize("step", ["x", 1.5, None])
def test_a_step_that_is_not_whole_is_refused_though_it_is_thinned_out(journal, step):
    watcher = watch.Watcher(journal, OverheadBudget("1%"))
    for i in range(2):
        watcher.record(i, {"a": 0.0})
        watcher._series["a",].found = 1 << 14
    with refuses(TypeError, "step"):
        watcher.record(step, {"a": 1.0})


def test_a_step_on_the_device_may_be_donated_to_the_next_call(journal):
    watcher = watch.Watcher(journal, OverheadBudget("1%"))
    step = jnp.int32(0)
    for i in range(4):
        watcher.record(step, {"a": i})
        watcher._series["a",].found = 1 << 14
        last, step = step, step + 1
        last.delete()
    watcher.finish()
    journal.close()
    assert watch.read(journal._path).steps.tolist() == [0, 3]


def test_metrics_that_are_thinned_out_do_not_change_and_a_bad_step_loses_itself(
    journal,
):
    watcher = watch.Watcher(journal, OverheadBudget("1%"))
    for step, name in enumerate("abab"):  # the second of each is thinned out
        watcher.record(step, {name: 0.0})
        watcher._series[name,].found = 1 << 14
    watcher.record(2**63, {"a": 1.0})
    watcher.record(8, metrics := {"b": 2.0})
    metrics.clear()
    watcher.finish()
    assert watcher.losses.tally("scalar").dropped == {"refused": 1}
    journal.close()
    assert watch.read(journal._path).value_at("b", 8) == 2.0


def test_a_new_name_in_every_call_takes_no_more_memory(journal):
    watcher = watch.Watcher(journal, OverheadBudget("1%"))
    for step in range(500):
        watcher.record(step, {f"x{step}": 0.0})
    watcher.finish()
    assert kept(watcher) == 500
    assert len(watcher.rate.series) == 100


@pytest.mark.parametrize("thinned", [False, True])
def test_a_recorded_number_does_not_change_later(journal, thinned):
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
    mutable = np.array(0.0)
    for step in range(3):
        mutable[...] = step
        watcher.record(step, {"x": mutable})
        if thinned:
            watcher._series["x",].found = 1 << 14
    mutable[...] = 7.0
    watcher.finish()
    assert watcher.latest == {"x": 2.0}


def test_a_record_that_cannot_be_read_or_kept_does_not_block_the_others(journal):
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
    with jax.enable_x64(True):
        large = jnp.uint64(2**63)  # on the device: not looked at when it is recorded
    deleted = jnp.float32(3) + 0
    for step, value in ((1, 1.0), (2, large), (3, deleted), (4, 4.0)):
        watcher.record(step, {"x": value})
    deleted.delete()
    with refuses(ValueError, "'x'"):
        watcher.finish()
    watcher.finish()
    assert (kept(watcher), watcher.pending) == (2, 0)
    assert watcher.losses.tally("scalar").dropped == {"refused": 2}
    assert watcher.latest == {"x": 4.0}


def test_recording_continues_after_finish_until_the_journal_is_closed(tmp_path):
    journal = watch.Journal.create(tmp_path / "a", {})
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
    watcher.record(1, {"x": 1.0})
    watcher.finish()
    watcher.record(2, {"x": 2.0})
    watcher.finish()
    watcher.record(3, {"x": 3.0})
    journal.close()
    with refuses(ValueError, "closed"):
        watcher.record(4, {"x": 4.0})
    for _ in range(2):  # and waiting records are not dropped silently
        with refuses(ValueError, "(s)"):
            watcher.finish()
    assert (kept(watcher), watcher.pending) == (2, 1)
    assert list(watch.read(tmp_path / "a", strict=True).steps) == [1, 2]


def test_the_current_watcher_is_the_one_entered_last(journal):
    assert watch.current() is None
    with taking(None) as outer:
        with taking(None) as inner:
            assert watch.current() is inner
        assert watch.current() is outer
    assert watch.current() is None


def test_a_process_that_ends_without_finish_keeps_its_records(tmp_path):
    code = (
        "import sys, numpy as np\n"
        "from frugax import OverheadBudget, watch\n"
        "class Sink:\n"
        "    name = 'sink'\n"
        "    def write(self, events): print(len(events), 'came', flush=True)\n"
        "    def close(self): print('closed', flush=True)\n"
        "journal = watch.Journal.create(sys.argv[1], {})\n"
        "watcher = watch.Watcher(journal, OverheadBudget(share=0.0), sinks=[Sink()])\n"
        "for i in range(100): watcher.record(i, {'x': float(i)})\n"
        "assert watcher.pending == 100\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a")],
        check=True,
        capture_output=True,
        text=True,
    )
    assert len(watch.read(tmp_path / "a")) == 100
    assert "came" in ran.stdout
    assert "closed" in ran.stdout
    assert ran.stderr == ""


def test_an_interrupt_in_the_middle_of_a_drain_doubles_no_record(journal, monkeypatch):
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
    for i in range(5):
        watcher.record(i, {"x": float(i)})
    write = journal.write_many

    def write_then_interrupt(steps, columns, stream=""):
        write(steps, columns, stream)
        raise KeyboardInterrupt

    monkeypatch.setattr(journal, "write_many", write_then_interrupt)
    with pytest.raises(KeyboardInterrupt):
        watcher.finish()
    monkeypatch.setattr(journal, "write_many", write)
    watcher.finish()
    assert kept(watcher) == 5
    assert journal.last_step == 4


def test_the_state_is_not_written_into_the_rows_of_another_thread(journal, monkeypatch):
    watcher = taking(journal)
    watcher.record(0, {"x": 0.0})
    watcher.collect()
    write, others = journal.write_many, []

    def write_with_company(steps, columns, stream=""):
        if not others:  # the end of a run, while this thread collects
            status = watcher.recorder.write_status
            others.append(threading.Thread(target=status, kwargs={"always": True}))
            others[0].start()
            others[0].join(0.2)
        write(steps, columns, stream)

    monkeypatch.setattr(journal, "write_many", write_with_company)
    for i in range(1, 4):
        watcher.record(i, {"x": float(i)})
        watcher.ingest(i, Given({"y": probe("y")}, {"y": np.float32(i)}))
    watcher.collect()
    others[0].join()
    monkeypatch.undo()
    assert finished(watcher, journal)["x"].tolist() == [*range(4)]
    assert watcher.losses.tally("scalar").lost == 0


class InterruptedNumber:
    """A number on a slow device: Ctrl-C comes while it is read for the first time."""

    dtype, shape = np.dtype(float), ()
    is_interrupted = False

    def is_ready(self):
        return False  # for the thread of the watcher

    def __array__(self, dtype=None, copy=None):
        if not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt
        return np.asarray(2.0)


def test_an_interrupt_while_the_device_is_read_loses_no_record(journal):
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
    slow = InterruptedNumber()
    for i in range(5):
        watcher.record(i, {"x": slow if i == 2 else 2.0})
        watcher.ingest(i, Given({"y": probe("y")}, {"y": np.float32(i)}))
    with pytest.raises(KeyboardInterrupt):
        watcher.finish()
    back = finished(watcher, journal)
    assert back["x"].tolist() == [2.0] * 5
    assert back["y"].tolist() == [*range(5)]
    tally = watcher.losses.tally("scalar")
    assert (tally.given, tally.kept) == (10, 10)
