"""`Source`: a tensor of the search, the forms that suit it and its constraints."""

import dataclasses
import functools
import math

import numpy as np

from ..arrays import Distortion, Tensor
from ..codecs import (
    MAX_LEVEL,
    MIN_STEP,
    ChannelScaling,
    Form,
    RowScaling,
    Step,
    compute_type,
    grid,
    step_below,
    to_levels,
    to_values,
)
from ._exact import ExactCoding

# Below this, or with one axis (biases, norms), a tensor is "small": it costs few bytes
# and its errors do much.
_SMALL_SIZE = 256
# Larger tensors without negative numbers are not the scales of a norm; numbers this
# many times below the geometric mean count as if they were not smaller.
_MOST_DIVISORS, _DIVISOR_RANGE = 1 << 16, 64
# Fewer numbers do not pay for the tables of a trellis, and up to the second size both
# codecs are tried.
_MIN_TRELLIS, _TRY_BOTH = 1 << 10, 1 << 14
# An empty block of levels takes this much, and so do a step and its errors in the
# header.
_MIN_STEPPED_BYTES, STEP_BYTES = 22, 12
# The trellis rounds to an integer of one residue modulo 4, which may be 2 steps off; 8
# keeps the outermost number clear of the limit.
_MAX_TRELLIS_LEVEL = grid.MAX_FAR_LEVEL - 8
_ABOVE = 1 + 2.0**-9  # a step's mantissa has 11 bits
# The form of tensors of few numbers, and of a limit of the largest error.
UNIFORM = Form(trellis=False)
# A trellis of this share of a uniform step makes the same error: 0.26 and 1/12 steps^2.
TRELLIS_STEP = math.sqrt(1 / 12 / 0.26)


@dataclasses.dataclass(frozen=True, eq=False)
class Source(Tensor):
    """One tensor to compress.

    Attributes:
        scaling: how the steps of its rows differ; None where one step is for all.
        ties: places in the tree and names of tensors that are tied to it.
    """

    scaling: RowScaling | ChannelScaling | None = None
    ties: tuple[tuple[int, str], ...] = ()

    @property
    def quantisable(self) -> bool:
        """Whether some step keeps something of the tensor; else it stays exact."""
        return not self.tiny and self.max_abs >= MIN_STEP.size

    @property
    def tiny(self) -> bool:
        """Whether no coding is shorter than the weights as they are."""
        return self.array.nbytes <= _MIN_STEPPED_BYTES + STEP_BYTES

    @property
    def tries_both(self) -> bool:
        """Whether a uniform grid may be shorter than a trellis."""
        return self.array.size <= _TRY_BOTH

    @functools.cached_property
    def exact(self) -> ExactCoding:
        """The lossless coding."""
        return ExactCoding(self)

    @property
    def small(self) -> bool:
        """Whether to keep it much more exact than the others."""
        axes = sum(length > 1 for length in self.array.shape)
        return axes < 2 or self.array.size < _SMALL_SIZE

    @functools.cached_property
    def divisor_size(self) -> float | None:
        """The size of numbers that others are divided or multiplied by; None if not so.

        A small tensor without negative numbers is mostly a variance or a scale, and the
        *relative* error of each number counts. The mean of its squares is 1 over the
        square of this size for a step of 1, so the smallest numbers set it.
        """
        if not (self.small and self.quantisable and self.array.size <= _MOST_DIVISORS):
            return None
        values = self.array.astype(np.float64).reshape(-1)
        if values.min() < 0:
            return None
        typical = math.exp(np.log(values[values > 0]).mean())
        # Beside the constant that norms add to variances, still smaller ones are zero.
        floored = np.maximum(values, typical / _DIVISOR_RANGE)
        return float(np.mean(floored**-2.0)) ** -0.5

    def cap_step(self, step: Step) -> Step:
        """Return the step, or the finest one whose integers are all in range.

        With a finer one the tensor would be exact, which a size need not have room for;
        it has for a tensor of few numbers.
        """
        if not self.can_scale:
            return step
        of_uniform = MAX_LEVEL[np.dtype(compute_type(self.array.dtype)).itemsize]
        largest = max(of_uniform, _MAX_TRELLIS_LEVEL)
        finest = step_below(self.max_abs / largest * _ABOVE)
        return step if finest is None else max(step, finest, key=lambda s: s.size)

    @property
    def can_scale(self) -> bool:
        """Whether it has numbers enough for a trellis, which rows with scales need."""
        return self.array.size >= _MIN_TRELLIS

    def form_at(self, step: Step) -> Form:
        """Return the form of integers that suits the tensor at a step."""
        if not self.can_scale or self.max_abs / step.size > _MAX_TRELLIS_LEVEL:
            return UNIFORM
        return Form() if self.scaling is None else self.scaling.form

    def uniform_distortion(self, step: Step | None) -> Distortion:
        """Measure the error of the uniform grid of a step; none if it is exact."""
        if step is None or not self.energy:
            return Distortion()
        total = Distortion()
        for part in self.parts():
            levels = to_levels(part, step)
            if levels is None:  # the tensor would be kept exact
                return Distortion()
            total += Distortion.between(to_values(levels, step, part.dtype), part)
        return total

    def is_quantisable_at(self, step: Step | None) -> bool:
        """Whether all levels of this step are in range."""
        if step is None or not self.energy:
            return False
        return all(to_levels(part, step) is not None for part in self.parts())
