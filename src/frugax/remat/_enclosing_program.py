"""The program whose memory counts: a gradient, or a whole training step around it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from frugax.jaxprs import count_heavy, count_heavy_in_hlo


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EnclosingProgram:
    """What will be compiled around the gradient.

    Attributes:
        build: from the gradient function, called as `jax.value_and_grad(loss)` is,
            to the function that is jitted.
        args: that function's arguments; arrays or `jax.ShapeDtypeStruct`.
        donate_argnums: which of them are given up to it, as for `jax.jit`.
    """

    build: Callable[[Callable[..., Any]], Callable[..., Any]]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Build:
    """One compiled candidate.

    Attributes:
        compiled: the executable.
        heavy_written: matrix products and convolutions in the traced program.
        heavy_left: those that the compiler left.
    """

    compiled: jax.stages.Compiled
    heavy_written: int
    heavy_left: int


def compile_program(
    whole: EnclosingProgram,
    grad: Callable[..., Any],
    options: tuple[tuple[str, str], ...] = (),
) -> Build:
    """Compile `whole` around `grad`, with these compiler options."""
    jitted = jax.jit(
        whole.build(grad),
        donate_argnums=whole.donate_argnums,
        compiler_options=dict(options),
    )
    traced = jitted.trace(*whole.args)
    compiled = traced.lower().compile()
    return Build(
        compiled,
        heavy_written=count_heavy(traced.jaxpr.jaxpr),
        heavy_left=count_heavy_in_hlo(compiled.as_text() or ""),
    )
