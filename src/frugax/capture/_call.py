"""`Call`: the arguments of a call of a jitted function, as flat arrays."""

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax

from frugax.jaxprs import without_objects


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """The arguments of one call, divided as `jax.jit` divides them.

    Attributes:
        leaves: the traced arguments, flat.
        tree: their structure, with None in the place of static arguments.
        static: the static arguments, by position or name.
    """

    leaves: list[Any]
    tree: Any
    static: tuple[tuple[int | str, Any], ...]

    @functools.cached_property
    def key(self) -> Hashable:
        """Equal for calls that share a program."""
        return self.tree, tuple(map(_type_of, self.leaves)), self.static

    @property
    def kind(self) -> Hashable:
        """Equal for calls that differ at most in the sizes of their arrays."""
        types = [
            (getattr(x, "ndim", 0), getattr(x, "dtype", None)) for x in self.leaves
        ]
        return self.tree, tuple(types), self.static

    def of_shapes(self) -> "Call":
        """The same call without its arrays, which may be large, or be donated.

        A committed array keeps its place.
        """
        return dataclasses.replace(self, leaves=list(map(_shape, self.leaves)))

    def by_argument(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """These values, one for each leaf, as a list for each argument.

        No object of a user's class is made, whose `tree_unflatten` may compute.
        """
        rest = iter(values)
        take = lambda tree: list(itertools.islice(rest, tree.num_leaves))
        args, kwargs = self.tree.children()
        _, names = kwargs.node_data()
        positional = list(map(take, args.children()))
        return positional, dict(zip(names, map(take, kwargs.children()), strict=True))

    def name_leaves(self, signature: inspect.Signature | None) -> list[str]:
        """For each leaf, the name of the parameter that it belongs to."""
        args, kwargs = self.by_argument(self.leaves)
        found: list[str] = []
        for name, leaves in zip(
            name_positions(signature, len(args)), args, strict=True
        ):
            found += [name] * len(leaves)
        for name, leaves in kwargs.items():
            found += [name] * len(leaves)
        return found

    def rebuild(self, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call with these leaves and the same static arguments."""
        args, kwargs = self.tree.unflatten(leaves)
        args, kwargs = list(args), dict(kwargs)
        for place, value in self.static:
            if isinstance(place, int):
                args[place] = value
            else:
                kwargs[place] = value
        return args, kwargs


def name_positions(signature: inspect.Signature | None, count: int) -> list[str]:
    """The parameters of the first arguments; those of `*args` are `args[1]`, say."""
    known = signature.parameters.values() if signature else ()
    names = [p.name for p in known if p.kind <= p.POSITIONAL_OR_KEYWORD][:count]
    return [*names, *(f"args[{i}]" for i in range(len(names), count))]


def _type_of(leaf: Any) -> Hashable:
    aval = jax.typeof(leaf)
    if not hasattr(aval, "dtype") or not hasattr(aval, "shape"):
        return aval
    # The mesh is left out: a tracer knows only those axes that belong to its type.
    spec = getattr(getattr(aval, "sharding", None), "spec", None)
    if spec is not None and not any(spec):
        spec = None
    return aval.shape, aval.dtype, bool(getattr(aval, "weak_type", False)), spec


def _shape(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    aval = jax.typeof(leaf)
    if not isinstance(aval, jax.core.ShapedArray):
        return aval  # a mutable array
    options: dict[str, Any] = {"weak_type": getattr(aval, "weak_type", False)}
    if isinstance(leaf, jax.Array) and leaf.committed:
        options["sharding"] = leaf.sharding
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, **options)


@dataclasses.dataclass(frozen=True, eq=False)
class CalledProgram:
    """A jitted function, and the arguments of the call that it was made for."""

    jitted: Any
    call: Call
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def __call__(self, *leaves: Any) -> Any:
        """Call the function with these flat arguments."""
        args, kwargs = self.call.rebuild(leaves)
        return self.jitted(*args, **kwargs)

    def trace(self, *_: Any) -> Any:
        """Trace the function for its own call, whose flat arguments are the given ones.

        They are not put together from shapes: the `tree_unflatten` of a user's class
        may accept nothing else than arrays.
        """
        return without_objects(self.jitted.trace(*self.args, **self.kwargs))
