"""`DtypePlan`: the dtype that stores each weight, and the measured output error."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from frugax.budget import (
    Plan,
    Receipt,
    SizeBudget,
    Spend,
    amount,
    format_bytes,
    table,
)
from frugax.models.dtypes import as_dtype

from ._compiled import JaxModel
from ._output_error import errors_of

Arrays = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeptWeight:
    """One weight and its stored dtype.

    Attributes:
        key: its key.
        before: its dtype.
        after: its stored dtype.
        bytes_before: in its own dtype.
        bytes_after: in its stored dtype.
        error: of the outputs if only this weight is rounded; 0 if it is not.
    """

    key: str
    before: str
    after: str
    bytes_before: int
    bytes_after: int
    error: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DtypePlan(Plan):
    """The stored dtype of each weight, and the resulting error of the outputs.

    An error is ||outputs - exact|| / ||exact||, of the worst output of the worst batch.

    Attributes:
        budget: of the plan.
        weights: one entry for each weight, by key.
        bytes_before: of all weights in their own dtypes.
        bytes_after: of all weights in their stored dtypes.
        error: on the held-out batches.
        chosen_error: on the batches that the dtypes were chosen by.
        batches: number of batches that the dtypes were chosen by.
        held_out: number of held-out batches.
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

    def cast(self, params: Arrays) -> dict[str, Any]:
        """Cast weights to the dtypes of this plan; `models.apply` also reports.

        Args:
            params: an array for each weight, by key.

        Raises:
            ValueError: a weight is missing, or has another dtype than planned.
        """
        planned = {w.key: w for w in self.weights}
        # The first key in alphabetical order decides the message, so that it does not
        # change from run to run with the hashes of strings.
        for key in sorted(set(planned) ^ set(params)):
            problem = "must not have"
            if key in planned:
                problem = "lacks"
            raise ValueError(
                f"params {problem} {key!r}; this plan is for: "
                f"{', '.join(sorted(planned)[:12])}."
            )
        cast: dict[str, Any] = {}
        for key, value in params.items():
            # The certificate is about weights of this dtype. Weights that were cast
            # already would be rounded twice.
            if value.dtype.name != planned[key].before:
                raise ValueError(
                    f"{key!r} is {value.dtype.name}, but this plan is for "
                    f"{planned[key].before} weights."
                )
            cast[key] = value.astype(as_dtype(planned[key].after))
        return cast

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


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CastParams:
    """Weights in the dtypes of a `DtypePlan`.

    Attributes:
        params: the cast weights by key, for `compiled.evaluate`.
        plan: the plan.
        compiled: the model that they belong to.
        exact_params: the weights in their own dtypes.
    """

    params: dict[str, Any]
    plan: DtypePlan
    compiled: JaxModel
    exact_params: Arrays

    @classmethod
    def cast(
        cls, compiled: JaxModel, plan: DtypePlan, *, params: Arrays
    ) -> "CastParams":
        """Cast the weights of a model."""
        return cls(plan.cast(params), plan, compiled, params)

    def report(self, batches: Sequence[Arrays]) -> Receipt:
        """Measure the error on these batches and compare it with the budget.

        Args:
            batches: any data, preferably data that planning has not seen.
        """
        plan, params = self.plan, self.exact_params
        # Measured with the stored arrays in their short dtypes, the ones that will run,
        # and not with the rounded float32 copies of the search.
        errors = errors_of(self.compiled, params, self.params, batches)
        spends: list[Spend] = []
        if plan.budget.rel_error is not None:
            spends.append(
                Spend(
                    name="error of the outputs",
                    unit="",
                    limit=plan.budget.rel_error,
                    predicted=plan.error,
                    measured=max(errors, default=0.0),
                    source=f"compiled.evaluate on {len(batches)} batches",
                )
            )
        limit = limit_bytes(plan.budget, params)
        if limit is not None:
            spends.append(
                Spend(
                    name="bytes of the weights",
                    unit="bytes",
                    limit=limit,
                    predicted=plan.bytes_after,
                    measured=sum(v.nbytes for v in self.params.values()),
                    source="nbytes of the arrays",
                )
            )
        return Receipt(tuple(spends))


def limit_bytes(budget: SizeBudget, params: Arrays) -> int | None:
    """Compute the limit on the bytes of the weights; None without one."""
    return budget.limit_bytes(
        original_bytes=sum(v.nbytes for v in params.values()),
        weights=sum(v.size for v in params.values()),
    )
