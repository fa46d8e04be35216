"""`BatchedGradient`: the gradients of all rows of a `jax.vmap` as one operation."""

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from frugax.jaxprs import (
    ClosedJaxpr,
    find_dependent,
    has_explicit_axes,
    jaxpr_as_fun,
    names_axes,
    varying_axes,
)

from ._marked_gradient import MarkedGradient, gradient_p


@dataclasses.dataclass(frozen=True, eq=False)
class BatchedGradient:
    """The gradients of all rows of a `jax.vmap`, each for weights of its own.

    Attributes:
        gradient: of all rows, which come first in each array; those that all rows share
            are not repeated.
        size: the number of rows.
        inputs: for each operand of the forward pass, whether it has rows.
        outputs: the same for its results and the residuals.
    """

    gradient: MarkedGradient
    size: int
    inputs: Sequence[bool]
    outputs: Sequence[bool]

    @classmethod
    def of(
        cls, gradient: MarkedGradient, axis: Any, inputs: Sequence[bool]
    ) -> "BatchedGradient":
        """Those of a gradient that is mapped.

        Args:
            gradient: of one row.
            axis: the mapped axis.
            inputs: for each operand of the forward pass, whether it has rows.
        """
        function, forward = gradient.function, gradient.forward
        results, count = gradient.num_results, gradient.num_outputs
        outputs = _find_mapped(forward, inputs)
        outputs[:results] = map(
            operator.or_, outputs[:results], _find_mapped(function, inputs)
        )
        outputs[:count] = [True] * count
        over = functools.partial(_trace_rows, axis=axis)
        mapped = dataclasses.replace(
            gradient,
            function=over(function, inputs, outputs[:results]),
            forward=over(forward, inputs, outputs),
            backward=over(
                gradient.backward,
                [*outputs[results:], *[True] * count],
                [True] * len(gradient.backward.out_avals),
            ),
        )
        return cls(mapped, axis.size, inputs, outputs)

    def suits(self, axis: Any, dims: Sequence[int | None]) -> bool:
        """Whether a backward pass is mapped as its forward pass was.

        The pullback of one row may be mapped itself, as `jax.jacrev` does.
        """
        residuals = self.outputs[self.gradient.num_results :]
        found = [dim is not None for dim in dims[: len(residuals)]]
        return axis.size == self.size and found == [*residuals]

    def bind(
        self, operands: Sequence[Any], dims: Sequence[int | None], *, is_forward: bool
    ) -> tuple[list[Any], list[int | None]]:
        """The operation of all rows, and where its results have them."""
        gradient = self.gradient
        call, inputs, outputs = gradient.forward, self.inputs, self.outputs
        if not is_forward:
            call = gradient.backward
            residuals = outputs[gradient.num_results :]
            inputs = [*residuals, *[True] * gradient.num_outputs]
            outputs = [True] * len(call.out_avals)
        rows = [
            self._put_first(x, dim) if has_rows else x
            for x, dim, has_rows in zip(operands, dims, inputs, strict=True)
        ]
        outs = gradient_p.bind(
            *rows, call=call, gradient=gradient, is_forward=is_forward
        )
        return outs, [0 if has_rows else None for has_rows in outputs]

    def _put_first(self, x: Any, dim: int | None) -> Any:
        if dim is None:
            return jnp.broadcast_to(x, (self.size, *jnp.shape(x)))
        return jnp.moveaxis(x, dim, 0)


def bind_pullbacks(
    gradient: MarkedGradient, axis: Any, operands: Sequence[Any], dims: Sequence[Any]
) -> tuple[list[Any], list[int]] | None:
    """A backward pass for rows of cotangents, as of `jax.jacrev`; None if it cannot be.

    Args:
        gradient: of a function that is not mapped.
        axis: the mapped axis.
        operands: of the backward pass.
        dims: where they have rows.
    """
    saved, call = len(operands) - gradient.num_outputs, gradient.backward
    on_mesh = any(has_explicit_axes(x) or varying_axes(x) for x in call.in_avals)
    if on_mesh or names_axes(call) or any(dim is not None for dim in dims[:saved]):
        return None
    rows = [
        jnp.broadcast_to(x, (axis.size, *jnp.shape(x)))
        if dim is None
        else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(operands[saved:], dims[saved:], strict=True)
    ]
    results = [True] * len(call.out_avals)
    mapped = _trace_rows(call, [False] * saved + [True] * len(rows), results, axis=axis)
    outs = gradient_p.bind(
        *operands[:saved],
        *rows,
        call=mapped,
        gradient=gradient,
        is_forward=False,
        is_mapped=True,
    )
    return outs, [0] * len(outs)


def _find_mapped(closed: ClosedJaxpr, inputs: Sequence[bool]) -> list[bool]:
    # An operation that names the axis may make rows of anything.
    if names_axes(closed):
        return [True] * len(closed.out_avals)
    return find_dependent(closed.jaxpr, inputs)


def _trace_rows(
    closed: ClosedJaxpr, inputs: Sequence[bool], outputs: Sequence[bool], *, axis: Any
) -> ClosedJaxpr:
    """A program of all rows, which come first where there are any."""
    shapes = [
        jax.ShapeDtypeStruct(
            (axis.size, *x.shape) if has_rows else x.shape,
            x.dtype,
            weak_type=getattr(x, "weak_type", False),
        )
        for x, has_rows in zip(closed.in_avals, inputs, strict=True)
    ]
    place = lambda rows: [0 if has_rows else None for has_rows in rows]
    run = jax.vmap(
        jaxpr_as_fun(closed),
        in_axes=tuple(place(inputs)),
        out_axes=place(outputs),
        axis_name=axis.name if axis.name is not None else None,
        axis_size=axis.size,
        spmd_axis_name=axis.spmd_name,
    )
    return jax.make_jaxpr(run)(*shapes)
