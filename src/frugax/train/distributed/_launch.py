"""`launch`: start the processes of one run on this machine; restart all if one fails.

For tests and for one machine. On a cluster Kubeflow Trainer, JobSet or Slurm do this.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from frugax.options import check_integer, check_number

from ..processes import EXIT_PEER_LOST
from ._initialize import COORDINATOR, LAUNCHER, PROCESS, PROCESSES

# Time for the others to exit by themselves. Processes that compile, or are far from the
# next collective operation, do not notice that one is lost.
_GRACE_S = 3.0
_POLL_S = 0.05


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

    Each process gets `FRUGAX_COORDINATOR`, `FRUGAX_PROCESSES` and `FRUGAX_PROCESS`,
    which `initialize()` reads. When one fails the others are ended too, and all are
    started again, up to `restarts` times; with checkpoints they resume.

    Ctrl-C and SIGTERM are forwarded: `fit` then saves and returns. A second one is
    forwarded as well, and the third ends all processes immediately. None of them
    causes a restart.

    Args:
        command: the program and its arguments.
        processes: number of processes; >= 1.
        restarts: how often all may be started again.
        devices: virtual CPU devices in each process; by default JAX's own number.
        label: print the number of the process before each line of its output.
        grace_s: seconds to exit by themselves once one has failed.

    Returns:
        0; or the exit code of the first process that failed by itself in the last
        attempt, 75 if they only lost each other; 128 and the signal's number if a
        signal ended it, or ended `launch`.

    Raises:
        TypeError: a number is not an integer, or not a number.
        ValueError: a number is out of its range, or the command is empty.
        OSError: the command cannot be run.
    """
    if not command:
        raise ValueError("launch needs a command: frugax launch -n 2 -- python x.py.")
    check_integer("processes", processes)
    check_integer("restarts", restarts, minimum=0)
    check_number("grace_s", grace_s, minimum=0, allow_infinite=True)
    if devices is not None:
        check_integer("devices", devices)
    code = 0
    with _catch_signals() as caught:
        for attempt in range(restarts + 1):
            if attempt:
                _print(f"starting all again, {attempt} of {restarts}.")
            code = _run_once(
                list(command), processes, devices, caught, grace_s, label=label
            )
            if caught:
                return 128 + caught[0]
            if code == 0:
                return 0
    return code


def _run_once(
    command: list[str],
    processes: int,
    devices: int | None,
    caught: list[int],
    grace_s: float,
    *,
    label: bool,
) -> int:
    running: list[subprocess.Popen[bytes]] = []
    output = subprocess.PIPE if label else None
    labels = _Labels()
    with _reserve_port() as port, _open_pipe() as (ours, theirs):
        try:
            for i in range(processes):
                env = _make_environment(port, processes, i, devices)
                env[LAUNCHER] = str(theirs)
                if label:
                    env.setdefault("PYTHONUNBUFFERED", "1")
                running.append(
                    subprocess.Popen(
                        command,
                        env=env,
                        # Several processes cannot share the input of one terminal.
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        pass_fds=(theirs,),
                        # A group of its own: a signal reaches it once, through us, and
                        # its children end with it.
                        start_new_session=True,
                    )
                )
                if label:
                    labels.follow(running[-1], str(i))
            return _wait(running, caught, grace_s)
        finally:
            for p in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(p.pid, signal.SIGKILL)
            for p in running:
                p.wait()
            os.close(ours)
            labels.join()


def _make_environment(
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
    running: list[subprocess.Popen[bytes]], caught: list[int], grace_s: float
) -> int:
    """Wait until all have ended, or one has failed and the grace is over."""
    failed: dict[int, int] = {}  # in the order of their failure
    num_forwarded = 0
    until = float("inf")
    while True:
        while num_forwarded < len(caught):
            # The launcher's own handler only records; the signal is sent on from here.
            num_forwarded += 1
            if num_forwarded > 2:
                return _choose_exit_code(failed) or EXIT_PEER_LOST
            _forward_signal(running, caught[num_forwarded - 1])
        codes = [p.poll() for p in running]
        for i, code in enumerate(codes):
            if not code or i in failed:
                continue
            failed[i] = code
            # Not ended at once: they notice by themselves, and say why.
            is_waiting = None in codes and len(failed) == 1
            ending = "; the others are given time to leave." if is_waiting else "."
            _print(f"process {i} ended with {_describe_code(code)}{ending}")
            if not caught:  # after a signal they may still be saving
                # Counted from the first failure; later ones do not prolong it.
                until = min(until, time.monotonic() + grace_s)
        if None not in codes or time.monotonic() > until:
            return _choose_exit_code(failed)
        time.sleep(_POLL_S)


def _forward_signal(running: list[subprocess.Popen[bytes]], signum: int) -> None:
    for p in running:
        if p.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signum)


def _choose_exit_code(failed: Mapping[int, int]) -> int:
    """Return the code of the first that failed by itself, in the shells' convention."""
    codes = list(failed.values())
    # 75 is the consequence of another process's failure, not the cause.
    own_failures = [code for code in codes if code != EXIT_PEER_LOST]
    code = next(iter([*own_failures, *codes]), 0)
    return code if code >= 0 else 128 - code


def _describe_code(code: int) -> str:
    if code == EXIT_PEER_LOST:
        return f"exit code {code} (it lost another one)"
    if code > 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal has no name
        return f"signal {-code}"


@contextlib.contextmanager
def _reserve_port() -> Iterator[int]:
    """Yield a port that nobody else is given within this block.

    gRPC binds with SO_REUSEPORT, so it can share the port that we bind but do not
    listen on.
    """
    with socket.socket() as s:
        reuse = getattr(socket, "SO_REUSEPORT", None)
        if reuse:
            s.setsockopt(socket.SOL_SOCKET, reuse, 1)
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        if not reuse:
            s.close()
        yield port


@contextlib.contextmanager
def _open_pipe() -> Iterator[tuple[int, int]]:
    """Yield our end and theirs; ours closes when this process ends in any way."""
    theirs, ours = os.pipe()
    try:
        yield ours, theirs
    finally:
        os.close(theirs)


@contextlib.contextmanager
def _catch_signals() -> Iterator[list[int]]:
    """Record Ctrl-C and SIGTERM within this block, where that is possible."""
    caught: list[int] = []
    before: dict[int, Callable[..., object] | int | None] = {}
    with contextlib.suppress(ValueError):  # not in the main thread
        for signum in (signal.SIGINT, signal.SIGTERM):
            before[signum] = signal.signal(signum, lambda n, _: caught.append(n))
    try:
        yield caught
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _print(text: str) -> None:
    print(f"frugax launch: {text}", file=sys.stderr, flush=True)  # noqa: T201 - a command's own words


class _Labels:
    """Copies the output of processes line by line, each with a label in front."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # lines of different processes must not mix
        self._threads: list[threading.Thread] = []

    def follow(self, process: subprocess.Popen[bytes], label: str) -> None:
        """Copy until the process and all of its children have ended."""
        pairs = (process.stdout, sys.stdout), (process.stderr, sys.stderr)
        for source, target in pairs:
            thread = threading.Thread(
                target=self._copy, args=(source, target, label), daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def join(self) -> None:
        """Wait for the last lines."""
        for thread in self._threads:
            thread.join(5.0)  # a process that left its group may hold the pipe

    def _copy(self, source: IO[bytes], target: IO[str], label: str) -> None:
        with source:
            for line in source:
                text = line.decode(errors="replace").rstrip("\r\n")
                with self._lock:
                    print(f"[{label}] {text}", file=target, flush=True)
