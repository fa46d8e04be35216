"""`TracedStep`: a jitted function that takes a gradient, for devices here or absent."""

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from frugax.jaxprs import (
    ClosedJaxpr,
    Jaxpr,
    argument_shardings,
    result_shardings,
)
from frugax.targets import Target

from ._gradients import MarkedGradient
from ._plan import Chosen
from ._staged import StagedProgram
from ._unknown_arrays import UnknownArray


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TracedStep:
    """A step as a program of flat arguments.

    Attributes:
        name: of the function.
        place: `file.py:line` of the function.
        staged: its program, with the gradients marked.
        shapes: its arguments; those that lie somewhere by choice have a sharding.
        arguments: for each of them, the name of the parameter that it belongs to.
        donated: for each of them, whether it is donated.
        tree: the arguments of the call, positional ones and those by name.
        signature: of the function; None if it has none.
        result_places: shardings of the results; None where the compiler chooses.
    """

    name: str
    place: str
    staged: StagedProgram
    shapes: tuple[Any, ...]
    arguments: tuple[str, ...]
    donated: tuple[bool, ...]
    tree: Any
    signature: inspect.Signature | None
    result_places: tuple[Any, ...]

    @classmethod
    def of(
        cls, traced: Any, staged: StagedProgram, shapes: Sequence[Any], **names: Any
    ) -> "TracedStep":
        """The step that `jax.jit(f).trace(*args)` returns.

        Args:
            traced: its result.
            staged: its program.
            shapes: the flat arguments.
            names: `name`, `place`, `arguments`, `tree` and `signature`.
        """
        donated = [x.donated for x in jax.tree.leaves(traced.args_info)]
        places = argument_shardings(traced)
        return cls(
            staged=staged,
            shapes=tuple(map(_put, shapes, places)),
            donated=tuple(donated),
            result_places=result_shardings(traced),
            **names,
        )

    @property
    def num_devices(self) -> int:
        """The number of devices that its arguments and results are divided over."""
        places = [getattr(x, "sharding", None) for x in self.shapes]
        places += self.result_places
        return max((p.num_devices for p in places if p is not None), default=1)

    def on(self, target: Target) -> "PlacedStep":
        """The step on the devices of a target.

        Raises:
            ConfigError: it needs more devices than the target has.
        """
        program, unknown = _with_unknown_inputs(self.staged.traced)
        placed = tuple(target.place([*unknown, *self.shapes]))
        results: Sequence[Any] = self.result_places
        if not target.is_here:
            moved = _MovedProgram(target)
            program = moved.move(program)
            results = [None if r is None else moved.move(r) for r in results]
        return PlacedStep(
            step=self,
            staged=StagedProgram.of(program, self.staged.unplanned),
            shapes=placed,
            result_places=tuple(results),
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PlacedStep:
    """A step with its arguments on the devices of a target.

    Attributes:
        step: the step.
        staged: its program.
        shapes: its flat arguments, after unknown arrays that it closes over.
        result_places: shardings of the results; None where the compiler chooses.
    """

    step: TracedStep
    staged: StagedProgram
    shapes: tuple[Any, ...]
    result_places: tuple[Any, ...]

    def build(self, chosen: Chosen) -> "StructuredProgram":
        """The jitted program with some gradients replaced."""
        step, count = self.step, len(self.shapes) - len(self.step.shapes)

        def run(closed_over: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
            leaves = jax.tree.leaves((args, kwargs))
            return self.staged.run(chosen, [*closed_over, *leaves])

        run.__name__ = step.name
        if step.signature is not None:
            # The compiler names the arguments by it.
            first = inspect.Parameter("closed_over", inspect.Parameter.POSITIONAL_ONLY)
            known = [
                p.replace(kind=inspect.Parameter.POSITIONAL_ONLY)
                if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
                and i < len(step.tree.children()[0].children())
                else p
                for i, p in enumerate(step.signature.parameters.values())
            ]
            signed: Any = run
            signed.__signature__ = inspect.Signature([first, *known])
        args, kwargs = step.tree.unflatten(step.donated)
        is_donated = lambda arg: any(jax.tree.leaves(arg))
        options: dict[str, Any] = {
            "donate_argnums": [i for i, x in enumerate(args, 1) if is_donated(x)],
            "donate_argnames": [k for k, x in kwargs.items() if is_donated(x)],
        }
        if any(place is not None for place in self.result_places):
            options["out_shardings"] = list(self.result_places)
        return StructuredProgram(jax.jit(run, **options), step.tree, count)


@dataclasses.dataclass(frozen=True, eq=False)
class StructuredProgram:
    """A jitted function of the arguments of a step, traced for flat ones."""

    jitted: Any
    tree: Any
    num_closed_over: int

    def __call__(self, *leaves: Any) -> Any:
        """Call the function."""
        args, kwargs = self._structure(leaves)
        return self.jitted(*args, **kwargs)

    def trace(self, *leaves: Any) -> Any:
        """Trace the function, as the result of `jax.jit` does."""
        args, kwargs = self._structure(leaves)
        return self.jitted.trace(*args, **kwargs)

    def _structure(self, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        count = self.num_closed_over
        args, kwargs = self.tree.unflatten(leaves[count:])
        return [list(leaves[:count]), *args], kwargs


def _put(leaf: Any, place: Any) -> Any:
    if not hasattr(leaf, "shape") or (
        place is None and isinstance(leaf, jax.ShapeDtypeStruct)
    ):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)


def _with_unknown_inputs(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Any]]:
    """The program with unknown arrays that it closes over as its first arguments."""
    constvars, consts, inputs, shapes = [], [], [], []
    for var, const in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        if isinstance(const, UnknownArray):
            inputs.append(var)
            place = const.sharding if const.committed else None
            shapes.append(_put(const, place))
        else:
            constvars.append(var)
            consts.append(const)
    if not inputs:
        return closed, []
    jaxpr = closed.jaxpr.replace(
        constvars=constvars, invars=[*inputs, *closed.jaxpr.invars]
    )
    return ClosedJaxpr(jaxpr, consts), shapes


class _MovedProgram:
    """Moves the shardings inside of a program to the devices of a target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._gradients: dict[MarkedGradient, MarkedGradient] = {}

    def move(self, value: Any) -> Any:
        """The same program, or parameter of an operation, on the target."""
        if isinstance(value, ClosedJaxpr):
            return ClosedJaxpr(self.move(value.jaxpr), value.consts)
        if isinstance(value, Jaxpr):
            eqns = [
                e.replace(params={k: self.move(v) for k, v in e.params.items()})
                for e in value.eqns
            ]
            return value.replace(eqns=eqns)
        if isinstance(value, MarkedGradient):
            if value not in self._gradients:
                names = ("function", "forward", "backward")
                moved = {n: self.move(getattr(value, n)) for n in names}
                self._gradients[value] = dataclasses.replace(value, **moved)
            return self._gradients[value]
        if type(value) is tuple:  # a named tuple is a value of another kind
            return tuple(map(self.move, value))
        if isinstance(value, Mesh):
            if value.empty:
                return value
            moved: Any = self._target.move(NamedSharding(value, PartitionSpec()))
            return moved.mesh
        if isinstance(value, jax.sharding.Sharding):
            return self._target.move(value)
        if isinstance(value, jax.Device):
            return self._target.devices[0]
        return value
