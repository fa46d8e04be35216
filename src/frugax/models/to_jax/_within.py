"""A compiled model whose gradients stay within a memory budget."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from frugax.budget import MemoryBudget, Receipt, Spend
from frugax.measure import program
from frugax.models._compiled_model import CompiledModel

from ._abstract import spec_of
from ._compiled import Arrays, JaxModel
from ._memory import Candidate, Search
from ._memory_plan import MemoryPlan
from ._wanted import Loss, Pull, shapes_of


class BudgetedJaxModel(JaxModel):
    """A `JaxModel` whose gradients are planned; made by `compile(..., budget=)`.

    Gradients of all outputs are planned when it is made, those of some outputs and of a
    loss when they are first asked for. Outputs without gradients are not planned: they
    keep nothing for later. The budget holds for the stated shapes: other ones are an
    error, since a plan for them could cost a search in the middle of training.

    Attributes:
        budget: what gradients may need.
        plan: the plan for gradients of all outputs.
    """

    def __init__(
        self,
        program: CompiledModel,
        *,
        budget: MemoryBudget,
        plan: MemoryPlan | None = None,
    ) -> None:
        super().__init__(program, jit=True)
        self.budget = budget
        self._made: dict[Any, _Planned] = {}
        self._free, self._pulled = self._pulled, self._pull
        specs = self.graph.specs
        self._floats = frozenset(
            name
            for name, key in self.graph.outputs.items()
            if jnp.issubdtype(specs[key].dtype, jnp.floating)
        )
        wanted = self._floats - self.data_keys  # no gradient flows into a renewed state
        if not wanted:
            raise ValueError(
                "no output of this model has a gradient, so budget= has nothing to "
                "plan: leave it out."
            )
        with self.backend.scope():
            if plan is not None:
                self._made[wanted] = self._follow(plan, Pull(self, wanted))
            self.plan = self._pulled_for(wanted).plan

    # --- what is called -----------------------------------------------------------

    def _pull(self, params: Any, data: Any, cotangents: Any) -> tuple[Arrays, Arrays]:
        names = frozenset(cotangents)
        if not names or not names <= self._floats:
            return self._free(params, data, cotangents)  # nothing to keep, or an error
        made = self._made.get(names) or self._pulled_for(names)
        return made.function(params, data, cotangents)

    def _pulled_for(self, names: frozenset[str]) -> "_Planned":
        if names not in self._made:
            self._made[names] = self._planned(Pull(self, names))
        return self._made[names]

    def _make_step(self, loss: str | Callable[..., Any]) -> Callable[..., Any]:
        def step(params: Any, inputs: Mapping[str, Any]) -> Any:
            made = self._made.get(loss) or self._loss_for(loss, inputs)
            return made.function(params, inputs)

        return step

    def _loss_for(
        self, loss: str | Callable[..., Any], inputs: Mapping[str, Any]
    ) -> "_Planned":
        if loss not in self._made:
            given = {k: _struct(v) for k, v in inputs.items()}
            read = {k: v for k, v in given.items() if k in self.data_keys}
            self.check_planned(shapes_of(self, self.param_keys), read)
            self._made[loss] = self._planned(Loss(self, loss, given))
        return self._made[loss]

    def plan_for(
        self, loss: str | Callable[..., Any], inputs: Mapping[str, Any]
    ) -> MemoryPlan:
        """The plan that `value_and_grad` follows for a loss, made now if need be.

        Args:
            loss: as for `value_and_grad`.
            inputs: an array, or a `jax.ShapeDtypeStruct`, for each input, by key.

        Raises:
            InfeasibleBudgetError: nothing that was tried fits.
            ValueError: an input has another shape than was stated.
        """
        with self.backend.scope():
            return self._loss_for(loss, inputs).plan

    def report(self) -> Receipt:
        """Compile what was planned so far, measure, and hold it against the plans."""
        with self.backend.scope():
            return Receipt(tuple(made.spend() for made in self._made.values()))

    # --- planning -----------------------------------------------------------------

    def _planned(self, task: Pull | Loss) -> "_Planned":
        plan = Search(task, self.budget).find()
        return _Planned(plan, task.at(plan.micro_batches), self)

    def _follow(self, plan: MemoryPlan, task: Pull) -> "_Planned":
        """The planned function of a plan that was made before.

        Raises:
            ValueError: the plan is for other gradients, shapes or batches.
        """
        batch_keys = task.batch_keys if plan.micro_batches > 1 else ()
        for name, planned, own in (
            ("gradients", plan.purpose, task.purpose),
            ("shapes", plan.shapes, task.shapes),
            ("batch_keys", plan.batch_keys, batch_keys),
        ):
            if planned != own:
                raise ValueError(
                    f"the plan does not fit the model: its {name} are "
                    f"{planned!r:.200}, the model's are {own!r:.200}. Make a new "
                    "one with models.plan."
                )
        return _Planned(plan, task.at(plan.micro_batches), self)

    def check_planned(self, params: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """See that arrays have the shapes that the budget was planned for.

        Raises:
            ValueError: one has not.
        """
        self.check(params, data)  # names the layer if no shape at all would do
        for key, value in {**params, **data}.items():
            given, wanted = spec_of(value), self.graph.specs[key]
            if given != wanted:
                raise ValueError(
                    f"{key!r} is {given}, but the memory budget was planned for "
                    f"{wanted}: pad or drop what is left over, cast it, or compile "
                    "again for these shapes."
                )


class _Planned:
    """One planned function, and how its promise is checked."""

    def __init__(
        self, plan: MemoryPlan, way: Candidate, model: BudgetedJaxModel
    ) -> None:
        self.plan, self.args = plan, way.args
        planned = way.planned(plan.recompute)

        def checked(params: Any, data: Any, *rest: Any) -> Any:
            # Runs while JAX traces only.
            read = {k: v for k, v in data.items() if k in model.data_keys}
            model.check_planned(params, read)
            if rest:
                outputs = jax.eval_shape(model.pure, params, data)
                model.check_cotangents(rest[0], outputs)
                rest = (
                    {k: jnp.asarray(v, outputs[k].dtype) for k, v in rest[0].items()},
                )
            return planned(params, data, *rest)

        self.function = jax.jit(checked)

    def spend(self) -> Spend:
        """Predicted beside what XLA reserves for the very function that is called."""
        budget = self.plan.budget
        compiled = self.function.lower(*self.args).compile()
        return Spend(
            name=f"{budget.kind} memory of {self.plan.purpose}",
            unit="bytes",
            limit=budget.limit_bytes,
            predicted=self.plan.predicted,
            measured=program(compiled).bytes_of(budget.kind),
            source="memory_analysis() of the compiled program",
        )


def _struct(value: Any) -> jax.ShapeDtypeStruct:
    spec = spec_of(value)
    return jax.ShapeDtypeStruct(spec.shape, spec.dtype)
