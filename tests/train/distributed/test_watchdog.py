"""The watchdog's patience; that it bites is tested in test_processes.py."""

import os
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import optax
import pytest

import forked
from frugax import train
from frugax.train.distributed import EXIT_PEER_LOST, Watchdog
from frugax.train.processes import is_peer_lost
from refusals import refuses


class Clock:
    """A clock that advances only in calls of `wait`."""

    def __init__(self):
        self.now = 1000.0

    def wait(self, seconds):
        self.now += seconds

    def __call__(self):
        return self.now


@pytest.fixture
def fake():
    return Clock()


@pytest.fixture
def clock(fake):
    return fake.wait


@pytest.fixture
def dog(fake):
    """A watchdog without its thread."""
    dog = Watchdog(min_s=30, factor=10, first_s=1800, clock=fake)
    dog._watch = lambda: None
    with dog:
        yield dog


def test_patience_follows_the_steps(dog, clock):
    assert dog.patience_s == 1800  # the others may be compiling
    clock(100)
    dog.beat()
    assert dog.patience_s == 1000
    for _ in range(200):
        clock(1)
        dog.beat()
    assert dog.patience_s == 30
    for _ in range(10):
        clock(5)
        dog.beat()
    assert dog.patience_s == 50


def test_each_kind_of_work_has_its_own_timeout(dog, clock):
    clock(1)
    dog.beat()
    for expected in (1800, 70):
        with dog.phase("evaluation"):
            assert dog.patience_s == expected
            clock(7)
        assert dog.patience_s == 30


def test_a_compilation_does_not_count_as_a_slow_step(dog, clock):
    step = train.make_train_step(
        lambda w, x: (told.append(dog.patience_s), (w * x).sum())[1], optax.sgd(0.1)
    )
    told = []
    state = step.init(jnp.ones(2))
    for count, length in enumerate((2, 3), start=1):
        state, _ = step(state._replace(params=jnp.ones(length)), jnp.ones(length))
        assert len(told) >= count  # it was traced
        assert set(told) == {1800}
        assert dog.patience_s == 1800  # the others may still be at it
        clock(1)
        dog.beat()
        assert dog.patience_s == 30


@pytest.mark.slow
def test_it_ends_a_process_that_makes_no_progress():
    script = (
        "import time\n"
        "from frugax.train.distributed import Watchdog\n"
        "def stuck(): time.sleep(600)\n"
        "print('not lost', end='')\n"
        "with Watchdog(min_s=0.2, first_s=0.2): stuck()\n"
    )
    done = forked.python(script)
    assert done.returncode == EXIT_PEER_LOST
    assert "frugax: no step was done for" in done.stderr
    assert "in stuck" in done.stderr  # where it was
    assert done.stdout == "not lost"


def test_it_watches_once():
    with Watchdog() as dog, refuses(RuntimeError, "watchdog"):
        dog.__enter__()
    with dog:  # but again
        pass
    with refuses(ValueError, "min_s"):
        Watchdog(min_s=0)


def watching():
    return sum(t.name == "frugax watchdog" for t in threading.enumerate())


def test_fit_has_no_watchdog_in_one_process_unless_given_one():
    seen = []
    step = train.make_train_step(lambda w, x: ((w - x) ** 2).sum(), optax.sgd(0.1))

    def fit(**options):
        state = train.init_state(jnp.zeros(2), optax.sgd(0.1))
        batches = [jnp.ones(2)]
        note = lambda *_: seen.append(watching())
        train.fit(step, state, batches, steps=1, on_step=note, **options)

    dog = Watchdog()
    fit()
    fit(watchdog=False)
    fit(watchdog=dog)
    assert seen == [0, 0, 1]
    dog.__enter__()  # it stopped watching with fit, so it can start again
    dog.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (jax.errors.JaxRuntimeError("Gloo all-reduce failed: Connection closed"), True),
        (ValueError("UNKNOWN: Gloo AllGather failed: [...] Connection reset"), True),
        (ValueError("the batch has 30 rows"), False),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), False),
        (KeyError("gloo"), False),
    ],
)
def test_errors_that_say_that_a_process_is_lost(error, lost):
    assert is_peer_lost(error) is lost
    outer = TypeError("something else")
    outer.__cause__ = error
    assert is_peer_lost(outer) is lost


CRASHES = {
    "JAX's own thread": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "import ctypes, _thread\n"
        # A thread that Python's threading knows nothing of, as JAX's.
        "_thread.start_new_thread(ctypes.CDLL(None).abort, ())\n"
        "time.sleep(60)\n",
        EXIT_PEER_LOST,
    ),
    "a crash": ("os.abort()\n", -6),
    "an error": ("raise ValueError('mine')\n", 1),
    "an error that says so": ("raise ValueError('Gloo AllGather failed')\n", 75),
    "Ctrl-C": ("raise KeyboardInterrupt\n", 130),
    "the end": ("", 0),
    "an exit": ("sys.exit(3)\n", 3),
}

# The others by `make thorough`: each is a new process that imports JAX.
KEPT = ("an error",)


@pytest.mark.parametrize(
    ("crash", "code"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.thorough] * (name not in KEPT))
        for name, case in CRASHES.items()
    ],
)
def test_the_exit_code_of_one_of_several_processes(crash, code):
    done = ends(crash)
    assert done.returncode == code, done.stderr
    if code >= 0:
        assert done.stdout == "printed\n"
    # At the end, and after sys.exit, the others are waited for as JAX has it.
    at_once = code in (EXIT_PEER_LOST, 1, 130)
    assert (f"Leaving with exit code {code}." in done.stderr) is at_once


@pytest.mark.slow
def test_a_failed_join_is_reported():
    done = ends("", joining="os.abort()")
    assert done.returncode == EXIT_PEER_LOST
    assert done.stderr == "frugax: nobody came. Leaving with exit code 75.\n"


@pytest.mark.slow
def test_a_failed_join_has_no_effect():
    script = (
        "import ctypes, signal, sys, time, _thread\n"
        "from frugax.train.processes import join_peers\n"
        "hook = sys.excepthook\n"
        "try:\n"
        "    with join_peers('nobody came'): raise ValueError\n"
        "except ValueError: pass\n"
        "assert sys.excepthook is hook\n"
        "_thread.start_new_thread(ctypes.CDLL(None).abort, ())\n"
        "time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -6


def ends(crash, joining="pass"):
    script = (
        "import atexit, os, sys, time\n"
        "from frugax.train.processes import join_peers\n"
        "with join_peers('nobody came'):\n"
        f"    {joining}\n"
        "print('printed')\n" + crash
    )
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": ""},  # output may be lost
    )
