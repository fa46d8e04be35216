"""The program whose memory is limited: a gradient, or a training step around it."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax

from frugax.jaxprs import count_heavy, count_heavy_in_hlo


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EnclosingProgram:
    """The program that is compiled around the gradient.

    Attributes:
        build: makes the function that is jitted from the gradient function, which is
            called as `jax.value_and_grad(loss)` is.
        args: arguments of the function that `build` returns; arrays or
            `jax.ShapeDtypeStruct`.
        donate_argnums: the donated arguments, as for `jax.jit`.
    """

    build: Callable[[Callable[..., Any]], Callable[..., Any]]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()

    @classmethod
    def around(cls, within: Self | None, args: tuple[Any, ...]) -> Self:
        """`within`, or else the program that is only the gradient at `args`."""
        return within or cls(build=lambda grad: grad, args=args)


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledCandidate:
    """A compiled program and the number of its matrix products and convolutions.

    Attributes:
        executable: the compiled program.
        heavy_traced: matrix products and convolutions in the traced program.
        heavy_compiled: those left after XLA's optimisations.
    """

    executable: jax.stages.Compiled
    heavy_traced: int
    heavy_compiled: int


def compile_program(
    program: EnclosingProgram,
    grad: Callable[..., Any],
    options: tuple[tuple[str, str], ...] = (),
) -> CompiledCandidate:
    """Compile `program` around `grad` with these compiler options."""
    jitted = jax.jit(
        program.build(grad),
        donate_argnums=program.donate_argnums,
        compiler_options=dict(options),
    )
    # One trace serves both the count of products and the compilation.
    traced = jitted.trace(*program.args)
    executable = traced.lower().compile()
    return CompiledCandidate(
        executable,
        heavy_traced=count_heavy(traced.jaxpr.jaxpr),
        # `as_text` returns None where a backend has no text of its programs.
        heavy_compiled=count_heavy_in_hlo(executable.as_text() or ""),
    )
