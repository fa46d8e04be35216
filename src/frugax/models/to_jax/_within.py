"""A compiled model whose gradients stay within a memory budget."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from frugax import remat
from frugax.budget import MemoryBudget, Receipt, Spend
from frugax.measure import program
from frugax.models._program import Program

from ._abstract import spec_of
from ._compiled import Arrays, Compiled
from ._memory import Candidate, Search
from ._memory_plan import MemoryPlan
from ._pieces import (
    Pieces,
    find_pieces,
    gradients_in_pieces,
    outputs_in_pieces,
    piece_of,
    why_whole,
)

Shapes = dict[str, jax.ShapeDtypeStruct]


class CompiledWithin(Compiled):
    """A `Compiled` whose gradients are planned; made by `compile(..., budget=)`.

    Gradients of all outputs are planned when it is made, those of some outputs and of a
    loss when they are first asked for. Outputs without gradients are not planned: they
    keep nothing for later. The budget holds for the stated shapes: other ones are an
    error, since a plan for them could cost a search in the middle of training.

    Attributes:
        budget: what gradients may need.
        plan: the plan for gradients of all outputs.
    """

    def __init__(self, program: Program, *, budget: MemoryBudget) -> None:
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
            self._made[names] = self._planned(_Pull(self, names))
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
            self.check_planned(self.param_shapes, read)
            task = _Loss(self, loss, given)
            self._made[loss] = self._planned(task)
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

    def _planned(self, task: "_Pull | _Loss") -> "_Planned":
        plan = Search(task, self.budget).find()
        return _Planned(plan, task.at(plan.micro_batches), self)

    @property
    def param_shapes(self) -> Shapes:
        """Shape and dtype of every parameter."""
        return {k: self._shape_of(k) for k in sorted(self.param_keys)}

    @property
    def data_shapes(self) -> Shapes:
        """Shape and dtype of everything that goes in with the data."""
        return {k: self._shape_of(k) for k in sorted(self.data_keys)}

    def _shape_of(self, key: str) -> jax.ShapeDtypeStruct:
        spec = self.graph.specs[key]
        return jax.ShapeDtypeStruct(spec.shape, spec.dtype)

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

    def __init__(self, plan: MemoryPlan, way: Candidate, model: CompiledWithin) -> None:
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


class _Wanted:
    """What both kinds of gradients have in common."""

    def __init__(self, model: CompiledWithin, purpose: str, data: Shapes) -> None:
        self.model, self.purpose, self.data = model, purpose, data
        self.params = model.param_shapes
        own = {
            k: spec_of(v)
            for k, v in data.items()
            if k in model.graph.inputs and k in model.data_keys
        }
        self.pieces: Pieces | None = find_pieces(model.graph, own)

    @property
    def shapes(self) -> tuple[tuple[str, str], ...]:
        return tuple((k, str(spec_of(v))) for k, v in sorted(self.data.items()))

    @property
    def batch_keys(self) -> tuple[str, ...]:
        return self.pieces.keys if self.pieces else ()

    def counts(self) -> tuple[tuple[int, ...], str]:
        if self.pieces is None:
            return (), "no input has an axis for the batch"
        if not self.pieces.counts:
            return (), "a batch has one row"
        own = {k: v for k, v in self.data.items() if k in self.model.data_keys}
        reason = why_whole(
            self.model.pure, self.params, own, self.pieces, self.model.graph
        )
        return (() if reason else self.pieces.counts), reason

    def smaller(self) -> Iterable[tuple[int, Candidate]]:
        rows = self.pieces.rows if self.pieces else 0
        while self.pieces and rows % 2 == 0:
            rows //= 2
            number = self.pieces.rows // rows
            try:
                yield rows, self.shrunk(number)
            except (TypeError, ValueError):  # the model is made for one batch size
                return

    def shrunk(self, number: int) -> Candidate:
        """The whole way through for batches of a share of the rows."""
        raise NotImplementedError

    def objective(self, params: Any, data: Any, cotangents: Any) -> Any:
        """A number whose gradients are those of the outputs, pulled back."""
        outputs = self.model.pure(params, data)
        parts = [
            jnp.sum(outputs[k].astype(jnp.float32) * c.astype(jnp.float32))
            if c.dtype.itemsize < 4
            else jnp.sum(outputs[k] * c)
            for k, c in cotangents.items()
        ]
        return sum(parts[1:], start=parts[0]), outputs


class _Pull(_Wanted):
    """Gradients of outputs, from gradients with respect to them."""

    def __init__(self, model: CompiledWithin, names: frozenset[str]) -> None:
        said = ", ".join(sorted(names))
        super().__init__(
            model, f"evaluate with output_gradients of {said}", model.data_shapes
        )
        self.names = names

    def at(self, pieces: int) -> Candidate:
        keys = self.batch_keys
        cotangents = self._cotangents(self.data)
        piece = piece_of(self.data, keys, pieces)
        return Candidate(
            objective=self.objective,
            has_aux=True,
            example_args=(self.params, piece, self._cotangents(piece)),
            build=lambda grad: pulled(grad, keys, pieces),
            args=(self.params, self.data, cotangents),
        )

    def shrunk(self, number: int) -> Candidate:
        data = piece_of(self.data, self.batch_keys, number)
        args = (self.params, data, self._cotangents(data))
        return Candidate(
            objective=self.objective,
            has_aux=True,
            example_args=args,
            build=lambda grad: pulled(grad, (), 1),
            args=args,
        )

    def _cotangents(self, data: Shapes) -> Shapes:
        outputs = jax.eval_shape(self.model.pure, self.params, data)
        return {k: outputs[k] for k in sorted(self.names)}


class _Loss(_Wanted):
    """A loss and its gradients.

    In pieces: first the outputs, a piece at a time; then the loss of them all and its
    gradients with respect to them; then these are pulled back, a piece at a time. So
    the loss may mix rows as it likes; one more forward pass is what it costs.
    """

    def __init__(
        self, model: CompiledWithin, loss: str | Callable[..., Any], data: Shapes
    ) -> None:
        name = loss if isinstance(loss, str) else getattr(loss, "__name__", "a loss")
        super().__init__(model, f"value_and_grad of {name}", data)
        self.loss = loss
        self.of = model.loss_of(loss)

    def at(self, pieces: int) -> Candidate:
        if pieces == 1:
            return self._whole(self.data)
        model, keys = self.model, self.batch_keys
        own = {k: v for k, v in self.data.items() if k in model.data_keys}
        piece = piece_of(own, keys, pieces)
        outputs = jax.eval_shape(model.pure, self.params, piece)
        floats = [k for k, v in outputs.items() if jnp.issubdtype(v.dtype, jnp.floating)]

        def build(grad: Callable[..., Any]) -> Callable[..., Any]:
            forward = outputs_in_pieces(model.pure, keys, pieces)
            pull = pulled(grad, keys, pieces)

            def step(params: Any, inputs: Mapping[str, Any]) -> Any:
                read = {k: v for k, v in inputs.items() if k in model.data_keys}
                made = forward(params, read)
                rest = {k: v for k, v in made.items() if k not in floats}
                value, cotangents = jax.value_and_grad(
                    lambda some: self.of({**rest, **some}, inputs)
                )({k: made[k] for k in floats})
                return value, pull(params, read, cotangents)[1]

            return remat.fast_convolutions(step)

        return Candidate(
            objective=self.objective,
            has_aux=True,
            example_args=(self.params, piece, {k: outputs[k] for k in floats}),
            build=build,
            args=(self.params, self.data),
        )

    def shrunk(self, number: int) -> Candidate:
        rows = self.pieces.rows if self.pieces else 0
        # What only the loss reads shrinks with the batch, where it has as many rows.
        keys = tuple(
            k
            for k, v in self.data.items()
            if k in self.batch_keys
            or (k not in self.model.data_keys and v.shape[:1] == (rows,))
        )
        return self._whole(piece_of(self.data, keys, number))

    def _whole(self, data: Shapes) -> Candidate:
        args = (self.params, data)
        return Candidate(
            objective=self.model.loss_function(self.loss),
            has_aux=False,
            example_args=args,
            build=lambda grad: grad,
            args=args,
        )


def pulled(
    grad: Callable[..., Any], keys: tuple[str, ...], pieces: int
) -> Callable[..., Any]:
    """From `grad` of `_Wanted.objective` the outputs and gradients, in pieces or whole."""

    def pull(params: Any, data: Any, cotangents: Any) -> tuple[Any, Any]:
        (_, outputs), grads = grad(params, data, cotangents)
        return outputs, grads

    if pieces == 1:
        return pull
    return remat.fast_convolutions(gradients_in_pieces(pull, keys, pieces))


def _struct(value: Any) -> jax.ShapeDtypeStruct:
    spec = spec_of(value)
    return jax.ShapeDtypeStruct(spec.shape, spec.dtype)

