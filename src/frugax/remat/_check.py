"""What is asked of the arguments of `plan`, met at the edge."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from ._enclosing_program import EnclosingProgram
from ._plan import Chunk, Segment


def check_arguments(
    loss: Callable[..., Any],
    example_args: Sequence[Any],
    argnums: int | tuple[int, ...],
    *,
    within: EnclosingProgram | None,
    cache: bool | str | os.PathLike[str],
) -> None:
    """Refuse what `plan` cannot work with.

    Raises:
        TypeError: one of them is of a wrong kind.
        ValueError: `argnums` names no argument, or one twice.
    """
    if not callable(loss):
        raise TypeError(f"the loss must be a function, got {loss!r}.")
    if not isinstance(example_args, tuple | list):
        raise TypeError(
            "example_args must be a tuple with one entry for each argument of the "
            f"loss, got {type(example_args).__name__}; for one argument, write (x,)."
        )
    positions = (argnums,) if isinstance(argnums, int) else argnums
    if not isinstance(positions, tuple) or not all(
        isinstance(n, int) for n in positions
    ):
        raise TypeError(
            f"argnums must be a position or a tuple of positions, got {argnums!r}."
        )
    many = len(example_args)
    named = {n % many for n in positions if -many <= n < many}
    if not positions or len(named) < len(positions):
        raise ValueError(
            f"argnums must name some of the {many} arguments, each once, got {argnums}."
        )
    if within is not None and not isinstance(within, EnclosingProgram):
        raise TypeError(
            "within must be a remat.EnclosingProgram, which builds the program around "
            f"the gradient, got {type(within).__name__}."
        )
    if not isinstance(cache, bool | str | os.PathLike):
        raise TypeError(
            f"cache must be True, False or a folder, got {cache!r}; False plans anew."
        )


def check_ranges(parts: Sequence[Segment | Chunk], start: int, stop: int) -> None:
    """Refuse segments, or pieces, that are not those of these operations.

    Raises:
        ValueError: they leave something out, or name what is not there.
    """
    edges = [start, *(p.stop for p in parts)]
    sound = [p.start for p in parts] == edges[:-1] and edges[-1] == stop
    if not sound or edges != sorted(edges):
        raise ValueError(
            f"a damaged plan: its pieces, which end at {edges[1:]}, do not cover the "
            f"{stop - start} operations from {start} on. Plan again with remat.plan."
        )
    for p in parts:
        if strange := {*(p.kept or ())} - {*range(p.start, p.stop)}:
            raise ValueError(
                f"a damaged plan: operations {p.start} to {p.stop - 1} have no number "
                f"{max(strange)}. Plan again with remat.plan."
            )
        if isinstance(p, Segment) and p.inside:
            check_ranges(p.inside, p.start, p.stop)
