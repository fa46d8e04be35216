"""Choose the strategy that suits a tensor, from measurements on it."""

import dataclasses
import functools
import warnings

import numpy as np

from frugax.budget import SizeBudget
from frugax.compress import compress
from frugax.compress.arrays import QUANTISABLE, named_arrays
from frugax.trees import PyTree

from ._csr import is_sparse, pack_sparse, zeros_frac
from ._settings import CompressionProfile

# "auto" sends tensors of this size and more to JAX. A guess: for smaller ones, on a
# CPU, compiling takes longer than decoding.
MIN_DEVICE_SIZE = 1 << 16
# Enough numbers for stable ratios, few enough to code three times for a report.
_SAMPLE = 1 << 16


@functools.cache
def why_no_jax() -> str | None:
    """Return None if JAX can be imported; otherwise Python's reason."""
    try:
        import jax.numpy  # noqa: F401
    except Exception as e:  # a broken JAX fails in any way, and NumPy does its work
        return f"{type(e).__name__}: {e}".splitlines()[0]
    return None


@functools.cache
def _warn_once(requester: str, reason: str) -> None:
    warnings.warn(
        f"{requester} asked for JAX, which cannot be imported here ({reason}): NumPy "
        "does its part, with the same files and the same numbers. To have it: pip "
        "install jax.",
        UserWarning,
        stacklevel=4,
    )


def has_jax(*, requester: str) -> bool:
    """Whether JAX can be used; warns the first time that it cannot."""
    reason = why_no_jax()
    if reason is None:
        return True
    # The guide promises "a warning": a loop over a hundred tensors must not make a
    # hundred, so one is enough whoever asks.
    if not _warn_once.cache_info().currsize:
        _warn_once(requester, reason)
    return False


@dataclasses.dataclass(frozen=True, slots=True)
class TensorAnalysis:
    """Measurements on a tensor.

    Attributes:
        size: how many numbers.
        dtype: its dtype.
        zeros_frac: the share of zeros.
        quantisable: whether it has floats, all finite, not all zero.
    """

    size: int
    dtype: str
    zeros_frac: float
    quantisable: bool


class StrategySelector:
    """Chooses a strategy for each tensor.

    Attributes:
        strategy_cache: the choices so far, by the layer's name.

    Args:
        profile: the target; by default `CompressionProfile()`.
        enable_jax: whether "jax" may be chosen.
    """

    def __init__(
        self, profile: CompressionProfile | None = None, *, enable_jax: bool = True
    ) -> None:
        self._profile = profile or CompressionProfile()
        self._enable_jax = enable_jax
        self.strategy_cache: dict[str, str] = {}

    def analyze_tensor(self, tensor: PyTree) -> TensorAnalysis:
        """Measure a tensor of any library.

        Raises:
            TypeError: it is not a tensor, or has a dtype that a file cannot hold.
        """
        array = _to_array(tensor)
        return TensorAnalysis(
            size=array.size,
            dtype=array.dtype.name,
            zeros_frac=zeros_frac(array),
            # NaN and infinity have no level, and the relative error of zeros is
            # undefined.
            quantisable=array.dtype.name in QUANTISABLE
            and bool(np.isfinite(array).all() and array.any()),
        )

    def select_strategy(
        self, tensor: PyTree, layer_name: str = ""
    ) -> tuple[str, TensorAnalysis]:
        """Choose the profile's strategy where it applies, else another.

        "lossless" for tensors that cannot be quantised; "csr" where half of a matrix is
        zero; "jax" for 65,536 numbers and more if JAX is here; otherwise "quantised".

        Args:
            tensor: of any library.
            layer_name: its name, for `strategy_cache`.

        Raises:
            TypeError: it is not a tensor, or has a dtype that a file cannot hold.
        """
        analysis = self.analyze_tensor(tensor)
        wanted = self._profile.strategy
        large = analysis.size >= MIN_DEVICE_SIZE
        chosen = "quantised"
        if wanted == "lossless" or not analysis.quantisable:
            chosen = "lossless"
        elif wanted in ("auto", "csr", "hybrid") and is_sparse(_to_array(tensor)):
            chosen = "csr"
        elif (
            (wanted == "jax" or (wanted in ("auto", "hybrid") and large))
            and self._enable_jax
            and has_jax(requester=f"strategy {wanted!r}")
        ):
            chosen = "jax"
        self.strategy_cache[layer_name] = chosen
        return chosen, analysis

    def compute_strategy_scores(self, tensor: PyTree) -> dict[str, float]:
        """Measure how many times smaller each strategy makes a sample.

        "quantised" is at the error 1 - `preserve_accuracy_threshold`; the others are
        exact. The sample is the first 65,536 numbers, in a file of its own.

        Raises:
            TypeError: it is not a tensor, or has a dtype that a file cannot hold.
        """
        # One row with two axes, because vectors are kept exact.
        flat = _to_array(tensor).reshape(-1)[:_SAMPLE]
        array = flat.reshape(1, -1)
        share = round(1 - self._profile.preserve_accuracy_threshold, 12)
        candidates = {
            "lossless": ({"": array}, SizeBudget(max_abs=0)),
            "csr": (pack_sparse({"": array}), SizeBudget(max_abs=0)),
            "quantised": ({"": array}, SizeBudget(rel_error=share)),
        }
        return {
            name: array.nbytes / len(compress(tree, budget))
            for name, (tree, budget) in candidates.items()
            if name != "csr" or is_sparse(array)
        }


def _to_array(tensor: PyTree) -> np.ndarray:
    (array,) = named_arrays([tensor]).values()
    return array
