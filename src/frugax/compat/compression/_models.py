"""Compress a whole torch model within a profile, and read it again."""

import copy
import functools
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from frugax.budget import SizeBudget
from frugax.compress import CompressedBytes, CompressedFile, compress
from frugax.compress.arrays import QUANTISABLE
from frugax.fileio import write_whole

from ._settings import CompressionProfile, SystemConfiguration, has_jax

# torch is imported only when it is needed, so its types are not known here.
TorchModule: TypeAlias = Any
# "auto" sends tensors of this size and more to JAX: for smaller ones, on a CPU,
# compiling takes longer than decoding.
MIN_DEVICE_SIZE = 1 << 16


class StrategySelector:
    """Chooses who decodes a tensor: "jax", "numpy", or "lossless" for exact ones."""

    def __init__(self, profile: CompressionProfile | None = None) -> None:
        self._profile = profile or CompressionProfile()

    def select_strategy(self, array: np.ndarray) -> str:
        """Choose for one tensor."""
        is_float = array.dtype.name in QUANTISABLE and bool(np.isfinite(array).all())
        wanted = self._profile.strategy
        if wanted == "lossless" or not is_float or not array.any():
            return "lossless"
        is_large = array.size >= MIN_DEVICE_SIZE
        asks_jax = wanted == "jax" or (wanted == "auto" and is_large)
        return "jax" if asks_jax and has_jax() else "numpy"


class CompressedModel:
    """A compressed model: the bytes of a file, and the model that they fill.

    Calling it decodes the model once and calls that; memory then holds the dense
    weights, because nothing here computes on compressed ones.

    Attributes:
        data: the bytes of the `.fxz` file.
        strategy_map: who decodes each tensor.
        rel_error: ||decoded - original|| / ||original|| over all finite float weights;
            None in a model that was loaded.
    """

    def __init__(
        self,
        data: bytes,
        model: TorchModule,
        strategy_map: Mapping[str, str],
        rel_error: float | None = None,
    ) -> None:
        """Use `ModelCompressionAPI.compress` or `CompressedModel.load`."""
        self.data, self.strategy_map = data, dict(strategy_map)
        self.rel_error = rel_error
        self._model, self._decoded, self._decoding_s = model, None, 0.0

    def decompress(self) -> TorchModule:
        """Return a new model with the decoded weights, on the original's devices.

        Raises:
            CorruptFileError: the bytes are damaged.
            ValueError: they are the weights of another model.
        """
        from ._torch_tensors import write_state

        started = time.perf_counter()
        decode = _jax_decode() if "jax" in self.strategy_map.values() else None
        with CompressedFile(self.data, place="the compressed model") as file:
            file.check()
            weights = {
                name: decode(file, name)
                if decode is not None and self.strategy_map.get(name) == "jax"
                else file[name]
                for name in file.names
            }
        model = copy.deepcopy(self._model)
        write_state(model, weights)
        self._decoding_s = time.perf_counter() - started
        return model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the decoded model, which is kept."""
        if self._decoded is None:
            self._decoded = self.decompress()
        return self._decoded(*args, **kwargs)

    __call__ = forward

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file: weights only, no pickle, no code.

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
            build: makes a model like the one that was compressed.

        Raises:
            CorruptFileError: the file is damaged.
            FileNotFoundError: there is no such file.
            UnsupportedFileError: it is not an `.fxz` file.
            ValueError: the file holds the weights of another model.
        """
        data = Path(path).read_bytes()
        with CompressedFile(data, place=os.fspath(path)) as file:
            file.check()
            codecs = {name: file.record(name).codec for name in file.names}
        loaded = cls(data, build(), codecs)
        loaded._decoded = loaded.decompress()  # another model's file fails here
        return loaded

    def get_compression_stats(self) -> dict[str, Any]:
        """Return the bytes of weights and file, and who decodes them, all measured."""
        with CompressedFile(self.data, place="the compressed model") as file:
            records = file.header.tensors
        original = sum(record.nbytes for record in records)
        largest = sorted(records, key=lambda record: -record.stored_bytes)[:5]
        return {
            "total_compression_ratio": original / len(self.data),
            "total_original_size_mb": original / 1e6,
            "total_compressed_size_mb": len(self.data) / 1e6,
            "num_layers_compressed": sum(r.stored_bytes < r.nbytes for r in records),
            "strategy_distribution": dict(Counter(self.strategy_map.values())),
            "rel_error": self.rel_error,
            "largest_layers": {r.name: r.stored_bytes for r in largest},
            "decompression_time": self._decoding_s,
        }


class ModelCompressionAPI:
    """Compresses torch models within a profile.

    Args:
        profile: the target; by default `CompressionProfile()`.
    """

    def __init__(self, profile: CompressionProfile | None = None) -> None:
        self.profile = profile or CompressionProfile()

    def compress(self, model: TorchModule) -> CompressedModel:
        """Put a model's weights into one file; the model is only read.

        Raises:
            InfeasibleBudgetError: no file is as small as the target.
            TypeError: it is not a torch module, or its state holds more than tensors.
        """
        from ._torch_tensors import read_state

        arrays = read_state(model)
        selector = StrategySelector(self.profile)
        chosen = {n: selector.select_strategy(a) for n, a in arrays.items()}
        data = _fit(arrays, self.profile)
        # A small tensor may have stayed exact after all.
        exact = {
            t.name for t in data.report.tensors if t.codec in ("lossless", "stored")
        }
        chosen |= dict.fromkeys(exact, "lossless")
        return CompressedModel(
            bytes(data), copy.deepcopy(model), chosen, data.report.rel_error
        )


def _fit(
    arrays: Mapping[str, np.ndarray], profile: CompressionProfile
) -> CompressedBytes:
    """Make the file that the profile asks for."""
    by_size = SizeBudget(ratio=profile.target_compression_ratio)
    progressive = profile.strategy == "padic"
    make = lambda budget: compress(dict(arrays), budget, progressive=progressive)
    if profile.strategy == "lossless":
        return make(SizeBudget(max_abs=0))
    if profile.rel_error is None:
        return make(by_size)
    data = make(SizeBudget(rel_error=profile.rel_error))
    target = sum(a.nbytes for a in arrays.values()) / profile.target_compression_ratio
    if len(data) <= target:
        return data
    if profile.mode == "aggressive":
        return make(by_size)
    warnings.warn(
        f"conservative: an error of at most {profile.rel_error:g} takes {len(data):,} "
        f"bytes, over the {target:,.0f} of target_compression_ratio "
        f"{profile.target_compression_ratio:g}.",
        UserWarning,
        stacklevel=3,
    )
    return data


@functools.cache
def _jax_decode() -> Callable[[CompressedFile, str], np.ndarray] | None:
    if not has_jax():
        return None
    from ._jax_parts import make_jax_parts

    return make_jax_parts(SystemConfiguration())["jax_strategy"].decode
