"""A whole torch model within a profile: the guide's `ModelCompressionAPI`."""

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from frugax.compress.container import CompressedFile
from frugax.errors import FrugaxError

from ._agreement import Agreement
from ._compressed_model import CompressedModel
from ._csr import packed
from ._fit import Fitted, fit
from ._profile import CompressionProfile
from ._selector import StrategySelector
from ._system import SystemConfiguration
from ._tropical import narrowed

# torch is imported when a module is met, so its types are not known here.
TorchModule: TypeAlias = Any

# By how much (target - 1) shrinks when data of the user's own shows too much harm.
_BACK = 0.7
_MOST_TRIES = 6


class ModelCompressionAPI:
    """Compresses torch models as a profile says.

    Args:
        profile: what to aim for; by default `CompressionProfile()`.
    """

    def __init__(self, profile: CompressionProfile | None = None) -> None:
        self.profile = profile or CompressionProfile()

    def compress(
        self, model: TorchModule, validation_data: Iterable[Any] | None = None
    ) -> CompressedModel:
        """Put a model's weights into one file; the model is only read.

        With data, the answers of both models are compared. In the mode "conservative"
        the target then gives way until the share of equal answers is at least
        `preserve_accuracy_threshold`, and at last nothing is lost any more.

        Args:
            model: the model.
            validation_data: batches of inputs, or of tuples whose first part is the
                input; used more than once, so no iterator.

        Raises:
            ConfigError: torch has no such device as the profile's here.
            InfeasibleBudgetError: no file is as small as the target.
            TypeError: the model's state holds what no file of weights can.
        """
        found = self._compressed(model, self.profile)
        if validation_data is None:
            return self._told(found)
        batches = list(validation_data)
        found.validation = agreement_of(model, found, batches)
        if self.profile.mode == "conservative":
            found = self._until_kept(model, found, batches)
        return self._told(found)

    def analyze_compressibility(self, model: TorchModule) -> dict[str, Any]:
        """What every weight is like, and which strategy the profile has for it.

        Raises:
            TypeError: the model's state holds what no file of weights can.
        """
        from ._torch import state_of

        found: dict[str, Any] = {}
        selector = StrategySelector(self.profile)
        for name, array in state_of(model).items():
            strategy, analysis = selector.select_strategy(array, name)
            found[name] = {
                "strategy": strategy,
                "analysis": analysis,
                "measured_ratios": selector.compute_strategy_scores(array),
            }
        return found

    def benchmark_compression(
        self, model: TorchModule, ratios: Sequence[float] = (2.0, 4.0, 8.0)
    ) -> list[dict[str, Any]]:
        """Compress at each ratio and measure: bytes, error, seconds.

        A ratio that nothing reaches has its reason under "error" and no numbers.

        Raises:
            TypeError: the model's state holds what no file of weights can.
        """
        rows: list[dict[str, Any]] = []
        for ratio in ratios:
            started = time.perf_counter()
            try:
                found = self._compressed(model, self._aiming(ratio))
            except FrugaxError as e:
                rows.append({"target_ratio": ratio, "error": str(e)})
                continue
            coded = time.perf_counter()
            found.decompress()
            rows.append(
                {
                    "target_ratio": ratio,
                    "file_bytes": len(found.data),
                    "ratio": found.get_compression_stats()["total_compression_ratio"],
                    "rel_error": found.rel_error,
                    "compression_s": coded - started,
                    "decompression_s": time.perf_counter() - coded,
                }
            )
        return rows

    def _compressed(
        self, model: TorchModule, profile: CompressionProfile
    ) -> CompressedModel:
        from ._torch import check_device, relu_pairs, skeleton_of, state_of

        device = None if profile.device == "auto" else profile.device
        check_device(device)
        arrays = state_of(model)
        original_bytes = sum(array.nbytes for array in arrays.values())
        selector = StrategySelector(profile)
        chosen = {n: selector.select_strategy(a, n)[0] for n, a in arrays.items()}
        notes: list[str] = []
        merged: list[str] = []
        skeleton = skeleton_of(model)
        if profile.strategy in ("tropical", "hybrid"):
            pairs = relu_pairs(model)
            arrays, merged, said = narrowed(arrays, pairs, mode=profile.mode)
            chosen |= dict.fromkeys(merged, "tropical")
            notes += said
        if profile.strategy == "padic":
            notes.append(
                "padic: the digits of the weights' levels in base 2, the highest "
                "first, so that a part of the file is a coarser model; there is no "
                "other codec of that name."
            )
        sparse = {n: a for n, a in arrays.items() if chosen[n] == "csr"}
        packed_arrays = {n: a for n, a in arrays.items() if n not in sparse}
        packed_arrays |= packed(sparse)
        if profile.strategy == "csr" and not sparse:
            notes.append(
                "csr: no matrix is half zeros, so all went to the other codec."
            )
        fitted = fit(
            packed_arrays,
            profile,
            original_bytes=original_bytes,
            exact=profile.strategy == "lossless",
            progressive=profile.strategy == "padic",
        )
        return CompressedModel(
            fitted.data,
            skeleton,
            strategy_map=_as_stored(chosen, fitted),
            original_bytes=original_bytes,
            notes=(*notes, *fitted.notes),
            rel_error=None if merged else fitted.rel_error,
            device=device,
            on_device=self._on_device if "jax" in chosen.values() else None,
        )

    def _until_kept(
        self, model: TorchModule, found: CompressedModel, batches: list[Any]
    ) -> CompressedModel:
        """Let the target give way until the answers are the original's."""
        least, ratio = (
            self.profile.preserve_accuracy_threshold,
            self.profile.target_compression_ratio,
        )
        for tried in range(_MOST_TRIES):
            if found.validation is None or found.validation.same_frac >= least:
                return found
            ratio = 1 + _BACK * (ratio - 1)
            last = tried == _MOST_TRIES - 1
            profile = (
                dataclasses.replace(self.profile, strategy="lossless")
                if last
                else self._aiming(ratio)
            )
            found = self._compressed(model, profile)
            found.validation = agreement_of(model, found, batches)
            found.notes += (
                "conservative: answers on the data changed too often, so the target "
                + ("is to lose nothing." if last else f"is a ratio of {ratio:.3g}."),
            )
        return found

    def _aiming(self, ratio: float) -> CompressionProfile:
        return dataclasses.replace(self.profile, target_compression_ratio=ratio)

    def _told(self, found: CompressedModel) -> CompressedModel:
        """Say what went against the target, unless the profile is quiet."""
        ratio = found.get_compression_stats()["total_compression_ratio"]
        target = self.profile.target_compression_ratio
        exact = self.profile.strategy == "lossless"
        if self.profile.verbose and ratio < target and not exact:
            warnings.warn(
                f"the file is {ratio:.3g}x smaller, not {target:g}x. "
                f"{' '.join(found.notes)}",
                UserWarning,
                stacklevel=3,
            )
        return found

    @functools.cached_property
    def _on_device(self) -> Callable[[CompressedFile, str], Any]:
        from ._jax_parts import jax_parts

        return jax_parts(SystemConfiguration(), None)["jax_strategy"].decoded


def agreement_of(
    model: TorchModule, found: CompressedModel, batches: list[Any]
) -> Agreement:
    """Compare a model with its compressed form on data."""
    from ._torch import agreement

    return agreement(model, found.decompress(), batches)


def _as_stored(chosen: Mapping[str, str], fitted: Fitted) -> dict[str, str]:
    """What became of each tensor: a small one may have stayed exact after all."""
    codecs = {record.name: record.codec for record in fitted.records}
    exact = ("lossless", "stored")
    return {
        name: "lossless" if codecs.get(name) in exact and how != "tropical" else how
        for name, how in chosen.items()
    }
