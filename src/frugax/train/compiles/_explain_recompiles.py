"""Wrap a jitted function to record which argument causes each recompile, or refuse it.

JAX explains recompiles in its log only, and does not mention arrays that became
committed to their device. Here the arguments of every call are compared with those of
the existing programs, so the cause is known, and can be refused, before compiling.
"""

import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from frugax import jaxprs
from frugax.budget import format_seconds, table
from frugax.errors import BudgetExceededError
from frugax.options import check_integer

from ._call_site import find_call_site
from ._ledger import CompileLedger
from ._signature import (
    Change,
    ChangeKind,
    Signature,
    find_nearest_changes,
    read_settings,
)

P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompileEvent:
    """One compilation and its cause.

    Attributes:
        cause: the change, such as `"batch['x']: float32[16,4] -> float32[24,4]"`.
        kinds: the kinds of change; `("first",)` for the first program.
        place: file and line of the user's call.
        seconds: seconds of tracing, lowering and compiling.
    """

    cause: str
    kinds: tuple[ChangeKind, ...]
    place: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.place}: {self.cause} ({format_seconds(self.seconds)})"


class RecompileExplanation(Generic[P, R]):
    """A jitted function that records its recompiles; see `explain_recompiles`.

    Attributes:
        compiles: one entry for each compilation, in order.
    """

    def __init__(self, function: Callable[P, R], *, compile_budget: int | None) -> None:
        self.compiles: list[CompileEvent] = []
        self._function = function
        self._compile_budget = compile_budget
        self._wrapped: Any = getattr(function, "__wrapped__", function)
        self._parameters = inspect.signature(self._wrapped)
        self._static_names = jaxprs.static_names(function)
        # JAX names a partial function after its inner one, and a callable object not
        # at all; the ledger counts under that name.
        self._ledger_name: str = getattr(function, "__name__", "")
        self._known_keys: set[Hashable] = set()
        self._history = _find_history(self._wrapped)
        self.__name__ = self._history.name
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        key = self._read_key(args, kwargs)
        if key is None or key in self._known_keys:
            return self._function(*args, **kwargs)
        signature = self._read_signature(args, kwargs)
        changes = self._history.changes_to(signature, self._wrapped)
        if changes is None:  # another wrapper of this function had it compiled
            self._known_keys.add(key)
            return self._function(*args, **kwargs)
        cause = "; ".join(map(str, changes)) or "the first call"
        place = find_call_site()
        limit = self._compile_budget
        # Before the call, which is where jax.jit would trace and compile.
        if limit is not None and len(self.compiles) >= limit:
            raise BudgetExceededError(
                f"the compile budget of {limit} for {self._history.name} is spent, and "
                f"the call at {place} needs another program: {cause}."
            )
        with CompileLedger() as ledger:
            result = self._function(*args, **kwargs)
        self._known_keys.add(key)
        self._history.add(signature, self._wrapped, place)
        # JAX may consider two signatures the same; then there is nothing to explain.
        cost = ledger.functions.get(self._ledger_name)
        if cost is not None and cost.compiles:
            kinds: list[ChangeKind] = [c.kind for c in changes] or ["first"]
            self.compiles.append(
                CompileEvent(
                    cause=cause,
                    kinds=tuple(dict.fromkeys(kinds)),
                    place=place,
                    seconds=cost.seconds,
                )
            )
        return result

    def __str__(self) -> str:
        rows = [[c.place, c.cause, format_seconds(c.seconds)] for c in self.compiles]
        header = ["called at", f"why {self._history.name} was compiled", "took"]
        return table(header, rows)

    def _read_key(self, args: Any, kwargs: Any) -> Hashable | None:
        """Return a cheap key of the call; None where the call is left to JAX."""
        static: tuple[Any, ...] = ()
        traced: Any = args
        if kwargs or self._static_names:
            try:
                bound = self._parameters.bind(*args, **kwargs).arguments
            except TypeError:
                return None  # JAX reports the wrong arguments itself
            names = self._static_names
            static = tuple((n, v) for n, v in bound.items() if n in names)
            traced = {n: v for n, v in bound.items() if n not in names}
        # The same facts as in the signature, but as objects that exist already:
        # formatting them as text at each call would cost far more than the call.
        leaves, structure = jax.tree.flatten(traced)
        if any(isinstance(x, Tracer) for x in leaves):
            return None  # part of another program
        types = tuple(map(_leaf_key, leaves))
        key = (structure, types, static, tuple(kwargs), read_settings())
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def _read_signature(self, args: Any, kwargs: Any) -> Signature:
        bound = self._parameters.bind(*args, **kwargs).arguments
        traced = {n: v for n, v in bound.items() if n not in self._static_names}
        static: dict[str, Any] = {n: bound[n] for n in bound if n in self._static_names}
        if kwargs:
            static["arguments by keyword"] = tuple(sorted(kwargs))
        return Signature.read(traced, static=_StaticArguments(static), committed=True)


def explain_recompiles(
    function: Callable[P, R], *, compile_budget: int | None = None
) -> RecompileExplanation[P, R]:
    """Wrap a jitted function so that it records why it is compiled each time.

    It tells apart changes of shape, dtype, structure, weak type, static value,
    placement (mesh, sharding, device), commitment to a device, JAX settings such as the
    matmul precision, and a function that is defined again.

    Reading the arguments costs a few microseconds per call, and more with many leaves,
    so this is a diagnostic. `make_train_step` explains its recompiles at no such cost.

    Args:
        function: the result of `jax.jit`.
        compile_budget: maximum number of programs; one more is refused before it is
            compiled. None for no limit.

    Raises:
        TypeError: the function is not jitted, or `compile_budget` is not an integer.
        ValueError: `compile_budget` is below 1.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from frugax import train
        >>> double = train.explain_recompiles(jax.jit(lambda x: x * 2.0))
        >>> for n in (3, 3, 4):
        ...     _ = double(jnp.ones(n))
        >>> [c.cause for c in double.compiles]
        ['the first call', 'x: float32[3] -> float32[4]']
    """
    if not isinstance(function, jax.stages.Wrapped):
        called = " ".join(repr(function).split())  # equinox's takes several lines
        raise TypeError(
            f"function must come from jax.jit, got {called:.99}; for equinox or "
            "flax, jit a function of their arrays."
        )
    if compile_budget is not None:
        check_integer("compile_budget", compile_budget)
    return RecompileExplanation(function, compile_budget=compile_budget)


def _leaf_key(leaf: Any) -> Hashable:
    if isinstance(leaf, jax.Array):
        return leaf.aval, leaf.sharding, leaf.committed
    if isinstance(leaf, np.ndarray):
        return leaf.dtype, leaf.shape
    return type(leaf)


class _StaticArguments(dict[str, Any]):
    """Static arguments by name, compared as `jax.jit` compares them."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


class _PastCompile(NamedTuple):
    get_function: Callable[[], Any]
    signature: Signature
    closure: dict[str, str]
    place: str


@dataclasses.dataclass
class _CompileHistory:
    """The programs compiled from one piece of source code.

    `jax.jit` knows a function by identity: one that is defined again in a loop is
    compiled again, and nothing in its arguments tells why. Its code object does.
    """

    name: str
    source: str
    programs: list[_PastCompile] = dataclasses.field(default_factory=list)

    def changes_to(self, new: Signature, function: Any) -> list[Change] | None:
        """Return why a compile is needed: [] for the first one, None on a cache hit."""
        own = [p.signature for p in self.programs if p.get_function() == function]
        if new in own:
            return None
        # A new definition is the cause only if this function object has no program yet.
        if own or not self.programs:
            return find_nearest_changes(own, new)
        last, closure = self.programs[-1], _describe_closure(function)
        redefined = Change(
            self.name,
            "function",
            f"the function of {self.source}, called at {last.place}",
            "a new definition of the same, which jax.jit treats as another function: "
            "define it once, outside the loop",
        )
        captured = [
            Change(f"{self.name} closes over {n}", "static value", old, closure[n])
            for n, old in last.closure.items()
            if closure.get(n, old) != old
        ]
        known = [program.signature for program in self.programs]
        return [redefined, *captured, *find_nearest_changes(known, new)]

    def add(self, signature: Signature, function: Any, place: str) -> None:
        """Record a program. Functions are held weakly: they may hold arrays."""
        get = lambda: function
        if inspect.isfunction(function):
            get = weakref.ref(function)
        closure = _describe_closure(function)
        self.programs.append(_PastCompile(get, signature, closure, place))


_histories: dict[Hashable, _CompileHistory] = {}


def _find_history(function: Any) -> _CompileHistory:
    """Return the history of this function's code, the same object each time."""
    inner = function
    if isinstance(function, functools.partial):
        inner = function.func
    code = getattr(inspect.unwrap(inner), "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    if code is None:
        return _CompileHistory(name, "?")
    source = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    # By code object, which a function that is defined again in a loop shares.
    return _histories.setdefault((code, name), _CompileHistory(name, source))


def _describe_closure(function: Any) -> dict[str, str]:
    """Describe the variables that a function closes over, by name."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    found: dict[str, str] = {}
    for name, cell in zip(names, cells, strict=False):
        try:
            found[name] = f"{_describe(cell.cell_contents):.40}"
        except ValueError:  # the cell is still empty
            continue
    return found


def _describe(value: Any) -> str:
    if isinstance(value, (jax.Array, np.ndarray)):
        # Printing the values would wait for the device.
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, (int, float, str, bool)):
        return repr(value)
    return f"a {type(value).__name__}"
