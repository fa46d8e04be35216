"""Export compiled models as StableHLO programs; load and run the exported files.

The file is a `.safetensors` file with one array, the bytes of `jax.export`, and a
checksum: without it a flipped bit would be found late, or never.
"""

import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from frugax.compress.arrays import read_metadata, read_safetensors, write_arrays
from frugax.errors import CorruptFileError, MissingExtraError, UnsupportedFileError
from frugax.models.graph import Program

if TYPE_CHECKING:
    from jax.export import Exported

METADATA_KEY, VERSION = "frugax-exported", 1
_ARRAY = "stablehlo"


class ExportedModel:
    """A model as one compiled program, called like `compiled.evaluate`.

    Attributes:
        exported: the `jax.export.Exported`, with its avals, its platforms, and the
            StableHLO text as `exported.mlir_module()`.
        has_params: whether the parameters are part of the program; a call then takes
            the data alone.
    """

    def __init__(self, exported: "Exported", *, has_params: bool) -> None:
        import jax  # here, since models run in torch without it

        self.exported, self.has_params = exported, has_params
        # JAX refuses 64-bit arguments as long as its 64-bit numbers are switched off.
        self._wide = any(a.dtype.itemsize == 8 for a in exported.in_avals)
        # jitted, so that later calls run one compiled program; `Exported.call` alone is
        # traced anew.
        self._call = jax.jit(exported.call)
        self._inputs: tuple[dict[str, Any], ...] = jax.tree.unflatten(
            exported.in_tree, exported.in_avals
        )[0]

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms it can run on: `"cpu"`, `"cuda"`, `"rocm"` or `"tpu"`."""
        return tuple(self.exported.platforms)

    @property
    def shapes(self) -> dict[str, tuple[Any, ...]]:
        """The shape of each argument by key; free dimensions by name."""
        return {k: tuple(a.shape) for given in self._inputs for k, a in given.items()}

    def __call__(self, *arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Run the program."""
        import jax

        names = ("params", "data")
        if self.has_params:
            names = ("data",)
        if len(arrays) != len(names):
            raise TypeError(
                f"it takes {' and '.join(names)}, got {len(arrays)} arguments."
            )
        for name, given, needed in zip(names, arrays, self._inputs, strict=True):
            wrong = sorted(set(given) ^ set(needed))
            if wrong:
                lacks = "has too much:"
                if wrong[0] in needed:
                    lacks = "lacks"
                raise ValueError(
                    f"{name} {lacks} {wrong[0]!r}; the program takes: "
                    f"{', '.join(sorted(needed)[:12]) or 'nothing'}."
                )
        # A float64 program runs in any process: 64 bits are switched on for its call.
        with jax.enable_x64(self._wide or jax.config.read("jax_enable_x64")):
            return self._call(*map(dict, arrays))


def export(
    compiled: Program,
    pure: Callable[..., Any],
    path: str | os.PathLike[str] | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    platforms: Sequence[str] | None = None,
    gradients: bool = False,
) -> ExportedModel:
    """Turn a compiled model into a StableHLO program; see `CompiledModel.export`."""
    import jax

    if compiled.backend.name != "jax":
        raise TypeError(
            "export makes a StableHLO program, which only JAX can: compile the model "
            f"for a JaxBackend; this one is for {compiled.backend!r:.60}."
        )
    _check_platforms(platforms)
    specs = compiled.graph.specs
    with compiled.backend.scope():
        kinds = {
            k: jax.ShapeDtypeStruct(specs[k].shape, specs[k].dtype)
            for k in (*compiled.param_keys, *compiled.data_keys)
        }
        data = {k: kinds[k] for k in sorted(compiled.data_keys)}
        if params is None:
            arguments = ({k: kinds[k] for k in sorted(compiled.param_keys)}, data)
            function = jax.jit(pure)
        else:
            held = {
                k: compiled.backend.array(v, dtype=v.dtype) for k, v in params.items()
            }
            arguments = (data,)
            # Closed over, the parameters become constants of the StableHLO module.
            function = jax.jit(lambda data: pure(held, data))
        made = jax.export.export(function, platforms=platforms)(*arguments)
        model = ExportedModel(made, has_params=params is not None)
        if path is not None:
            _write(path, model, gradients=gradients)
    return model


def load_exported(path: str | os.PathLike[str]) -> ExportedModel:
    """Read a program that `compiled.export` wrote.

    Only the shapes of its arguments are checked, and XLA runs the program itself: load
    files only from sources that you would also install a library from.

    Args:
        path: the file.

    Raises:
        CorruptFileError: the file is damaged or cut off.
        FileNotFoundError: the file does not exist.
        MissingExtraError: flatbuffers is not installed.
        UnsupportedFileError: a newer version wrote it, or it is of another kind.
    """
    where = os.fspath(path)
    arrays, metadata = read_safetensors(path), read_metadata(path)
    if METADATA_KEY not in metadata or _ARRAY not in arrays:
        raise UnsupportedFileError(f"{where}: this is not an exported program.")
    content = arrays[_ARRAY].tobytes()
    try:
        about = json.loads(metadata[METADATA_KEY])
        version, checksum = about["version"], about["sha256"]
        has_params, by = about["has_params"], about["jax"]
    except (KeyError, TypeError, ValueError, RecursionError) as e:
        raise CorruptFileError(f"{where}: its description is damaged: {e!r}.") from e
    # The version comes first, since a newer format may compute its checksum in another
    # way.
    if version != VERSION:
        raise UnsupportedFileError(
            f"{where}: it is of version {version}; this frugax reads {VERSION}: update "
            "frugax."
        )
    if hashlib.sha256(content).hexdigest() != checksum:
        raise CorruptFileError(
            f"{where}: the program is damaged: its checksum differs."
        )
    _need_flatbuffers()
    import jax

    try:
        # deserialize wants a bytearray; flatbuffers reads it without a copy.
        exported = jax.export.deserialize(bytearray(content))
    except ValueError as e:
        raise UnsupportedFileError(
            f"{where}: JAX {jax.__version__} cannot read this program of JAX {by}: {e}"
        ) from e
    return ExportedModel(exported, has_params=bool(has_params))


def _write(
    path: str | os.PathLike[str], model: ExportedModel, *, gradients: bool
) -> None:
    _need_flatbuffers()
    import jax

    content = bytes(model.exported.serialize(vjp_order=1 if gradients else 0))
    about = {
        "version": VERSION,
        "sha256": hashlib.sha256(content).hexdigest(),
        "has_params": model.has_params,
        "jax": jax.__version__,
    }
    array = np.frombuffer(content, np.uint8)
    write_arrays(path, {_ARRAY: array}, {METADATA_KEY: json.dumps(about)})


def _check_platforms(platforms: Sequence[str] | None) -> None:
    known = ("cpu", "cuda", "rocm", "tpu")
    for platform in platforms or ():
        if platform not in known:
            raise ValueError(
                f"platforms must be of {', '.join(known)}, got {platform!r:.40}."
            )


def _need_flatbuffers() -> None:
    if importlib.util.find_spec("flatbuffers") is None:
        raise MissingExtraError(
            'files of exported programs need flatbuffers: pip install "frugax[export]".'
        )
