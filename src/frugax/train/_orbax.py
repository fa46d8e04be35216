"""Arrays on disk, by Orbax."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from frugax.errors import CheckpointError, OutputError
from frugax.fileio import write_error_reason


def write_arrays(place: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a new folder.

    Raises:
        OutputError: the disk is full, or something is in the way.
    """
    with _orbax() as (ocp, checkpointer):
        try:
            checkpointer.save(place, args=ocp.args.StandardSave(arrays))
        except OSError as e:
            raise OutputError(write_error_reason(place, e)) from e
        except ValueError as e:
            # TensorStore reports what the disk refuses as ValueError, in many lines.
            reason = str(e).splitlines()[0][:200]
            raise OutputError(
                f"cannot write {place}: {reason}; free some space, or write elsewhere."
            ) from e


def read_arrays(place: Path) -> dict[str, np.ndarray]:
    """Read all that a folder holds.

    Raises:
        CheckpointError: this Orbax cannot.
    """
    with _orbax() as (ocp, checkpointer):
        try:
            return checkpointer.restore(place, args=ocp.args.StandardRestore())
        except (OSError, ValueError, KeyError) as e:
            # The files are as they were written: this Orbax cannot read them.
            reason = str(e).splitlines()[0][:200]
            raise CheckpointError(
                f"{place} cannot be read by orbax-checkpoint {ocp.__version__}: "
                f"{reason}; use the version that wrote it."
            ) from e


@contextlib.contextmanager
def _orbax() -> Iterator[tuple[Any, Any]]:
    """Orbax and a checkpointer of it, with its chatter on stderr turned off."""
    import orbax.checkpoint as ocp  # here: it takes half a second

    # Only this process reads or writes: the others must not be waited for.
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"frugax{me}"
    )
    if jax.process_count() == 1:
        alone = ocp.options.MultiprocessingOptions()
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.closing(
            ocp.Checkpointer(
                ocp.StandardCheckpointHandler(multiprocessing_options=alone),
                multiprocessing_options=alone,
            )
        ) as checkpointer:
            yield ocp, checkpointer
    finally:
        logger.setLevel(level)
