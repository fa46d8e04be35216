"""Start the processes of one run on this machine, and start them again if one dies.

For tests and for one machine. On a cluster Kubeflow Trainer, JobSet or Slurm do this.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from ._initialize import COORDINATOR, PROCESS, PROCESSES

# How long the others may take to leave by themselves when one has ended.
_GRACE_S = 10.0


def launch(
    command: Sequence[str],
    *,
    processes: int,
    restarts: int = 0,
    devices: int | None = None,
    grace_s: float = _GRACE_S,
) -> int:
    """Run a command as several processes that can find each other.

    Each gets `FRUGAX_COORDINATOR`, `FRUGAX_PROCESSES` and `FRUGAX_PROCESS`, which
    `initialize()` reads. When one ends with an error the others are ended too, and all
    are started again, as often as `restarts` says: with checkpoints they go on.

    Args:
        command: the program and its arguments.
        processes: how many; >= 1.
        restarts: how often all may be started again.
        devices: virtual CPU devices in each process; JAX's own number if not given.
        grace_s: seconds to leave by themselves once one has ended.

    Returns:
        0, or the exit code of the first process that failed in the last attempt.

    Raises:
        ValueError: a number is out of its range, or there is no command.
    """
    if not command:
        raise ValueError("launch needs a command: frugax launch -n 2 -- python x.py.")
    for name, value, least in (("processes", processes, 1), ("restarts", restarts, 0)):
        if value < least:
            raise ValueError(f"{name} must be >= {least}, got {value}.")
    code = 0
    for attempt in range(restarts + 1):
        if attempt:
            _say(f"starting all again, {attempt} of {restarts}.")
        code = _once(list(command), processes, devices, grace_s)
        if code == 0:
            return 0
    return code


def _once(
    command: list[str], processes: int, devices: int | None, grace_s: float
) -> int:
    with socket.socket() as s:  # a port that is free now
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for i in range(processes):
            env = {
                **os.environ,
                COORDINATOR: f"127.0.0.1:{port}",
                PROCESSES: str(processes),
                PROCESS: str(i),
            }
            if devices is not None:
                flag = f"--xla_force_host_platform_device_count={devices}"
                env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} {flag}".strip()
            running.append(subprocess.Popen(command, env=env))
        return _wait(running, grace_s)
    finally:
        for p in running:
            if p.poll() is None:
                p.kill()
        for p in running:
            p.wait()


def _wait(running: list[subprocess.Popen[bytes]], grace_s: float) -> int:
    """Until all have ended, or one has failed and the rest had time to leave."""
    failed: int | None = None
    until = float("inf")
    while True:
        codes = [p.poll() for p in running]
        for i, code in enumerate(codes):
            if code and failed is None:
                failed, until = code, time.monotonic() + grace_s
                # Not ended at once: they notice by themselves and say why.
                _say(f"process {i} ended with {_said(code)}; waiting for the others.")
        if all(code is not None for code in codes):
            return 0 if failed is None else _as_exit(failed)
        if time.monotonic() > until:
            return _as_exit(failed or 1)
        time.sleep(0.05)


def _said(code: int) -> str:
    return f"exit code {code}" if code > 0 else signal.Signals(-code).name


def _as_exit(code: int) -> int:
    """As shells have it: 128 and the signal's number for a process that was killed."""
    return code if code > 0 else 128 - code


def _say(text: str) -> None:
    print(f"frugax launch: {text}", file=sys.stderr, flush=True)  # noqa: T201 - a command's own words
