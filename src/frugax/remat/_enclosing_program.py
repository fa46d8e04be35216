"""Compile the program whose memory is limited: a gradient, or a training step."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax

from frugax.jaxprs import count_heavy, count_heavy_in_hlo, flops
from frugax.targets import CompiledAnswer, Target, find_platform, find_target


def _only_gradient(value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
    return value_and_grad(None)  # see `build_around`


def _name(fun: Callable[..., Any]) -> str:
    return getattr(fun, "__name__", type(fun).__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EnclosingProgram:
    """The program that is compiled around the gradient.

    Attributes:
        build: makes the function that is jitted, or that is jitted already, from a
            transform that takes the place of `jax.value_and_grad`, as the `make_step`
            of `frugax.fit` does. It is applied to the loss that is planned.
        args: arguments of the function that `build` returns; arrays or
            `jax.ShapeDtypeStruct`.
        donate_argnums: the donated arguments, as for `jax.jit`.
        plain: the same program around the gradient without a plan, if it is compiled
            already.
        keep: called with the jitted function of the chosen plan, if it was compiled
            as it will run: a call at the same shapes compiles nothing.
        is_mapped: whether the gradient is inside of a `jax.shard_map`, so that the
            arguments of the loss are those of one device.
    """

    build: Callable[[Callable[..., Any]], Callable[..., Any]]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()
    plain: "CompiledCandidate | None" = None
    keep: Callable[[Any], None] | None = None
    is_mapped: bool = False

    @classmethod
    def around(cls, within: Self | None, args: tuple[Any, ...]) -> Self:
        """`within`, or else the program that is only the gradient at `args`."""
        return within or cls(build=_only_gradient, args=args)

    def of_gradient(
        self,
        loss: Callable[..., Any],
        argnums: int | tuple[int, ...],
        *,
        has_aux: bool,
        count: int,
    ) -> Self:
        """The same program, which refuses to take the gradient of anything else.

        Args:
            loss: the loss that is planned.
            argnums: the arguments by which it is differentiated.
            has_aux: whether it returns something beside its value.
            count: the number of its arguments.
        """
        if self.is_gradient:
            return self

        def from_front(given: Any) -> Any:
            if isinstance(given, int):
                return given % count
            return tuple(n % count for n in given)

        planned = (from_front(argnums), has_aux)

        def build(value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
            def check_and_transform(
                fun: Callable[..., Any],
                argnums: int | tuple[int, ...] = 0,
                *,
                has_aux: bool = False,
            ) -> Callable[..., Any]:
                if fun != loss:
                    raise ValueError(
                        "within.build takes the gradient of another function than the "
                        f"loss that is planned: {_name(fun)}, not {_name(loss)}; call "
                        "value_and_grad with the very function that is planned."
                    )
                if (from_front(argnums), has_aux) != planned:
                    raise ValueError(
                        "within.build calls value_and_grad with "
                        f"argnums={argnums} and has_aux={has_aux}, but the plan is for "
                        f"argnums={planned[0]} and has_aux={planned[1]}; state the "
                        "same in both."
                    )
                return value_and_grad(fun, argnums, has_aux=has_aux)

            return self.build(check_and_transform)

        return dataclasses.replace(self, build=build)

    def build_around(self, gradient: Callable[..., Any]) -> Callable[..., Any]:
        """The program around this gradient of the loss that is planned."""
        return self.build(lambda *_, **__: gradient)

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
    options: Mapping[str, bool | str] | None = None,
) -> CompiledCandidate:
    """Compile `program` around `grad` with these compiler options, for its target."""
    target = program.target
    jitted: Any = program.build_around(grad)
    if not hasattr(jitted, "trace"):
        jitted = jax.jit(jitted, donate_argnums=program.donate_argnums)
    # One trace serves both the count of products and the compilation.
    with target.tracing():
        traced = jitted.trace(*program.args)
    executable = target.compile(traced, options=options)
    return CompiledCandidate.of(jitted, traced, executable)
