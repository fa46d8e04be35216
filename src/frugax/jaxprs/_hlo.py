"""What is left of a program once the compiler is done with it, read from its text."""

import re

# `%name = f32[8,8]{1,0} dot(...)`; and the library calls that replace it on some CPUs.
_HEAVY = re.compile(
    r"= (?:\([^=]*\)|\S+) (?:dot|convolution)\(|"
    r'custom_call_target="[^"]*(?:matmul|conv|gemm)[^"]*"',
    re.IGNORECASE,
)


def count_heavy_in_hlo(text: str) -> int:
    """Matrix products and convolutions in an optimised program.

    Args:
        text: `compiled.as_text()`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jnp.ones((8, 8))
        >>> compiled = jax.jit(lambda x: x @ (x @ x)).lower(x).compile()
        >>> count_heavy_in_hlo(compiled.as_text())
        2
    """
    return len(_HEAVY.findall(text))
