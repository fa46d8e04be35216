"""`BudgetedJaxModel`: a compiled model whose gradients stay within a memory budget.

`frugax.remat` plans them: what the backward pass recomputes, and whether a batch runs
in chunks, of which it proves from the operations that they give the same numbers.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from frugax import remat
from frugax.budget import MemoryBudget, MemoryShare, Receipt, Spend
from frugax.measure import program
from frugax.models.graph import Program
from frugax.targets import Target, find_target

from ._compiled import Arrays, JaxModel
from ._record import spec_of

Shapes = dict[str, jax.ShapeDtypeStruct]


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
    """

    def __init__(
        self,
        program: Program,
        *,
        budget: MemoryBudget | MemoryShare,
        plan: remat.RematPlan | None = None,
        target: Target | None = None,
    ) -> None:
        super().__init__(program, jit=True)
        self.budget = budget
        with self.backend.scope():
            here = find_target(())
        self.target = target or here
        # A plan that was made for an absent GPU is measured there; on a GPU, here.
        if target is None and plan is not None and plan.platform != here.platform:
            self.target = Target(plan.target)
        self._planned: dict[Any, _PlannedGradients] = {}
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
            self.plan = self._plan_outputs(names, plan).plan

    def _run_vjp(
        self, params: Any, data: Any, cotangents: Any
    ) -> tuple[Arrays, Arrays]:
        names = frozenset(cotangents)
        if not names or not names <= self._floats:
            return self._unplanned_vjp(params, data, cotangents)  # or an error
        planned = self._planned.get(names) or self._plan_outputs(names)
        return planned.function(params, data, cotangents)

    def _plan_outputs(
        self, names: frozenset[str], plan: remat.RematPlan | None = None
    ) -> "_PlannedGradients":
        if names not in self._planned:
            task = _outputs_task(self, names)
            self._planned[names] = _PlannedGradients(self, task, plan)
        return self._planned[names]

    # The search waits for the first call. The shapes of arrays that only the loss
    # reads, such as labels, are unknown until then.
    def _make_step(self, loss: str | Callable[..., Any]) -> Callable[..., Any]:
        def step(params: Any, inputs: Mapping[str, Any]) -> Any:
            planned = self._planned.get(loss) or self._plan_loss(loss, inputs)
            return planned.function(params, inputs)

        return step

    def _plan_loss(
        self, loss: str | Callable[..., Any], inputs: Mapping[str, Any]
    ) -> "_PlannedGradients":
        if loss not in self._planned:
            shapes = {k: _struct(v) for k, v in inputs.items()}
            read = {k: v for k, v in shapes.items() if k in self.data_keys}
            # Checked before the search, which takes several compilations and would
            # otherwise plan for shapes that are refused afterwards.
            self.check_planned(_shapes_of(self, self.param_keys), read)
            task = _loss_task(self, loss, shapes)
            self._planned[loss] = _PlannedGradients(self, task)
        return self._planned[loss]

    def report(self) -> Receipt:
        """Compile and measure the planned functions, and compare with their plans."""
        with self.backend.scope():
            return Receipt(tuple(planned.spend() for planned in self._planned.values()))

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


@dataclasses.dataclass(frozen=True, eq=False)
class _GradientTask:
    """Gradients of a model, as `remat.plan` takes them.

    Attributes:
        purpose: their meaning, for the receipt.
        objective: the function to differentiate.
        has_aux: whether it returns more than a scalar.
        build: from its value-and-gradient function to the function that calls run.
        args: shapes of the arguments of both.
    """

    purpose: str
    objective: Callable[..., Any]
    has_aux: bool
    build: Callable[[Callable[..., Any]], Callable[..., Any]]
    args: tuple[Any, ...]


def _outputs_task(model: JaxModel, names: frozenset[str]) -> _GradientTask:
    """The outputs, and the vector-Jacobian product of some of them."""
    params = _shapes_of(model, model.param_keys)
    data = _shapes_of(model, model.data_keys)
    outputs = jax.eval_shape(model.pure, params, data)

    def objective(params: Any, data: Any, cotangents: Any) -> Any:
        outputs = model.pure(params, data)
        # `remat.plan` differentiates scalars. The gradient of the sum of outputs times
        # cotangents is their vector-Jacobian product.
        # Half precision is too coarse to accumulate in.
        dtypes = [jnp.dtype(jnp.float32), *(c.dtype for c in cotangents.values())]
        wide = max(dtypes, key=lambda dtype: dtype.itemsize)
        total: Any = 0.0
        for name, cotangent in cotangents.items():
            total += jnp.sum(outputs[name].astype(wide) * cotangent.astype(wide))
        return total, outputs

    def build(grad: Callable[..., Any]) -> Callable[..., Any]:
        def pull(params: Any, data: Any, cotangents: Any) -> tuple[Any, Any]:
            # The plan was made for cotangents of the dtypes of the outputs. A Python
            # number or a wider array would be another program.
            outputs = jax.eval_shape(model.pure, params, data)
            model.check_cotangents(cotangents, outputs)
            typed = {k: jnp.asarray(v, outputs[k].dtype) for k, v in cotangents.items()}
            (_, outputs), grads = grad(params, data, typed)
            return outputs, grads

        return pull

    return _GradientTask(
        purpose=f"evaluate with output_gradients of {', '.join(sorted(names))}",
        objective=objective,
        has_aux=True,
        build=build,
        args=(params, data, {k: outputs[k] for k in sorted(names)}),
    )


def _loss_task(
    model: JaxModel, loss: str | Callable[..., Any], inputs: Shapes
) -> _GradientTask:
    """A loss and its gradients."""
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", "a loss")
    return _GradientTask(
        purpose=f"value_and_grad of {name}",
        objective=model.loss_function(loss, model.pure),
        has_aux=False,
        build=lambda grad: grad,
        args=(_shapes_of(model, model.param_keys), inputs),
    )


class _PlannedGradients:
    """The function that calls run, its plan, and the measurement of its memory."""

    def __init__(
        self,
        model: BudgetedJaxModel,
        task: _GradientTask,
        plan: remat.RematPlan | None = None,
    ) -> None:
        self.model, self.task = model, task
        kept: list[Any] = []
        self.plan = plan or self._search(kept.append)
        # On the target the program that fits has been compiled as it runs. Elsewhere it
        # gives the same numbers; the receipt says which compiler has counted the bytes.
        if kept and model.target.is_here:
            self.function = kept[-1]
        else:
            plan_of = self.plan
            self.function = self._finish(
                lambda loss, **_: remat.apply(loss, plan_of, anywhere=True)
            )
        if plan is not None:
            self.function.trace(*task.args)  # refuses the plan of another model

    def _search(self, keep: Callable[[Any], None]) -> remat.RematPlan:
        task, target = self.task, self.model.target

        return remat.plan(
            task.objective,
            self.model.budget,
            example_args=task.args,
            has_aux=task.has_aux,
            within=remat.EnclosingProgram(
                build=self._finish, args=task.args, keep=keep
            ),
            target=None if target.is_here else target,
            first_fit=True,  # one or two compilations in most cases
        )

    def _finish(self, value_and_grad: Callable[..., Any]) -> Any:
        """The jitted function around a gradient, with checks of its arguments."""
        model, task = self.model, self.task
        run = task.build(value_and_grad(task.objective, has_aux=task.has_aux))

        def check_and_run(params: Any, data: Any, *rest: Any) -> Any:
            # The checks run only while JAX traces.
            read = {k: v for k, v in data.items() if k in model.data_keys}
            model.check_planned(params, read)
            return run(params, data, *rest)

        return jax.jit(check_and_run)

    def spend(self) -> Spend:
        """Compare the prediction with the bytes that XLA assigns to this function."""
        budget, target = self.plan.budget, self.model.target
        with target.tracing():
            traced = self.function.trace(*target.place(self.task.args))
        return Spend(
            name=f"{budget.kind} memory of {self.task.purpose}",
            unit="bytes",
            limit=budget.limit_bytes,
            predicted=self.plan.predicted,
            measured=program(target.compile(traced)).bytes_of(budget.kind),
            source=f"memory_analysis() of the program compiled for {target}",
        )


def _shapes_of(model: JaxModel, keys: Iterable[str]) -> Shapes:
    specs = {key: model.graph.specs[key] for key in sorted(keys)}
    return {k: jax.ShapeDtypeStruct(s.shape, s.dtype) for k, s in specs.items()}


def _struct(value: Any) -> jax.ShapeDtypeStruct:
    spec = spec_of(value)
    return jax.ShapeDtypeStruct(spec.shape, spec.dtype)
