"""Read the arrays of an Orbax checkpoint, as flax, MaxText and EasyLM write them."""

import contextlib
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from frugax.errors import CorruptFileError, UnsupportedFileError
from frugax.fileio import mute_orbax
from frugax.trees import is_array, named_leaves

# Each folder with the arrays of a tree has it.
_METADATA = "_METADATA"
# Of a folder that is being written, or was when its process ended.
_UNFINISHED = ".orbax-checkpoint-tmp"


class Checkpoint(NamedTuple):
    """Where the arrays of a checkpoint are.

    Attributes:
        folder: with the arrays.
        older: the names of other steps in the folder that was given.
    """

    folder: Path
    older: tuple[str, ...] = ()


def find_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the checkpoint that a folder is or has, of the newest step.

    Raises:
        UnsupportedFileError: it has several items, or its writing was broken off.
    """
    if _UNFINISHED in folder.name:
        raise UnsupportedFileError(
            f"{folder}: the writing of this checkpoint was broken off: name another."
        )
    if (folder / _METADATA).is_file():
        return Checkpoint(folder)
    items = sorted({found.parent for found in folder.glob(f"*/{_METADATA}")})
    within = {found.parents[1] for found in folder.glob(f"*/*/{_METADATA}")}
    steps = sorted((n, f.name) for f in {*items, *within} if (n := _step(f)) >= 0)
    if steps:
        *older, (_, newest) = steps
        found = find_checkpoint(folder / newest)
        return found and found._replace(older=tuple(name for _, name in older))
    if len(items) > 1:
        raise UnsupportedFileError(
            f"{folder}: this checkpoint has several items: name one of "
            f"{', '.join(item.name for item in items)}."
        )
    return Checkpoint(items[0]) if items else None


def _step(folder: Path) -> int:
    """Return the step of a folder such as 100 or checkpoint_100; -1 for any other."""
    found = re.fullmatch(r"(?:.*\D)?(\d+)", folder.name)
    return int(found[1]) if found and _UNFINISHED not in folder.name else -1


def read_checkpoint(folder: Path) -> dict[str, np.ndarray]:
    """Read all arrays, however many devices they were divided among.

    Raises:
        CorruptFileError: a file is damaged or missing.
    """
    import jax
    import orbax.checkpoint as ocp  # here, because the import takes half a second

    mute_orbax()
    as_numpy = lambda _: ocp.RestoreArgs(restore_type=np.ndarray)
    try:
        with contextlib.closing(ocp.PyTreeCheckpointer()) as checkpointer:
            tree: Any = checkpointer.metadata(folder.resolve()).item_metadata
            args = ocp.args.PyTreeRestore(
                restore_args=jax.tree.map(as_numpy, tree.tree)
            )
            found = checkpointer.restore(folder.resolve(), args=args)
    except (OSError, ValueError, KeyError, AttributeError) as e:
        reason = str(e).partition("\n")[0]
        raise CorruptFileError(
            f"{folder}: orbax-checkpoint {ocp.__version__} cannot read this "
            f"checkpoint: {reason:.200}"
        ) from e
    return {
        name: np.asarray(leaf) for name, leaf in named_leaves(found) if is_array(leaf)
    }
