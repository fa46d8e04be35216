"""Explain why JAX cannot trace a training step, and how to write its loss instead."""

import jax

from ..compiles import find_error_site

# Classes that JAX's tracing raises, and nothing else does.
TRACE_ERRORS = (jax.errors.JAXTypeError, jax.errors.JAXIndexError)
_REMEDIES = {
    jax.errors.TracerBoolConversionError: "use jnp.where or lax.cond instead of `if`",
    jax.errors.TracerIntegerConversionError: "index with jnp.take",
    jax.errors.TracerArrayConversionError: "use jax.numpy instead of numpy",
    jax.errors.NonConcreteBooleanIndexError: (
        "use jnp.where(mask, x, 0) instead of x[mask]"
    ),
    jax.errors.ConcretizationTypeError: (
        "keep values as arrays; no float(), int() or .item()"
    ),
    jax.errors.UnexpectedTracerError: (
        "let arrays leave the loss only through its return value"
    ),
}


def describe_trace_error(error: Exception) -> str:
    """Describe one of `TRACE_ERRORS`: its class, the place, and the remedy."""
    line = str(error).strip().splitlines()[0]
    # The most special class first, as the method resolution order lists them.
    remedies = [_REMEDIES[cls] for cls in type(error).__mro__ if cls in _REMEDIES]
    remedy = "; ".join([*remedies[:1], "pass sizes, flags and text as static="])
    return (
        f"the step cannot be compiled: {type(error).__name__} at "
        f"{find_error_site(error)}: {line:.200} To have it compiled, {remedy}."
    )
