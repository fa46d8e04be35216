"""Shorter dtypes for weights, within a measured error of the outputs.

Reads: a compiled model, its weights and batches of data. Gives: a `DtypePlan` that says
for each weight which dtype it is kept in and what that does to the outputs. A layer
computes in the widest dtype that it is given, so a bfloat16 weight beside float32 data
is rounded once, when it is stored, and no sum is shorter for it.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.budget import (
    Receipt,
    SizeBudget,
    Spend,
    amount,
    check_budget,
    format_bytes,
    from_plain,
    table,
    to_plain,
)
from frugax.errors import InfeasibleBudgetError
from frugax.models.dtypes import as_dtype, as_float

from ._compiled import Compiled

# Data that nobody has seen may be a little worse than those that choose.
_AIM = 0.9

Arrays = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeptWeight:
    """One weight and the dtype it is kept in.

    Attributes:
        key: its key.
        before: its dtype.
        after: the dtype it is kept in.
        bytes_before: of it as it is.
        bytes_after: of it as it is kept.
        error: of the outputs, if only this weight is shortened; 0 if it never was.
    """

    key: str
    before: str
    after: str
    bytes_before: int
    bytes_after: int
    error: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DtypePlan:
    """In which dtype each weight is kept, and what that does to the outputs.

    An error is ||outputs - exact|| / ||exact||, of the worst output of the worst batch.

    Attributes:
        budget: what was asked for.
        weights: one entry for each, by key.
        bytes_before: of all weights as they are.
        bytes_after: of all as they are kept.
        error: on the batches that were held out.
        chosen_error: on the batches that it was chosen by.
        batches: how many batches it was chosen by.
        held_out: how many were held out.
        data_sha256: of all batches, in order.
        params_sha256: of the weights.
    """

    budget: SizeBudget
    weights: tuple[KeptWeight, ...]
    bytes_before: int
    bytes_after: int
    error: float
    chosen_error: float
    batches: int
    held_out: int
    data_sha256: str
    params_sha256: str

    @property
    def predicted(self) -> float:
        """Bytes of the weights if the budget limits them, otherwise the error."""
        sizes = (self.budget.bytes, self.budget.ratio, self.budget.bits_per_weight)
        if any(size is not None for size in sizes):
            return self.bytes_after
        return self.error

    def apply(self, params: Arrays) -> dict[str, Any]:
        """The weights in the dtypes of this plan.

        Args:
            params: an array for each weight, by key.

        Raises:
            ValueError: a weight is missing, or has another dtype than was planned for.
        """
        planned = {w.key: w for w in self.weights}
        for key in sorted(set(planned) ^ set(params)):
            what = "lacks" if key in planned else "has"
            raise ValueError(
                f"params {what} {key!r}, and this plan is for: "
                f"{', '.join(sorted(planned)[:12])}."
            )
        made: dict[str, Any] = {}
        for key, value in params.items():
            if value.dtype.name != planned[key].before:
                raise ValueError(
                    f"{key!r} is {value.dtype.name}, but this plan is for "
                    f"{planned[key].before} weights."
                )
            made[key] = value.astype(as_dtype(planned[key].after))
        return made

    def report(
        self, compiled: Compiled, params: Arrays, batches: Sequence[Arrays]
    ) -> Receipt:
        """Measure on these batches and hold the result against the budget.

        Args:
            compiled: the model.
            params: its weights as they were, not shortened.
            batches: any data, best such as were not seen.
        """
        short = self.apply(params)
        error = max(errors_of(compiled, params, short, batches), default=0.0)
        spends: list[Spend] = []
        if self.budget.rel_error is not None:
            spends.append(
                Spend(
                    name="error of the outputs",
                    unit="",
                    limit=self.budget.rel_error,
                    predicted=self.error,
                    measured=error,
                    source=f"compiled.evaluate on {len(batches)} batches",
                )
            )
        limit = limit_bytes(self.budget, params)
        if limit is not None:
            spends.append(
                Spend(
                    name="bytes of the weights",
                    unit="bytes",
                    limit=limit,
                    predicted=self.bytes_after,
                    measured=sum(v.nbytes for v in short.values()),
                    source="nbytes of the arrays",
                )
            )
        return Receipt(tuple(spends))

    def to_json(self) -> str:
        """The plan as JSON text."""
        return json.dumps(to_plain(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "DtypePlan":
        """The plan that `to_json` wrote.

        Raises:
            ValueError: the text is no plan; the message names the place.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as e:
            raise ValueError(f"this is no plan, since it is no JSON: {e}") from e
        return from_plain(cls, data)

    def __str__(self) -> str:
        rows = [
            [
                w.key,
                w.before,
                w.after,
                amount(w.bytes_before, "bytes"),
                amount(w.bytes_after, "bytes"),
                f"{w.error:.2g}",
            ]
            for w in self.weights
        ]
        head = ["weight", "dtype", "kept in", "bytes", "kept", "error alone"]
        return (
            f"{table(head, rows)}\n"
            f"weights: {format_bytes(self.bytes_after)} of "
            f"{format_bytes(self.bytes_before)}; error of the outputs {self.error:.3g} "
            f"on {self.held_out} batches held out, {self.chosen_error:.3g} on the "
            f"{self.batches} it was chosen by (budget: {self.budget})"
        )


def plan_dtypes(
    compiled: Compiled,
    params: Arrays,
    batches: Sequence[Arrays],
    budget: SizeBudget,
    *,
    dtypes: Sequence[Any] = ("float16", "bfloat16"),
) -> DtypePlan:
    """As `frugax.models.plan_dtypes`, which says more.

    Raises:
        InfeasibleBudgetError: no choice is within the error and the size.
        TypeError: the budget is no `SizeBudget`.
        ValueError: there are too few batches, a dtype is not short, or the outputs are
            not finite.
    """
    check_budget(budget, SizeBudget)
    if budget.max_abs is not None:
        raise ValueError(
            "plan_dtypes bounds a relative error of the outputs: give "
            "SizeBudget(rel_error=...), not max_abs."
        )
    batches = list(batches)
    if len(batches) < 2:
        raise ValueError(
            f"plan_dtypes needs two batches or more, got {len(batches)}: some to "
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
        compiled: Compiled,
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
            if max(errors) <= bound:
                return self._made(budget, steps[:number], *errors)
        errors = self._errors(steps[:least])
        # Rounded up: at what is asked for here, planning must succeed.
        needed = max(max(errors), *(s.together / _AIM for s in steps[:least]))
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


def limit_bytes(budget: SizeBudget, params: Arrays) -> int | None:
    """The most bytes the weights may take; None if that is not limited."""
    return budget.limit_bytes(
        original_bytes=sum(v.nbytes for v in params.values()),
        weights=sum(v.size for v in params.values()),
    )


def exact_outputs(
    compiled: Compiled, params: Arrays, batches: Sequence[Arrays]
) -> list[dict[str, Any]]:
    """What the model gives for each batch.

    Raises:
        ValueError: that is not finite, so errors cannot be measured.
    """
    made = [compiled.evaluate(params, b) for b in batches]
    for i, outputs in enumerate(made):
        for name, value in floats(outputs).items():
            if not bool(jnp.isfinite(value).all()):
                raise ValueError(
                    f"the output {name!r} for batch {i} is not finite, so no error can "
                    "be measured."
                )
    return made


def errors_of(
    compiled: Compiled, params: Arrays, short: Arrays, batches: Sequence[Arrays]
) -> list[float]:
    """The error of each batch."""
    exact = exact_outputs(compiled, params, batches)
    made: Callable[[Arrays], Any] = lambda batch: compiled.evaluate(short, batch)
    return [error_of(made(b), e) for b, e in zip(batches, exact, strict=True)]


def error_of(made: Arrays, exact: Arrays) -> float:
    """||made - exact|| / ||exact|| of the worst output; infinite if not finite."""
    worst = 0.0
    for name, value in floats(exact).items():
        wide = np.asarray(value).astype(np.float64)
        off = np.asarray(made[name]).astype(np.float64) - wide
        size, far = np.linalg.norm(wide.ravel()), np.linalg.norm(off.ravel())
        error = float(far / size) if size else (0.0 if far == 0 else np.inf)
        worst = max(worst, error if np.isfinite(error) else np.inf)
    return worst


def floats(outputs: Arrays) -> dict[str, Any]:
    """Those outputs that are not made of integers."""
    return {k: v for k, v in outputs.items() if jnp.issubdtype(v.dtype, jnp.floating)}


def digest(parts: Sequence[Arrays]) -> str:
    """SHA-256 of arrays with their names, shapes and dtypes."""
    found = hashlib.sha256()
    for part in parts:
        for key, value in sorted(part.items()):
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                value = jax.random.key_data(value)
            array = np.ascontiguousarray(value)
            found.update(f"{key} {array.dtype.name} {array.shape} ".encode())
            found.update(array.tobytes())
    return found.hexdigest()
