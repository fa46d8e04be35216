"""`BudgetedJaxModel`: a compiled model whose gradients stay within a memory budget."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from frugax import remat
from frugax.budget import MemoryBudget, Receipt, Spend, format_bytes
from frugax.errors import InfeasibleBudgetError
from frugax.jaxprs import flops
from frugax.measure import program
from frugax.models._compiled_model import CompiledModel
from frugax.targets import Target, find_target

from ._compiled import Arrays, JaxModel
from ._gradient_candidates import LossGradients, OutputGradients, shapes_of
from ._memory import Candidate, PlainProgram, Search
from ._memory_plan import Lever, MemoryPlan
from ._shape_rules import spec_of


class BudgetedJaxModel(JaxModel):
    """A `JaxModel` with planned gradients; `compile(..., budget=)` returns it.

    Gradients of all outputs are planned at once, those of some outputs and of a loss at
    their first use. Outputs without gradients are not planned, because they keep
    nothing for a backward pass. The budget holds for the stated shapes. Other shapes
    are an error, since planning for them could start a search in the middle of
    training.

    Attributes:
        budget: limit on the memory of the gradients.
        plan: the plan for gradients of all outputs.
        target: the devices whose compiler counts the bytes.
        show: whether each attempt of a search is printed.
    """

    def __init__(
        self,
        program: CompiledModel,
        *,
        budget: MemoryBudget,
        plan: MemoryPlan | None = None,
        target: Target | None = None,
        show: bool = False,
    ) -> None:
        super().__init__(program, jit=True)
        self.budget, self.show = budget, show
        with self.backend.scope():
            here = find_target(())
        self.target = target or here
        # A plan that was made for an absent GPU is measured there; on a GPU, here.
        if target is None and plan is not None and plan.target:
            planned = Target(plan.target)
            self.target = here if planned.platform == here.platform else planned
        self._functions: dict[Any, _PlannedFunction] = {}
        # The planned function takes the place of the attribute that `evaluate` calls,
        # so a call without a budget does not pay for a test of whether there is one.
        self._unplanned_vjp = self._forward_and_vjp
        self._forward_and_vjp = self._run_vjp
        specs = self.graph.specs
        # Integer outputs have tangents of dtype float0, into which no gradient flows.
        self._floats = frozenset(
            name
            for name, key in self.graph.outputs.items()
            if jnp.issubdtype(specs[key].dtype, jnp.floating)
        )
        # No gradient flows into the updated state.
        names = self._floats - self.data_keys
        if not names:
            raise ValueError(
                "no output of this model has a gradient, so budget= has nothing to "
                "plan: leave it out."
            )
        with self.backend.scope():
            # A given plan is replayed without a search, but only if it was made for
            # these shapes: its byte counts mean nothing for others.
            if plan is not None:
                self._functions[names] = self._follow(
                    plan, OutputGradients(self, names)
                )
            self.plan = self._plan_outputs(names).plan

    def _run_vjp(
        self, params: Any, data: Any, cotangents: Any
    ) -> tuple[Arrays, Arrays]:
        names = frozenset(cotangents)
        if not names or not names <= self._floats:
            return self._unplanned_vjp(params, data, cotangents)  # or an error
        planned = self._functions.get(names) or self._plan_outputs(names)
        return planned.function(params, data, cotangents)

    def _plan_outputs(self, names: frozenset[str]) -> "_PlannedFunction":
        if names not in self._functions:
            self._functions[names] = self._search(OutputGradients(self, names))
        return self._functions[names]

    # The search waits for the first call. The shapes of arrays that only the loss
    # reads, such as labels, are unknown until then.
    def _make_step(self, loss: str | Callable[..., Any]) -> Callable[..., Any]:
        def step(params: Any, inputs: Mapping[str, Any]) -> Any:
            planned = self._functions.get(loss) or self._plan_loss(loss, inputs)
            return planned.function(params, inputs)

        return step

    def _plan_loss(
        self, loss: str | Callable[..., Any], inputs: Mapping[str, Any]
    ) -> "_PlannedFunction":
        if loss not in self._functions:
            shapes = {k: _struct(v) for k, v in inputs.items()}
            read = {k: v for k, v in shapes.items() if k in self.data_keys}
            # Checked before the search, which takes several compilations and would
            # otherwise plan for shapes that are refused afterwards.
            self.check_planned(shapes_of(self, self.param_keys), read)
            self._functions[loss] = self._search(LossGradients(self, loss, shapes))
        return self._functions[loss]

    def plan_for(
        self, loss: str | Callable[..., Any], inputs: Mapping[str, Any]
    ) -> MemoryPlan:
        """Return the plan of `value_and_grad` for a loss; make it if necessary.

        Args:
            loss: as for `value_and_grad`.
            inputs: an array, or a `jax.ShapeDtypeStruct`, for each input, by key.

        Raises:
            InfeasibleBudgetError: no candidate fits.
            ValueError: an input does not have its stated shape.
        """
        with self.backend.scope():
            return self._plan_loss(loss, inputs).plan

    def report(self) -> Receipt:
        """Compile and measure the planned functions, and compare with their plans."""
        with self.backend.scope():
            return Receipt(
                tuple(planned.spend() for planned in self._functions.values())
            )

    def _search(self, request: OutputGradients | LossGradients) -> "_PlannedFunction":
        plain = _PlannedFunction(request.at(1), self)
        search = Search(
            request,
            self.budget,
            plain.measure_plain(),
            self.target,
            self._tell,
            finish=plain.check_first,
        )
        plan = search.find()
        if plan.micro_batches == 1 and plan.recompute is None:
            # The program that was measured is the one that calls run: it is compiled.
            plain.plan = plan
            return plain
        planned = _PlannedFunction(request.at(plan.micro_batches), self, plan)
        if search.jitted is not None and self.target.is_here:
            planned.function = search.jitted  # compiled already
        return planned

    def _tell(self, lever: Lever) -> None:
        if self.show or sys.stderr.isatty():
            verdict = "fits" if lever.fits else "too much"
            print(  # noqa: T201 - a search takes several compilations
                f"{lever.name}: {format_bytes(lever.bytes)}, {verdict}", file=sys.stderr
            )

    def _follow(self, plan: MemoryPlan, request: OutputGradients) -> "_PlannedFunction":
        """Build the function of an existing plan."""
        batch_keys: tuple[str, ...] = ()
        if plan.micro_batches > 1:
            batch_keys = request.batch_keys
        for name, planned, own in (
            ("gradients", plan.purpose, request.purpose),
            ("shapes", plan.shapes, request.shapes),
            ("batch_keys", plan.batch_keys, batch_keys),
        ):
            if planned != own:
                raise ValueError(
                    f"the plan does not fit the model: its {name} are "
                    f"{planned!r:.200}, the model's are {own!r:.200}. Make a new "
                    "one with models.plan."
                )
        return _PlannedFunction(request.at(plan.micro_batches), self, plan)

    def check_planned(self, params: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Check that arrays have the shapes that the budget was planned for.

        Raises:
            ValueError: an array has another shape.
        """
        self.check(params, data)  # names the layer if the shape does not fit the model
        for key, value in {**params, **data}.items():
            actual, planned = spec_of(value), self.graph.specs[key]
            if actual != planned:
                raise ValueError(
                    f"{key!r} is {actual}, but the memory budget was planned for "
                    f"{planned}: pad the batch or drop its rest, cast it, or "
                    "compile again for these shapes."
                )


class _PlannedFunction:
    """One planned function, with the measurement of its memory."""

    plan: MemoryPlan

    def __init__(
        self,
        candidate: Candidate,
        model: BudgetedJaxModel,
        plan: MemoryPlan | None = None,
    ) -> None:
        self.model, self.args = model, candidate.args
        planned = candidate.build_plain()
        if plan is not None:
            self.plan = plan
            planned = candidate.build_planned(plan.recompute)

        self.function = self.check_first(planned)

    def check_first(self, planned: Callable[..., Any]) -> Any:
        """The function that calls run: the program after checks of its arguments."""
        model = self.model

        def check_and_run(params: Any, data: Any, *rest: Any) -> Any:
            # The checks run only while JAX traces.
            read = {k: v for k, v in data.items() if k in model.data_keys}
            model.check_planned(params, read)
            if rest:
                outputs = jax.eval_shape(model.pure, params, data)
                model.check_cotangents(rest[0], outputs)
                # The plan was made for cotangents of the dtypes of the outputs. A
                # Python number or a wider array would be another program.
                rest = (
                    {k: jnp.asarray(v, outputs[k].dtype) for k, v in rest[0].items()},
                )
            return planned(params, data, *rest)

        return jax.jit(check_and_run)

    def measure_plain(self) -> PlainProgram:
        """Compile the plain program for the target, and measure it."""
        budget, target = self.model.budget, self.model.target
        with target.tracing():
            traced = self.function.trace(*target.place(self.args))
        try:
            executable = target.compile(traced)
        except InfeasibleBudgetError as e:
            # The compiler for TPUs refuses a program that is larger than the device.
            held = max(int(e.needed), budget.limit_bytes + 1)
            return PlainProgram(held, flops(traced.jaxpr.jaxpr))
        compiled = remat.CompiledCandidate.of(self.function, traced, executable)
        held = program(executable).bytes_of(budget.kind)
        return PlainProgram(held, compiled.flops, compiled)

    def spend(self) -> Spend:
        """Compare the prediction with the bytes that XLA assigns to this function."""
        budget, target = self.plan.budget, self.model.target
        # The function that calls run, with its checks and casts, and not the candidate
        # that the search measured: the receipt is about the real program.
        with target.tracing():
            traced = self.function.trace(*target.place(self.args))
        return Spend(
            name=f"{budget.kind} memory of {self.plan.purpose}",
            unit="bytes",
            limit=budget.limit_bytes,
            predicted=self.plan.predicted,
            measured=program(target.compile(traced)).bytes_of(budget.kind),
            source=f"memory_analysis() of the program compiled for {target}",
        )


def _struct(value: Any) -> jax.ShapeDtypeStruct:
    spec = spec_of(value)
    return jax.ShapeDtypeStruct(spec.shape, spec.dtype)
