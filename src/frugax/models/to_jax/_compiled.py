"""`JaxModel`: a model compiled to JAX, with its outputs, gradients and parameters."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from frugax.models._compiled_model import CompiledModel
from frugax.models.graph import Program, Run

from ._backend import JaxBackend

Arrays = dict[str, Shaped[Array, "..."]]


class JaxModel(CompiledModel):
    """A model for JAX; `frugax.models.compile` returns it.

    Shapes are checked while JAX traces, never when a compiled program runs: a call
    costs as much as that of any jitted function.
    """

    backend: JaxBackend

    def __init__(self, program: Program, *, jit: bool) -> None:
        super().__init__(program)
        self.jit = jit
        self._forward: Callable[..., Any] = self._outputs
        self._forward_and_vjp: Callable[..., Any] = self._outputs_and_gradients
        if jit:
            self._forward = jax.jit(self._forward)
            self._forward_and_vjp = jax.jit(self._forward_and_vjp)
        # One jitted step for each loss, kept by the loss itself. jax.jit caches by the
        # identity of the function it wraps, so a new wrapper would compile anew.
        self._losses: dict[Any, Callable[..., Any]] = {}
        # Decided once: a call of a tiny model takes microseconds, so two look-ups at
        # every call would show.
        self._plain = not (self.backend.needs_scope or self.backend.debug)

    def _outputs(self, params: Mapping[str, Any], data: Mapping[str, Any]) -> Arrays:
        return Run(self.graph, self.check(params, data), self.backend.library).outputs()

    def _outputs_and_gradients(
        self,
        params: Mapping[str, Any],
        data: Mapping[str, Any],
        cotangents: Mapping[str, Any],
    ) -> tuple[Arrays, Arrays]:
        def select_outputs(params: Mapping[str, Any]) -> tuple[Arrays, Arrays]:
            outputs = self._outputs(params, data)
            self.check_cotangents(cotangents, outputs)
            return {k: outputs[k] for k in cotangents}, outputs

        # All outputs are returned, but only those with a cotangent are differentiated;
        # the others go through aux.
        selected, pull, outputs = jax.vjp(select_outputs, dict(params), has_aux=True)
        # pull refuses cotangents of another dtype instead of casting them.
        typed = {k: jnp.asarray(v, selected[k].dtype) for k, v in cotangents.items()}
        return outputs, pull(typed)[0]

    def evaluate(
        self,
        params: Mapping[str, Any],
        data: Mapping[str, Any],
        output_gradients: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute the outputs, and optionally the gradients.

        Args:
            params: an array for each parameter, by key.
            data: an array for each input, by key; also the state, where the model has
                one, and a random `key`, where it draws.
            output_gradients: for outputs by name the gradient of some loss with
                respect to them, of their shapes; outputs left out count zero.

        Returns:
            The outputs by name; with `output_gradients` a pair of these and the
            gradients with respect to the parameters, by key.

        Raises:
            ShapeError: an array does not fit the layer that reads it.
            ValueError: an array is missing, or one is superfluous.
            TypeError: a value is not an array of JAX or NumPy.
        """
        try:
            if output_gradients is None:
                if self._plain:
                    return self._forward(params, data)
                return self._run_in_scope(self._forward, params, data)
            if self._plain:
                return self._forward_and_vjp(params, data, output_gradients)
            return self._run_in_scope(
                self._forward_and_vjp, params, data, output_gradients
            )
        except TypeError:  # jit's own message does not name the key
            self._check_arrays(params, data)
            raise

    __call__ = evaluate

    def value_and_grad(
        self,
        params: Mapping[str, Any],
        inputs: Mapping[str, Any],
        loss: str | Callable[..., Any],
    ) -> tuple[Shaped[Array, ""], Arrays]:
        """Compute a loss and its gradients with respect to the parameters.

        Args:
            params: an array for each parameter, by key.
            inputs: an array for each input, by key; arrays that only the loss reads,
                such as labels, may be among them.
            loss: the name of a scalar output, or a function of the outputs, or of the
                outputs and the inputs. Define it once: a new function at every call
                compiles at every call.

        Returns:
            The loss, and gradients by key.

        Raises:
            ShapeError: an array does not fit the layer that reads it.
            ValueError: an array is missing, or the loss does not name an output.
            TypeError: a value is not an array, or the loss is not a real number.
        """
        try:
            step = self._losses[loss]
        except KeyError:
            step = self._losses[loss] = self._make_step(loss)
        try:
            if self._plain:
                return step(params, inputs)
            return self._run_in_scope(step, params, inputs)
        except TypeError:
            self._check_arrays(params, inputs)
            raise

    def _check_arrays(self, params: Any, data: Any) -> None:
        for group, arrays in (("params", params), ("data", data)):
            if isinstance(arrays, Mapping):
                for key, value in arrays.items():
                    self.check_array(group, key, value)
                    # Told by the name of its module: an import of torch would take
                    # seconds, and torch may not be installed.
                    if type(value).__module__.partition(".")[0] == "torch":
                        raise TypeError(
                            f"{group}[{key!r}] is a torch tensor and this model runs "
                            "in JAX; convert it with backend.array(...)."
                        )

    def _make_step(self, loss: str | Callable[..., Any]) -> Callable[..., Any]:
        step = jax.value_and_grad(self.loss_function(loss))
        if self.jit:
            return jax.jit(step)
        return step

    def _run_in_scope(self, function: Callable[..., Any], *args: Any) -> Any:
        with self.backend.scope():
            result = function(*args)
            # Reading the numbers waits for the device, so a call in debug mode is
            # synchronous.
            if self.backend.debug:
                self.check_finite(result, args[0], args[1], _is_finite)
            return result

    @functools.cached_property
    def pure(self) -> Callable[..., Any]:
        """The model as a pure function `f(params, data) -> outputs` without jit.

        It takes any shapes that its layers take, also others than were declared for the
        inputs: inside of `jax.vmap` it is given single rows.
        """

        def pure(params: Mapping[str, Any], data: Mapping[str, Any]) -> Arrays:
            given = self.check(params, data, as_declared=False)
            return Run(self.graph, given, self.backend.library).outputs()

        return pure


def _is_finite(value: Any) -> bool:
    if jnp.issubdtype(jnp.result_type(value), jnp.inexact):
        return bool(jnp.isfinite(value).all())
    return True
