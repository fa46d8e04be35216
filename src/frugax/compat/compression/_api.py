"""Compress a whole torch model within a profile: the guide's `ModelCompressionAPI`."""

import contextlib
import dataclasses
import functools
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from frugax.budget import SizeBudget
from frugax.compress import CompressedBytes, CompressedFile, compress, reduce_relu
from frugax.compress.search import describe_best_size
from frugax.errors import FrugaxError, InfeasibleBudgetError

from ._compressed_model import CompressedModel
from ._csr import pack_sparse
from ._monitor import Agreement
from ._selector import StrategySelector
from ._settings import CompressionProfile, SystemConfiguration

# torch is imported only when it is needed, so its types are not known here.
TorchModule: TypeAlias = Any

# The factor on (target - 1) after answers on the user's data changed too often.
_BACK_OFF = 0.7
_MAX_TRIES = 6
# The share of hidden units that "tropical" keeps in each mode.
_KEPT_UNITS = {"conservative": 3 / 4, "balanced": 1 / 2, "aggressive": 1 / 4}
# The inputs that its bound is for; the real inputs of a layer are not known here.
_BOX = (-1.0, 1.0)


class ModelCompressionAPI:
    """Compresses torch models within a profile.

    Args:
        profile: the target; by default `CompressionProfile()`.
    """

    def __init__(self, profile: CompressionProfile | None = None) -> None:
        self.profile = profile or CompressionProfile()

    def compress(
        self, model: TorchModule, validation_data: Iterable[Any] | None = None
    ) -> CompressedModel:
        """Put a model's weights into one file; the model is only read.

        With data, the answers of both models are compared. In the mode "conservative"
        the target then gives way until the share of equal answers is at least
        `preserve_accuracy_threshold`, at last to a lossless file.

        Args:
            model: the model.
            validation_data: batches of inputs, or of tuples whose first part is the
                input; used more than once, so not an iterator.

        Raises:
            ConfigError: torch does not have the profile's device here.
            InfeasibleBudgetError: no file is as small as the target.
            TypeError: the model's state holds values that a file of weights cannot.
        """
        compressed = self._compress(model, self.profile)
        if validation_data is not None:
            # A list, because the original and every attempt are called on the same
            # batches.
            batches = list(validation_data)
            compressed.validation = _compare(model, compressed, batches)
            # The other modes promise a size; only this one promises answers.
            if self.profile.mode == "conservative":
                compressed = self._relax_target(model, compressed, batches)
        self._warn_if_missed(compressed)
        return compressed

    def analyze_compressibility(self, model: TorchModule) -> dict[str, Any]:
        """Return measurements on every weight, and the strategy that suits it.

        Raises:
            TypeError: the model's state holds values that a file of weights cannot.
        """
        from ._torch import read_state

        rows: dict[str, Any] = {}
        selector = StrategySelector(self.profile)
        for name, array in read_state(model).items():
            strategy, analysis = selector.select_strategy(array, name)
            rows[name] = {
                "strategy": strategy,
                "analysis": analysis,
                "measured_ratios": selector.compute_strategy_scores(array),
            }
        return rows

    def benchmark_compression(
        self, model: TorchModule, ratios: Sequence[float] = (2.0, 4.0, 8.0)
    ) -> list[dict[str, Any]]:
        """Compress at each ratio and measure bytes, error and seconds.

        An unreachable ratio has its reason under "error" and no numbers.

        Raises:
            TypeError: the model's state holds values that a file of weights cannot.
        """
        rows: list[dict[str, Any]] = []
        for ratio in ratios:
            profile = self._change_profile(target_compression_ratio=ratio)
            started = time.perf_counter()
            try:
                compressed = self._compress(model, profile)
            except FrugaxError as e:
                rows.append({"target_ratio": ratio, "error": str(e)})
                continue
            # Decoding is timed as well: a small file that is slow to read is no
            # bargain.
            coded = time.perf_counter()
            compressed.decompress()
            stats = compressed.get_compression_stats()
            rows.append(
                {
                    "target_ratio": ratio,
                    "file_bytes": len(compressed.data),
                    "ratio": stats["total_compression_ratio"],
                    "rel_error": compressed.rel_error,
                    "compression_s": coded - started,
                    "decompression_s": time.perf_counter() - coded,
                }
            )
        return rows

    def _compress(
        self, model: TorchModule, profile: CompressionProfile
    ) -> CompressedModel:
        from ._torch import check_device, find_relu_pairs, make_skeleton, read_state

        device = None if profile.device == "auto" else profile.device
        check_device(device)
        arrays = read_state(model)
        original_bytes = sum(array.nbytes for array in arrays.values())
        selector = StrategySelector(profile)
        chosen = {n: selector.select_strategy(a, n)[0] for n, a in arrays.items()}
        notes: list[str] = []
        merged: list[str] = []
        skeleton = make_skeleton(model)
        if profile.strategy in ("tropical", "hybrid"):
            pairs = find_relu_pairs(model)
            arrays, merged, remarks = _merge_units(arrays, pairs, mode=profile.mode)
            # Merging changes the weights before any codec sees them, so it is the
            # strategy that users look for in the map.
            chosen |= dict.fromkeys(merged, "tropical")
            notes += remarks
        if profile.strategy == "padic":
            notes.append(
                "padic: the digits of the weights' levels in base 2, the highest "
                "first, so that a part of the file is a coarser model; there is no "
                "other codec of that name."
            )
        sparse = {n: a for n, a in arrays.items() if chosen[n] == "csr"}
        # All weights go into one file with one budget: the search then spends bytes
        # where they reduce the error most, across layers.
        stored = {n: a for n, a in arrays.items() if n not in sparse}
        stored |= pack_sparse(sparse)
        if profile.strategy == "csr" and not sparse:
            notes.append(
                "csr: no matrix is half zeros, so all went to the other codec."
            )
        data, remark = _fit(stored, profile, original_bytes)
        if remark:
            notes.append(remark)
        return CompressedModel(
            bytes(data),
            skeleton,
            strategy_map=_actual_strategies(chosen, data),
            original_bytes=original_bytes,
            notes=tuple(notes),
            # Merged weights have no originals to be compared with.
            rel_error=None if merged else data.report.rel_error,
            device=device,
            decode_on_device=self._jax_decode if "jax" in chosen.values() else None,
        )

    def _relax_target(
        self, model: TorchModule, compressed: CompressedModel, batches: list[Any]
    ) -> CompressedModel:
        """Lower the target until enough answers are those of the original."""
        threshold = self.profile.preserve_accuracy_threshold
        ratio = self.profile.target_compression_ratio
        for attempt in range(1, _MAX_TRIES + 1):
            agreement = compressed.validation
            if agreement is None or agreement.same_frac >= threshold:
                break
            # The distance to a ratio of 1 shrinks, and not the ratio itself, which
            # would fall below 1.
            ratio = 1 + _BACK_OFF * (ratio - 1)
            profile = self._change_profile(target_compression_ratio=ratio)
            target = f"is a ratio of {ratio:.3g}."
            # The last attempt is lossless, so this loop ends with equal answers
            # whatever the threshold is.
            if attempt == _MAX_TRIES:
                profile = self._change_profile(strategy="lossless")
                target = "is to lose nothing."
            compressed = self._compress(model, profile)
            compressed.validation = _compare(model, compressed, batches)
            compressed.notes += (
                "conservative: answers on the data changed too often, so the target "
                + target,
            )
        return compressed

    def _change_profile(self, **changes: Any) -> CompressionProfile:
        # Fields without effect warned when the user built the profile; once is enough.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dataclasses.replace(self.profile, **changes)

    def _warn_if_missed(self, compressed: CompressedModel) -> None:
        ratio = compressed.get_compression_stats()["total_compression_ratio"]
        target = self.profile.target_compression_ratio
        # The size of a lossless file is not a choice, and its note says so.
        exact = self.profile.strategy == "lossless"
        if self.profile.verbose and ratio < target and not exact:
            warnings.warn(
                f"the file is {ratio:.3g}x smaller, not {target:g}x. "
                f"{' '.join(compressed.notes)}",
                UserWarning,
                stacklevel=3,
            )

    @functools.cached_property
    def _jax_decode(self) -> Callable[[CompressedFile, str], Any]:
        from ._jax_strategy import make_jax_parts

        return make_jax_parts(SystemConfiguration(), None)["jax_strategy"].decode


def _compare(
    model: TorchModule, compressed: CompressedModel, batches: list[Any]
) -> Agreement:
    from ._torch import compare_answers

    return compare_answers(model, compressed.decompress(), batches)


def _actual_strategies(
    chosen: Mapping[str, str], data: CompressedBytes
) -> dict[str, str]:
    """Correct the choices: a small tensor may have stayed exact after all."""
    # The report knows the codecs: of a small tensor the step and the tables of the
    # coder can take more bytes than the levels save.
    exact = {t.name for t in data.report.tensors if t.codec in ("lossless", "stored")}
    return {
        name: "lossless" if name in exact and strategy != "tropical" else strategy
        for name, strategy in chosen.items()
    }


def _fit(
    arrays: Mapping[str, np.ndarray], profile: CompressionProfile, original_bytes: int
) -> tuple[CompressedBytes, str]:
    """Make the file that the profile asks for, and a note if it misses the target."""
    # In bytes of the whole model, since shared weights and packed ones change the bytes
    # that the codec is given.
    target = math.floor(original_bytes / profile.target_compression_ratio)
    by_size = SizeBudget(bytes=max(1, target))
    progressive = profile.strategy == "padic"
    make = functools.partial(compress, dict(arrays), progressive=progressive)

    def at_target() -> CompressedBytes:
        try:
            return make(by_size)
        except InfeasibleBudgetError as e:  # in bytes, but the profile has a ratio
            asked, best = describe_best_size(
                SizeBudget(ratio=profile.target_compression_ratio),
                int(e.needed),
                original_bytes=original_bytes,
                weights=0,
            )
            e.what, e.reachable = f"{asked}{e.what}", e.reachable | best
            raise

    if profile.strategy == "lossless":
        data = make(SizeBudget(max_abs=0))
        return data, _note_miss(data, target, "lossless: the ratio is not a choice")
    if profile.mode == "balanced" or profile.rel_error is None:
        return at_target(), ""
    # The looser error is tried first; if the file misses the size even so, the size
    # decides.
    if profile.mode == "aggressive":
        small = make(SizeBudget(rel_error=profile.rel_error))
        if len(small) <= target:
            return small, ""
        return at_target(), ""
    with contextlib.suppress(InfeasibleBudgetError):  # the error goes before the size
        data = make(by_size)
        if data.report.rel_error <= profile.rel_error:
            return data, ""
    data = make(SizeBudget(rel_error=profile.rel_error))
    reason = f"conservative: the error stays within {profile.rel_error:g}"
    return data, _note_miss(data, target, reason)


def _note_miss(data: bytes, target: int, reason: str) -> str:
    if len(data) <= target:
        return ""
    return f"{reason}, so the file has {len(data):,} bytes, over {target:,}."


def _merge_units(
    arrays: Mapping[str, np.ndarray], pairs: Sequence[tuple[str, str]], *, mode: str
) -> tuple[dict[str, np.ndarray], list[str], list[str]]:
    """Merge the hidden units of every Linear -> ReLU -> Linear.

    Args:
        arrays: the model's weights by name, as torch has them.
        pairs: the names of the two layers of each, in the order of the model.
        mode: the profile's mode, which decides how many units stay.

    Returns:
        The weights, the names of those that changed, and a sentence for each pair.
    """
    merged = dict(arrays)
    changed: list[str] = []
    notes: list[str] = []
    for first, second in pairs:
        w1, w2 = (merged[f"{name}.weight"] for name in (first, second))
        # A layer without a bias counts as one with zeros here, and gets none below:
        # `new` keeps only names that the model has.
        b1, b2 = (
            merged.get(f"{name}.bias", np.zeros(len(w), w.dtype))
            for name, w in ((first, w1), (second, w2))
        )
        if not all(np.isfinite(a).all() for a in (w1, b1, w2, b2)):
            notes.append(f"tropical: {first} and {second} hold numbers not finite.")
            continue
        hidden = max(1, round(_KEPT_UNITS[mode] * len(b1)))
        # torch's Linear weights are (out, in); reduce_relu takes x @ w1.
        small = reduce_relu((w1.T, b1, w2.T, b2), hidden=hidden, box=_BOX)
        new = {
            f"{first}.weight": np.ascontiguousarray(small.w1.T),
            f"{first}.bias": small.b1,
            f"{second}.weight": np.ascontiguousarray(small.w2.T),
        }
        new = {name: array for name, array in new.items() if name in merged}
        merged |= new
        changed += new
        notes.append(
            f"tropical: {len(b1)} hidden units between {first} and {second} became "
            f"{hidden}; for inputs in [-1, 1] this changes no output of {second} by "
            f"more than {float(small.bound.max()):.4g}; the codec's error comes on top."
        )
    if not pairs:
        notes.append(
            "tropical: not applicable, because no Linear, ReLU, Linear follow each "
            "other in a Sequential; all went to the other codecs."
        )
    return merged, changed, notes
