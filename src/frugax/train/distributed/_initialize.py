"""`initialize`: join the processes of a multi-process run, with short timeouts."""

import os
import threading

import jax

from frugax.options import check_integer

from ..processes import exit_now, join_peers

# Variables that `launch` sets for the processes it starts; other launchers may do so.
COORDINATOR = "FRUGAX_COORDINATOR"
PROCESSES = "FRUGAX_PROCESSES"
PROCESS = "FRUGAX_PROCESS"
# The end of a pipe that closes when `launch` is gone.
LAUNCHER = "FRUGAX_LAUNCHER"

# The variables of `launch`, and those of Kubeflow Trainer; JAX itself reads only the
# coordinator's among the latter.
_VARIABLES = (
    (COORDINATOR, PROCESSES, PROCESS),
    ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
)


def initialize(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    heartbeat_s: int = 20,
    join_s: int = 120,
    leave_s: int = 600,
) -> None:
    """Join the other processes of this run; call it before any other use of JAX.

    Without arguments the three are read from the variables that `frugax launch` or
    Kubeflow Trainer set, and otherwise detected by JAX itself, which supports Slurm,
    Open MPI and TPU pods. A run of one process, or one started by hand, joins nobody
    and needs no coordinator.

    A process that joined others exits differently. If another process is lost, it exits
    with code 75 without waiting. After an uncaught error of its own it exits with 1 as
    usual, but without waiting either, so that the others notice immediately. If the
    others do not come in time, JAX ends the process, also with 75.

    Args:
        coordinator: address and port of the first process, `"10.0.0.1:1234"`.
        processes: number of processes.
        process: number of this one, from 0.
        heartbeat_s: silent seconds after which a process counts as lost. JAX's own 100
            keep the survivors waiting.
        join_s: seconds to wait for the others at the start.
        leave_s: seconds that a finished process waits for the others to finish. If they
            take longer, all of them fail.

    Raises:
        ValueError: only some of the three are given, or they contradict each other.
        RuntimeError: JAX was used before, or the coordinator cannot be reached.
    """
    if coordinator is None and processes is None and process is None:
        coordinator, processes, process = _read_environment()
    num_given = sum(x is not None for x in (coordinator, processes, process))
    if num_given not in (0, 3):
        raise ValueError(
            f"coordinator, processes and process belong together, got {coordinator!r}, "
            f"{processes!r} and {process!r}."
        )
    if processes is not None and process is not None:
        if not 0 <= process < processes:
            raise ValueError(
                f"process must be from 0 to {processes - 1}, got {process}."
            )
        # Also for a run of one process, whose launcher may be killed too.
        _exit_with_launcher()
        if processes == 1:
            return
    for name, value in (
        ("heartbeat_s", heartbeat_s),
        ("join_s", join_s),
        ("leave_s", leave_s),
    ):
        check_integer(name, value)
    failure = (
        f"this process could not join the others at {coordinator or 'the cluster'} "
        f"within {join_s} s: start all of them, and see that this address can be "
        "reached from each"
    )
    try:
        with join_peers(failure):
            jax.distributed.initialize(
                coordinator,
                processes,
                process,
                initialization_timeout=join_s,
                heartbeat_timeout_seconds=heartbeat_s,
                shutdown_timeout_seconds=leave_s,
                coordinator_bind_address=_choose_bind_address(coordinator),
            )
    except ValueError as e:
        # JAX detected no cluster and no arguments were given: a run of one process.
        if coordinator is None and "coordinator_address" in str(e):
            return
        raise
    except jax.errors.JaxRuntimeError as e:
        raise RuntimeError(f"{failure}.") from e


def is_initialized() -> bool:
    """Return whether this process joined others."""
    return jax.distributed.is_initialized()


def _read_environment() -> tuple[str | None, int | None, int | None]:
    """Return coordinator, processes and process from the environment."""
    for names in _VARIABLES:
        # JAX's own variable alone may come from Slurm or MPI: JAX detects the rest.
        if names[0] != COORDINATOR and not all(name in os.environ for name in names):
            continue
        coordinator, processes, process = names
        found = os.environ.get(coordinator), _read_int(processes), _read_int(process)
        if any(x is not None for x in found):
            return found
    return None, None, None


def _read_int(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name} must be an integer, got {text!r}.")
    return int(text)


def _choose_bind_address(coordinator: str | None) -> str | None:
    """Bind to this machine alone if the coordinator is on it."""
    if coordinator is None or "JAX_COORDINATOR_BIND_ADDRESS" in os.environ:
        return None
    host = coordinator.rsplit(":", 1)[0]
    if host in ("127.0.0.1", "localhost", "[::1]"):
        return coordinator
    return None


def _exit_with_launcher() -> None:
    """Exit when `launch` is gone: if it was killed, nobody else ends this process."""
    pipe = _read_int(LAUNCHER)
    if pipe is None:
        return

    def wait() -> None:
        try:
            while os.read(pipe, 1):
                pass
        except OSError:  # a grandchild of launch, which did not inherit the pipe
            return
        exit_now("frugax launch is gone")

    threading.Thread(target=wait, name="frugax launcher", daemon=True).start()
