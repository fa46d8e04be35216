"""A torch model as one `.fxz` file in memory, and as a model again."""

import dataclasses
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from frugax.compress import CompressedFile, Record
from frugax.compress.arrays import dtype_from_name
from frugax.fileio import write_whole

from ._csr import CsrMatrix, list_packed, part_names, to_csr, unpack_sparse
from ._monitor import Agreement

# torch is imported only when it is needed, so its types are not known here.
TorchModule: TypeAlias = Any


class CompressedModel:
    """A compressed model: a file, and the model without its weights.

    It is not a torch module: `decompress()` gives one. Calling it decodes the model
    once and calls that; memory then holds the dense weights, because nothing here
    computes on compressed ones.

    Attributes:
        data: the bytes of the `.fxz` file.
        strategy_map: the strategy of each tensor. In a model that was loaded: the codec
            that the file names, which does not record the decoder.
        notes: decisions against the target, and strategies that did not apply.
        rel_error: ||decoded - original|| / ||original|| over all finite float weights;
            None in a model that was loaded, and after "tropical" has merged units: the
            remaining weights have no originals. The notes bound the change.
        validation: agreement with the original on the data given to `compress`; None
            without data.
    """

    def __init__(
        self,
        data: bytes,
        skeleton: Any,
        *,
        strategy_map: Mapping[str, str],
        original_bytes: int,
        notes: tuple[str, ...] = (),
        rel_error: float | None = None,
        device: str | None = None,
        decode_on_device: Callable[[CompressedFile, str], Any] | None = None,
    ) -> None:
        """Use `ModelCompressionAPI.compress` or `CompressedModel.load`."""
        self.data = data
        self.strategy_map = dict(strategy_map)
        self.notes = notes
        self.rel_error = rel_error
        self._skeleton, self._device = skeleton, device
        self._original_bytes = original_bytes
        self._decode_on_device = decode_on_device
        self.validation: Agreement | None = None
        self._cached: TorchModule = None
        self._keep = True
        self._calls = self._decodings = 0
        self._decoding_s = 0.0

    def decompress(self) -> TorchModule:
        """Return a new model with the decoded weights, on the original's devices.

        Raises:
            CorruptFileError: the bytes are damaged.
        """
        from ._torch import fill_skeleton

        started = time.perf_counter()
        with CompressedFile(self.data, place="the compressed model") as file:
            file.check()
            weights = {name: self._tensor(file, name) for name in weight_names(file)}
        model = fill_skeleton(self._skeleton, weights, self._device)
        self._decoding_s += time.perf_counter() - started
        self._decodings += 1
        return model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the decoded model, which is kept unless `disable_cache` was called."""
        self._calls += 1
        model = self._cached or self.decompress()
        if self._keep:
            self._cached = model
        return model(*args, **kwargs)

    __call__ = forward

    def enable_cache(self) -> None:
        """Keep the decoded model from the next call on, which is the default."""
        self._keep = True

    def disable_cache(self) -> None:
        """Decode anew at each call: slow, and without dense weights in between."""
        self._keep = False
        self.clear_cache()

    def clear_cache(self) -> None:
        """Drop the decoded model."""
        self._cached = None

    def csr(self, name: str) -> CsrMatrix:
        """Return a decoded matrix in CSR form, to compute with elsewhere.

        Args:
            name: the weight's name in the model.

        Raises:
            KeyError: the model does not have the weight.
            ValueError: it is not a matrix.
        """
        with CompressedFile(self.data, place="the compressed model") as file:
            return to_csr(_decode(file, name))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the `.fxz` file, whole or not at all. It holds weights and no code.

        Raises:
            OutputError: it could not be written.
        """
        write_whole(path, self.data)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        build: Callable[[], TorchModule],
        *,
        device: str | None = None,
    ) -> "CompressedModel":
        """Read a file that `save` wrote; nothing in the file is executed.

        Args:
            path: the `.fxz` file.
            build: makes a model like the one that was compressed; its weights are
                thrown away. `Linear` layers that "tropical" narrowed are narrowed.
            device: where the weights go; by default where `build` puts them.

        Raises:
            ConfigError: torch has no such device here.
            CorruptFileError: the file is damaged.
            FileNotFoundError: there is no such file.
            TypeError: `build` is not a function, or does not give a torch module.
            UnsupportedFileError: it is not an `.fxz` file, or is of a newer version.
            ValueError: the file holds the weights of another model.
        """
        from ._torch import build_module, check_device, make_skeleton, state_bytes

        check_device(device)
        # Read whole: a mapped file could change between the check and the decoding.
        data = Path(path).read_bytes()
        # The file has no code, so the caller builds the module; only its names and
        # shapes are used.
        model = build_module(build)
        with CompressedFile(data, place=os.fspath(path)) as file:
            file.check()
            codecs = {name: _codec(file, name) for name in weight_names(file)}
        loaded = cls(
            data,
            make_skeleton(model),
            strategy_map=codecs,
            original_bytes=state_bytes(model),
            device=device,
        )
        loaded._cached = loaded.decompress()  # another model's file fails here
        return loaded

    def get_compression_stats(self) -> dict[str, Any]:
        """Return the bytes of the file and the seconds of decoding, all measured.

        Layers are counted from the original's bytes; those that "tropical" narrowed
        have no `rel_error`.
        """
        from ._torch import weight_shapes

        with CompressedFile(self.data, place="the compressed model") as file:
            records = file.header.tensors
        largest = sorted(records, key=lambda record: -record.stored_bytes)[:5]
        shapes = weight_shapes(self._skeleton)
        return {
            "total_compression_ratio": self._original_bytes / len(self.data),
            "total_original_size_mb": self._original_bytes / 1e6,
            "total_compressed_size_mb": len(self.data) / 1e6,
            "num_layers_compressed": sum(r.stored_bytes < r.nbytes for r in records),
            "strategy_distribution": dict(Counter(self.strategy_map.values())),
            "rel_error": self.rel_error,
            "top_compressed_layers": [
                _layer_row(record, shapes.get(record.name, record.shape))
                for record in largest
            ],
            "forward_passes": self._calls,
            "total_decompression_time": self._decoding_s,
            "avg_decompression_time": self._decoding_s / max(1, self._decodings),
            "cache_enabled": self._keep,
            "cache_size": int(self._cached is not None),
            "validation": self.validation and dataclasses.asdict(self.validation),
        }

    def _tensor(self, file: CompressedFile, name: str) -> Any:
        from ._torch import from_dlpack, to_tensor

        on_device = self.strategy_map.get(name) == "jax"
        if on_device and self._decode_on_device is not None:
            # Nobody else holds the decoded array: torch may have its memory.
            return from_dlpack(self._decode_on_device(file, name), copy=False)
        return to_tensor(_decode(file, name))


def weight_names(file: Mapping[str, np.ndarray]) -> list[str]:
    """Return the names of the model's weights: packed ones once, by their own name."""
    packed = list_packed(list(file))
    parts = {part for name in packed for part in part_names(name)}
    return [*packed, *(name for name in file if name not in parts)]


def _decode(file: CompressedFile, name: str) -> np.ndarray:
    places, values = part_names(name)
    if places in file:
        return unpack_sparse(file[places], file[values])
    return file[name]


def _codec(file: CompressedFile, name: str) -> str:
    if part_names(name)[0] in file:
        return "csr"
    return file.record(name).codec


def _layer_row(record: Record, shape: tuple[int, ...]) -> dict[str, Any]:
    # `shape` is that of the model's weight, before "tropical" narrowed it.
    before = math.prod(shape) * dtype_from_name(record.dtype).itemsize
    return {
        "name": record.name,
        "codec": record.codec,
        "bytes": record.stored_bytes,
        "compression_ratio": before / max(1, record.stored_bytes),
        "rel_error": record.rel_error if shape == record.shape else None,
    }
