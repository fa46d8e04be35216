"""Pack several Python values into one static argument of `jax.jit`, and unpack them."""

from typing import Any

from frugax.train import Frozen


def prepare_static_args(*arguments: Any) -> Frozen[tuple[Any, ...]]:
    """Pack several arguments into one static argument.

    Args:
        arguments: any number of values that `Frozen` accepts; to train a surrogate,
            the parent sets, the variable orders and the targets.

    Raises:
        TypeError: one of them is an array or cannot be hashed.
        ValueError: a container contains itself.

    Example:
        >>> static = prepare_static_args([[frozenset({"x", 1})]], [["x", "y"]], ["y"])
        >>> restore_static_args(static)[2]
        ['y']
    """
    # `Frozen` hashes once and compares by content, so equal lists in new objects do not
    # compile again.
    return Frozen(arguments)


def restore_static_args(static: Frozen[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the arguments that `prepare_static_args` packed; do not modify them."""
    return static.value
