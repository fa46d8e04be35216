"""Count the memory that a traced program holds as it runs, operation by operation.

To see a backward pass, capture `jax.value_and_grad(loss)`. The figures are those of the
program as written; `frugax.measure.program` measures the compiled one.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from frugax.jaxprs import Graph, bytes_of, live_bytes, trace, variables


@dataclasses.dataclass(frozen=True, eq=False)
class CapturedGraph:
    """A traced program with jitted functions inlined; a loop is one operation.

    Attributes:
        graph: the program itself.
    """

    graph: Graph

    @property
    def nodes(self) -> tuple[Any, ...]:
        """JAX's own operations (`JaxprEqn`), in the order in which they are written."""
        return self.graph.eqns


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GraphAnalysis:
    """How far the memory of a program, run as written, is from its lower bound.

    Inputs of the program are never counted.

    Attributes:
        peak_frontier: most bytes held at once, in the order of the program as written.
        lower_bound: bytes below which no plan can go that runs these operations one by
            one, in any order and with any recomputation. A compiler that fuses several
            into one can.
    """

    peak_frontier: int
    lower_bound: int

    @property
    def gap(self) -> float:
        """`peak_frontier` over `lower_bound`: the most to gain, at least 1."""
        # A program that returns its inputs holds nothing of its own.
        if not self.lower_bound:
            return 1.0
        return self.peak_frontier / self.lower_bound


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
        >>> [node.primitive.name for node in graph.nodes]
        ['sin', 'transpose', 'dot_general']
    """
    return CapturedGraph(trace(fn, tuple(example_inputs)))


def summarize_frontier(graph: CapturedGraph) -> FrontierSummary:
    """Count the bytes that a program holds from its first operation to its last.

    Args:
        graph: the result of `capture_graph_jaxpr`.
    """
    return FrontierSummary(
        widths=live_bytes(graph.graph),
        names=tuple(e.primitive.name for e in graph.nodes),
    )


def analyze_graph(graph: CapturedGraph) -> GraphAnalysis:
    """Count the peak memory of a program as written, and its lower bound.

    Args:
        graph: the result of `capture_graph_jaxpr`.
    """
    program = graph.graph

    def needed_at_once(*atoms: Any) -> int:
        # Inputs have the place -1: they are alive before and after the program, so no
        # plan can change their share. A compiler drops results that nothing reads.
        found = {
            v
            for v in variables(atoms)
            if v in program.last_use and program.defined_at[v] >= 0
        }
        return sum(map(bytes_of, found))

    # Both are bounds whatever the order: an operation needs its operands at once, and
    # the results are all alive at the end.
    bounds = [needed_at_once(*e.invars, *e.outvars) for e in program.eqns]
    return GraphAnalysis(
        peak_frontier=summarize_frontier(graph).peak_bytes,
        lower_bound=max([*bounds, needed_at_once(*program.outputs)]),
    )
