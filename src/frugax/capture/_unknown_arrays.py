"""Run a program without making its large arrays: of these, only the shape is known."""

from collections.abc import Sequence
from typing import Any, NoReturn, Self

import jax
from jax.core import Tracer

from frugax.jaxprs import (
    ClosedJaxpr,
    Primitive,
    TopLevelTrace,
    close,
    find_dependent,
    jaxpr_as_fun,
    remove_dead_code,
)
from frugax.train.compiles import find_call_site

# Results of one operation above these bytes are not made.
LARGE_BYTES = 16 * 2**20


class UnknownValueError(TypeError):
    """The program reads a value of an array of which only the shape is known.

    Attributes:
        place: the line that reads it.
        shape: the type and shape of the array.
    """

    def __init__(self, shape: str) -> None:
        self.place, self.shape = find_call_site(), shape
        super().__init__(
            f"{self.place} reads the values of {shape}, of which only the shape is "
            "known here"
        )


# Its attributes raise errors, which is their type for a type checker.
_Tracer: Any = Tracer


class UnknownArray(_Tracer):
    """An array of which only the shape, the type and the sharding are known."""

    __slots__ = ["_sharding"]

    def __init__(self, trace: Any, aval: Any, sharding: Any = None) -> None:
        super().__init__(trace, aval)
        self._sharding = sharding

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise UnknownValueError(self.aval.str_short(short_dtypes=False))

    __array__ = __dlpack__ = __bool__ = __int__ = __float__ = __complex__ = _refuse
    __index__ = __hex__ = __oct__ = __reduce__ = tolist = tobytes = item = _refuse
    addressable_data = unsafe_buffer_pointer = _refuse
    addressable_shards = global_shards = property(_refuse)

    def __format__(self, spec: str) -> str:
        return self._refuse() if spec else repr(self)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    @property
    def sharding(self) -> Any:
        """Where the array would lie."""
        if self._sharding is None:
            return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return self._sharding

    @property
    def committed(self) -> bool:
        """Whether the program has chosen its place."""
        return self._sharding is not None

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process would hold all of it."""
        return self.sharding.is_fully_addressable

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device would hold all of it."""
        return self.sharding.is_fully_replicated

    def devices(self) -> set[Any]:
        """The devices where it would lie."""
        return self.sharding.device_set

    def block_until_ready(self) -> Self:
        """There is nothing to wait for."""
        return self

    def delete(self) -> None:
        """There is nothing to delete, nor to copy."""

    copy_to_host_async = delete

    def is_deleted(self) -> bool:
        """Whether it was deleted."""
        return False


class ShapesOfLargeArrays(TopLevelTrace):
    """Makes small arrays, and knows only the shapes of large ones.

    Whatever is computed from an unknown array is unknown.

    Args:
        large_bytes: results of one operation above this are not made.
    """

    __slots__ = ("_large_bytes",)

    def __init__(self, large_bytes: int = LARGE_BYTES) -> None:
        super().__init__()
        self._large_bytes = large_bytes

    def process_primitive(
        self, primitive: Primitive, args: Sequence[Any], params: Any, /
    ) -> Any:
        """Run an operation, or find only the shapes of its results."""
        is_unknown = [isinstance(x, UnknownArray) for x in args]
        try:
            avals, _ = primitive.abstract_eval(*map(jax.typeof, args), **params)
        except NotImplementedError:
            return self.run(primitive, args, params)
        listed = list(avals) if primitive.multiple_results else [avals]
        if not any(is_unknown) and sum(map(_bytes, listed)) <= self._large_bytes:
            return self.run(primitive, args, params)
        places = _find_places(primitive, args, params, listed)
        found: list[Any] = [
            UnknownArray(self, aval, place)
            for aval, place in zip(listed, places, strict=True)
        ]
        jaxpr = params.get("jaxpr")
        if isinstance(jaxpr, ClosedJaxpr) and primitive.name == "jit":
            for i, value in self._run_small(jaxpr, args, is_unknown).items():
                found[i] = value
        return found if primitive.multiple_results else found[0]

    def _run_small(
        self, closed: ClosedJaxpr, args: Sequence[Any], is_unknown: Sequence[bool]
    ) -> dict[int, Any]:
        """The small results of a jitted function that need no unknown value.

        Such as the number of the step beside the weights.
        """
        tainted = find_dependent(closed.jaxpr, is_unknown)
        used = [
            not bad and _bytes(aval) <= self._large_bytes
            for bad, aval in zip(tainted, closed.out_avals, strict=True)
        ]
        if not any(used) or closed.jaxpr.effects:
            return {}
        live, used_args = remove_dead_code(closed.jaxpr, used)
        fun = jaxpr_as_fun(ClosedJaxpr(live, closed.consts))
        given = [x for x, is_used in zip(args, used_args, strict=True) if is_used]
        values = iter(jax.jit(fun)(*given))
        return {i: next(values) for i, is_used in enumerate(used) if is_used}


def _bytes(aval: Any) -> int:
    dtype = getattr(aval, "dtype", None)
    return 0 if dtype is None else aval.size * dtype.itemsize


def _find_places(
    primitive: Primitive, args: Sequence[Any], params: Any, avals: Sequence[Any]
) -> list[Any]:
    """The shardings of the results; None where the program does not choose."""
    given = [_place_of(x) for x in args]
    if primitive.name == "device_put":
        to = [
            p if isinstance(p, jax.sharding.Sharding) else None
            for p in params["devices"]
        ]
        return [p or old for p, old in zip(to, given, strict=True)]
    if primitive.name == "jit":
        stated = [
            s if isinstance(s, jax.sharding.NamedSharding) else None
            for s in params["out_shardings"]
        ]
        eqns = params["jaxpr"].jaxpr.eqns
        has_mesh = any(e.primitive.name == "sharding_constraint" for e in eqns)
        if all(stated) or not (any(given) or has_mesh):
            return stated
        return _compile_places(args, given, params["jaxpr"], stated)
    for place, x in zip(given, args, strict=True):
        # As for operations on single elements; JAX itself asks the compiler.
        if place is not None:
            return [place if a.shape == x.shape else None for a in avals]
    return [None] * len(avals)


def _place_of(x: Any) -> Any:
    if isinstance(x, UnknownArray):
        return x._sharding
    place = getattr(x, "sharding", None)
    return place if isinstance(place, jax.sharding.NamedSharding) else None


def _compile_places(
    args: Sequence[Any],
    given: Sequence[Any],
    closed: ClosedJaxpr,
    stated: Sequence[Any],
) -> list[Any]:
    """The shardings that the compiler chooses; nothing is run."""
    shapes = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place)
        for a, place in zip(map(jax.typeof, args), given, strict=True)
    ]
    fun = jaxpr_as_fun(close(closed))
    compiled = jax.jit(fun).lower(*shapes).compile()
    chosen = jax.tree.leaves(
        compiled.output_shardings,
        is_leaf=lambda s: isinstance(s, jax.sharding.Sharding),
    )
    return [s or c for s, c in zip(stated, chosen, strict=True)]
