"""`TracedStep`: a jitted function that takes a gradient, for devices here or absent."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
)

from frugax.jaxprs import (
    ClosedJaxpr,
    Jaxpr,
    RetypedProgram,
    argument_shardings,
    close_over,
    has_explicit_axes,
    jaxprs_in_params,
    result_shardings,
    without_objects,
)
from frugax.targets import Target
from frugax.train.compiles import find_call_site, is_user_file

from ._call import Call, CalledProgram
from ._gradients import trace_marked
from ._marked_gradient import MarkedGradient
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
        call: its arguments; those that lie somewhere by choice have a sharding.
        arguments: for each of them, the name of the parameter that it belongs to.
        paths: for each of them, its place in that parameter, such as "['w']".
        signature: of the function; None if it has none.
        donated: for each of them, whether it is donated.
        result_places: shardings of the results; None where the compiler chooses.
        closed_over: unknown arrays that it closes over; on a target only.
        mutable: for each argument, the array of a mutable one (`jax.Ref`), or None.
        takes_values: whether the arrays of mutable arguments are taken in their place,
            and returned after the results.
    """

    name: str
    place: str
    staged: StagedProgram
    call: Call
    arguments: Sequence[str]
    paths: Sequence[str]
    signature: inspect.Signature | None
    donated: Sequence[bool]
    result_places: Sequence[Any]
    closed_over: Sequence[Any] = ()
    mutable: Sequence[Any] = ()
    takes_values: bool = False

    @classmethod
    def trace(
        cls,
        fun: Callable[..., Any],
        args: Sequence[Any],
        *,
        donate_argnums: Sequence[int] = (),
    ) -> "TracedStep":
        """Trace a function of arrays, and find the gradients that it takes.

        Args:
            fun: the function; one of `jax.jit` donates what it donates itself.
            args: its arguments or their shapes.
            donate_argnums: as for `jax.jit`.
        """
        leaves, tree = jax.tree.flatten((tuple(args), {}))
        name, place = find_source(fun)
        jitted: Any = fun
        if not isinstance(fun, jax.stages.Wrapped):
            # A new function: JAX must not find a trace without marks.
            fresh = functools.wraps(fun)(lambda *args: fun(*args))
            jitted = jax.jit(fresh, donate_argnums=tuple(donate_argnums))
        traced, unmarked = trace_marked(jitted, jitted, args, {})
        return cls.of(
            traced,
            Call(leaves, tree, ()),
            name=name,
            place=place,
            staged=StagedProgram.of(close_over(traced), unmarked),
            signature=find_signature(fun),
        )

    @classmethod
    def of(
        cls,
        traced: Any,
        call: Call,
        *,
        signature: inspect.Signature | None,
        **known: Any,
    ) -> "TracedStep":
        """The step that `jax.jit(f).trace(*args)` returns.

        Args:
            traced: its result.
            call: the arguments, or their shapes.
            signature: of the function; None if it has none.
            known: `name`, `place` and `staged`.
        """
        arguments = call.name_leaves(signature)
        mutable = list(map(_value_of, call.leaves))
        call = call.of_shapes()
        closed = close_over(traced)
        shapes = closed.in_avals[len(closed.in_avals) - len(call.leaves) :]
        places = map(_as_typed, argument_shardings(traced), shapes)
        leaves = list(map(_put, call.leaves, places))
        results = map(_as_typed, result_shardings(traced), closed.out_avals)
        names = traced.jaxpr.jaxpr.debug_info.arg_names
        infos = jax.tree.leaves(without_objects(traced).args_info)
        return cls(
            call=dataclasses.replace(call, leaves=leaves),
            mutable=mutable,
            arguments=arguments,
            paths=list(map(str.removeprefix, names, arguments)),
            donated=[x.donated for x in infos],
            result_places=list(results),
            signature=signature,
            **known,
        )

    @property
    def shapes(self) -> list[Any]:
        """The flat arguments, after the arrays that it closes over."""
        return [*self.closed_over, *self.call.leaves]

    @property
    def num_devices(self) -> int:
        """The number of devices that it is divided over."""
        places = [getattr(x, "sharding", None) for x in self.shapes if _is_array(x)]
        places += self.result_places
        counts = [p.num_devices for p in places if p is not None]
        return max([1, *counts, _devices_inside(self.staged.traced.jaxpr)])

    @property
    def names_devices(self) -> bool:
        """Whether its arguments, its results or its operations name devices."""
        is_inside = _devices_inside(self.staged.traced.jaxpr) > 0
        return is_inside or self.num_devices > 1

    def on(self, target: Target) -> "TracedStep":
        """The step on the devices of a target.

        Raises:
            ConfigError: it needs more devices than the target has.
        """
        is_mutable = any(value is not None for value in self.mutable)
        if is_mutable and not target.is_here and not self.takes_values:
            return self._of_values().on(target)
        program, unknown = _with_unknown_inputs(self.staged.traced)
        shapes: list[Any] = [*unknown, *self.shapes]
        results: Sequence[Any] = self.result_places
        if not target.is_here:
            moved = _MovedProgram(target)
            program = moved.change(program)
            results = [None if r is None else moved.change(r) for r in results]
            if moved.mesh is not None:
                # What lies nowhere by choice goes where the program divides it.
                everywhere = NamedSharding(moved.mesh, PartitionSpec())
                shapes = [
                    _put(x, everywhere) if getattr(x, "sharding", None) is None else x
                    for x in shapes
                ]
        placed = list(target.place(shapes))
        return dataclasses.replace(
            self,
            staged=StagedProgram.of(program, self.staged.unplanned),
            closed_over=placed[: len(unknown)],
            call=dataclasses.replace(self.call, leaves=placed[len(unknown) :]),
            result_places=results,
        )

    def _of_values(self) -> "TracedStep":
        """The same step, which donates the arrays of its mutable arguments."""
        both = list(zip(self.mutable, self.call.leaves, strict=True))
        leaves = [leaf if value is None else value for value, leaf in both]
        changed = [value.sharding for value in self.mutable if value is not None]
        return dataclasses.replace(
            self,
            call=dataclasses.replace(self.call, leaves=leaves),
            donated=[
                is_donated or value is not None
                for is_donated, value in zip(self.donated, self.mutable, strict=True)
            ],
            result_places=[*self.result_places, *changed],
            takes_values=True,
        )

    def build(self, chosen: Chosen) -> CalledProgram:
        """The jitted program with some gradients replaced."""

        def run(closed_over: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
            leaves = jax.tree.leaves((args, kwargs))
            if not self.takes_values:
                return self.staged.run(chosen, [*closed_over, *leaves])
            both = zip(self.mutable, leaves, strict=True)
            leaves = [x if value is None else jax.new_ref(x) for value, x in both]
            results = self.staged.run(chosen, [*closed_over, *leaves])
            refs = [
                x for v, x in zip(self.mutable, leaves, strict=True) if v is not None
            ]
            return [*results, *map(jax.freeze, refs)]

        given, named = self.call.by_argument(self.call.leaves)
        paths, named_paths = self.call.by_argument(self.paths)
        args = list(map(_Argument, given, paths))
        kwargs = {k: _Argument(x, named_paths[k]) for k, x in named.items()}
        run.__name__ = self.name
        if self.signature is not None:
            # The compiler names the arguments by it.
            first = inspect.Parameter("closed_over", inspect.Parameter.POSITIONAL_ONLY)
            known = [
                p.replace(kind=inspect.Parameter.POSITIONAL_ONLY)
                if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and i < len(args)
                else p
                for i, p in enumerate(self.signature.parameters.values())
            ]
            signed: Any = run
            signed.__signature__ = inspect.Signature([first, *known])
        donated, donated_by_name = self.call.by_argument(self.donated)
        options: dict[str, Any] = {
            "donate_argnums": [i for i, x in enumerate(donated, 1) if any(x)],
            "donate_argnames": [k for k, x in donated_by_name.items() if any(x)],
        }
        if any(place is not None for place in self.result_places):
            options["out_shardings"] = list(self.result_places)
        args = [tuple(self.closed_over), *args]
        leaves, tree = jax.tree.flatten((tuple(args), kwargs))
        call = Call(leaves, tree, ())
        return CalledProgram(jax.jit(run, **options), call, args, kwargs)


def find_source(fun: Callable[..., Any]) -> tuple[str, str]:
    """The name of a function, and `file.py:line` of its source or of what jits it."""
    fun = inspect.unwrap(fun)
    while isinstance(fun, functools.partial):
        fun = inspect.unwrap(fun.func)
    name = getattr(fun, "__name__", type(fun).__name__)
    # An object is called by a method of its class.
    code = getattr(fun, "__code__", getattr(type(fun).__call__, "__code__", None))
    file = code.co_filename if code is not None else "<string>"
    if code is None or file == "<string>" or not is_user_file(file):
        # A library wraps the user's function in one of its own, or makes it by `exec`.
        return name, find_call_site()
    return name, f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def find_signature(fun: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function; None for a builtin that has none."""
    try:
        return inspect.signature(fun)
    except (TypeError, ValueError):
        return None


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class _Argument:
    """The arrays of an argument, without the objects of the user's that hold them."""

    leaves: Sequence[Any]
    paths: Sequence[str]

    def tree_flatten_with_keys(self) -> tuple[list[tuple[str, Any]], tuple[str, ...]]:
        return list(zip(self.paths, self.leaves, strict=True)), tuple(self.paths)

    @classmethod
    def tree_unflatten(cls, paths: Sequence[str], leaves: Sequence[Any]) -> "_Argument":
        return cls(leaves, paths)


def _is_array(leaf: Any) -> bool:
    return not isinstance(leaf, jax.core.AbstractValue)


def _value_of(leaf: Any) -> Any:
    """The array of a mutable argument, as a shape; None for another argument."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return None
    aval = jax.typeof(leaf)
    if isinstance(aval, jax.core.ShapedArray):
        return None
    place = leaf.sharding if getattr(leaf, "committed", False) else None
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=place)


def _put(leaf: Any, place: Any) -> Any:
    is_shape = isinstance(leaf, jax.ShapeDtypeStruct)
    if not _is_array(leaf) or (place is None and is_shape):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)


def _as_typed(place: Any, aval: Any) -> Any:
    """The same place, on explicit axes only if the type of the value has them.

    `in_shardings` puts a value there whose type does not say so.
    """
    if not isinstance(place, NamedSharding) or has_explicit_axes(aval):
        return place
    mesh = place.mesh
    if not isinstance(mesh, Mesh) or AxisType.Explicit not in mesh.axis_types:
        return place
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    return NamedSharding(
        Mesh(mesh.devices, mesh.axis_names, axis_types=kinds),
        place.spec,
        memory_kind=place.memory_kind,
    )


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


def _devices_inside(jaxpr: Jaxpr) -> int:
    """The most devices that a sharding or mesh inside of a program has; 0 for none."""

    def count(value: Any) -> int:
        if type(value) is tuple:
            return max(map(count, value), default=0)
        if isinstance(value, NamedSharding):
            return count(value.mesh)
        if isinstance(value, Mesh):
            return 0 if value.empty else value.size
        is_place = isinstance(value, jax.sharding.Sharding)
        return value.num_devices if is_place else 0

    found = [0]
    for eqn in jaxpr.eqns:
        found += map(count, eqn.params.values())
        found += map(_devices_inside, jaxprs_in_params(eqn.params))
    return max(found)


class _MovedProgram(RetypedProgram):
    """Moves the shardings inside of a program to the devices of a target."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target
        self.mesh: Mesh | None = None  # that inside of the program, on the target
        one = Mesh(target.devices[:1], "one")
        self._device: Any = one.abstract_mesh.abstract_device
        self._gradients: dict[MarkedGradient, MarkedGradient] = {}

    def type_of(self, aval: Any) -> Any:
        """In a `shard_map`, or on explicit axes, the type of a value has the mesh."""
        inner = getattr(aval, "inner_aval", None)
        if inner is not None:  # of a mutable array
            return aval.update(inner_aval=self.type_of(inner))
        sharding = getattr(aval, "sharding", None)
        if sharding is None or sharding.mesh.empty:
            return aval
        place = NamedSharding(self.change(sharding.mesh), sharding.spec)
        return aval.update(sharding=place)

    def mesh_of(self, mesh: AbstractMesh) -> AbstractMesh:
        """The mesh of the target."""
        return self.change(mesh)

    def parameter_of(self, value: Any) -> Any:
        """Meshes, shardings, devices and marked gradients on the target."""
        if isinstance(value, MarkedGradient):
            if value not in self._gradients:
                names = ("function", "forward", "backward")
                moved = {n: self.change(getattr(value, n)) for n in names}
                self._gradients[value] = dataclasses.replace(value, **moved)
            return self._gradients[value]
        if isinstance(value, AbstractMesh):
            return value if value.empty else value.update(abstract_device=self._device)
        if isinstance(value, Mesh):
            if value.empty:
                return value
            moved: Any = self._target.move(NamedSharding(value, PartitionSpec()))
            self.mesh = moved.mesh
            return moved.mesh
        if isinstance(value, NamedSharding):
            return NamedSharding(self.change(value.mesh), value.spec)
        if isinstance(value, jax.sharding.Sharding):
            return self._target.move(value)
        if isinstance(value, jax.Device):
            return self._target.devices[0]
        return value
