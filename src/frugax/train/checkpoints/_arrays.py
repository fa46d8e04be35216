"""Write a training state's arrays by Orbax, shard by shard, and read them bit for bit.

Each process writes the shards that it holds, and reads those that it needs. No process
ever holds the whole of a sharded array.
"""

import contextlib
import errno
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax import trees
from frugax.budget import format_bytes
from frugax.errors import CheckpointError, OutputError
from frugax.fileio import mute_orbax, write_error_reason

from ..processes import shard_global
from ..step import TrainState
from ._storage import Folder

# Every process saves equally often, so the names of their barriers agree.
_saves = itertools.count()


def to_storable(state: TrainState) -> dict[str, Any]:
    """Return every leaf by its path, in a dtype that Orbax can store.

    Arrays stay where they are. Empty ones are left out, because Orbax cannot store
    them.
    """
    flat = jax.tree_util.tree_leaves_with_path(state)
    arrays = {jax.tree_util.keystr(path): _pack(leaf) for path, leaf in flat}
    return {path: array for path, array in arrays.items() if array.size}


def start_writing(
    folder: Folder, arrays: Mapping[str, Any], *, copy: bool
) -> Callable[[], None]:
    """Start to write a new folder in the background; all processes must call this.

    Args:
        folder: the folder to create.
        arrays: from `to_storable`.
        copy: whether the caller goes on before all is written, and may donate the
            arrays.

    Returns:
        A function that waits until every process has written its shards.

    Raises:
        OutputError: the folder cannot be written to; also by the returned function.
    """
    if copy and jax.default_backend() == "cpu":
        # Elsewhere Orbax copies to the host before it returns. On CPU it takes views of
        # memory that the next step is donated.
        arrays = {path: _copy(array) for path, array in arrays.items()}
    needed = sum(map(_count_local_bytes, arrays.values()))
    resources = contextlib.ExitStack()
    ocp, checkpointer = resources.enter_context(_open_orbax())
    with _close_on_error(resources, folder, needed):
        checkpointer.save(folder, args=ocp.args.StandardSave(dict(arrays)))

    def finish() -> None:
        with _close_on_error(resources, folder, needed):
            checkpointer.wait_until_finished()
        resources.close()

    return finish


def read_state(folder: Folder, like: TrainState) -> TrainState:
    """Read a state onto the devices of `like`; all processes must call this."""
    flat = jax.tree_util.tree_leaves_with_path(like)
    targets = {
        jax.tree_util.keystr(path): _describe_target(leaf) for path, leaf in flat
    }
    with _open_orbax() as (ocp, checkpointer):
        try:
            arrays = checkpointer.restore(
                folder,
                # Empty arrays were not stored.
                args=ocp.args.StandardRestore(
                    {path: target for path, target in targets.items() if target.size}
                ),
            )
        except (OSError, ValueError, KeyError) as e:
            # The checksums were right, so the files are as they were written.
            reason = str(e).splitlines()[0][:200]
            raise CheckpointError(
                f"{folder} cannot be read by orbax-checkpoint {ocp.__version__}: "
                f"{reason}; use the version that wrote it."
            ) from e

    def build(path: Any, leaf: Any) -> jax.Array:
        name = jax.tree_util.keystr(path)
        # Each array is let go once it is in place.
        return _unpack(arrays.pop(name, targets[name]), leaf)

    return jax.tree_util.tree_map_with_path(build, like)


def _count_local_bytes(array: Any) -> int:
    """Bytes of an array that this process writes."""
    if not isinstance(array, jax.Array):
        return int(array.nbytes)
    written = [s for s in array.addressable_shards if s.replica_id == 0]
    return sum(s.data.nbytes for s in written)


def _describe_refusal(folder: Folder, needed: int) -> str:
    """Describe a refused write of so many bytes, with those free where it is known."""
    free = ""
    if isinstance(folder, Path):
        with contextlib.suppress(OSError):
            room = shutil.disk_usage(folder.parent).free
            free = f", {format_bytes(room)} are free"
    return (
        f"cannot write the checkpoint {folder}: it needs {format_bytes(needed)}{free}, "
        "and the disk, a quota or a limit refused them; free some space, or write to "
        "another disk."
    )


@contextlib.contextmanager
def _close_on_error(
    resources: contextlib.ExitStack, folder: Folder, needed: int
) -> Iterator[None]:
    """Turn what Orbax raises for a refused write into an OutputError."""
    try:
        yield
    except BaseException as e:
        with contextlib.suppress(Exception):  # the first error is the one to report
            resources.close()
        # TensorStore reports a refused write as a ValueError of many lines, which name
        # files of its own; it stays the cause.
        is_full = isinstance(e, OSError) and e.errno in {errno.ENOSPC, errno.EDQUOT}
        if is_full or isinstance(e, ValueError):
            raise OutputError(_describe_refusal(folder, needed)) from e
        if isinstance(e, OSError):
            raise OutputError(write_error_reason(e.filename or folder, e)) from e
        raise


@contextlib.contextmanager
def _open_orbax() -> Iterator[tuple[Any, Any]]:
    """Yield Orbax and a checkpointer, and switch Orbax's messages on stderr off."""
    import orbax.checkpoint as ocp  # here, because the import takes half a second

    options = ocp.options.MultiprocessingOptions(
        # Two saves may be under way, of the latest state and of the best one.
        barrier_sync_key_prefix=f"frugax{next(_saves)}"
    )
    mute_orbax()
    with contextlib.closing(
        ocp.AsyncCheckpointer(
            ocp.StandardCheckpointHandler(multiprocessing_options=options),
            multiprocessing_options=options,
            # A folder that cannot be made is refused at once.
            async_options=ocp.options.AsyncOptions(
                create_directories_asynchronously=False
            ),
        )
    ) as checkpointer:
        yield ocp, checkpointer


def _pack(leaf: Any) -> Any:
    """Return a leaf as Orbax can store it: keys as integers, small types as larger."""
    leaf = trees.key_to_data(leaf)
    stored = _stored_dtype(leaf.dtype)
    if stored != leaf.dtype:
        leaf = _convert(leaf, stored)
    is_global = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
    if is_global or (isinstance(leaf, jax.Array) and jax.process_count() == 1):
        return leaf
    return np.asarray(leaf)  # the first process writes its own


def _unpack(array: Any, like: Any) -> jax.Array:
    """Return a leaf as `_pack` received it, on the devices of `like`."""
    raw = jax.eval_shape(trees.key_to_data, like)
    # A copy: steps donate, and XLA must not write over memory that NumPy owns.
    value = _copy(array) if isinstance(array, jax.Array) else jnp.array(array)
    if value.dtype != raw.dtype:
        value = _convert(value, raw.dtype)
    value = trees.data_to_key(value, like)
    sharding = getattr(like, "sharding", None)
    return value if sharding is None else shard_global(value, sharding)


def _describe_target(leaf: Any) -> Any:
    """Describe an array to read: sharded as the leaf is, or for NumPy."""
    raw = jax.eval_shape(trees.key_to_data, leaf)
    dtype = _stored_dtype(raw.dtype)
    sharding = getattr(leaf, "sharding", None)
    if trees.is_random_key(leaf) or sharding is None or len(sharding.device_set) == 1:
        # A stand-in without memory; Orbax reads its shape and type.
        return np.broadcast_to(np.zeros((), dtype), raw.shape)
    return jax.ShapeDtypeStruct(raw.shape, dtype, sharding=sharding)


def _stored_dtype(dtype: Any) -> np.dtype:
    """Return a dtype that TensorStore has and that holds every value of `dtype`.

    It has bfloat16 and some of the small types, but not uint4.
    """
    if np.dtype(dtype).isbuiltin == 1 or dtype == jnp.bfloat16:
        return np.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return np.dtype("int8" if jnp.issubdtype(dtype, jnp.signedinteger) else "uint8")
    return np.dtype("float32" if jnp.finfo(dtype).bits < 8 else "uint8")


def _convert(array: Any, dtype: Any) -> jax.Array:
    """Convert between a dtype and its stored one without changing a bit."""
    narrow = [x for x in (array.dtype, dtype) if jnp.issubdtype(x, jnp.floating)]
    if len(narrow) == 1:  # a float of eight bits, stored as integers
        return jax.lax.bitcast_convert_type(array, dtype)
    return jnp.asarray(array).astype(dtype)


def _copy(array: Any) -> Any:
    if isinstance(array, jax.Array):
        return jax.device_put(array, array.sharding, may_alias=False)
    return array.copy()
