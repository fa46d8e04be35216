"""What a compiled program holds and computes, as the compiler itself accounts for it.

Reads: what `jax.jit(f).lower(...).compile()` gives. Gives: one frozen `ProgramCosts`.
"""

import dataclasses
from typing import Any, Literal, Protocol, runtime_checkable

from frugax.budget import amount, table


@runtime_checkable
class Compiled(Protocol):
    """What is asked of a compiled program: `jax.stages.Compiled` answers it."""

    def memory_analysis(self) -> Any:
        """Byte counts of the executable, or None where the backend keeps none."""
        ...

    def cost_analysis(self) -> Any:
        """Flops and bytes by name, or None where the backend keeps none."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCosts:
    """Bytes and flops of one compiled program, on one device.

    Attributes:
        argument_bytes: what is passed in.
        output_bytes: what comes back.
        temp_bytes: what it needs besides, at its worst moment.
        alias_bytes: outputs written over donated arguments; counted in both of them.
        flops: floating-point operations by the compiler's own count, which takes the
            body of a loop once, however often it runs; None if it does not say.
    """

    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    flops: float | None = None

    @property
    def total_bytes(self) -> int:
        """All that is alive while it runs: arguments + outputs + temp - aliased."""
        return (
            self.argument_bytes + self.output_bytes + self.temp_bytes - self.alias_bytes
        )

    def bytes_of(self, kind: Literal["temp", "total"]) -> int:
        """The bytes that a `MemoryBudget` of this kind limits.

        Raises:
            ValueError: there is no such kind.
        """
        if kind == "temp":
            return self.temp_bytes
        if kind == "total":
            return self.total_bytes
        raise ValueError(f'kind must be "temp" or "total", got {kind!r}.')

    def __str__(self) -> str:
        counts = {
            "arguments": self.argument_bytes,
            "outputs": self.output_bytes,
            "temp": self.temp_bytes,
            "aliased": self.alias_bytes,
            "total": self.total_bytes,
        }
        rows = [[name, amount(n, "bytes")] for name, n in counts.items()]
        return table(["memory", "bytes"], rows)


def program(compiled: Compiled) -> ProgramCosts:
    """Read what a compiled program costs.

    `memory_analysis().peak_memory_in_bytes` is left alone on purpose: on CPU it is
    arguments + outputs, without the temporaries (measured with jaxlib 0.10.2).

    Args:
        compiled: `jax.jit(f).lower(*args).compile()`.

    Raises:
        ValueError: this backend does not say what its programs hold.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((256,), jnp.float32)
        >>> costs = program(jax.jit(lambda x: x + 1).lower(x).compile())
        >>> costs.argument_bytes, costs.output_bytes, costs.total_bytes
        (1024, 1024, 2048)
    """
    memory = compiled.memory_analysis()
    if memory is None:
        raise ValueError(
            "this backend gives no memory analysis, so no memory budget can be "
            "checked; plan on another backend."
        )
    # Some backends give one dictionary for each computation, some none at all.
    costs: Any = compiled.cost_analysis() or {}
    first: dict[str, float] = costs[0] if isinstance(costs, list) else costs
    return ProgramCosts(
        argument_bytes=int(memory.argument_size_in_bytes),
        output_bytes=int(memory.output_size_in_bytes),
        temp_bytes=int(memory.temp_size_in_bytes),
        alias_bytes=int(memory.alias_size_in_bytes),
        flops=float(first["flops"]) if "flops" in first else None,
    )
