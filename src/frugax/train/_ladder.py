"""What to do when a step cannot be compiled: which failures may be gone round, and how.

Only what JAX itself raises for tracing or compiling is gone round. A user's own
exceptions and a device that is out of memory never are.
"""

import traceback
from pathlib import Path
from typing import Literal, TypeAlias

import jax

from ._places import is_users, warn_there

Mode: TypeAlias = Literal[
    "compiled",
    "compiled for the batch's Python values",
    "compiled with safer options",
    "eager",
    "eager without any jit",
]

FOR_VALUES: Mode = "compiled for the batch's Python values"

# Fails at compiling reductions that a callback reads, in JAX 0.10.2 on CPU.
SAFER_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}

_TRACE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.UnexpectedTracerError,
)
# JAX raises plain errors for the rest; what they say is all that tells them.
_TRACE_WORDS = (
    "Tracer",
    "not a valid JAX type",
    "Non-hashable static arguments",
    "Only integer scalar arrays can be converted to a scalar index",
)

_HINTS = {
    "TracerBoolConversionError": "use jnp.where or lax.cond instead of `if`",
    "TracerIntegerConversionError": "index with jnp.take, and give sizes as static",
    "TracerArrayConversionError": "use jax.numpy instead of numpy",
    "NonConcreteBooleanIndexError": "use jnp.where(mask, x, 0) instead of x[mask]",
    "ConcretizationTypeError": "keep values as arrays; no float(), int() or .item()",
    "UnexpectedTracerError": "let no array out of the loss but by returning it",
}


class FallbackWarning(UserWarning):
    """A step could not be compiled as it is and runs in another way."""


def is_tracing(error: BaseException) -> bool:
    """Whether this is one of the errors that only JAX raises, and only when tracing."""
    return isinstance(error, _TRACE_ERRORS)


def is_trace_failure(error: BaseException) -> bool:
    """Whether JAX could not trace the user's function, though it may run as it is."""
    if is_tracing(error):
        return True
    said = str(error)
    return isinstance(error, (TypeError, ValueError)) and any(
        word in said for word in _TRACE_WORDS
    )


def is_compiler_failure(error: BaseException) -> bool:
    """Whether XLA broke inside; not one that ran out of memory."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "INTERNAL" in str(error)


def where(error: BaseException) -> str:
    """File and line of the user's code that an error comes from, `file.py:12`."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_users(frame.filename):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return "the loss"


def described(error: BaseException) -> str:
    """Class, place and first line of an error."""
    said = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__} at {where(error)}: {said[0]:.200}"


def hint(error: BaseException) -> str:
    """How to write it so that it can be compiled."""
    for kind in type(error).__mro__:
        if kind.__name__ in _HINTS:
            return _HINTS[kind.__name__]
    return "use jax.numpy and lax throughout, and pass Python values as `static`"


def tell(text: str) -> None:
    """Warn that a step runs in another way, or compiles more often, than was meant."""
    warn_there(text, FallbackWarning)
