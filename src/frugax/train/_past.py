"""The programs that functions from one piece of source code were compiled to.

`jax.jit` knows a function by its object: one that is defined anew in a loop is compiled
anew, and nothing in its arguments tells why. Its code does.
"""

import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ._changes import Change
from ._signature import Signature, nearest_changes


@dataclasses.dataclass
class Past:
    """The programs of all functions that one piece of source code has made.

    Attributes:
        name: of the function.
        source: its file and line.
        programs: function, signature, what the function closed over, and the place of
            the call. Functions are held weakly: they may hold arrays.
    """

    name: str
    source: str
    programs: list[tuple[Callable[[], Any], Signature, dict[str, str], str]] = (
        dataclasses.field(default_factory=list)
    )

    def changes_to(self, new: Signature, function: Any) -> list[Change] | None:
        """Why it needs a program: nothing if it is the first; None if there is one."""
        own = [known for of, known, _, _ in self.programs if of() == function]
        if new in own:
            return None
        known = own or [signature for _, signature, _, _ in self.programs]
        changes = nearest_changes(known, new)
        if known and not own:
            _, _, before, place = self.programs[-1]
            after = _closed_over(function)
            anew = Change(
                self.name,
                "function",
                f"the function of {self.source}, called at {place}",
                "the same defined anew, which jax.jit takes for another: define it "
                "once, outside the loop",
            )
            over = [
                Change(f"{self.name} closes over {n}", "static value", old, after[n])
                for n, old in before.items()
                if after.get(n, old) != old
            ]
            return [anew, *over, *changes]
        return changes

    def add(self, signature: Signature, function: Any, place: str) -> None:
        """Keep a program that there is now."""
        of = weakref.ref(function) if inspect.isfunction(function) else lambda: function
        self.programs.append((of, signature, _closed_over(function), place))


# By code, so that a function which is defined in a loop is known again.
_pasts: dict[Hashable, Past] = {}


def past_of(function: Any) -> Past:
    """What there is of this function's code; the same object each time."""
    plain = function.func if isinstance(function, functools.partial) else function
    plain = inspect.unwrap(plain)
    code = getattr(plain, "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    if code is None:
        return Past(name, "?")
    source = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    return _pasts.setdefault((code, name), Past(name, source))


def _closed_over(function: Any) -> dict[str, str]:
    """What a function takes from around it, as text."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found: dict[str, str] = {}
    for name, cell in zip(
        names, getattr(function, "__closure__", None) or (), strict=False
    ):
        try:
            found[name] = f"{_said(cell.cell_contents):.40}"
        except ValueError:  # not filled yet
            continue
    return found


def _said(value: Any) -> str:
    if isinstance(value, (jax.Array, np.ndarray)):
        return f"{value.dtype}{list(value.shape)}"  # reading it would wait for it
    return (
        repr(value)
        if isinstance(value, (int, float, str, bool))
        else f"a {type(value).__name__}"
    )
