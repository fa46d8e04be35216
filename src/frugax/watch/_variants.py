"""The programs of one watched function: bare, quiet and loud.

All are made from one trace. They differ in which probes are left in; the others are
taken out of it, so what is left is what would have been there without them.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .probes import Probe, Records, Traced, pack, trace_watched

# What is given at each level.
BARE, QUIET, LOUD = 0, 1, 2
# Never left out: summaries may not be lost, and a call is what the user asked for.
_ALWAYS: frozenset[str] = frozenset({"summary", "call"})
_KEEP: tuple[frozenset[str], ...] = (
    _ALWAYS,
    _ALWAYS | {"scalar"},
    _ALWAYS | {"scalar", "frame"},
)


class Variants:
    """The programs of one watched function.

    Attributes:
        bare: the function without its probes, jitted: what runs unwatched.
        hushed: the same for use inside of another program, where a `watch.jit` around
            may find the probes.
        probes: by name, of every way in which it was called.
        known: whether it has been traced.
        is_new: whether it has been traced since this was set to False.
    """

    def __init__(self, fn: Callable[..., Any], jit_options: dict[str, Any]) -> None:
        self.probes: dict[str, Probe] = {}
        self.known = False
        self.is_new = False
        self.on_new: Callable[[], None] = lambda: None
        self._fn = fn
        self._options = jit_options
        self._kinds: set[str] = set()
        self._all_probes: dict[Probe, None] = {}
        static = {
            name: jit_options[name]
            for name in ("static_argnums", "static_argnames")
            if name in jit_options
        }
        # All programs are made from one trace, that JAX keeps.
        self._traced = jax.jit(fn, inline=True, **static)
        self.bare: Any = jax.jit(self._named(self._bare), **jit_options)
        self.hushed: Any = jax.jit(self._named(self._hushed), **jit_options)
        options = self._with_records()
        self._quiet = [
            jax.jit(self._named(functools.partial(self._told, level)), **options)
            for level in (BARE, QUIET)
        ]
        self._louds: dict[int, Any] = {}

    @property
    def donates(self) -> bool:
        """Whether a call uses up some of its arguments."""
        names = ("donate_argnums", "donate_argnames")
        return any(self._options.get(name) not in (None, (), []) for name in names)

    @property
    def all_probes(self) -> tuple[Probe, ...]:
        """Every probe that was found in it."""
        return tuple(self._all_probes)

    @property
    def always(self) -> bool:
        """Whether it has probes that no call may leave out."""
        return not self._kinds.isdisjoint(_ALWAYS)

    def fitting(self, level: int) -> int:
        """The cheapest level that gives what this one does."""
        level = max(BARE, min(level, LOUD))
        while level and self._kinds.isdisjoint(_KEEP[level] - _KEEP[level - 1]):
            level -= 1
        return level

    def look(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Trace the function, to know its probes."""
        self.bare.trace(*args, **kwargs)

    def call(
        self,
        level: int,
        stride: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> tuple[Any, Records]:
        """Call the program of this level; gives the function's results and records."""
        if level == LOUD:
            return self._loud(len(args))(np.uint32(stride), *args, **kwargs)
        return self._quiet[level](*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """As that of `jax.jit`, for the program that gives numbers."""
        return self._quiet[QUIET].lower(*args, **kwargs)

    def compile(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Compile every program that these arguments may need.

        Args:
            args: positional arguments; they may have been donated since.
            kwargs: the others.
        """
        if not self.always:
            self.bare.lower(*args, **kwargs).compile()
        for level in {self.fitting(BARE), self.fitting(QUIET)}:
            if level or self.always:
                self._quiet[level].lower(*args, **kwargs).compile()
        if self.fitting(LOUD) == LOUD:
            loud = self._loud(len(args))
            loud.lower(np.uint32(1), *args, **kwargs).compile()

    def alone(self, probe: Probe) -> Any:
        """A program that gives the function's results and the records of one probe."""

        def told(*args: Any, **kwargs: Any) -> tuple[Any, Records]:
            traced = self._trace(args, kwargs).keeping(lambda p: p == probe)
            stride = jnp.ones((), jnp.uint32)
            out, made = traced.run(keep_rules=False, stride=stride)
            return out, pack(made)

        return jax.jit(self._named(told), **self._with_records())

    def called(self, probe: Probe) -> Any:
        """The function with one probe as a callback, as it is without `watch.jit`."""

        def told(*args: Any, **kwargs: Any) -> Any:
            return self._trace(args, kwargs).keeping(lambda p: p == probe).plainly()

        return jax.jit(self._named(told), **self._options)

    def sizes(self) -> dict[str, int]:
        """How many programs JAX holds for each of them, ready for a call."""
        programs = {
            "bare": [self.bare],
            "quiet": self._quiet,
            "loud": list(self._louds.values()),
        }
        return {n: sum(p._cache_size() for p in ps) for n, ps in programs.items()}

    def _bare(self, *args: Any, **kwargs: Any) -> Any:
        traced = self._trace(args, kwargs)
        out, _ = traced.keeping(lambda _: False).run(keep_rules=False)
        return out

    def _hushed(self, *args: Any, **kwargs: Any) -> Any:
        traced = self._trace(args, kwargs)
        return traced.keeping(lambda _: False, hush=True).plainly()

    def _told(self, level: int, *args: Any, **kwargs: Any) -> tuple[Any, Records]:
        # Without frames a stride of 0: nothing is worked out for them.
        return self._give(level, jnp.zeros((), jnp.uint32), args, kwargs)

    def _told_loudly(
        self, stride: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Records]:
        return self._give(LOUD, stride, args, kwargs)

    def _give(
        self, level: int, stride: Any, args: Any, kwargs: Any
    ) -> tuple[Any, Records]:
        traced = self._trace(args, kwargs).keeping(lambda p: p.kind in _KEEP[level])
        out, made = traced.run(keep_rules=False, stride=stride)
        return out, pack(made)

    def _trace(self, args: Any, kwargs: Any) -> Traced:
        traced = trace_watched(self._traced, args, kwargs)
        for probe in traced.probes:
            self._kinds.add(probe.kind)
            self._all_probes[probe] = None
            self.probes.setdefault(probe.name, probe)
        self.known = self.is_new = True
        self.on_new()
        return traced

    def _loud(self, positional: int) -> Any:
        """The loud program; the stride is an argument before all others."""
        options = dict(self._options)
        if "out_shardings" in options:
            options["out_shardings"] = (options["out_shardings"], None)
        for name in ("static_argnums", "donate_argnums"):
            if options.get(name) is not None:
                given = options[name]
                numbers = [given] if isinstance(given, int) else list(given)
                # From the end they count as before.
                options[name] = tuple(n + 1 if n >= 0 else n for n in numbers)
        into = options.get("in_shardings")
        if into is not None:
            if not isinstance(into, (tuple, list)):
                static = options.get("static_argnums") or ()
                into = (into,) * (positional - len(static))
            options["in_shardings"] = (None, *into)
        else:
            positional = 0  # one program does for any number
        if positional not in self._louds:
            program = self._named(self._told_loudly, strided=True)
            self._louds[positional] = jax.jit(program, **options)
        return self._louds[positional]

    def _with_records(self) -> Any:
        options = dict(self._options)
        if "out_shardings" in options:
            options["out_shardings"] = (options["out_shardings"], None)
        return options

    def _named(self, told: Callable[..., Any], *, strided: bool = False) -> Any:
        """This program under the function's name, with its parameters' names.

        By these `jax.jit` finds which of the arguments are static or donated.
        """

        @functools.wraps(self._fn)
        def program(*args: Any, **kwargs: Any) -> Any:
            return told(*args, **kwargs)

        if strided:
            try:
                signature = inspect.signature(self._fn)
            except (TypeError, ValueError):
                return program  # JAX then goes by numbers alone, here as well
            first = inspect.Parameter("stride_", inspect.Parameter.POSITIONAL_ONLY)
            parameters = [first, *signature.parameters.values()]
            named: Any = program
            named.__signature__ = signature.replace(parameters=parameters)
        return program
