"""Shorter dtypes for weights, within a measured error of the outputs.

Reads: a compiled model, its weights and batches of data. Gives: a `DtypePlan` that says
for each weight which dtype it is kept in and what that does to the outputs. A layer
computes in the widest dtype that it is given, so a bfloat16 weight beside float32 data
is rounded once, when it is stored, and no sum is shorter for it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from frugax.budget import SizeBudget, check_budget
from frugax.errors import InfeasibleBudgetError
from frugax.models.dtypes import as_float

from ._compiled import JaxModel
from ._dtype_plan import DtypePlan, KeptWeight, limit_bytes
from ._output_error import digest, error_of, errors_of, exact_outputs

# Data that nobody has seen may be a little worse than those that were looked at: of a
# small MLP by 18 % (six batches against two). What is planned stays so far below.
_AIM = 0.8

Arrays = Mapping[str, Any]


def plan_dtypes(
    compiled: JaxModel,
    params: Arrays,
    batches: Sequence[Arrays],
    budget: SizeBudget,
    *,
    dtypes: Sequence[Any] = ("float16", "bfloat16"),
) -> DtypePlan:
    """Plan short dtypes; see `frugax.models.plan`.

    Raises:
        InfeasibleBudgetError: no choice is within the error and the size.
        TypeError: the budget is no `SizeBudget`.
        ValueError: there are too few batches, a dtype is not short, or the outputs are
            not finite.
    """
    check_budget(budget, SizeBudget)
    if budget.max_abs is not None:
        raise ValueError(
            "a dtype plan bounds a relative error of the outputs: give "
            "SizeBudget(rel_error=...), not max_abs."
        )
    batches = list(batches)
    if len(batches) < 2:
        raise ValueError(
            f"a dtype plan needs two batches or more, got {len(batches)}: some to "
            "choose by, and as many that are held out."
        )
    short = [as_float(d, what="dtypes") for d in dtypes]
    for dtype in short:
        if dtype.itemsize != 2:
            raise ValueError(
                f"dtypes: {dtype.name} is not short; use float16 and bfloat16."
            )
    half = len(batches) // 2
    bench = _Bench(compiled, params, batches[:half], batches[half:])
    steps = bench.steps(short)
    return bench.plan(budget, steps)


@dataclasses.dataclass(frozen=True)
class _Step:
    """One weight in its best short dtype, and the error of it and all before it."""

    key: str
    dtype: np.dtype
    saved: int
    alone: float
    together: float = 0.0


class _Bench:
    """Measures what shorter weights do to the outputs."""

    def __init__(
        self,
        compiled: JaxModel,
        params: Arrays,
        chosen_by: list[Arrays],
        held_out: list[Arrays],
    ) -> None:
        self.compiled, self.params = compiled, dict(params)
        self.chosen_by, self.held_out = chosen_by, held_out
        with compiled.backend.scope():
            self.exact = exact_outputs(compiled, self.params, chosen_by)

    def steps(self, short: Sequence[np.dtype]) -> list[_Step]:
        """The weights in the order in which they are shortened.

        Errors of independent roundings add up as squares, so that order is by squared
        error for each byte saved. Weights are rounded and widened again here, so that
        one program serves for all, where each choice of dtypes would be a compilation.
        """
        with self.compiled.backend.scope():
            alone = [s for k in self.params if (s := self._alone(k, short))]
            alone.sort(key=lambda s: (s.alone**2 / s.saved, s.key))
            rounded = dict(self.params)
            steps: list[_Step] = []
            for step in alone:
                rounded[step.key] = self._rounded(step.key, step.dtype)
                error = self._error(rounded)
                steps.append(dataclasses.replace(step, together=error))
        return steps

    def _alone(self, key: str, short: Sequence[np.dtype]) -> _Step | None:
        value = self.params[key]
        saves = jnp.issubdtype(value.dtype, jnp.floating) and value.dtype.itemsize > 2
        if not saves or not value.size:
            return None
        found: list[tuple[float, np.dtype]] = []
        for dtype in short:
            rounded = self._rounded(key, dtype)
            if bool(jnp.isfinite(rounded).all()):  # float16 ends at 65504
                found.append((self._error({**self.params, key: rounded}), dtype))
        if not found:
            return None
        error, dtype = min(found, key=lambda f: f[0])
        saved = value.size * (value.dtype.itemsize - dtype.itemsize)
        return _Step(key, dtype, saved, error)

    def _rounded(self, key: str, dtype: np.dtype) -> Any:
        value = self.params[key]
        return jnp.asarray(value).astype(dtype).astype(value.dtype)

    def _error(self, params: Arrays) -> float:
        made = (self.compiled.evaluate(params, b) for b in self.chosen_by)
        pairs = zip(made, self.exact, strict=True)
        return max(error_of(m, e) for m, e in pairs)

    # --- choosing -----------------------------------------------------------------

    def plan(self, budget: SizeBudget, steps: list[_Step]) -> DtypePlan:
        """The most steps within the error, or the fewest within the size.

        Raises:
            InfeasibleBudgetError: there is no number of steps within both.
        """
        before = sum(v.nbytes for v in self.params.values())
        limit = limit_bytes(budget, self.params)
        least = self._steps_for(limit, before, steps)
        if budget.rel_error is None:
            return self._made(budget, steps[:least], *self._errors(steps[:least]))
        bound = budget.rel_error
        most = 0
        while most < len(steps) and steps[most].together <= bound * _AIM:
            most += 1
        # One step back until the held-out data agree, computed in the real dtypes.
        for number in range(most, least - 1, -1):
            errors = self._errors(steps[:number])
            if max(errors) <= bound * _AIM:
                return self._made(budget, steps[:number], *errors)
        errors = self._errors(steps[:least])
        # Rounded up: at what is asked for here, planning must succeed.
        needed = max(max(errors), *(s.together for s in steps[:least])) / _AIM
        raise InfeasibleBudgetError(
            f"keeping the weights in {limit:,} bytes",
            needed=float(np.nextafter(needed * (1 + 1e-9), np.inf)),
            limit=bound,
            unit="of relative error",
            hint="allow more bytes.",
        )

    def _steps_for(self, limit: int | None, before: int, steps: list[_Step]) -> int:
        if limit is None or before <= limit:
            return 0
        left = before
        for number, step in enumerate(steps, start=1):
            left -= step.saved
            if left <= limit:
                return number
        raise InfeasibleBudgetError(
            "keeping the weights in the shortest of these dtypes",
            needed=left,
            limit=limit,
            unit="bytes",
            hint="use frugax.compress, which codes weights shorter, for files.",
        )

    def _errors(self, steps: Sequence[_Step]) -> tuple[float, float]:
        """On the batches to choose by, and on those held out."""
        if not steps:
            return 0.0, 0.0
        short = self._short(steps)
        with self.compiled.backend.scope():
            chosen = errors_of(self.compiled, self.params, short, self.chosen_by)
            unseen = errors_of(self.compiled, self.params, short, self.held_out)
        return max(chosen), max(unseen)

    def _short(self, steps: Sequence[_Step]) -> dict[str, Any]:
        dtypes = {s.key: s.dtype for s in steps}
        return {
            k: jnp.asarray(v).astype(dtypes[k]) if k in dtypes else v
            for k, v in self.params.items()
        }

    def _made(
        self, budget: SizeBudget, steps: Sequence[_Step], chosen: float, unseen: float
    ) -> DtypePlan:
        by_key = {s.key: s for s in steps}

        def kept(key: str, value: Any) -> KeptWeight:
            step = by_key.get(key)
            return KeptWeight(
                key=key,
                before=value.dtype.name,
                after=step.dtype.name if step else value.dtype.name,
                bytes_before=value.nbytes,
                bytes_after=value.nbytes - (step.saved if step else 0),
                error=step.alone if step else 0.0,
            )

        weights = tuple(kept(k, v) for k, v in sorted(self.params.items()))
        return DtypePlan(
            budget=budget,
            weights=weights,
            bytes_before=sum(w.bytes_before for w in weights),
            bytes_after=sum(w.bytes_after for w in weights),
            error=unseen,
            chosen_error=chosen,
            batches=len(self.chosen_by),
            held_out=len(self.held_out),
            data_sha256=digest([*self.chosen_by, *self.held_out]),
            params_sha256=digest([self.params]),
        )
