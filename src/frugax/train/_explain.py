"""Why a jitted function was compiled: each time, by name, and before it happens.

JAX explains recompiles in its log only, and is silent where an array was put on its
device on purpose. Here every call's arguments are compared with those of the programs
there are, so the cause is known before anything is compiled, and can be refused.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any, Generic, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from frugax import jaxprs
from frugax.budget import format_seconds, table
from frugax.errors import BudgetExceededError

from ._changes import Kind
from ._compiles import CompileLedger
from ._past import past_of
from ._places import called_from
from ._signature import Signature, settings
from .options import check_integer

P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """One compilation, and why it was needed.

    Attributes:
        cause: what was new, such as `"batch['x']: float32[16,4] -> float32[24,4]"`.
        kinds: what kinds of cause these are; `("first",)` for the first program.
        place: the user's file and line that made the call.
        seconds: of tracing, lowering and compiling.
    """

    cause: str
    kinds: tuple[Kind, ...]
    place: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.place}: {self.cause} ({format_seconds(self.seconds)})"


class Explained(Generic[P, R]):
    """A jitted function that knows why it was compiled; see `explained`.

    Attributes:
        compiles: one entry for each compilation, in order.
    """

    def __init__(self, function: Callable[P, R], *, compile_budget: int | None) -> None:
        self.compiles: list[Compile] = []
        self._function = function
        self._limit = compile_budget
        self._inside: Any = getattr(function, "__wrapped__", function)
        self._parameters = inspect.signature(self._inside)
        self._static = jaxprs.static_names(function)
        # JAX names a partial function by what is inside, and other objects not at all.
        self._name: str = getattr(function, "__name__", "")
        self._seen: set[Hashable] = set()
        self._past = past_of(self._inside)
        self.__name__ = self._past.name
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function.

        Raises:
            BudgetExceededError: this call needs a compile that is not in the budget.
        """
        key = self._key(args, kwargs)
        if key is None or key in self._seen:
            return self._function(*args, **kwargs)
        signature = self._signature(args, kwargs)
        changes = self._past.changes_to(signature, self._inside)
        if changes is None:  # another wrapper of this function had it compiled
            self._seen.add(key)
            return self._function(*args, **kwargs)
        cause = "; ".join(map(str, changes)) or "the first call"
        place = called_from()
        if self._limit is not None and len(self.compiles) >= self._limit:
            raise BudgetExceededError(
                f"the compile budget of {self._limit} for {self._past.name} is spent, "
                f"and the call at {place} needs another program: {cause}."
            )
        with CompileLedger() as ledger:
            result = self._function(*args, **kwargs)
        self._seen.add(key)
        self._past.add(signature, self._inside, place)
        spent = ledger.functions.get(self._name)
        if spent is not None and spent.compiles:
            kinds: list[Kind] = [c.kind for c in changes] or ["first"]
            self.compiles.append(
                Compile(
                    cause=cause,
                    kinds=tuple(dict.fromkeys(kinds)),
                    place=place,
                    seconds=spent.seconds,
                )
            )
        return result

    def __str__(self) -> str:
        rows = [[c.place, c.cause, format_seconds(c.seconds)] for c in self.compiles]
        return table(["called at", f"why {self._past.name} was compiled", "took"], rows)

    def _key(self, args: Any, kwargs: Any) -> Hashable | None:
        """What tells calls apart, quick to make; None where JAX should have its say."""
        if kwargs or self._static:
            try:
                bound = self._parameters.bind(*args, **kwargs).arguments
            except TypeError:
                return None
            static = tuple((n, v) for n, v in bound.items() if n in self._static)
            traced = {n: v for n, v in bound.items() if n not in self._static}
        else:
            static, traced = (), args
        leaves, structure = jax.tree.flatten(traced)
        if any(isinstance(x, Tracer) for x in leaves):
            return None  # part of another program
        key = (
            structure,
            tuple(map(_leaf_key, leaves)),
            static,
            tuple(kwargs),
            settings(),
        )
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def _signature(self, args: Any, kwargs: Any) -> Signature:
        bound = self._parameters.bind(*args, **kwargs).arguments
        traced = {n: v for n, v in bound.items() if n not in self._static}
        static: dict[str, Any] = {n: bound[n] for n in bound if n in self._static}
        if kwargs:
            static["arguments by keyword"] = tuple(sorted(kwargs))
        return Signature.read(traced, static=_Statics(static), committed=True)


def explained(
    function: Callable[P, R], *, compile_budget: int | None = None
) -> Explained[P, R]:
    """Wrap a jitted function so that it tells why it is compiled, each time.

    The causes that are told apart: shape, dtype, structure, weak type, a static value,
    where an array lies (mesh, sharding, device), whether it was put there on purpose,
    settings of JAX such as the matmul precision, and a function that is defined anew.

    Reading the arguments costs some microseconds at each call, and more with many
    leaves: this is for finding out. `make_train_step` does it without that cost.

    Args:
        function: from `jax.jit`.
        compile_budget: how many programs there may be; one more is refused before it is
            compiled. None for any number.

    Raises:
        TypeError: the function is not jitted, or `compile_budget` no whole number.
        ValueError: `compile_budget` is below 1.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from frugax import train
        >>> double = train.explained(jax.jit(lambda x: x * 2.0))
        >>> for n in (3, 3, 4):
        ...     _ = double(jnp.ones(n))
        >>> [c.cause for c in double.compiles]
        ['the first call', 'x: float32[3] -> float32[4]']
    """
    if not isinstance(function, jax.stages.Wrapped):
        raise TypeError(
            f"function must come from jax.jit, got {function!r:.99}; for equinox or "
            "flax, jit a function of their arrays."
        )
    if compile_budget is not None:
        check_integer("compile_budget", compile_budget)
    return Explained(function, compile_budget=compile_budget)


def _leaf_key(leaf: Any) -> Hashable:
    if isinstance(leaf, jax.Array):
        return leaf.aval, leaf.sharding, leaf.committed
    if isinstance(leaf, np.ndarray):
        return leaf.dtype, leaf.shape
    return type(leaf)


class _Statics(dict[str, Any]):
    """Static arguments by name, compared as `jax.jit` compares them."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))
