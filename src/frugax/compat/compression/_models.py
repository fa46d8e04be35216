"""Compress a whole torch model within a profile: the guide's `ModelCompressionAPI`."""

import contextlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from frugax.budget import SizeBudget
from frugax.compress import CompressedBytes, CompressedFile, compress, reduce_relu
from frugax.errors import InfeasibleBudgetError
from frugax.fileio import write_whole

from ._selector import StrategySelector
from ._settings import CompressionProfile, SystemConfiguration

# torch is imported only when it is needed, so its types are not known here.
TorchModule: TypeAlias = Any

# The error that a mode allows; "balanced" has none.
_REL_ERROR = {"conservative": 0.01, "aggressive": 0.1}
# The share of hidden units that "tropical" keeps in each mode.
_KEPT_UNITS = {"conservative": 3 / 4, "balanced": 1 / 2, "aggressive": 1 / 4}
# The inputs that its bound is for; the real inputs of a layer are not known here.
_BOX = (-1.0, 1.0)
# A sparse matrix is stored as two tensors: where it is not zero, and the values there.
_PLACES, _VALUES = ".nonzero", ".values"


class ModelCompressionAPI:
    """Compresses torch models within a profile.

    Args:
        profile: the target; by default `CompressionProfile()`.
    """

    def __init__(self, profile: CompressionProfile | None = None) -> None:
        self.profile = profile or CompressionProfile()

    def compress(self, model: TorchModule) -> "CompressedModel":
        """Put a model's weights into one file; the model is only read.

        Raises:
            InfeasibleBudgetError: no file is as small as the target.
            TypeError: it is not a torch module, or its state holds other values than
                tensors.

        Warns:
            UserWarning: the mode's error allows no file at the target ratio.
        """
        from ._torch import find_relu_pairs, read_weights

        arrays = read_weights(model)
        original_bytes = sum(array.nbytes for array in arrays.values())
        selector = StrategySelector(self.profile)
        chosen = {n: selector.select_strategy(array) for n, array in arrays.items()}
        bounds: dict[str, float] = {}
        if self.profile.strategy == "tropical":
            kept = _KEPT_UNITS[self.profile.mode]
            for first, second in find_relu_pairs(model):
                pair = [n for n in arrays if n.rpartition(".")[0] in (first, second)]
                if not all(np.isfinite(arrays[name]).all() for name in pair):
                    continue
                merged, bounds[second] = _merge_units(arrays, first, second, kept)
                arrays |= merged
                chosen |= dict.fromkeys(merged, "tropical")
        # All weights go into one file with one budget: the search then spends bytes
        # where they reduce the error most, across layers.
        stored = _pack(arrays, {n for n, s in chosen.items() if s == "csr"})
        data = self._fit(stored, original_bytes)
        # Of a small tensor the step and the tables of the coder can take more bytes
        # than the levels save: it stayed exact after all.
        exact = {
            t.name for t in data.report.tensors if t.codec in ("lossless", "stored")
        }
        for name in exact & chosen.keys():
            if chosen[name] != "tropical":
                chosen[name] = "lossless"
        return CompressedModel(bytes(data), model, chosen, original_bytes, bounds)

    def _fit(
        self, arrays: Mapping[str, np.ndarray], original_bytes: int
    ) -> CompressedBytes:
        """Make the file that the profile asks for."""
        profile, tree = self.profile, dict(arrays)
        if profile.strategy == "lossless":
            return compress(tree, SizeBudget(max_abs=0))
        # In bytes of the whole model, since shared weights, merged and packed ones
        # change the bytes that the codec is given.
        target = max(1, int(original_bytes / profile.target_compression_ratio))
        rel_error = _REL_ERROR.get(profile.mode)
        if profile.mode == "conservative":
            with contextlib.suppress(InfeasibleBudgetError):
                return compress(tree, SizeBudget(bytes=target, rel_error=rel_error))
            data = compress(tree, SizeBudget(rel_error=rel_error))
            warnings.warn(
                f"the file has {len(data):,} bytes, over {target:,}, because the mode "
                f'"conservative" keeps the error within {rel_error}: for the ratio '
                f'{profile.target_compression_ratio:g} use the mode "balanced".',
                UserWarning,
                stacklevel=3,
            )
            return data
        if profile.mode == "aggressive":
            data = compress(tree, SizeBudget(rel_error=rel_error))
            if len(data) <= target:
                return data
        return compress(tree, SizeBudget(bytes=target))


class CompressedModel:
    """A compressed model: a file, and a copy of the module without its weights.

    It is not a torch module: `decompress()` gives one. Calling it decodes the model
    once and calls that; memory then holds the dense weights, because nothing here
    computes on compressed ones.

    Attributes:
        data: the bytes of the `.fxz` file.
        strategy_map: the strategy of each weight; of a model that was loaded, the codec
            that the file names.
        output_bounds: for each layer behind units that "tropical" merged, the most that
            one of its outputs changes by that, for inputs in [-1, 1]. The codec's error
            comes on top.
    """

    def __init__(
        self,
        data: bytes,
        model: TorchModule,
        strategy_map: Mapping[str, str],
        original_bytes: int,
        output_bounds: Mapping[str, float] | None = None,
    ) -> None:
        """Use `ModelCompressionAPI.compress` or `CompressedModel.load`."""
        from ._torch import copy_without_weights

        self.data = data
        self.strategy_map = dict(strategy_map)
        self.output_bounds = dict(output_bounds or {})
        self._bare, self._devices = copy_without_weights(model)
        self._original_bytes = original_bytes
        self._decoded: TorchModule = None

    def decompress(self) -> TorchModule:
        """Return a new model with the decoded weights, on the original's devices.

        Weights of the strategy "jax" are decoded by JAX.

        Raises:
            CorruptFileError: the bytes are damaged.
            ValueError: the file holds the weights of another model.
        """
        from ._torch import copy_with_weights

        by_jax = [name for name, s in self.strategy_map.items() if s == "jax"]
        with CompressedFile(self.data, place="the compressed model") as file:
            file.check()
            weights = {name: file[name] for name in file.names if name not in by_jax}
            if by_jax:
                from ._jax_parts import make_jax_parts

                strategy = make_jax_parts(SystemConfiguration())["jax_strategy"]
                weights |= {n: np.asarray(strategy.decode(file, n)) for n in by_jax}
        return copy_with_weights(self._bare, self._devices, _unpack(weights))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the decoded model, which is kept."""
        if self._decoded is None:
            self._decoded = self.decompress()
        return self._decoded(*args, **kwargs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the `.fxz` file, whole or not at all. It holds weights and no code.

        Raises:
            OutputError: it could not be written.
        """
        write_whole(path, self.data)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], build: Callable[[], TorchModule]
    ) -> "CompressedModel":
        """Read a file that `save` wrote; nothing in the file is executed.

        Args:
            path: the `.fxz` file.
            build: makes a model like the one that was compressed; its weights are
                thrown away. `Linear` layers that "tropical" narrowed are narrowed.

        Raises:
            CorruptFileError: the file is damaged.
            FileNotFoundError: there is no such file.
            TypeError: `build` does not give a torch module.
            UnsupportedFileError: it is not an `.fxz` file, or is of a newer version.
            ValueError: the file holds the weights of another model.
        """
        from ._torch import read_weights

        # Read whole: a mapped file could change between the check and the decoding.
        data = Path(path).read_bytes()
        # The file has no code, so the caller builds the module; only its names and
        # shapes are used.
        model = build()
        original_bytes = sum(array.nbytes for array in read_weights(model).values())
        with CompressedFile(data, place=os.fspath(path)) as file:
            file.check()
            codecs = {name: file.record(name).codec for name in file.names}
        loaded = cls(data, model, codecs, original_bytes)
        loaded._decoded = loaded.decompress()  # another model's file fails here
        return loaded

    def get_compression_stats(self) -> dict[str, Any]:
        """Return ratio, bytes and strategies, all measured on the file."""
        return {
            "total_compression_ratio": self._original_bytes / len(self.data),
            "total_original_size_mb": self._original_bytes / 1e6,
            "total_compressed_size_mb": len(self.data) / 1e6,
            "strategy_distribution": dict(Counter(self.strategy_map.values())),
        }


def _pack(
    arrays: Mapping[str, np.ndarray], sparse: Collection[str]
) -> dict[str, np.ndarray]:
    packed: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if name not in sparse:
            packed[name] = array
            continue
        # A mask of booleans is coded to less than CSR's column numbers.
        packed[name + _PLACES] = places = array != 0
        # One row: tensors with one axis are taken for biases and kept exact.
        packed[name + _VALUES] = array[places].reshape(1, -1)
    return packed


def _unpack(stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    weights = dict(stored)
    for part in stored:
        name = part.removesuffix(_PLACES)
        # Both parts must be there: a weight of the model may itself end in ".nonzero".
        if name == part or name + _VALUES not in stored:
            continue
        places, values = weights.pop(part), weights.pop(name + _VALUES)
        weights[name] = np.zeros(places.shape, values.dtype)
        weights[name][places] = values.reshape(-1)
    return weights


def _merge_units(
    arrays: Mapping[str, np.ndarray], first: str, second: str, kept: float
) -> tuple[dict[str, np.ndarray], float]:
    """Merge hidden units of a Linear -> ReLU -> Linear.

    Args:
        arrays: the model's weights by name, as torch has them.
        first: the name of the first layer.
        second: the name of the second.
        kept: the share of hidden units that stay.

    Returns:
        The weights that changed, and the bound on the change of an output.
    """
    w1, w2 = arrays[f"{first}.weight"], arrays[f"{second}.weight"]
    # A layer without a bias counts as one with zeros here, and gets none below.
    b1, b2 = (
        arrays.get(f"{name}.bias", np.zeros(len(w), w.dtype))
        for name, w in ((first, w1), (second, w2))
    )
    # torch's Linear weights are (out, in); reduce_relu takes x @ w1.
    small = reduce_relu(
        (w1.T, b1, w2.T, b2), hidden=max(1, round(kept * len(b1))), box=_BOX
    )
    new = {
        f"{first}.weight": np.ascontiguousarray(small.w1.T),
        f"{first}.bias": small.b1,
        f"{second}.weight": np.ascontiguousarray(small.w2.T),
    }
    return {n: a for n, a in new.items() if n in arrays}, float(small.bound.max())
