"""Choose the strategy that suits a tensor, and find out whether JAX is here."""

import functools
import warnings

import numpy as np

from frugax.compress.arrays import QUANTISABLE, named_arrays
from frugax.trees import PyTree

from ._settings import CompressionProfile

# "auto" sends tensors of this size and more to JAX. A guess: for smaller ones, on a
# CPU, compiling takes longer than decoding.
MIN_DEVICE_SIZE = 1 << 16
# A mask costs at most one bit a number, which half of the values repay at once.
_MIN_ZEROS_FRAC = 0.5


@functools.cache
def import_error() -> str | None:
    """Return None if JAX can be imported; otherwise Python's reason."""
    try:
        import jax.numpy  # noqa: F401
    except Exception as e:  # a broken JAX fails in any way, and NumPy does its work
        return f"{type(e).__name__}: {e}".splitlines()[0]
    return None


@functools.cache
def has_jax() -> bool:
    """Whether JAX can be used; warns if not, the first time only."""
    if (reason := import_error()) is None:
        return True
    warnings.warn(
        f"JAX cannot be imported here ({reason}): NumPy does its part, with the same "
        "files and the same numbers. To have it: pip install jax.",
        UserWarning,
        stacklevel=3,
    )
    return False


class StrategySelector:
    """Chooses a strategy for each tensor.

    Args:
        profile: the target; by default `CompressionProfile()`.
        enable_jax: whether "jax" may be chosen.
    """

    def __init__(
        self, profile: CompressionProfile | None = None, *, enable_jax: bool = True
    ) -> None:
        self._wanted = (profile or CompressionProfile()).strategy
        self._enable_jax = enable_jax

    def select_strategy(self, tensor: PyTree) -> str:
        """Choose the profile's strategy where it applies, else another.

        "lossless" for tensors that are not finite floats, or all zero; "csr" where half
        of a matrix is zero; "jax" for 65,536 numbers and more if JAX is here; otherwise
        "quantised".

        Raises:
            TypeError: it is not a tensor, or has a dtype that a file cannot hold.
        """
        (array,) = named_arrays([tensor]).values()
        # NaN and infinity have no level, and the relative error of zeros is undefined.
        quantisable = (
            array.dtype.name in QUANTISABLE and np.isfinite(array).all() and array.any()
        )
        if self._wanted == "lossless" or not quantisable:
            return "lossless"
        if self._wanted in ("auto", "csr") and _is_sparse(array):
            return "csr"
        large = array.size >= MIN_DEVICE_SIZE
        asked = self._wanted == "jax" or (self._wanted == "auto" and large)
        return "jax" if asked and self._enable_jax and has_jax() else "quantised"


def _is_sparse(array: np.ndarray) -> bool:
    # Vectors are biases and scales, which the codec keeps exact. Compared and not
    # counted by bits: -0, which pruning by a mask leaves, equals 0.
    return array.ndim >= 2 and bool((array == 0).mean() >= _MIN_ZEROS_FRAC)
