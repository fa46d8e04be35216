"""Some operations of a loss in a row, ready to run and to be turned back."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from frugax.jaxprs import JaxprEqn, Var, variables

from ._graph import RematGraph
from ._reuse_results import reuse_results

# From the cotangents of a part's outputs to those of its inputs.
Pull = Callable[[list[Any]], list[Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class Subgraph:
    """Some operations in a row, ready to run.

    Attributes:
        eqns: the operations, with the free ones that they want.
        inputs: what they read from outside.
        outputs: what later operations, or the caller, read of them.
        run: from the values of `inputs` to those of `outputs`.
        moving: those of `inputs` that gradients are wanted for.
        turned: those of `outputs` that gradients come back through.
    """

    eqns: list[JaxprEqn]
    inputs: list[Var]
    outputs: list[Var]
    run: Callable[..., list[Any]]
    moving: list[Var]
    turned: list[Var]

    @property
    def rest(self) -> list[Var]:
        """Those of `inputs` that no gradients are wanted for."""
        return [v for v in self.inputs if v not in self.moving]

    def outputs_at(self, moving: Sequence[Any], rest: Sequence[Any]) -> list[Any]:
        """The outputs at these values of `moving` and `rest`."""
        given = dict(zip(self.moving, moving, strict=True))
        given |= zip(self.rest, rest, strict=True)
        return self.run(*(given[v] for v in self.inputs))

    def pull_at(
        self, values: Sequence[Any], results: Sequence[Any] | None = None
    ) -> tuple[list[Any], Pull]:
        """The outputs at these inputs, and the way back from there.

        If `results` are given they are the outputs, which are not made again.
        """
        given = dict(zip(self.inputs, values, strict=True))
        rest = [given[v] for v in self.rest]

        def turned_and_rest(moved: list[Any]) -> tuple[list[Any], list[Any]]:
            if results is None:
                outs = self.outputs_at(moved, rest)
            else:
                outs = reuse_results(self.outputs_at, moved, rest, results)
            made = dict(zip(self.outputs, outs, strict=True))
            others = [made[v] for v in self.outputs if v not in self.turned]
            return [made[v] for v in self.turned], others

        start = [given[v] for v in self.moving]
        turned, pull, others = jax.vjp(turned_and_rest, start, has_aux=True)
        made = iter(turned), iter(others)
        outs = [next(made[v not in self.turned]) for v in self.outputs]
        return outs, lambda cotangents: pull(cotangents)[0]


def extract_subgraph(
    body: RematGraph, start: int, stop: int, also: Sequence[Var] = ()
) -> Subgraph:
    """The operations from `start` to `stop`, with `also` among the outputs."""
    own = body.eqns[start:stop]
    eqns = body.with_free(own)
    made = {v for e in eqns for v in e.outvars}
    read = dict.fromkeys(v for e in eqns for v in variables(e.invars))
    inputs = [v for v in read if v not in made]
    later = lambda v: body.last_use.get(v, -1) >= stop
    passed = [v for e in own for v in e.outvars if later(v)]
    outputs = [*passed, *(v for v in also if not later(v))]
    return Subgraph(
        eqns=eqns,
        inputs=inputs,
        outputs=outputs,
        run=body.graph.run(eqns, inputs, outputs),
        moving=[v for v in inputs if v in body.active],
        turned=[v for v in passed if v in body.active],
    )
