"""Find the gradients that a function takes while it is traced, and mark their place.

`jax.grad`, `jax.value_and_grad` and `jax.jacrev` all call `jax.vjp`. While
`mark_gradients` is open, each such call traces its function once, to a jaxpr, and
writes two operations of our own in place of what JAX would write: the forward pass with
its residuals, and, where the pullback is called, the backward pass. Their parameters
hold the traced function, so that another program for both can take their place later.
Left alone they lower to what JAX would have written. Mapped by `jax.vmap`, they become
those of all rows.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.interpreters import ad, batching

from frugax.jaxprs import (
    ClosedJaxpr,
    InlinedError,
    close,
    constants,
    has_explicit_axes,
    intercept_vjp,
    is_staging,
    jaxpr_as_fun,
    shape_of,
    varying_axes,
)
from frugax.train.compiles import find_call_site

from ._batched_gradient import BatchedGradient, bind_pullbacks
from ._marked_gradient import MarkedGradient, gradient_p
from ._plan import describe_error
from ._tangent_gradient import TangentGradient

# Part of the keys of JAX's caches: a jitted function that is called both inside and
# outside of a marked trace is traced for each, and once more inside of a loss.
_is_marking = jax.make_user_context(False)

_INSIDE = "is inside of another derivative"
_local = threading.local()


# Under other transformations it becomes the operations that it stands for.
def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    call: ClosedJaxpr,
    gradient: MarkedGradient,
    is_forward: bool,
    is_mapped: bool = False,
) -> Any:
    """Mark the gradient and its change as one, where both are written into a program.

    Not in `jax.linearize`, which runs a part of the operation later.

    Raises:
        InlinedError: the gradient stays as JAX writes it.
    """
    marker: GradientMarker | None = getattr(_local, "marker", None)
    if marker is None or is_mapped or not is_staging():
        _note(gradient, _INSIDE)
        raise InlinedError
    if is_forward:
        marker.push(gradient, [type(t) is not ad.Zero for t in tangents])
    both = marker.pushed.get(gradient)
    if both is None:
        raise InlinedError
    return both.bind(gradient, primals, tangents, is_forward=is_forward)


def _batch(
    axis: Any,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    call: ClosedJaxpr,
    gradient: MarkedGradient,
    is_forward: bool,
    is_mapped: bool = False,
) -> Any:
    """Mark the gradients of all rows as one, if each row has weights of its own."""
    marker: GradientMarker | None = getattr(_local, "marker", None)
    if marker is None or is_mapped:
        raise InlinedError
    if is_forward:
        marker.batch(gradient, axis, dims)
    elif gradient not in marker.batched:
        pulled = bind_pullbacks(gradient, axis, operands, dims)
        if pulled is None:
            raise InlinedError
        return pulled
    batched = marker.batched.get(gradient)
    if batched is None or not (is_forward or batched.suits(axis, dims)):
        raise InlinedError
    return batched.bind(operands, dims, is_forward=is_forward)


def _note(gradient: MarkedGradient, reason: str) -> None:
    marker: GradientMarker | None = getattr(_local, "marker", None)
    if marker is not None:
        marker.note(gradient.source, reason)


ad.primitive_jvps[gradient_p] = _jvp
batching.fancy_primitive_batchers[gradient_p] = _batch
gradient_p.inline_under_checkify(
    lambda gradient, **_: _note(gradient, "is inside of checkify, which adds checks")
)


class _UnmarkedError(Exception):
    """A gradient can neither be marked nor be left alone in a program with marks."""


@dataclasses.dataclass(eq=False)
class GradientMarker:
    """Marks the gradients of one trace; made by `mark_gradients`.

    Attributes:
        unmarked: lines of gradients that stay as JAX writes them, with the reason.
        batched: the gradients of all rows of a `jax.vmap`, for that of one row.
        pushed: the gradients with their change along tangents, for those alone.
        has_seen: whether a gradient was taken, marked or not.
    """

    unmarked: list[str] = dataclasses.field(default_factory=list)
    batched: "dict[MarkedGradient, BatchedGradient | None]" = dataclasses.field(
        default_factory=dict
    )
    pushed: "dict[MarkedGradient, TangentGradient | None]" = dataclasses.field(
        default_factory=dict
    )
    has_seen: bool = False
    _notes: dict[MarkedGradient, str] = dataclasses.field(default_factory=dict)
    _depth: int = 0

    def vjp(self, vjp: Any, fun: Any, *primals: Any, has_aux: bool = False) -> Any:
        """`jax.vjp`, with its forward and its backward pass as marked operations."""
        self.has_seen = True
        leaves, in_tree = jax.tree.flatten(primals)
        # A gradient inside of a differentiated function is a part of that function.
        if self._depth or not leaves:
            return vjp(fun, *primals, has_aux=has_aux)
        if reason := _why_unmarked(leaves):
            self.note(find_call_site(), reason)
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
            self.note(source, "is one of results that are not real numbers")
            with self._inside():
                outs, pull, aux = differentiate.plainly(consts, leaves)
            return result.rebuild(
                [*outs, *aux],
                lambda cotangents: in_tree.unflatten(pull(result.split(cotangents))),
            )
        with self._inside():
            forward, backward = differentiate.traced()
        if any(isinstance(x, Tracer) for x in constants(forward) + constants(backward)):
            # The rule cannot be traced again elsewhere, as a plan does.
            raise _UnmarkedError(
                f"the gradient at {source} has a rule (custom_vjp, custom_jvp) that "
                "closes over a value of the step"
            )
        gradient = MarkedGradient(
            function, len(consts), result.num_outputs, forward, backward, source
        )
        mark: dict[str, Any] = {"gradient": gradient}
        outs = gradient_p.bind(*consts, *leaves, call=forward, is_forward=True, **mark)
        residuals = outs[gradient.num_results :]

        def pullback(cotangents: Any) -> Any:
            inputs = [*residuals, *result.split(cotangents)]
            outputs = function.out_avals[: result.num_outputs]
            for given, out in zip(inputs[len(residuals) :], outputs, strict=True):
                _check_cotangent(given, out)
            grads = gradient_p.bind(*inputs, call=backward, is_forward=False, **mark)
            return in_tree.unflatten(grads)

        return result.rebuild(outs[: gradient.num_results], pullback)

    def batch(
        self, gradient: MarkedGradient, axis: Any, dims: Sequence[int | None]
    ) -> None:
        """Make the gradients of all rows of a `jax.vmap`; note it if that cannot be."""
        inputs = [dim is not None for dim in dims]
        reason = ""
        is_shared = not all(inputs[gradient.num_consts :])
        pushed = (both.gradient for both in self.pushed.values() if both is not None)
        if is_shared and gradient in pushed:
            reason = _INSIDE  # `jax.hessian`, for example, has a row for each tangent
        elif is_shared:
            reason = "is one for each row of jax.vmap, of weights that the rows share"
        elif any(has_explicit_axes(x) for x in gradient.forward.in_avals):
            reason = "is inside of jax.vmap, over a mesh of explicit axes"
        elif any(varying_axes(x) for x in gradient.forward.in_avals):
            reason = "is inside of jax.vmap in a shard_map with check_vma"
        # A loop is mapped until the rows in it are known, and the last time counts.
        self.unmarked = [x for x in self.unmarked if x is not self._notes.get(gradient)]
        self.batched[gradient] = None
        if reason:
            self._notes[gradient] = self.note(gradient.source, reason)
        else:
            self.batched[gradient] = BatchedGradient.of(gradient, axis, inputs)

    def push(self, gradient: MarkedGradient, has_tangent: Sequence[bool]) -> None:
        """Make the gradient of a `jax.jvp` with its change; note it if it has none."""
        self.pushed[gradient] = None
        if any(
            has_explicit_axes(x) or varying_axes(x) for x in gradient.forward.in_avals
        ):
            self.note(gradient.source, f"{_INSIDE}, over a mesh of explicit axes")
        elif gradient.has_custom_vjp:
            self.note(gradient.source, f"{_INSIDE}, and has a custom_vjp")
        else:
            self.pushed[gradient] = TangentGradient.of(gradient, has_tangent)

    def note(self, source: str, reason: str) -> str:
        """Note that the gradient of a line stays as JAX writes it."""
        line = f"the gradient at {source} {reason}"
        self.unmarked.append(line)
        return line

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


def trace_marked(
    jitted: Any, plain: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, list[str]]:
    """Trace a function with its gradients marked, or as it is where that fails.

    Args:
        jitted: the function, which JAX has not traced yet.
        plain: the same, whose errors are those of the user's function.
        args: its arguments.
        kwargs: those by name.

    Returns:
        The traced function, and why gradients of it are not marked.
    """
    with mark_gradients() as marker:
        try:
            traced = jitted.trace(*args, **kwargs)
        except _UnmarkedError as e:
            reason = str(e)
        except Exception as e:  # of the user's function, or of our marks in it
            reason = describe_error(e)
        else:
            return traced, list(marker.unmarked)
    # An error of the user's function comes again, without this one around it.
    return plain.trace(*args, **kwargs), [reason] if marker.has_seen else []


@dataclasses.dataclass(eq=False)
class _Result:
    """The outputs of a differentiated function: its results and the auxiliary ones."""

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


def _check_cotangent(given: Any, out: Any) -> None:
    """Refuse another shape or dtype than that of the result, as JAX does."""
    aval = jax.typeof(given)
    if (aval.shape, aval.dtype) != (out.shape, out.dtype):
        raise ValueError(
            "unexpected JAX type (e.g. shape/dtype) for argument to VJP function: got "
            f"{aval.str_short()}, but expected {out.str_short()} because the "
            "corresponding output of the differentiated function had that type"
        )


def _why_unmarked(leaves: Sequence[Any]) -> str:
    """Why a gradient for these arguments cannot be marked; "" if it can."""
    if not is_staging():
        return _INSIDE
    if not all(_is_value(x) and _is_inexact(jax.typeof(x)) for x in leaves):
        return "is one for arguments that are whole numbers"
    return ""


def _is_value(x: Any) -> bool:
    return isinstance(x, float) or (hasattr(x, "shape") and hasattr(x, "dtype"))


def _is_inexact(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


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
