"""Compress a whole torch model within a profile, and read it again."""

import copy
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from frugax.compress import CompressedFile
from frugax.compress.arrays import to_library
from frugax.fileio import write_whole

from ._coordinator import SystemIntegrationCoordinator
from ._settings import CompressionProfile
from ._strategies import StrategySelector, compress_within

# torch is imported only by those who have it, so its types are not known here.
TorchModule: TypeAlias = Any


class CompressedModel:
    """A compressed model: the bytes of a file, and the model that they fill.

    Calling it decodes the model once and calls that; memory then holds the dense
    weights, because nothing here computes on compressed ones.

    Attributes:
        data: the bytes of the `.fxz` file.
        strategy_map: who decodes each tensor: "jax", "numpy", or "lossless" for exact
            ones.
    """

    def __init__(
        self, data: bytes, model: TorchModule, selector: StrategySelector
    ) -> None:
        """Use `ModelCompressionAPI.compress` or `CompressedModel.load`."""
        self.data, self._model, self._selector = data, model, selector
        self._decoded: TorchModule = None
        with CompressedFile(data, place="the compressed model") as file:
            # A tied weight has no bytes of its own.
            own = [r for r in file.header.tensors if not r.tied]
            self._original_bytes = sum(r.nbytes for r in own)
            self.strategy_map = {
                record.name: selector.select_strategy(record)
                for record in file.header.tensors
            }

    def decompress(self) -> TorchModule:
        """Return a new model with the decoded weights, on the original's devices.

        Raises:
            CorruptFileError: the bytes are damaged.
            RuntimeError: they are the weights of another model.
        """
        model = copy.deepcopy(self._model)
        own = model.state_dict()
        # A weight without a place is left to torch, whose error lists all of them.
        anywhere = next(iter(own.values()), None)
        weights = {
            name: to_library(array, own.get(name, anywhere))
            for name, array in self._selector.decode(self.data).items()
        }
        model.load_state_dict(weights)
        return model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the decoded model, which is kept."""
        if self._decoded is None:
            self._decoded = self.decompress()
        return self._decoded(*args, **kwargs)

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
            RuntimeError: the file holds the weights of another model.
        """
        selector = SystemIntegrationCoordinator().selector_for(CompressionProfile())
        loaded = cls(Path(path).read_bytes(), build(), selector)
        loaded._decoded = loaded.decompress()  # another model's file fails here
        return loaded

    def get_compression_stats(self) -> dict[str, float]:
        """Return the bytes of weights and file, and their ratio, all measured."""
        return {
            "total_compression_ratio": self._original_bytes / len(self.data),
            "total_original_size_mb": self._original_bytes / 1e6,
            "total_compressed_size_mb": len(self.data) / 1e6,
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

        Warns:
            UserWarning: the error of the mode "conservative" misses the target ratio.
        """
        if not hasattr(model, "load_state_dict"):
            raise TypeError(
                f"ModelCompressionAPI compresses torch modules, got a "
                f"{type(model).__name__}: trees of arrays go to frugax.compress.save, "
                "one tensor to SystemIntegrationCoordinator."
            )
        profile = self.profile
        data = compress_within(model, profile.budgets)
        ratio, target = data.report.ratio, profile.target_compression_ratio
        if ratio < target and profile.strategy != "lossless":
            warnings.warn(
                f"the error that the mode {profile.mode!r} allows takes a ratio of "
                f"{ratio:.3g}; target_compression_ratio is {target:g}.",
                UserWarning,
                stacklevel=2,
            )
        selector = SystemIntegrationCoordinator().selector_for(profile)
        return CompressedModel(bytes(data), copy.deepcopy(model), selector)
