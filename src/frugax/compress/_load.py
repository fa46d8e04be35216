"""Load weights from files and folders without running code."""

import os
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np

from frugax.errors import CorruptFileError, UnsupportedFileError
from frugax.trees import PyTree, is_array, named_leaves, replace_leaves

from ._arguments import check_path
from ._buckets import fetched, in_bucket
from ._folder import count_siblings, find_shards, is_index, is_pickle, refuse_pickle
from ._orbax import Checkpoint, find_checkpoint, read_checkpoint
from .arrays import (
    DTYPE_NAMES,
    read_metadata,
    read_safetensors,
    to_library,
    to_stored,
    unwrap_modules,
)
from .container import open_file


def load(path: str | os.PathLike[str], *, like: PyTree = None) -> PyTree:
    """Read weights into the structure of a tree: an optax state, a module, a tuple.

    Args:
        path: as `load_weights` takes it.
        like: a tree with the names, dtypes and shapes of the weights; it is only read.
            Functions and text stay as they are, and so do Python's numbers that the
            file does not have. By default the weights come back as they were saved.

    Returns:
        A tree like `like`. Each array is of the library of the leaf in its place: JAX
        arrays have its sharding, torch tensors stand on its device.

    Raises:
        CorruptFileError: the file is damaged or cut off.
        FileNotFoundError: there is no such file.
        UnsupportedFileError: it is of another kind.
        ValueError: the names, dtypes or shapes are not those of `like`.

    >>> import collections, tempfile
    >>> from frugax import SizeBudget, compress
    >>> State = collections.namedtuple("State", "mean count")
    >>> path = tempfile.mkdtemp() + "/state.fxz"
    >>> state = State(np.ones(3), np.int32(7))
    >>> _ = compress.save(path, state, SizeBudget(max_abs=0))
    >>> load(path, like=state)
    State(mean=array([1., 1., 1.]), count=array(7, dtype=int32))
    """
    check_path(path)
    if like is None:
        if Path(path).suffix != ".fxz":
            return load_weights(path)
        with open_file(path) as file:
            return file.tree()
    weights = load_weights(path)
    leaves = named_leaves(unwrap_modules(like))
    wanted = {
        name: to_stored(leaf)
        for name, leaf in leaves
        if is_array(leaf) or name in weights
    }
    for name in [*wanted, *weights]:
        there = weights.get(name)
        found = None if there is None else (there.dtype.name, there.shape)
        leaf = wanted.get(name)
        stated = None
        if leaf is not None and is_array(leaf):
            dtype = str(leaf.dtype).removeprefix("torch.")
            stated = dtype, tuple(leaf.shape)
        if found != stated:
            raise ValueError(
                f"{os.fspath(path)}: {name or 'the array'} is {found} in the file and "
                f"{stated} in `like`: they must be alike."
            )
    return replace_leaves(
        unwrap_modules(like),
        [
            to_library(weights[name], leaf) if name in wanted else leaf
            for name, leaf in leaves
        ],
    )


def load_weights(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read a file of weights as a dict from names to arrays.

    Args:
        path: a `.safetensors`, `.npz` or `.fxz` file, or a folder of `.safetensors`
            files such as Hugging Face's; also the address of one in a bucket (`gs://`,
            `s3://`), which is copied first. Of a folder with an index,
            `*.index.json`, each tensor is read from the file that the index names; of
            one without, `model.safetensors` or `diffusion_pytorch_model.safetensors` is
            read where it is there. Files left out are named in a warning; an index may
            be given in the folder's place. Or a folder of Orbax, with one checkpoint or
            several, of which the newest is read. Nothing in it is executed: `.npz`
            files with pickled objects are refused.

    Returns:
        The weights. Those of a `.safetensors` file cannot be written to, and are read
        from it when they are used: leave it as it is until then. A checkpoint of Orbax
        is read whole, under the names of its tree.

    Raises:
        CorruptFileError: the file is damaged or cut off, or one of a folder is
            missing.
        FileNotFoundError: there is no such file.
        TypeError: `path` is not a path.
        UnsupportedFileError: it is of another kind, or does not hold weights only.
    """
    check_path(path)
    if in_bucket(path):
        with fetched(path) as local:
            return load_weights(local)
    path = Path(path)
    if path.is_dir() or is_index(path):
        return _read_folder(path)
    if (count := count_siblings(path)) > 1:
        warnings.warn(
            f"{path}: by its name this is one of {count} files of weights, and the "
            "others are not read: name their folder.",
            stacklevel=2,
        )
    match path.suffix:
        case ".safetensors":
            return read_safetensors(path)
        case ".npz":
            return _read_npz(path)
        case ".fxz":
            with open_file(path) as file:
                arrays = dict(file.decode_all())
                return {name: arrays[name] for name in file}
    if is_pickle(path):
        raise UnsupportedFileError(refuse_pickle(path))
    path.stat()  # a mistyped folder is not there
    raise UnsupportedFileError(
        f"{path}: cannot read weights from a {path.suffix or 'suffixless'} file; "
        "use .safetensors, .npz or .fxz."
    )


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the text that stands beside the weights in a file, such as `format: pt`.

    Args:
        path: a `.safetensors` or `.fxz` file, or a folder of `.safetensors` files; any
            other has none.

    Returns:
        Text by key, for `save(..., metadata=...)`.

    Raises:
        CorruptFileError: the file is damaged or cut off.
        FileNotFoundError: there is no such file.
        UnsupportedFileError: it is of a newer version.
    """
    check_path(path)
    if in_bucket(path):
        with fetched(path) as local:
            return load_metadata(local)
    path = Path(path)
    if _find_checkpoint(path) is not None:
        return {}
    if path.is_dir() or is_index(path):
        every = [load_metadata(shard) for shard in find_shards(path).files]
        return {key: text for one in every for key, text in one.items()}
    if path.suffix == ".fxz":
        with open_file(path) as file:
            return dict(file.header.metadata)
    if path.suffix == ".safetensors":
        return read_metadata(path)
    return {}


def _read_folder(place: Path) -> dict[str, np.ndarray]:
    """Read a folder, or the files of an index."""
    if (checkpoint := _find_checkpoint(place)) is not None:
        if checkpoint.older:
            warnings.warn(
                f"{place}: the newest checkpoint is read, {checkpoint.folder}, and not "
                f"{', '.join(checkpoint.older)}. Name another to read it.",
                stacklevel=3,
            )
        return read_checkpoint(checkpoint.folder)
    shards = find_shards(place)
    weights: dict[str, np.ndarray] = {}
    stale: list[str] = []
    for shard in shards.files:
        for name, array in read_safetensors(shard).items():
            if shards.assigned is not None and shards.assigned.get(name) != shard:
                stale.append(f"{name!r} of {shard.name}")
                continue
            if name in weights:
                raise UnsupportedFileError(
                    f"{shard}: tensor {name!r} stands in another file of the folder "
                    "too: name the file that you mean."
                )
            weights[name] = array
    for name, shard in (shards.assigned or {}).items():
        if name not in weights:  # half of the folder is from another download
            raise CorruptFileError(
                f"{shard}: an index names the tensor {name!r} in this file, "
                "and it is not there: download both again."
            )
    if left_out := [*shards.unused, *stale]:
        model = "in the index"
        if shards.assigned is None:
            model = ", ".join(file.name for file in shards.files)
        warnings.warn(
            f"{place}: the model is {model}, so these are left out: "
            f"{', '.join(left_out)}. Name one to read it.",
            stacklevel=3,
        )
    return weights


def _find_checkpoint(place: Path) -> Checkpoint | None:
    """Return the Orbax checkpoint that stands at a place, or in it."""
    if not place.is_dir() or any(place.glob("*.safetensors")):
        return None
    return find_checkpoint(place)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    # `np.load` would take anything but a zip for a pickle, and say how to run it.
    with path.open("rb") as opened:
        start = opened.read(4)
        if start and not start.startswith(b"PK"):
            what = "rename it, or write it again with np.savez"
            if start == b"\x93NUM":
                what = "it holds one array alone; np.savez gives arrays their names"
            raise UnsupportedFileError(f"{path}: not an .npz file: {what}.")
        opened.seek(0)
        try:
            # A pickle runs code while it is read, and weights come from strangers.
            with np.load(opened, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except (zipfile.BadZipFile, EOFError, zlib.error) as e:
            raise CorruptFileError(
                f"{path}: the file is damaged or cut off ({e}): copy it again."
            ) from e
        except ValueError as e:  # about a member of the zip
            what = str(e)
            if "allow_pickle" in what:
                what = "pickled objects are never read: save arrays of numbers."
            raise UnsupportedFileError(
                f"{path}: not an .npz file of arrays: {what}"
            ) from e
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # the bytes of a member that is not .npy
            raise UnsupportedFileError(
                f"{path}: not an .npz file of arrays: its member {name!r} is not an "
                "array. Weights in torch's own files are pickled: save them as "
                ".safetensors."
            )
        if array.dtype.name not in DTYPE_NAMES:
            raise UnsupportedFileError(
                f"{path}: array {name!r} has dtype {array.dtype}, which weights cannot "
                "have: write the file again without it."
            )
    return arrays
