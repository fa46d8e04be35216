"""`fit.find_largest_batch`: the largest batch size that fits in a target's memory."""

import dataclasses

from frugax.budget import format_bytes, table
from frugax.errors import InfeasibleBudgetError
from frugax.targets import Target

from ._fit_plan import FitRow
from ._plan import (
    DEFAULT_BUDGET,
    Budget,
    check_workload,
    read_target,
    to_budget,
    try_target,
)
from ._workload import Workload

# Guesses from what larger batches need; then the search goes on by halves.
_MOST_GUESSES = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchAnswer:
    """The largest batch that fits.

    Attributes:
        rows: of the batch.
        answer: the row of the largest batch.
        tried: rows of each batch that was compiled, and whether it fitted.
    """

    rows: int
    answer: FitRow
    tried: tuple[tuple[int, bool], ...]

    def __str__(self) -> str:
        budget = self.answer.budget
        assert budget is not None  # it fits
        rows = [
            [f"{n:,}", "fits" if fits else "does not fit"]
            for n, fits in sorted(self.tried)
        ]
        return (
            f"largest batch on {self.answer.target}: {self.rows:,} rows, "
            f"{format_bytes(self.answer.predicted)} of "
            f"{format_bytes(budget.usable_bytes)}, "
            f"{self.answer.answer}\n{table(['rows', 'answer'], rows)}"
        )


def _guess_units(needs: list[tuple[int, int]], limit: int) -> int:
    """How many units of rows should fit, by the bytes of those that did not."""
    units, needed = needs[-1]
    if len(needs) > 1:
        more, most = needs[-2]
        if most > needed:  # a straight line: weights take the same bytes for any batch
            return int(units - (needed - limit) * (more - units) / (most - needed))
    return units * limit // needed


def _guess_more(holds: list[tuple[int, int]], limit: int) -> int:
    """How many units of rows might just fit, by the bytes of those that did."""
    (less, least), (units, held) = [(0, 0), *holds][-2:]
    if held <= least:
        return 0
    more = int(units + (limit - held) * (units - less) / (held - least))
    # Its five highest bits: such a number can be cut into equal chunks in many ways.
    low_bits = max(more.bit_length() - 5, 0)
    return more >> low_bits << low_bits


def find_largest_batch(
    workload: Workload,
    target: Target | str,
    budget: Budget = DEFAULT_BUDGET,
    *,
    precision: float = 0.05,
) -> BatchAnswer:
    """Find the most rows of a batch that fit, from what larger ones need.

    Bytes are assumed to grow with the rows: between a batch that fits and one that does
    not, larger ones are not looked for.

    Args:
        workload: the program; the rows of its own batch are where the search begins.
        target: the devices, or their name.
        budget: the most bytes on one device.
        precision: the answer is within this share, in (0, 1), of the smallest batch
            that was seen not to fit.

    Raises:
        ValueError: `precision` is out of range.
        ConfigError: the target or the program is invalid.
        CompilerRefusedError: the program cannot be compiled for the target.
        InfeasibleBudgetError: one row for each device does not fit.
    """
    check_workload(workload)
    target = read_target(target)
    if not (isinstance(precision, float) and 0 < precision < 1):
        raise ValueError(f"precision must be a share in (0, 1), got {precision!r:.80}.")
    limit = to_budget(budget, workload, target)
    # Each device and each micro-batch has the same number of rows.
    step = target.num_devices * workload.micro_batches
    tried: list[tuple[int, bool]] = []
    best: FitRow | None = None
    # Units of rows and bytes of what fitted, and of what did not, the fewest last.
    holds: list[tuple[int, int]] = []
    needs: list[tuple[int, int]] = []

    def fits(units: int) -> bool:
        nonlocal best
        row = try_target(workload.with_rows(units * step), target, limit)
        if row.problem:  # no size of the batch would mend it
            raise row.to_error(f"{target}, {units * step} rows")
        tried.append((units * step, row.fits))
        if row.fits:
            best = row
            holds.append((units, row.predicted))
        else:
            needs.append((units, row.predicted))
        return row.fits

    low, high = 0, max(workload.rows // step, 1)
    while fits(high):
        low, high = high, max(2 * high, _guess_more(holds, limit.usable_bytes))
    is_guess = False
    while high - low > (margin := max(1, int(precision * high)) if low else 1):
        # Multiples of a power of two: numbers with many divisors run in equal chunks.
        grain = 1 << (margin.bit_length() - 1)
        if is_guess:  # and it fits: mostly nothing fits that is a little larger
            is_guess, units = False, low + grain
        elif is_guess := len(needs) <= _MOST_GUESSES:
            units = _guess_units(needs, limit.usable_bytes)
        else:
            units = (low + high) // 2
        units = min(max(units // grain * grain, low + grain), high - 1)
        if fits(units):
            low = units
        else:
            high, is_guess = units, False
    if best is None:
        raise InfeasibleBudgetError(
            f"a batch of {step} rows on {target}",
            needed=limit.with_usable(needs[-1][1]).limit_bytes,
            limit=limit.limit_bytes,
            unit="bytes",
            hint="use a target with more memory or more devices.",
        )
    return BatchAnswer(rows=low * step, answer=best, tried=tuple(tried))
