"""Join the processes of one run, with time-outs that a person would wait for."""

import os

import jax

# What `launch` tells the processes it starts; any other launcher may say the same.
COORDINATOR = "FRUGAX_COORDINATOR"
PROCESSES = "FRUGAX_PROCESSES"
PROCESS = "FRUGAX_PROCESS"


def initialize(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    heartbeat_s: int = 30,
    join_s: int = 120,
    leave_s: int = 10,
) -> None:
    """Join the other processes of this run; call it before any other use of JAX.

    Without arguments the three are read from what `frugax launch` set, and else found
    by JAX itself, which knows Slurm, Open MPI, Kubernetes and TPU pods. A run of one
    process, and one that was started by hand, joins nobody and needs no coordinator.

    Args:
        coordinator: address and port of the first process, `"10.0.0.1:1234"`.
        processes: how many there are.
        process: which of them this is, from 0.
        heartbeat_s: after how many silent seconds a process counts as dead. JAX's own
            100 keep the survivors waiting.
        join_s: how long to wait for the others at the start.
        leave_s: how long to wait for them at the end.

    Raises:
        ValueError: only some of the three are said, or they contradict each other.
        RuntimeError: JAX was used before, or the others did not come in time.
    """
    said = (coordinator, processes, process)
    if all(x is None for x in said):
        coordinator = os.environ.get(COORDINATOR)
        processes = _number(PROCESSES)
        process = _number(PROCESS)
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
        if processes == 1:
            return
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            initialization_timeout=join_s,
            heartbeat_timeout_seconds=heartbeat_s,
            shutdown_timeout_seconds=leave_s,
        )
    except ValueError as e:
        # JAX knows no cluster here and nothing was said: a run of one process.
        if coordinator is None and "coordinator_address" in str(e):
            return
        raise
    except jax.errors.JaxRuntimeError as e:
        raise RuntimeError(
            f"process {process} of {processes} could not join the others at "
            f"{coordinator} within {join_s} s: start all of them, and see that this "
            "address can be reached from each."
        ) from e


def is_initialized() -> bool:
    """Whether this process joined others."""
    return jax.distributed.is_initialized()


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not text.isdigit():
        raise ValueError(f"{name} must be a whole number, got {text!r}.")
    return int(text)
