"""Compile the program whose memory is limited: a gradient, or a training step."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax

from frugax.jaxprs import count_heavy, count_heavy_in_hlo, flops
from frugax.targets import CompiledAnswer, Target, find_platform, find_target


def _only_gradient(grad: Callable[..., Any]) -> Callable[..., Any]:
    return grad


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EnclosingProgram:
    """The program that is compiled around the gradient.

    Attributes:
        build: makes the function that is jitted, or that is jitted already, from the
            gradient function, which is called as `jax.value_and_grad(loss)` is. (The
            `make_step` of `frugax.fit` is given the transform itself.)
        args: arguments of the function that `build` returns; arrays or
            `jax.ShapeDtypeStruct`.
        donate_argnums: the donated arguments, as for `jax.jit`.
        plain: the same program around the gradient without a plan, if it is compiled
            already.
        keep: called with the jitted function of the chosen plan, if it was compiled
            as it will run: a call at the same shapes compiles nothing.
    """

    build: Callable[[Callable[..., Any]], Callable[..., Any]]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()
    plain: "CompiledCandidate | None" = None
    keep: Callable[[Any], None] | None = None

    @classmethod
    def around(cls, within: Self | None, args: tuple[Any, ...]) -> Self:
        """`within`, or else the program that is only the gradient at `args`."""
        return within or cls(build=_only_gradient, args=args)

    @property
    def is_gradient(self) -> bool:
        """Whether it is the gradient alone."""
        return self.build is _only_gradient

    def on(self, target: Target) -> Self:
        """The same program for the devices of this target."""
        return dataclasses.replace(self, args=target.place(self.args))

    def on_target_of(self, target: str, platform: str) -> Self:
        """The same program where a plan was made, if its arguments are only shapes.

        Args:
            target: the plan's target.
            platform: the plan's platform.
        """
        shapes = all(
            isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(self.args)
        )
        if platform and shapes and find_platform(self.args) != platform:
            return self.on(Target(target))
        return self

    @property
    def target(self) -> Target:
        """The devices where its arguments live."""
        return find_target(self.args)


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledCandidate:
    """A compiled program and the number of its matrix products and convolutions.

    Attributes:
        executable: the compiled program, or the report of an absent target's compiler.
        heavy_traced: matrix products and convolutions in the traced program.
        heavy_compiled: those left after XLA's optimisations.
        flops: of the traced program.
        jitted: the function that was compiled.
    """

    executable: jax.stages.Compiled | CompiledAnswer
    heavy_traced: int
    heavy_compiled: int
    flops: int
    jitted: Any = None

    @classmethod
    def of(cls, jitted: Any, traced: Any, executable: Any) -> Self:
        """The figures of a program that was traced and compiled."""
        return cls(
            executable,
            heavy_traced=count_heavy(traced.jaxpr.jaxpr),
            # `as_text` returns None where a backend has no text of its programs.
            heavy_compiled=count_heavy_in_hlo(executable.as_text() or ""),
            flops=flops(traced.jaxpr.jaxpr),
            jitted=jitted,
        )


def compile_program(
    program: EnclosingProgram,
    grad: Callable[..., Any],
    options: tuple[tuple[str, str], ...] = (),
) -> CompiledCandidate:
    """Compile `program` around `grad` with these compiler options, for its target."""
    target = program.target
    jitted: Any = program.build(grad)
    if not hasattr(jitted, "trace"):
        jitted = jax.jit(jitted, donate_argnums=program.donate_argnums)
    # One trace serves both the count of products and the compilation.
    with target.tracing():
        traced = jitted.trace(*program.args)
    executable = target.compile(traced, options=dict(options))
    return CompiledCandidate.of(jitted, traced, executable)
