"""Which strategy suits a tensor, from what is measured on it."""

import dataclasses

import numpy as np

from frugax.budget import SizeBudget
from frugax.compress import compress
from frugax.compress.arrays import QUANTISABLE, named_arrays
from frugax.trees import PyTree

from ._csr import is_sparse, packed, zeros_frac
from ._found import jax_found
from ._profile import CompressionProfile

# From here on "auto" sends a tensor to JAX. A guess: below it, on a CPU, compiling
# takes longer than decoding.
WORTH_A_DEVICE = 1 << 16
_SAMPLE = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True)
class TensorAnalysis:
    """What was measured on a tensor.

    Attributes:
        size: how many numbers.
        dtype: its dtype.
        zeros_frac: the share of zeros.
        quantisable: whether it is of floats, all finite, not all zero.
    """

    size: int
    dtype: str
    zeros_frac: float
    quantisable: bool


class StrategySelector:
    """Chooses a strategy for each tensor.

    Attributes:
        strategy_cache: what was chosen, by the layer's name.

    Args:
        profile: what to aim for; by default `CompressionProfile()`.
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
            TypeError: it is none, or of a dtype that no file can hold.
        """
        array = _array(tensor)
        return TensorAnalysis(
            size=array.size,
            dtype=array.dtype.name,
            zeros_frac=zeros_frac(array),
            quantisable=array.dtype.name in QUANTISABLE
            and bool(np.isfinite(array).all() and array.any()),
        )

    def select_strategy(
        self, tensor: PyTree, layer_name: str = ""
    ) -> tuple[str, TensorAnalysis]:
        """Choose: the profile's strategy where it applies, else what does.

        "lossless" for what cannot be quantised; "csr" where half of a matrix is
        zero; "jax" for 65,536 numbers and more if JAX is here; otherwise "quantised".

        Args:
            tensor: of any library.
            layer_name: its name, for `strategy_cache`.

        Raises:
            TypeError: it is no tensor, or of a dtype that no file can hold.
        """
        analysis = self.analyze_tensor(tensor)
        wanted = self._profile.strategy
        if wanted == "lossless" or not analysis.quantisable:
            chosen = "lossless"
        elif wanted in ("auto", "csr", "hybrid") and is_sparse(_array(tensor)):
            chosen = "csr"
        elif wanted == "jax" or (
            wanted in ("auto", "hybrid") and analysis.size >= WORTH_A_DEVICE
        ):
            here = self._enable_jax and jax_found(wanted_by=f"strategy {wanted!r}")
            chosen = "jax" if here else "quantised"
        else:
            chosen = "quantised"
        self.strategy_cache[layer_name] = chosen
        return chosen, analysis

    def compute_strategy_scores(self, tensor: PyTree) -> dict[str, float]:
        """How many times smaller each strategy makes a sample; measured, not guessed.

        "quantised" is at the error 1 - `preserve_accuracy_threshold`; the others are
        exact. The sample is the first 65,536 numbers, in a file of its own.

        Raises:
            TypeError: it is no tensor, or of a dtype that no file can hold.
        """
        flat = _array(tensor).reshape(-1)[:_SAMPLE]
        array = flat.reshape(1, -1)
        share = round(1 - self._profile.preserve_accuracy_threshold, 12)
        candidates = {
            "lossless": ({"": array}, SizeBudget(max_abs=0)),
            "csr": (packed({"": array}), SizeBudget(max_abs=0)),
            "quantised": ({"": array}, SizeBudget(rel_error=share)),
        }
        return {
            name: array.nbytes / len(compress(tree, budget))
            for name, (tree, budget) in candidates.items()
            if name != "csr" or is_sparse(array)
        }


def _array(tensor: PyTree) -> np.ndarray:
    (array,) = named_arrays([tensor]).values()
    return array
