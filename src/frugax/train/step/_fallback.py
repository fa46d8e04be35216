"""Classify a training step's compile errors, and split Python values out of a batch.

Only errors that JAX itself raises while tracing or compiling are worked around. The
user's own exceptions and an exhausted device memory never are.
"""

import traceback
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
from jax.tree_util import keystr

from frugax.trees import PyTree

from .._frozen import Frozen
from ..compiles import is_user_file, warn_at_call_site

Mode: TypeAlias = Literal[
    "compiled",
    "compiled for the batch's Python values",
    "compiled with safer options",
    "eager",
    "eager without any jit",
]

FOR_VALUES: Mode = "compiled for the batch's Python values"

# JAX 0.10.2 on CPU fails (INTERNAL: RET_CHECK ... IsDead) to compile an unordered
# callback that reads a reduction of an array of 64 x 64 or more; without this fusion
# it compiles.
SAFER_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}

_TRACE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.UnexpectedTracerError,
)
# For other causes JAX raises plain TypeErrors and ValueErrors: only their text tells.
_TRACE_MESSAGES = (
    "Tracer",
    "not a valid JAX type",
    "Non-hashable static arguments",
    "Only integer scalar arrays can be converted to a scalar index",
)

_HINTS = {
    "TracerBoolConversionError": "use jnp.where or lax.cond instead of `if`",
    "TracerIntegerConversionError": "index with jnp.take, and pass sizes as static",
    "TracerArrayConversionError": "use jax.numpy instead of numpy",
    "NonConcreteBooleanIndexError": "use jnp.where(mask, x, 0) instead of x[mask]",
    "ConcretizationTypeError": "keep values as arrays; no float(), int() or .item()",
    "UnexpectedTracerError": "let arrays leave the loss only through its return value",
}


class FallbackWarning(UserWarning):
    """A step could not be compiled as it is and runs in another way."""


def is_trace_error(error: BaseException) -> bool:
    """Return whether the error is of a class that only JAX's tracing raises."""
    return isinstance(error, _TRACE_ERRORS)


def is_trace_failure(error: BaseException) -> bool:
    """Return whether JAX could not trace the function, though it may run eagerly."""
    if is_trace_error(error):
        return True
    if not isinstance(error, (TypeError, ValueError)):
        return False
    return any(message in str(error) for message in _TRACE_MESSAGES)


def is_compiler_failure(error: BaseException) -> bool:
    """Return whether XLA failed internally, rather than ran out of memory."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "INTERNAL" in str(error)


def describe_error(error: BaseException) -> str:
    """Return class, place and first line of an error."""
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__} at {_find_origin(error)}: {lines[0]:.200}"


def suggest_fix(error: BaseException) -> str:
    """Say how to write the function so that it can be compiled."""
    for cls in type(error).__mro__:
        if cls.__name__ in _HINTS:
            return _HINTS[cls.__name__]
    return "use jax.numpy and lax throughout, and pass Python values as `static`"


def warn_of_fallback(text: str) -> None:
    """Warn that a step runs differently, or compiles more often, than intended."""
    warn_at_call_site(text, FallbackWarning)


def _find_origin(error: BaseException) -> str:
    """Return the line of the user's code that raised an error, as in `file.py:12`."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_file(frame.filename):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return "the loss"


# --- Python values in a batch ---------------------------------------------------------
# What cannot be traced, such as `if batch["train"]`, may become part of the program.


class SplitBatch(NamedTuple):
    """A batch without its Python values."""

    arrays: PyTree
    static: Frozen[dict[str, Any]]


def has_python_leaves(batch: PyTree) -> bool:
    """Return whether a batch holds Python booleans, integers or text."""
    return any(_is_python_value(x) for x in jax.tree.leaves(batch))


def split_batch(batch: PyTree) -> SplitBatch:
    """Take the Python values out of a batch."""
    flat, structure = jax.tree_util.tree_flatten_with_path(batch)
    values = {f"batch{keystr(path)}": x for path, x in flat if _is_python_value(x)}
    arrays = [None if _is_python_value(x) else x for _, x in flat]
    return SplitBatch(jax.tree.unflatten(structure, arrays), Frozen(values))


def join_batch(arrays: PyTree, static: Frozen[dict[str, Any]]) -> PyTree:
    """Join a batch that `split_batch` took apart."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: static.value.get(f"batch{keystr(path)}", x),
        arrays,
        is_leaf=lambda x: x is None,
    )


def _is_python_value(leaf: object) -> bool:
    return type(leaf) in (bool, int, str)
