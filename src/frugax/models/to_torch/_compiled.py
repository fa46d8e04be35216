"""`TorchModel`: a model compiled to torch, with its outputs, gradients, parameters."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from frugax.errors import ShapeError
from frugax.models._compiled_model import CompiledModel
from frugax.models.graph import Program, Run

from ._backend import TorchBackend
from ._execution_plan import Plan

Tensors = dict[str, torch.Tensor]
PLANS_KEPT = 256  # shapes that never come back must not pile up


class TorchModel(CompiledModel):
    """A model for torch; made by `frugax.models.compile`.

    Shapes are checked once for each set of input shapes, and the result is cached.
    Gradients are torch's own; outputs follow `requires_grad` of the inputs, as
    those of a `torch.nn.Module` do.
    """

    backend: TorchBackend

    def __init__(self, program: Program, *, jit: bool) -> None:
        super().__init__(program)
        self.jit = jit
        self.pure = self._outputs_of_any_shape  # for `torch.func`
        self._plans: dict[Any, Callable[[Mapping[str, Any]], Tensors]] = {}
        # Decided once, so that a call of a small model does not look both settings up.
        self._plain = not (self.backend.needs_scope or self.backend.debug)

    # --- the functions ----------------------------------------------------------

    def _outputs(self, params: Mapping[str, Any], data: Mapping[str, Any]) -> Tensors:
        values = self._tensors(params, data)
        return self._compute(values, params, data)

    def _outputs_of_any_shape(
        self, params: Mapping[str, Any], data: Mapping[str, Any]
    ) -> Tensors:
        values = self._tensors(params, data)
        return self._compute(values, params, data, as_declared=False)

    def _outputs_and_gradients(
        self,
        params: Mapping[str, Any],
        data: Mapping[str, Any],
        cotangents: Mapping[str, Any],
    ) -> tuple[Tensors, Tensors]:
        outputs, leaves = self._followed(params, data)
        self.check_cotangents(cotangents, outputs)
        given = {
            k: self._tensor("output_gradients", k, v) for k, v in cotangents.items()
        }
        # JAX's vjp requires cotangents of the dtype of the output; the same cast here
        # keeps the gradients of both libraries equal.
        typed = [v.to(outputs[k].dtype) for k, v in given.items()]
        return (
            {k: v.detach() for k, v in outputs.items()},
            _gradients([outputs[k] for k in cotangents], leaves, typed),
        )

    def _followed(
        self, params: Mapping[str, Any], data: Mapping[str, Any]
    ) -> tuple[Tensors, Tensors]:
        """The outputs, and the parameters that gradients are taken to."""
        values = self._tensors(params, data)
        # detach shares the memory and cuts the caller's own graph, so gradients stop
        # here and the caller's `.grad` is not written to.
        leaves = {k: values[k].detach().requires_grad_() for k in params}
        # The caller may be inside `torch.no_grad()`, as evaluation loops are.
        with torch.enable_grad():
            return self._compute({**values, **leaves}, params, data), leaves

    def _compute(
        self,
        values: Tensors,
        params: Mapping[str, Any],
        data: Mapping[str, Any],
        *,
        as_declared: bool = True,
    ) -> Tensors:
        # A list in tuple() and not a generator: this runs at every call. The number of
        # parameters tells apart calls that pass a key with the data instead.
        shapes = tuple([(k, v.shape, v.dtype) for k, v in values.items()])
        mark = shapes, len(params), as_declared
        plan = self._plans.get(mark)
        if plan is not None:
            return plan(values)
        self.check(params, data, as_declared=as_declared)
        # The walk checks every layer; later calls of these shapes repeat its calls.
        run = Run(self.graph, values, self.backend.library)
        outputs = run.outputs()
        plan = Plan(run, self.backend.xp)
        if self.jit and any(i.dtype == "key" for i in self.graph.inputs.values()):
            self._without_jit("it cannot follow random numbers drawn from a key")
        if self.jit:
            # Not at the top: torch's compiler takes seconds to import.
            from ._traced import traced

            plan = traced(plan, values, self._without_jit)
            outputs = plan(values)  # later calls give the same digits
        # A dict keeps the order of insertion, so its first key is the oldest plan.
        if len(self._plans) >= PLANS_KEPT:
            del self._plans[next(iter(self._plans))]
        self._plans[mark] = plan
        return outputs

    def _without_jit(self, cause: Exception | str) -> None:
        self.jit = False
        text = str(cause).strip() or type(cause).__name__
        warnings.warn(
            "torch.compile does not work here, so the model runs without it: "
            f"{text.splitlines()[0]:.200}",
            RuntimeWarning,
            stacklevel=2,
        )

    def _tensors(self, params: Mapping[str, Any], data: Mapping[str, Any]) -> Tensors:
        try:
            values = {**params, **data}
        except TypeError:
            self.check_names(params, data)
            raise
        for key, value in values.items():
            if not isinstance(value, torch.Tensor):
                what = "params" if key in params else "data"
                values[key] = self._tensor(what, key, value)
        return values

    def _tensor(self, what: str, key: str, value: Any) -> torch.Tensor:
        self.check_array(what, key, value)
        return self.backend.xp.asarray(value)

    # --- what users call --------------------------------------------------------

    def evaluate(
        self,
        params: Mapping[str, Any],
        data: Mapping[str, Any],
        output_gradients: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute outputs and gradients as `JaxModel.evaluate` does, with tensors."""
        if output_gradients is None:
            return self._run(self._outputs, params, data)
        return self._run(self._outputs_and_gradients, params, data, output_gradients)

    __call__ = evaluate

    def value_and_grad(
        self,
        params: Mapping[str, Any],
        inputs: Mapping[str, Any],
        loss: str | Callable[..., Any],
    ) -> tuple[torch.Tensor, Tensors]:
        """Compute a loss, written in torch, and its gradients as `JaxModel` does."""
        return self._run(self._loss_and_gradients, params, inputs, loss)

    def _loss_and_gradients(
        self,
        params: Mapping[str, Any],
        inputs: Mapping[str, Any],
        loss: str | Callable[..., Any],
    ) -> tuple[torch.Tensor, Tensors]:
        of = self.resolve_loss(loss)
        read = {k: v for k, v in inputs.items() if k in self.data_keys}
        outputs, leaves = self._followed(params, read)
        with torch.enable_grad():
            value = self.check_scalar(of(outputs, inputs))
        return value.detach(), _gradients([value], leaves, None)

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._plain:
            return self._checked(function, *args)
        with self.backend.scope():
            made = self._checked(function, *args)
            if self.backend.debug:
                found = made if isinstance(made, tuple) else (made,)
                self.check_finite(found, args[0], args[1], finite)
            return made

    def _checked(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        # torch's own message names the devices but not the tensor, so the offender is
        # looked for, only after the failure.
        except (RuntimeError, ShapeError):
            for what, given in (("params", args[0]), ("data", args[1])):
                for key, value in given.items():
                    if isinstance(value, torch.Tensor):
                        self._check_device(what, key, value)
            raise

    def _check_device(self, what: str, key: str, value: torch.Tensor) -> None:
        # The device of a new tensor, because torch's default device may change between
        # calls and "cuda" means "cuda:0".
        here = self.backend.xp.zeros(()).device
        if value.device != here:
            raise ValueError(
                f"{what}[{key!r}] is on {value.device}, but the backend on {here}: "
                "move it with backend.array(...)."
            )


def finite(value: Any) -> bool:
    """Whether a tensor holds no NaN and no infinity."""
    if not isinstance(value, torch.Tensor):
        value = torch.as_tensor(value)
    floats = value.is_floating_point() or value.is_complex()
    return not floats or bool(value.isfinite().all())


def _gradients(
    outputs: list[torch.Tensor], leaves: Tensors, cotangents: list[torch.Tensor] | None
) -> Tensors:
    # autograd.grad takes a third of the time of torch.func.vjp on a small model.
    reached = [i for i, output in enumerate(outputs) if output.requires_grad]
    # autograd.grad raises if no output depends on a parameter. A gradient of zeros is
    # the right answer then, and JAX's.
    if not leaves or not reached:
        return {k: torch.zeros_like(v) for k, v in leaves.items()}
    found = torch.autograd.grad(
        [outputs[i] for i in reached],
        list(leaves.values()),
        None if cotangents is None else [cotangents[i] for i in reached],
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(leaves, found, strict=True))
