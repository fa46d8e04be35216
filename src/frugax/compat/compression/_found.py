"""Whether JAX is here; if it is not, one warning in the life of the process."""

import functools
import warnings

# How often the warning may come in one process: the guide promises "a warning", and
# a loop over a hundred tensors must not make a hundred of them.
_told: list[str] = []


@functools.cache
def why_no_jax() -> str | None:
    """None if JAX can be imported; otherwise what Python said."""
    try:
        import jax.numpy  # noqa: F401
    except (
        Exception
    ) as e:  # a broken JAX fails in any way, and NumPy does the work then
        return f"{type(e).__name__}: {e}".splitlines()[0]
    return None


def jax_found(*, wanted_by: str) -> bool:
    """Whether JAX can be used; warns the first time that it cannot.

    Args:
        wanted_by: who asked, for the warning.
    """
    reason = why_no_jax()
    if reason is None:
        return True
    if not _told:
        _told.append(reason)
        warnings.warn(
            f"{wanted_by} asked for JAX, which cannot be imported here ({reason}): "
            "NumPy does its part, with the same files and the same numbers. To have "
            "it: pip install jax.",
            UserWarning,
            stacklevel=3,
        )
    return False
