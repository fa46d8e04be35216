"""`TangentGradient`: a gradient and its change along a tangent, as one operation."""

import dataclasses
import operator
from collections.abc import Sequence
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from frugax.jaxprs import ClosedJaxpr, find_dependent, jaxpr_as_fun, shape_of

from ._marked_gradient import MarkedGradient, gradient_p


@dataclasses.dataclass(frozen=True, eq=False)
class TangentGradient:
    """A gradient under `jax.jvp`, such as the product of a Hessian and a vector.

    With the tangents of its arguments as further arguments, a function has two results:
    its own and its change along the tangents. The gradient of that change by the
    tangents is the function's own, and by the arguments it is the change of that.

    Attributes:
        gradient: of both results by arguments and tangents.
        inputs: for each operand of the forward pass, whether it has a tangent.
        outputs: the same for its results and the residuals.
    """

    gradient: MarkedGradient
    inputs: Sequence[bool]
    outputs: Sequence[bool]

    @classmethod
    def of(cls, gradient: MarkedGradient, inputs: Sequence[bool]) -> "TangentGradient":
        """That of a gradient, all of whose arguments get tangents.

        Args:
            gradient: of a function without a custom_vjp.
            inputs: for each operand of the forward pass, whether it has a tangent.
        """
        function, forward = gradient.function, gradient.forward
        consts, count = gradient.num_consts, gradient.num_outputs
        results = gradient.num_results
        inputs = [*inputs[:consts], *[True] * (len(inputs) - consts)]
        outputs = _find_moving(forward, inputs)
        outputs[:results] = map(
            operator.or_, outputs[:results], _find_moving(function, inputs)
        )
        outputs[:count] = [True] * count

        def push(closed: ClosedJaxpr) -> ClosedJaxpr:
            outs = outputs[: len(closed.out_avals)]
            traced, given, found = _push(closed, inputs, outs)
            ends = _arrange(*given, [consts]), _arrange(*found, [count, results])
            return _with_ends(traced, *ends)

        both = MarkedGradient(
            function=push(function),
            num_consts=consts + sum(inputs[:consts]),
            num_outputs=2 * count,
            forward=push(forward),
            backward=_pull(gradient, outputs[results:], [True] * count),
            source=gradient.source,
        )
        return cls(both, inputs, outputs)

    def bind(
        self,
        of: MarkedGradient,
        primals: Sequence[Any],
        tangents: Sequence[Any],
        *,
        is_forward: bool,
    ) -> tuple[list[Any], list[Any]]:
        """One of the passes: its results, and their tangents."""
        residuals = self.outputs[of.num_results :]
        has_tangent = (
            self.inputs if is_forward else [*residuals, *[True] * of.num_outputs]
        )
        moved = list(map(_instantiate, _choose(tangents, has_tangent)))
        if not is_forward:
            saved = len(residuals)
            operands = [
                *_arrange(primals[:saved], moved[:saved], []),
                *moved[saved:],
                *primals[saved:],
            ]
            # The cotangent of a number is 1, and does not change.
            changing = [type(t) is not ad.Zero for t in tangents[saved:]]
            call = _pull(of, residuals, changing)
            outs = self._bind(call, operands, is_forward=False)
            return outs[len(outs) // 2 :], outs[: len(outs) // 2]
        operands = _arrange(primals, moved, [of.num_consts])
        outs = self._bind(self.gradient.forward, operands, is_forward=True)
        # The places of results and tangents among them.
        count = len(self.outputs)
        places = _arrange(
            range(count),
            _choose(range(count, 2 * count), self.outputs),
            [of.num_outputs, of.num_results],
        )
        found = dict(zip(places, outs, strict=True))
        values = [found[i] for i in range(count)]
        zeros = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in values]
        return values, [found.get(count + i, zeros[i]) for i in range(count)]

    def _bind(
        self, call: ClosedJaxpr, operands: Sequence[Any], *, is_forward: bool
    ) -> list[Any]:
        return gradient_p.bind(
            *operands, call=call, gradient=self.gradient, is_forward=is_forward
        )


def _pull(
    gradient: MarkedGradient, residuals: Sequence[bool], changing: Sequence[bool]
) -> ClosedJaxpr:
    """The backward pass of both results, some of whose cotangents may be zeros.

    Args:
        gradient: of the function alone.
        residuals: whether each has a tangent.
        changing: for each cotangent of the function, whether its tangent may be another
            number than 0: it is the cotangent of the function in both.
    """
    saved, leaves = len(residuals), [True] * len(gradient.backward.out_avals)
    traced, (read, moved), (grads, changes) = _push(
        gradient.backward, [*residuals, *changing], leaves
    )
    shapes = list(map(shape_of, read[saved:]))
    unread = jax.make_jaxpr(lambda *_: ())(*shapes).jaxpr.invars
    cotangents = [
        x if x is not None else y for x, y in zip(moved[saved:], unread, strict=True)
    ]
    inputs = [*_arrange(read[:saved], moved[:saved], []), *cotangents, *read[saved:]]
    return _with_ends(traced, inputs, [*changes, *grads])


def _find_moving(closed: ClosedJaxpr, inputs: Sequence[bool]) -> list[bool]:
    """Which results depend on inputs that have tangents, and have one themselves."""
    return [
        depends and jnp.issubdtype(getattr(aval, "dtype", bool), jnp.inexact)
        for depends, aval in zip(
            find_dependent(closed.jaxpr, inputs), closed.out_avals, strict=True
        )
    ]


def _choose(values: Sequence[Any], chosen: Sequence[bool]) -> list[Any]:
    both = zip(values, chosen, strict=True)
    return [x if is_chosen else None for x, is_chosen in both]


def _instantiate(tangent: Any) -> Any:
    return None if tangent is None else ad.instantiate_zeros(tangent)


def _with_ends(
    closed: ClosedJaxpr, inputs: Sequence[Any], outputs: Sequence[Any]
) -> ClosedJaxpr:
    """The same program with its variables in another order."""
    jaxpr = closed.jaxpr.replace(invars=list(inputs), outvars=list(outputs))
    return ClosedJaxpr(jaxpr, closed.consts)


def _arrange(
    values: Sequence[Any], tangents: Sequence[Any], stops: Sequence[int]
) -> list[Any]:
    """Groups of values that end at `stops`, each with its tangents behind it."""
    arranged: list[Any] = []
    for start, stop in zip([0, *stops], [*stops, None], strict=True):
        arranged += values[start:stop]
        arranged += [t for t in tangents[start:stop] if t is not None]
    return arranged


def _push(
    closed: ClosedJaxpr, inputs: Sequence[bool], outputs: Sequence[bool]
) -> tuple[ClosedJaxpr, tuple[list[Any], list[Any]], tuple[list[Any], list[Any]]]:
    """The program of values and tangents, and its variables for both, or None."""
    run = jaxpr_as_fun(closed)

    def push(values: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        def moved(*moving: Any) -> list[Any]:
            new = iter(moving)
            both = zip(values, inputs, strict=True)
            return run(*(next(new) if is_moving else x for x, is_moving in both))

        outs, changes = jax.jvp(moved, list(compress(values, inputs)), tangents)
        return [*outs, *compress(changes, outputs)]

    shapes = list(map(shape_of, closed.jaxpr.invars))
    traced = jax.make_jaxpr(push)(shapes, list(compress(shapes, inputs)))

    def split(variables: Sequence[Any], chosen: Sequence[bool]) -> Any:
        rest = iter(variables[len(chosen) :])
        moved = [next(rest) if is_chosen else None for is_chosen in chosen]
        return list(variables[: len(chosen)]), moved

    ends = split(traced.jaxpr.invars, inputs), split(traced.jaxpr.outvars, outputs)
    return traced, *ends
