"""Convert a training state to NumPy arrays and back, bit for bit, stored by Orbax."""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.errors import CheckpointError, OutputError
from frugax.fileio import write_error_reason

from ..processes import gather_to_host, put
from ..step import TrainState


def to_numpy(state: TrainState) -> dict[str, np.ndarray]:
    """Return every leaf on the host by its path; all processes must call this.

    Empty arrays are left out, because Orbax cannot store them.
    """
    flat = jax.tree_util.tree_leaves_with_path(state)
    arrays = {
        jax.tree_util.keystr(path): _pack(gather_to_host(_unwrap_key(leaf)))
        for path, leaf in flat
    }
    return {path: array for path, array in arrays.items() if array.size}


def from_numpy(arrays: Mapping[str, np.ndarray], like: TrainState) -> TrainState:
    """Return the state again, on the devices of `like`."""

    def build(path: Any, leaf: Any) -> jax.Array:
        raw = jax.eval_shape(_unwrap_key, leaf)
        # A copy: steps donate, and XLA must not write over memory that NumPy owns.
        value = jnp.array(_unpack(arrays.get(jax.tree_util.keystr(path)), raw))
        if _is_key(leaf):
            # `leaf` may be a shape only, but key_impl needs an array of keys.
            impl = jax.random.key_impl(jnp.empty((), leaf.dtype))
            value = jax.random.wrap_key_data(value, impl=impl)
        sharding = getattr(leaf, "sharding", None)
        return value if sharding is None else put(value, sharding)

    return jax.tree_util.tree_map_with_path(build, like)


# Write a new folder.
def write_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    with _open_orbax() as (ocp, checkpointer):
        try:
            checkpointer.save(folder, args=ocp.args.StandardSave(arrays))
        except OSError as e:
            raise OutputError(write_error_reason(folder, e)) from e
        except ValueError as e:
            # TensorStore reports a refused write as a ValueError of many lines.
            reason = str(e).splitlines()[0][:200]
            raise OutputError(
                f"cannot write {folder}: {reason}; free some space, or write elsewhere."
            ) from e


# Read every array of a folder.
def read_arrays(folder: Path) -> dict[str, np.ndarray]:
    with _open_orbax() as (ocp, checkpointer):
        try:
            return checkpointer.restore(folder, args=ocp.args.StandardRestore())
        except (OSError, ValueError, KeyError) as e:
            # The checksums were right, so the files are as they were written.
            reason = str(e).splitlines()[0][:200]
            raise CheckpointError(
                f"{folder} cannot be read by orbax-checkpoint {ocp.__version__}: "
                f"{reason}; use the version that wrote it."
            ) from e


@contextlib.contextmanager
def _open_orbax() -> Iterator[tuple[Any, Any]]:
    """Yield Orbax and a checkpointer, with its messages on stderr switched off."""
    import orbax.checkpoint as ocp  # here, because the import takes half a second

    options = ocp.options.MultiprocessingOptions()
    if jax.process_count() > 1:
        # Only this process reads or writes: Orbax must not wait for the others.
        me = jax.process_index()
        options = ocp.options.MultiprocessingOptions(
            primary_host=me,
            active_processes={me},
            barrier_sync_key_prefix=f"frugax{me}",
        )
    logger = logging.getLogger("absl")
    # Orbax logs what it raises, and more; the caller gets one error instead.
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.closing(
            ocp.Checkpointer(
                ocp.StandardCheckpointHandler(multiprocessing_options=options),
                multiprocessing_options=options,
            )
        ) as checkpointer:
            yield ocp, checkpointer
    finally:
        logger.setLevel(level)


def _pack(array: np.ndarray) -> np.ndarray:
    """Replace dtypes that NumPy does not have (bfloat16, int4, float8) by their bytes.

    Orbax can store some of these and not others (no uint4 in 0.12).
    """
    if array.dtype.isbuiltin == 1:
        return array
    return np.frombuffer(array.tobytes(), np.uint8)


def _unpack(packed: np.ndarray | None, like: jax.ShapeDtypeStruct) -> np.ndarray:
    if packed is None:  # an empty array was not stored
        return np.zeros(like.shape, like.dtype)
    if packed.dtype == like.dtype:
        return packed
    return np.frombuffer(packed.tobytes(), like.dtype).reshape(like.shape)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def _unwrap_key(leaf: Any) -> Any:
    """Return a random key's integers; other arrays as they are."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf
