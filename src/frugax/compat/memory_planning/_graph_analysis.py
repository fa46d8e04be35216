"""Count the memory that a traced program holds as it runs, operation by operation.

To see a backward pass, capture `jax.value_and_grad(loss)`. The figures are those of the
program as written; `frugax.measure.program` measures the compiled one.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from frugax.budget import amount, table
from frugax.jaxprs import Graph, bytes_of, flops_of, live_bytes, trace, variables

# A summary divides the program into at most this many stretches.
_MAX_STRETCHES = 12


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation of a captured program.

    Attributes:
        name: JAX's name of the operation, such as "dot_general".
        shapes: shapes of its results.
        bytes: bytes of its results.
        flops: floating-point operations, including those of its body.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    bytes: int
    flops: int


@dataclasses.dataclass(frozen=True, eq=False)
class CapturedGraph:
    """A traced program with jitted functions inlined; a loop is one operation.

    Attributes:
        graph: the program itself.
    """

    graph: Graph

    @functools.cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The operations, in the order in which they are written."""
        return tuple(
            Node(
                name=e.primitive.name,
                shapes=tuple(tuple(getattr(v.aval, "shape", ())) for v in e.outvars),
                bytes=sum(map(bytes_of, e.outvars)),
                flops=flops_of(e),
            )
            for e in self.graph.eqns
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GraphAnalysis:
    """How far the memory of a program, run as written, is from its lower bound.

    Inputs of the program are never counted.

    Attributes:
        operations: the number of operations.
        flops: of all operations.
        made_bytes: bytes of all their results.
        peak_bytes: most bytes held at once, in the order of the program as written.
        peak_at: the operation at the peak; -1 for an empty program.
        busiest_bytes: most bytes that one operation reads and writes. No order of the
            operations and no recomputation can hold less.
        result_bytes: bytes that the program returns, all held at the end.
    """

    operations: int
    flops: int
    made_bytes: int
    peak_bytes: int
    peak_at: int
    busiest_bytes: int
    result_bytes: int

    @property
    def lower_bound(self) -> int:
        """Bytes below which no plan can go that runs these operations one by one.

        A compiler that fuses several into one can.
        """
        # Both are bounds whatever the order: an operation needs its operands at once,
        # and the results are all alive at the end.
        return max(self.busiest_bytes, self.result_bytes)

    @property
    def gap(self) -> float:
        """`peak_bytes` over `lower_bound`, at least 1: the most a plan could gain."""
        # A program that returns its inputs holds nothing of its own.
        if not self.lower_bound:
            return 1.0
        return self.peak_bytes / self.lower_bound

    def __str__(self) -> str:
        rows = [
            ["operations", f"{self.operations:,}"],
            ["flops", f"{self.flops:,}"],
            ["made in all", amount(self.made_bytes, "bytes")],
            ["peak frontier, as written", amount(self.peak_bytes, "bytes")],
            ["at operation", str(self.peak_at)],
            ["lower bound: one operation", amount(self.busiest_bytes, "bytes")],
            ["lower bound: results", amount(self.result_bytes, "bytes")],
            ["gap: peak over the bounds", f"{self.gap:.2f}x"],
        ]
        return table(["counted on the trace", "value"], rows)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrontierSummary:
    """The bytes that a program holds from its first operation to its last.

    Attributes:
        widths: bytes held while each operation runs; inputs are not counted.
        names: names of the operations.
    """

    widths: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at once; 0 for an empty program."""
        return max(self.widths, default=0)

    @property
    def peak_at(self) -> int:
        """The first operation at the peak; -1 for an empty program."""
        return self.widths.index(self.peak_bytes) if self.widths else -1

    def __str__(self) -> str:
        """A table of the widest place in each stretch of the program."""
        # Rounded up, so that the last stretch is shorter and the table never longer.
        length = max(-(-len(self.widths) // _MAX_STRETCHES), 1)
        rows = []
        for start in range(0, len(self.widths), length):
            stretch = self.widths[start : start + length]
            at = start + stretch.index(max(stretch))
            mark = "  <- peak" if at == self.peak_at else ""
            last = start + len(stretch) - 1
            rows.append(
                [
                    f"{start}-{last}",
                    amount(self.widths[at], "bytes"),
                    f"{at} ({self.names[at]}){mark}",
                ]
            )
        return table(["operations", "widest", "at"], rows or [["none", "-", "-"]])


def capture_graph_jaxpr(
    fn: Callable[..., Any], *, example_inputs: Sequence[Any]
) -> CapturedGraph:
    """Trace a function without running it.

    Args:
        fn: a function of arrays and pytrees of arrays.
        example_inputs: its arguments; arrays or `jax.ShapeDtypeStruct`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jnp.ones((2, 4))
        >>> graph = capture_graph_jaxpr(lambda x: jnp.sin(x) @ x.T, example_inputs=(x,))
        >>> [(n.name, n.bytes, n.flops) for n in graph.nodes]
        [('sin', 32, 8), ('transpose', 32, 0), ('dot_general', 16, 32)]
    """
    return CapturedGraph(trace(fn, tuple(example_inputs)))


def analyze_graph(graph: CapturedGraph) -> GraphAnalysis:
    """Count the peak memory of a program as written, and its lower bounds.

    Args:
        graph: the result of `capture_graph_jaxpr`.
    """
    program = graph.graph
    # Inputs have the place -1. They are alive before and after the program, so no plan
    # can change their share.
    defined = lambda atoms: {v for v in variables(atoms) if program.defined_at[v] >= 0}
    # Results that nothing reads are left out: a compiler drops them at once.
    used = lambda e: defined(e.invars) | {v for v in e.outvars if v in program.last_use}
    frontier = summarize_frontier(graph)
    return GraphAnalysis(
        operations=len(graph.nodes),
        flops=sum(n.flops for n in graph.nodes),
        made_bytes=sum(n.bytes for n in graph.nodes),
        peak_bytes=frontier.peak_bytes,
        peak_at=frontier.peak_at,
        busiest_bytes=max(
            (sum(map(bytes_of, used(e))) for e in program.eqns), default=0
        ),
        result_bytes=sum(map(bytes_of, defined(program.outputs))),
    )


def summarize_frontier(graph: CapturedGraph) -> FrontierSummary:
    """Count the bytes that a program holds from its first operation to its last.

    Args:
        graph: the result of `capture_graph_jaxpr`.
    """
    return FrontierSummary(
        widths=live_bytes(graph.graph), names=tuple(n.name for n in graph.nodes)
    )
