"""Start the processes of one run on this machine, and start them again if one dies.

For tests and for one machine. On a cluster Kubeflow Trainer, JobSet or Slurm do this.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from frugax.train._leaving import EXIT_PEER_LOST

from ._initialize import COORDINATOR, LAUNCHER, PROCESS, PROCESSES
from ._labels import Labels

# How long the others may take to leave by themselves when one has ended: those that
# compile, or are far from the next collective operation, do not notice by themselves.
_GRACE_S = 3.0


def launch(
    command: Sequence[str],
    *,
    processes: int,
    restarts: int = 0,
    devices: int | None = None,
    label: bool = False,
    grace_s: float = _GRACE_S,
) -> int:
    """Run a command as several processes that can find each other.

    Each gets `FRUGAX_COORDINATOR`, `FRUGAX_PROCESSES` and `FRUGAX_PROCESS`, which
    `initialize()` reads. When one ends with an error the others are ended too, and all
    are started again, as often as `restarts` says: with checkpoints they go on.

    Ctrl-C and SIGTERM are passed on: `fit` then saves and returns. A second one is
    passed on as well, the third ends all processes at once. None restarts them.

    Args:
        command: the program and its arguments.
        processes: how many; >= 1.
        restarts: how often all may be started again.
        devices: virtual CPU devices in each process; JAX's own number if not given.
        label: write the number of the process before each line that it prints.
        grace_s: seconds to leave by themselves once one has failed.

    Returns:
        0; or the exit code of the process that was the first to fail by itself in the
        last attempt, 75 if none did and they only lost each other; 128 and the
        signal's number where a signal ended it, or ended `launch`.

    Raises:
        ValueError: a number is out of its range, or there is no command.
        OSError: the command cannot be run.
    """
    if not command:
        raise ValueError("launch needs a command: frugax launch -n 2 -- python x.py.")
    for name, value, least in (
        ("processes", processes, 1),
        ("restarts", restarts, 0),
        ("grace_s", grace_s, 0),
        ("devices", 1 if devices is None else devices, 1),
    ):
        if value < least:
            raise ValueError(f"{name} must be >= {least}, got {value}.")
    code = 0
    with _signals_noted() as asked:
        for attempt in range(restarts + 1):
            if attempt:
                _say(f"starting all again, {attempt} of {restarts}.")
            code = _once(list(command), processes, devices, asked, grace_s, label=label)
            if asked:
                return 128 + asked[0]
            if code == 0:
                return 0
    return code


def _once(
    command: list[str],
    processes: int,
    devices: int | None,
    asked: list[int],
    grace_s: float,
    *,
    label: bool,
) -> int:
    running: list[subprocess.Popen[bytes]] = []
    with _free_port() as port, _pipe() as (ours, theirs), Labels() as labels:
        try:
            for i in range(processes):
                env = _environment(port, processes, i, devices)
                env[LAUNCHER] = str(theirs)
                if label:
                    env.setdefault("PYTHONUNBUFFERED", "1")
                running.append(
                    subprocess.Popen(
                        command,
                        env=env,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE if label else None,
                        stderr=subprocess.PIPE if label else None,
                        pass_fds=(theirs,),
                        # A group of its own: signals reach it once and through us, and
                        # what it has started ends with it.
                        start_new_session=True,
                    )
                )
                if label:
                    labels.follow(running[-1], str(i))
            return _wait(running, asked, grace_s)
        finally:
            for p in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(p.pid, signal.SIGKILL)
            for p in running:
                p.wait()
            os.close(ours)


def _environment(
    port: int, processes: int, process: int, devices: int | None
) -> dict[str, str]:
    env = {
        **os.environ,
        COORDINATOR: f"127.0.0.1:{port}",
        PROCESSES: str(processes),
        PROCESS: str(process),
    }
    if devices is not None:
        flag = f"--xla_force_host_platform_device_count={devices}"
        env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} {flag}".strip()
    return env


def _wait(
    running: list[subprocess.Popen[bytes]], asked: list[int], grace_s: float
) -> int:
    """Until all have ended, or one has failed and the rest had time to leave."""
    failed: dict[int, int] = {}  # in the order in which they did
    passed_on = 0
    until = float("inf")
    while True:
        while passed_on < len(asked):
            passed_on += 1
            if passed_on > 2:
                return _at_fault(failed) or EXIT_PEER_LOST
            _pass_on(running, asked[passed_on - 1])
        codes = [p.poll() for p in running]
        for i, code in enumerate(codes):
            if not code or i in failed:
                continue
            failed[i] = code
            # Not ended at once: they notice by themselves and say why.
            waits = None in codes and len(failed) == 1
            _say(
                f"process {i} ended with {_said(code)}"
                + ("; the others are given time to leave." if waits else ".")
            )
            if not asked:  # else they may still be saving
                until = min(until, time.monotonic() + grace_s)
        if None not in codes or time.monotonic() > until:
            return _at_fault(failed)
        time.sleep(0.05)


def _pass_on(running: list[subprocess.Popen[bytes]], signum: int) -> None:
    for p in running:
        if p.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signum)


def _at_fault(failed: Mapping[int, int]) -> int:
    """The exit code of the first that failed by itself; as shells have it."""
    codes = list(failed.values())
    by_itself = [code for code in codes if code != EXIT_PEER_LOST]
    code = next(iter([*by_itself, *codes]), 0)
    return code if code >= 0 else 128 - code


def _said(code: int) -> str:
    if code == EXIT_PEER_LOST:
        return f"exit code {code} (it lost another one)"
    if code > 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal has no name
        return f"signal {-code}"


@contextlib.contextmanager
def _free_port() -> Iterator[int]:
    """A port that nobody else is given as long as this lasts.

    gRPC shares its port with whoever asks to share, as this does without listening.
    """
    with socket.socket() as s:
        if share := getattr(socket, "SO_REUSEPORT", None):
            s.setsockopt(socket.SOL_SOCKET, share, 1)
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        if not share:
            s.close()
        yield port


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """Our end and theirs; ours is closed when this process ends, however it does."""
    theirs, ours = os.pipe()
    try:
        yield ours, theirs
    finally:
        os.close(theirs)


@contextlib.contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """In this block Ctrl-C and SIGTERM are written down, where that is possible."""
    asked: list[int] = []
    before: dict[int, Callable[..., object] | int | None] = {}
    with contextlib.suppress(ValueError):  # not in the main thread
        for signum in (signal.SIGINT, signal.SIGTERM):
            before[signum] = signal.signal(signum, lambda n, _: asked.append(n))
    try:
        yield asked
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _say(text: str) -> None:
    print(f"frugax launch: {text}", file=sys.stderr, flush=True)  # noqa: T201 - a command's own words
