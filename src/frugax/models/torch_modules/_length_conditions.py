"""Conditions on free lengths under which a module runs the operations that were traced.

Where Python branches on a length, as in `if x.shape[1] > 512`, torch.export follows the
branch of the example, and notes the condition.
"""

import functools
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import (  # noqa: PLC2701 - it has no public name
    CeilToInt,
    FloorDiv,
    IntTrueDiv,
    Mod,
    PythonMod,
)

from frugax.errors import UnsupportedModuleError
from frugax.models.graph import Connection

# The left side, `"<="` or such, the right side, and all of it in names of lengths.
Condition = tuple[Any, str, Any, str]

_NO_EQUIVALENT = "the module branches on its lengths by {}, which has no equivalent."
_TORCH = Path(torch.__file__).parent


def read_conditions(
    shape_env: Any, lengths: Mapping[Any, Connection], names: Mapping[Any, str]
) -> tuple[Condition, ...]:
    """The conditions that a module's own code asked for.

    Args:
        shape_env: what torch knows of the lengths.
        lengths: the length that each of torch's symbols stands for.
        names: its name.

    Raises:
        UnsupportedModuleError: a condition has no equivalent.
    """
    found: dict[str, Condition] = {}
    for guard in shape_env.guards:
        # Those of torch's operations are about layouts in memory, or are errors that
        # JAX raises as well.
        # Division is of Python's numbers, such as of a number of chunks.
        is_own = guard.expr.has(IntTrueDiv)
        if _is_of_torch(guard.sloc.framework_loc) and not is_own:
            continue
        known = shape_env.replace(guard.expr)
        for part in sympy.And.make_args(known):
            if part == sympy.true:
                continue
            text = str(part.subs(names))
            relation = getattr(part, "rel_op", None)
            if relation is None:
                raise UnsupportedModuleError(_NO_EQUIVALENT.format(text))
            left, right = (_compute(side, lengths, text) for side in part.args)
            found[text] = left, relation, right, text
    return tuple(found.values())


def _is_of_torch(place: Any) -> bool:
    path = Path(getattr(place, "filename", place or ""))
    if not path.is_relative_to(_TORCH):
        return False
    # Layers are Python code that may branch; all of them are called by one file.
    return not path.is_relative_to(_TORCH / "nn") or path.name == "module.py"


def _compute(term: Any, lengths: Mapping[Any, Connection], text: str) -> Any:
    """An integer expression of torch's symbols as arithmetic on lengths."""
    if term.is_Integer:
        return int(term)
    if term in lengths:
        return lengths[term]
    if isinstance(term, CeilToInt) and isinstance(term.args[0], IntTrueDiv):
        above, below = (_compute(part, lengths, text) for part in term.args[0].args)
        if isinstance(below, int):  # as of chunks of so many rows
            return (above + (below - 1)) // below
    parts = [_compute(part, lengths, text) for part in term.args]
    if isinstance(term, (sympy.Add, sympy.Mul)):
        join = operator.add if isinstance(term, sympy.Add) else operator.mul
        # A number on the left would not be a connection's operator.
        parts.sort(key=lambda part: isinstance(part, int))
        return functools.reduce(join, parts)
    if isinstance(term, FloorDiv):
        return parts[0] // parts[1]
    if isinstance(term, (Mod, PythonMod)):
        return parts[0] % parts[1]
    raise UnsupportedModuleError(_NO_EQUIVALENT.format(text))
