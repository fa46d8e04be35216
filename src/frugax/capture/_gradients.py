"""Find the gradients that a function takes while it is traced, and mark their place.

`jax.grad`, `jax.value_and_grad` and `jax.jacrev` all call `jax.vjp`. While
`mark_gradients` is open, each such call traces its function once, to a jaxpr, and
writes two operations of our own in place of what JAX would write: the forward pass with
its residuals, and, where the pullback is called, the backward pass. Their parameters
hold the traced function, so that another program for both can take their place later.
Left alone they lower to what JAX would have written.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.interpreters import ad, batching, mlir

from frugax.jaxprs import (
    ClosedJaxpr,
    Primitive,
    close,
    intercept_vjp,
    is_staging,
    jaxpr_as_fun,
    shape_of,
)
from frugax.train.compiles import find_call_site


@dataclasses.dataclass(frozen=True, eq=False)
class MarkedGradient:
    """One function that is differentiated.

    Attributes:
        function: the traced function of its constants and its flat arguments; it
            returns its flat results, then the auxiliary ones.
        num_consts: the number of leading inputs that are not differentiated.
        num_outputs: the number of leading results that are differentiated.
        forward: the inputs of `function` to its results and the residuals.
        backward: the residuals and the cotangents to the gradients.
        source: `file.py:line` of the user's code that took the gradient.
    """

    function: ClosedJaxpr
    num_consts: int
    num_outputs: int
    forward: ClosedJaxpr
    backward: ClosedJaxpr
    source: str

    @property
    def num_results(self) -> int:
        """The number of results of `function`."""
        return len(self.function.jaxpr.outvars)

    @property
    def residual_bytes(self) -> int:
        """Bytes that the forward pass hands to the backward pass."""
        residuals = self.forward.out_avals[self.num_results :]
        return sum(x.size * x.dtype.itemsize for x in residuals if hasattr(x, "dtype"))


# Part of the keys of JAX's caches: a jitted function that is called both inside and
# outside of a marked trace is traced for each, and once more inside of a loss.
_is_marking = jax.make_user_context(False)

# Parameters: `gradient`, a MarkedGradient; `call`, the jaxpr that it stands for; and
# `is_forward`.
gradient_p = Primitive("marked_gradient")
gradient_p.multiple_results = True


@gradient_p.def_effectful_abstract_eval
def _abstract(*_: Any, call: ClosedJaxpr, **__: Any) -> tuple[list[Any], Any]:
    return list(call.out_avals), call.effects


def _inline(*operands: Any, call: ClosedJaxpr, **_: Any) -> list[Any]:
    return jaxpr_as_fun(call)(*operands)


_INSIDE = "is inside of jax.vmap or of another derivative, where nothing is planned"
_local = threading.local()


def _note_inlined(gradient: MarkedGradient) -> None:
    """Note a gradient in a loop that is transformed after its body was traced."""
    marker: GradientMarker | None = getattr(_local, "marker", None)
    line = f"the gradient at {gradient.source} {_INSIDE}"
    if marker is not None and line not in marker.unmarked:
        marker.unmarked.append(line)


# Under a transformation the operation becomes the program that it stands for.
def _jvp(
    primals: Any, tangents: Any, call: ClosedJaxpr, gradient: MarkedGradient, **_: Any
) -> Any:
    _note_inlined(gradient)

    def instantiate(primal: Any, tangent: Any) -> Any:
        if isinstance(tangent, ad.Zero):
            return ad.instantiate_zeros(tangent)
        return tangent

    tangents = list(map(instantiate, primals, tangents))
    return jax.jvp(jaxpr_as_fun(call), list(primals), tangents)


def _batch(
    axis: Any,
    operands: Sequence[Any],
    dims: Sequence[Any],
    call: ClosedJaxpr,
    gradient: MarkedGradient,
    **_: Any,
) -> Any:
    _note_inlined(gradient)
    mapped = jax.vmap(
        jaxpr_as_fun(call),
        in_axes=tuple(dims),
        axis_name=axis.name if axis.name is not None else None,
        axis_size=axis.size,
        spmd_axis_name=axis.spmd_name,
    )
    outs = mapped(*operands)
    return outs, [0] * len(outs)


ad.primitive_jvps[gradient_p] = _jvp
batching.fancy_primitive_batchers[gradient_p] = _batch
mlir.register_lowering(gradient_p, mlir.lower_fun(_inline, multiple_results=True))


@dataclasses.dataclass(eq=False)
class GradientMarker:
    """Marks the gradients of one trace; made by `mark_gradients`.

    Attributes:
        unmarked: lines of gradients that stay as JAX writes them, with the reason.
    """

    unmarked: list[str] = dataclasses.field(default_factory=list)
    _depth: int = 0

    def vjp(self, vjp: Any, fun: Any, *primals: Any, has_aux: bool = False) -> Any:
        """`jax.vjp`, with its forward and its backward pass as marked operations."""
        leaves, in_tree = jax.tree.flatten(primals)
        # A gradient inside of a differentiated function is a part of that function.
        if self._depth or not leaves:
            return vjp(fun, *primals, has_aux=has_aux)
        if reason := _why_unmarked(leaves):
            self.unmarked.append(f"the gradient at {find_call_site()} {reason}")
            return vjp(fun, *primals, has_aux=has_aux)
        result = _Result(has_aux)

        def flat(*values: Any) -> list[Any]:
            return result.flatten(fun(*in_tree.unflatten(values)))

        source = find_call_site()
        with self._inside():
            # The only call of the user's function: some can be traced once only.
            traced = jax.make_jaxpr(flat)(*leaves)
        function, consts = _consts_as_inputs(traced), traced.consts
        differentiate = _Differentiated(
            vjp, function, consts, leaves, result.num_outputs
        )
        if not all(map(_is_real, traced.out_avals[: result.num_outputs])):
            self.unmarked.append(
                f"the gradient at {source} is one of results that are not real numbers"
            )
            with self._inside():
                outs, pull, aux = differentiate.plainly(consts, leaves)
            return result.rebuild(
                [*outs, *aux],
                lambda cotangents: in_tree.unflatten(pull(result.split(cotangents))),
            )
        with self._inside():
            forward, backward = differentiate.traced()
        gradient = MarkedGradient(
            function, len(consts), result.num_outputs, forward, backward, source
        )
        mark: dict[str, Any] = {"gradient": gradient}
        outs = gradient_p.bind(*consts, *leaves, call=forward, is_forward=True, **mark)
        residuals = outs[gradient.num_results :]

        def pullback(cotangents: Any) -> Any:
            inputs = [*residuals, *result.split(cotangents)]
            grads = gradient_p.bind(*inputs, call=backward, is_forward=False, **mark)
            return in_tree.unflatten(grads)

        return result.rebuild(outs[: gradient.num_results], pullback)

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        self._depth += 1
        try:
            with _is_marking(False):
                yield
        finally:
            self._depth -= 1


@contextlib.contextmanager
def mark_gradients() -> Iterator[GradientMarker]:
    """Mark the gradients that this thread takes inside of the block."""
    marker, outer = GradientMarker(), getattr(_local, "marker", None)
    _local.marker = marker
    try:
        with intercept_vjp(marker.vjp), _is_marking(True):
            yield marker
    finally:
        _local.marker = outer


@dataclasses.dataclass(eq=False)
class _Result:
    """What a differentiated function returns: its results and the auxiliary ones."""

    has_aux: bool
    out_tree: Any = None
    aux_tree: Any = None
    num_outputs: int = 0
    # Auxiliary leaves that are not traced stay as they are, whatever they are.
    aux_leaves: list[Any] = dataclasses.field(default_factory=list)

    def flatten(self, returned: Any) -> list[Any]:
        aux: Any = ()
        if self.has_aux:
            if not isinstance(returned, tuple | list) or len(returned) != 2:
                raise TypeError(
                    "expected function with aux output to return a two-element tuple, "
                    f"but got type {type(returned)} with value {returned!r}"
                )
            returned, aux = returned
        outs, self.out_tree = jax.tree.flatten(returned)
        leaves, self.aux_tree = jax.tree.flatten(aux)
        self.num_outputs = len(outs)
        self.aux_leaves = [_TRACED if isinstance(x, Tracer) else x for x in leaves]
        return [*outs, *(x for x in leaves if isinstance(x, Tracer))]

    def split(self, cotangents: Any) -> list[Any]:
        """The leaves of the cotangents, checked as the pullback of JAX does."""
        leaves, tree = jax.tree.flatten(cotangents)
        if tree != self.out_tree:
            raise ValueError(
                f"unexpected tree structure: the pullback needs {self.out_tree}, but "
                f"was called with {tree}."
            )
        return leaves

    def rebuild(self, results: Sequence[Any], pullback: Callable[..., Any]) -> Any:
        out = self.out_tree.unflatten(results[: self.num_outputs])
        if not self.has_aux:
            return out, pullback
        traced = iter(results[self.num_outputs :])
        leaves = [next(traced) if x is _TRACED else x for x in self.aux_leaves]
        return out, pullback, self.aux_tree.unflatten(leaves)


_TRACED = object()


def _why_unmarked(leaves: Sequence[Any]) -> str:
    """Why a gradient for these arguments cannot be marked; "" if it can."""
    if not is_staging():
        return _INSIDE
    if not all(_is_value(x) and _is_real(jax.typeof(x)) for x in leaves):
        return "is one for arguments that are not real numbers"
    return ""


def _is_value(x: Any) -> bool:
    return isinstance(x, float) or (hasattr(x, "shape") and hasattr(x, "dtype"))


def _is_real(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating)


def _consts_as_inputs(traced: ClosedJaxpr) -> ClosedJaxpr:
    jaxpr = traced.jaxpr
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    return close(jaxpr.replace(constvars=[], invars=inputs))


@dataclasses.dataclass(frozen=True, eq=False)
class _Differentiated:
    """The forward and the backward pass of a function that is a jaxpr."""

    vjp: Callable[..., Any]
    function: ClosedJaxpr
    consts: Sequence[Any]
    leaves: Sequence[Any]
    num_outputs: int

    def plainly(self, consts: Sequence[Any], leaves: Sequence[Any]) -> Any:
        """The results, the pullback and the auxiliary results at these inputs."""
        run = jaxpr_as_fun(self.function)

        def split(*values: Any) -> tuple[list[Any], list[Any]]:
            results = run(*consts, *values)
            return results[: self.num_outputs], results[self.num_outputs :]

        return self.vjp(split, *leaves, has_aux=True)

    def traced(self) -> tuple[ClosedJaxpr, ClosedJaxpr]:
        """Both passes as jaxprs; residuals go from the one to the other."""
        count, trees = len(self.consts), []

        def forward(*inputs: Any) -> list[Any]:
            outs, pull, aux = self.plainly(inputs[:count], inputs[count:])
            residuals, tree = jax.tree.flatten(pull)
            trees.append(tree)
            return [*outs, *aux, *residuals]

        traced = jax.make_jaxpr(forward)(*self.consts, *self.leaves)
        num_results = len(self.function.jaxpr.outvars)

        def backward(residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            return list(trees[0].unflatten(residuals)(list(cotangents)))

        outs = self.function.jaxpr.outvars[: self.num_outputs]
        residuals = traced.jaxpr.outvars[num_results:]
        return traced, jax.make_jaxpr(backward)(
            list(map(shape_of, residuals)), list(map(shape_of, outs))
        )
