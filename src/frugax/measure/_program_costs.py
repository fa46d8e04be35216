"""`measure.program`: a compiled program's memory and flops, as XLA reports them."""

import dataclasses
from typing import Any, Literal, Protocol, runtime_checkable

from frugax.budget import amount, table


@runtime_checkable
class CompiledProgram(Protocol):
    """The methods of `jax.stages.Compiled` that `program` calls."""

    def memory_analysis(self) -> Any:
        """Byte counts of the executable, or None if the backend has none."""
        ...

    def cost_analysis(self) -> Any:
        """Flops and bytes by name, or None if the backend has none."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCosts:
    """Bytes and flops of one compiled program, on one device.

    Attributes:
        argument_bytes: bytes of the arguments.
        output_bytes: bytes of the results.
        temp_bytes: bytes of temporaries at their peak.
        alias_bytes: outputs written over donated arguments, which are counted as both.
        flops: floating-point operations by the compiler's own count, which counts the
            body of a loop once, however often it runs; None if it does not count.
        host_bytes: bytes of temporaries that the program keeps in the host's memory.
    """

    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    flops: float | None = None
    host_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All bytes held while it runs: arguments + outputs + temp - aliased."""
        return (
            self.argument_bytes + self.output_bytes + self.temp_bytes - self.alias_bytes
        )

    def bytes_of(self, kind: Literal["temp", "total"]) -> int:
        """The bytes that a `MemoryBudget` of this kind limits.

        Raises:
            ValueError: `kind` is neither "temp" nor "total".
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


def program(compiled: CompiledProgram) -> ProgramCosts:
    """Read the costs of a compiled program.

    Args:
        compiled: `jax.jit(f).lower(*args).compile()`.

    Raises:
        ValueError: this backend reports no memory figures.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((256,), jnp.float32)
        >>> costs = program(jax.jit(lambda x: x + 1).lower(x).compile())
        >>> costs.argument_bytes, costs.output_bytes, costs.total_bytes
        (1024, 1024, 2048)
    """
    # `peak_memory_in_bytes` is not read: on CPU it is arguments + outputs, without the
    # temporaries (measured with jaxlib 0.10.2).
    memory = compiled.memory_analysis()
    if memory is None:
        raise ValueError(
            "this backend gives no memory analysis, so no memory budget can be "
            "checked; plan on another backend."
        )
    # Some backends return a list with one dictionary for each computation.
    costs: Any = compiled.cost_analysis() or {}
    if isinstance(costs, list):
        costs = costs[0]
    flops: float | None = None
    if "flops" in costs:
        flops = float(costs["flops"])
    return ProgramCosts(
        argument_bytes=int(memory.argument_size_in_bytes),
        output_bytes=int(memory.output_size_in_bytes),
        temp_bytes=int(memory.temp_size_in_bytes),
        alias_bytes=int(memory.alias_size_in_bytes),
        flops=flops,
        host_bytes=int(getattr(memory, "host_temp_size_in_bytes", 0)),
    )
