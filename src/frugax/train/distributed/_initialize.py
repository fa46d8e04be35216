"""Join the processes of one run, with time-outs that a person would wait for."""

import os
import threading

import jax

from frugax.train._leaving import joining, leave

# What `launch` tells the processes it starts; any other launcher may say the same.
COORDINATOR = "FRUGAX_COORDINATOR"
PROCESSES = "FRUGAX_PROCESSES"
PROCESS = "FRUGAX_PROCESS"
# The end of a pipe that closes when `launch` is gone.
LAUNCHER = "FRUGAX_LAUNCHER"

# The same three from `launch`, and from Kubeflow Trainer, whose last two JAX itself
# does not read.
_TOLD = (
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

    Without arguments the three are read from what `frugax launch` or Kubeflow Trainer
    set, and else found by JAX itself, which knows Slurm, Open MPI and TPU pods. A run
    of one process, and one that was started by hand, joins nobody and needs no
    coordinator.

    A process that joined others leaves differently. Where another one is gone, it ends
    with exit code 75, without waiting. Where an error of its own is not caught, it ends
    with 1 as always, but without waiting either, so that the others find out at once.
    Where the others do not come in time, JAX ends the process: with 75 as well.

    Args:
        coordinator: address and port of the first process, `"10.0.0.1:1234"`.
        processes: how many there are.
        process: which of them this is, from 0.
        heartbeat_s: after how many silent seconds a process counts as dead. JAX's own
            100 keep the survivors waiting.
        join_s: how long to wait for the others at the start.
        leave_s: how long one that is done waits for the others to be done too. Where
            it is shorter than they take, all of them fail.

    Raises:
        ValueError: only some of the three are said, or they contradict each other.
        RuntimeError: JAX was used before.
    """
    if coordinator is None and processes is None and process is None:
        coordinator, processes, process = _told()
    said = (coordinator, processes, process)
    if any(x is None for x in said) and not all(x is None for x in said):
        raise ValueError(
            f"coordinator, processes and process belong together, got {coordinator!r}, "
            f"{processes!r} and {process!r}."
        )
    if processes is not None and process is not None:
        if not 0 <= process < processes:
            raise ValueError(
                f"process must be from 0 to {processes - 1}, got {process}."
            )
        _end_with_launcher()
        if processes == 1:
            return
    for name, value in (
        ("heartbeat_s", heartbeat_s),
        ("join_s", join_s),
        ("leave_s", leave_s),
    ):
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}.")
    alone = (
        f"this process could not join the others at {coordinator or 'the cluster'} "
        f"within {join_s} s: start all of them, and see that this address can be "
        "reached from each"
    )
    try:
        with joining(alone):
            jax.distributed.initialize(
                coordinator,
                processes,
                process,
                initialization_timeout=join_s,
                heartbeat_timeout_seconds=heartbeat_s,
                shutdown_timeout_seconds=leave_s,
                coordinator_bind_address=_bound_to(coordinator),
            )
    except ValueError as e:
        # JAX knows no cluster here and nothing was said: a run of one process.
        if coordinator is None and "coordinator_address" in str(e):
            return
        raise
    except jax.errors.JaxRuntimeError as e:
        raise RuntimeError(f"{alone}.") from e


def is_initialized() -> bool:
    """Whether this process joined others."""
    return jax.distributed.is_initialized()


def _told() -> tuple[str | None, int | None, int | None]:
    """Coordinator, processes and process, as the environment has them.

    JAX's own variable for the coordinator alone says nothing: JAX finds the rest.
    """
    for names in _TOLD:
        coordinator, processes, process = names
        if names[0] == COORDINATOR or all(name in os.environ for name in names):
            told = (os.environ.get(coordinator), _number(processes), _number(process))
            if any(x is not None for x in told):
                return told
    return None, None, None


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name} must be a whole number, got {text!r}.")
    return int(text)


def _bound_to(coordinator: str | None) -> str | None:
    """On this machine alone the coordinator needs no open port to the network."""
    if coordinator is None or "JAX_COORDINATOR_BIND_ADDRESS" in os.environ:
        return None
    host = coordinator.rsplit(":", 1)[0]
    return coordinator if host in ("127.0.0.1", "localhost", "[::1]") else None


def _end_with_launcher() -> None:
    """Where `launch` itself is killed, nobody is left to end this process."""
    pipe = _number(LAUNCHER)
    if pipe is None:
        return

    def wait() -> None:
        try:
            while os.read(pipe, 1):
                pass
        except OSError:  # this process was started by one of launch's, without the pipe
            return
        leave("frugax launch is gone")

    threading.Thread(target=wait, name="frugax launcher", daemon=True).start()
