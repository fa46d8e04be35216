"""Children of a process that watches: they neither hang nor change its records."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from frugax import watch
from tiers import mostly_thorough

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

# Ways in which children begin and end; `run` is a watched run of the parent.
_CHILDREN = {
    "fork": """
        if os.fork() == 0:
            sys.exit(0)
        if os.fork() == 0:
            raise SystemError("of the child")
        if os.fork() == 0:
            os._exit(0)
        if os.fork() == 0:
            run.watcher.collect()
            run.watcher.finish()
            run.watcher.close()
            run.journal.close()
            run.report()
            sys.exit(0)
        if os.fork() == 0:
            with watch.run(folder + "/child", level="full") as own:
                own.record(0, {"child": 1.0})
            sys.exit(0)
        if os.fork() == 0:
            try:
                run.record(100, {"loss": 7.0})
            except ValueError:
                open(folder + "/refused", "x").close()
            sys.exit(0)
        for _ in range(6):
            os.wait()
        assert os.path.exists(folder + "/refused")
    """,
    "processes": """
        for method in multiprocessing.get_all_start_methods():
            context = multiprocessing.get_context(method)
            worker = context.Process(target=work)
            worker.start()
            worker.join()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, [-1, 2]) == [1, 2]
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    """,
    "DataLoader": """
        import torch
        data = torch.utils.data.TensorDataset(torch.arange(8))
        loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=2)
        assert sum(int(batch[0].sum()) for batch in loader) == 28
    """,
}
_PROGRAM = """
import multiprocessing, os, subprocess, sys, time, warnings
from frugax import watch
warnings.simplefilter("ignore")


def work():
    sys.exit(0)


class Slow:
    name = "slow"

    def write(self, events):
        time.sleep(0.05)
        with open(folder + "/sink", "a") as file:
            file.writelines(f"{e.step}\\n" for e in events if e.stream == "")

    def close(self):
        pass


if __name__ == "__main__":
    folder = sys.argv[1]
    with watch.run(folder + "/run", level="full", sinks=[Slow()]) as run:
        run.record(0, {"loss": 1.0})
        time.sleep(1.0)
        run.record(1, {"loss": 1.0})
CHILD
        for step in range(2, 5):
            run.record(step, {"loss": 1.0})
            time.sleep(0.3)
"""


@pytest.mark.parametrize(
    "child", mostly_thorough(_CHILDREN, in_ci=lambda child: child == "fork")
)
def test_a_child_neither_hangs_nor_changes_what_its_parent_records(tmp_path, child):
    if child == "DataLoader":
        pytest.importorskip("torch")
    body = textwrap.indent(textwrap.dedent(_CHILDREN[child]), " " * 8)
    script = tmp_path / "program.py"
    script.write_text(_PROGRAM.replace("CHILD", body))
    command = [sys.executable, str(script), str(tmp_path)]
    # Without the flags of the tests, JAX has threads that a child lacks.
    settings = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    with subprocess.Popen(command, start_new_session=True, env=settings) as program:
        try:
            # Far longer than it takes: a child that hangs would hang for good.
            assert program.wait(timeout=240) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    back = watch.read(tmp_path / "run" / "journal", strict=True)
    assert back.steps.tolist() == [0, 1, 2, 3, 4]
    assert back.lost == ()
    assert (tmp_path / "sink").read_text().split() == list("01234")
    if child == "fork":
        own = watch.read(tmp_path / "child" / "journal", strict=True)
        assert own["child"].tolist() == [1.0]


# JAX warns where an earlier test of this process has begun it.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_journal_is_free_once_its_writer_has_ended_though_a_child_lives(tmp_path):
    journal = watch.Journal.create(tmp_path / "journal", {})
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        journal.write(0, {"x": 1.0})
        journal.close()
        with watch.Journal.append_to(tmp_path / "journal") as again:
            again.write(1, {"x": 1.0})
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert watch.read(tmp_path / "journal", strict=True).steps.tolist() == [0, 1]
