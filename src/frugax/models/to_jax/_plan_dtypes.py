"""Choose shorter dtypes for a model's weights, by a limit on bytes or output error.

A layer computes in the widest dtype of its inputs, so a bfloat16 weight next to float32
data is rounded once, when it is stored, and sums keep their precision.
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

# The error on unseen data may exceed that on the planning data, by 18 % for a small MLP
# (six batches against two). Plans aim at this share of the limit.
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
    """Plan short dtypes; see `frugax.models.plan`."""
    check_budget(budget, SizeBudget)
    if budget.max_abs is not None or budget.output_error is not None:
        raise ValueError(
            "a dtype plan bounds a relative error of the outputs: give "
            "SizeBudget(rel_error=...), not max_abs or output_error."
        )
    batches = list(batches)
    if len(batches) < 2:
        raise ValueError(
            f"a dtype plan needs two batches or more, got {len(batches)}: half to "
            "choose by, and half to hold out."
        )
    short = [as_float(d, what="dtypes") for d in dtypes]
    for dtype in short:
        if dtype.itemsize != 2:
            raise ValueError(
                f"dtypes: {dtype.name} is not short; use float16 and bfloat16."
            )
    # The held-out half is the larger one of an odd number: it is the one that the
    # certificate rests on.
    half = len(batches) // 2
    bench = _ErrorBench(compiled, params, batches[:half], batches[half:])
    steps = bench.steps(short)
    return bench.plan(budget, steps)


@dataclasses.dataclass(frozen=True)
class _RoundedWeight:
    """One weight in its best short dtype; `together`: with all weights before it."""

    key: str
    dtype: np.dtype
    saved_bytes: int
    error_alone: float
    error_together: float = 0.0


class _ErrorBench:
    """Measures the error of the outputs with shorter weights."""

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

    def steps(self, short: Sequence[np.dtype]) -> list[_RoundedWeight]:
        """Order the weights by their squared error for each saved byte.

        The errors of independent roundings add up as squares. Weights are rounded and
        widened again, so that one program serves all choices of dtypes; otherwise each
        choice would be compiled.
        """
        with self.compiled.backend.scope():
            alone = [s for k in self.params if (s := self._round_alone(k, short))]
            alone.sort(key=lambda s: (s.error_alone**2 / s.saved_bytes, s.key))
            rounded = dict(self.params)
            steps: list[_RoundedWeight] = []
            # One pass in a fixed order, the greedy rule for knapsacks: all subsets of
            # the weights are too many to measure.
            for step in alone:
                rounded[step.key] = self._round(step.key, step.dtype)
                error = self._error(rounded)
                steps.append(dataclasses.replace(step, error_together=error))
        return steps

    def _round_alone(
        self, key: str, short: Sequence[np.dtype]
    ) -> _RoundedWeight | None:
        value = self.params[key]
        saves = jnp.issubdtype(value.dtype, jnp.floating) and value.dtype.itemsize > 2
        if not saves or not value.size:
            return None
        options: list[tuple[float, np.dtype]] = []
        for dtype in short:
            rounded = self._round(key, dtype)
            if bool(jnp.isfinite(rounded).all()):  # float16 overflows above 65504
                options.append((self._error({**self.params, key: rounded}), dtype))
        if not options:
            return None
        error, dtype = min(options, key=lambda f: f[0])
        saved = value.size * (value.dtype.itemsize - dtype.itemsize)
        return _RoundedWeight(key, dtype, saved, error)

    def _round(self, key: str, dtype: np.dtype) -> Any:
        value = self.params[key]
        return jnp.asarray(value).astype(dtype).astype(value.dtype)

    def _error(self, params: Arrays) -> float:
        results = (self.compiled.evaluate(params, b) for b in self.chosen_by)
        pairs = zip(results, self.exact, strict=True)
        return max(error_of(m, e) for m, e in pairs)

    def plan(self, budget: SizeBudget, steps: list[_RoundedWeight]) -> DtypePlan:
        """Round as many weights as the error allows, or as few as the size needs."""
        before = sum(v.nbytes for v in self.params.values())
        limit = limit_bytes(budget, self.params)
        least = self._steps_for(limit, before, steps)
        if budget.rel_error is None:
            return self._build_plan(budget, steps[:least], *self._errors(steps[:least]))
        bound = budget.rel_error
        # The errors need not grow with each step, but a plan is a prefix that never
        # left the bound, so the first step beyond it ends the search.
        most = 0
        while most < len(steps) and steps[most].error_together <= bound * _AIM:
            most += 1
        # Undo one weight at a time until the held-out data agree, in the real dtypes.
        for number in range(most, least - 1, -1):
            errors = self._errors(steps[:number])
            if max(errors) <= bound * _AIM:
                return self._build_plan(budget, steps[:number], *errors)
        errors = self._errors(steps[:least])
        # Rounded up, because planning must succeed at this limit.
        needed = max(max(errors), *(s.error_together for s in steps[:least])) / _AIM
        raise InfeasibleBudgetError(
            f"keeping the weights in {limit:,} bytes",
            needed=float(np.nextafter(needed * (1 + 1e-9), np.inf)),
            limit=bound,
            unit="of relative error",
            hint="allow more bytes.",
        )

    def _steps_for(
        self, limit: int | None, before: int, steps: list[_RoundedWeight]
    ) -> int:
        if limit is None or before <= limit:
            return 0
        left = before
        for number, step in enumerate(steps, start=1):
            left -= step.saved_bytes
            if left <= limit:
                return number
        raise InfeasibleBudgetError(
            "keeping the weights in the shortest of these dtypes",
            needed=left,
            limit=limit,
            unit="bytes",
            hint="use frugax.compress, which codes weights shorter, for files.",
        )

    def _errors(self, steps: Sequence[_RoundedWeight]) -> tuple[float, float]:
        """Measure on the batches to choose by, and on those held out."""
        if not steps:
            return 0.0, 0.0
        short = self._short(steps)
        with self.compiled.backend.scope():
            chosen = errors_of(self.compiled, self.params, short, self.chosen_by)
            unseen = errors_of(self.compiled, self.params, short, self.held_out)
        return max(chosen), max(unseen)

    def _short(self, steps: Sequence[_RoundedWeight]) -> dict[str, Any]:
        dtypes = {s.key: s.dtype for s in steps}
        short = {k: jnp.asarray(self.params[k]).astype(d) for k, d in dtypes.items()}
        return {**self.params, **short}

    def _build_plan(
        self,
        budget: SizeBudget,
        steps: Sequence[_RoundedWeight],
        chosen: float,
        unseen: float,
    ) -> DtypePlan:
        by_key = {s.key: s for s in steps}

        weights: list[KeptWeight] = []
        for key, value in sorted(self.params.items()):
            # A weight that is not in the plan keeps its dtype.
            step = by_key.get(key, _RoundedWeight(key, value.dtype, 0, 0.0))
            weight = KeptWeight(
                key=key,
                before=value.dtype.name,
                after=step.dtype.name,
                bytes_before=value.nbytes,
                bytes_after=value.nbytes - step.saved_bytes,
                error=step.error_alone,
            )
            weights.append(weight)
        return DtypePlan(
            budget=budget,
            weights=tuple(weights),
            bytes_before=sum(w.bytes_before for w in weights),
            bytes_after=sum(w.bytes_after for w in weights),
            error=unseen,
            chosen_error=chosen,
            batches=len(self.chosen_by),
            held_out=len(self.held_out),
            data_sha256=digest([*self.chosen_by, *self.held_out]),
            params_sha256=digest([self.params]),
        )
