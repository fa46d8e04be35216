"""`UnjittedGradients`: the lines that take gradients outside of jitted functions."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from frugax.jaxprs import intercept_vjp
from frugax.options import join_first
from frugax.train.compiles import find_call_site


class UnjittedGradients:
    """Notes the gradients of this thread that no jitted function contains.

    A plan is made for a compiled program, and these belong to none: they are taken by
    plain calls, or of a jitted loss.
    """

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    @property
    def lines(self) -> list[str]:
        """`file.py:line` of each, in the order of the first calls."""
        return list(self._lines)

    @property
    def advice(self) -> str:
        """Where they are taken, and the remedy; "" if there are none."""
        if not self._lines:
            return ""
        return (
            f"gradients outside of jitted functions, at {join_first(self.lines)}: "
            "jit the function of a whole step, or of the whole loop, to plan it"
        )

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Note them inside of the block."""
        with intercept_vjp(self._vjp):
            yield

    def _vjp(
        self, vjp: Callable[..., Any], fun: Any, *primals: Any, has_aux: bool = False
    ) -> Any:
        if not _is_taken_by_frugax():
            self._lines.setdefault(find_call_site(), None)
        return vjp(fun, *primals, has_aux=has_aux)


def _is_taken_by_frugax() -> bool:
    """Whether frugax differentiates here, such as to plan or to measure."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        caller = frame.f_globals.get("__name__", "")
        if caller.partition(".")[0] != "jax" and caller != intercept_vjp.__module__:
            return caller.startswith("frugax.")
        frame = frame.f_back
    return False
