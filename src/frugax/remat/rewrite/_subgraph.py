"""A range of a loss's operations as a function with a vector-Jacobian product."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from frugax.jaxprs import JaxprEqn, Var, is_heavy, trace, variables

from ._graph import RematGraph
from ._traced_parts import TracedParts

# From the cotangents of the active outputs to those of the active inputs. It is a
# pytree (`Partial`) of the values that it reads, which may be saved between two
# programs.
PullBack = Callable[[list[Any]], list[Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class Subgraph:
    """Consecutive operations, ready to run.

    Attributes:
        eqns: the operations, with the free operations that they read.
        inputs: variables that they read from outside.
        outputs: variables that later operations, or the caller, read.
        run: from the values of `inputs` to those of `outputs`.
        active_inputs: those of `inputs` that need gradients.
        active_outputs: those of `outputs` that gradients arrive at.
        active: whether each variable that it reads or defines needs gradients.
        traced: the traced functions of equal parts.
    """

    eqns: list[JaxprEqn]
    inputs: list[Var]
    outputs: list[Var]
    run: Callable[..., list[Any]]
    active_inputs: list[Var]
    active_outputs: list[Var]
    active: tuple[bool, ...]
    traced: TracedParts

    @functools.cached_property
    def number(self) -> dict[Var, int]:
        """Names for the variables that it reads and defines, in order."""
        defined = [v for e in self.eqns for v in e.outvars]
        return {v: i for i, v in enumerate([*self.inputs, *defined])}

    @functools.cached_property
    def key(self) -> Any:
        """Equal for parts that do the same."""
        what = self.traced.describe(self.eqns, self.number)
        names = [self.number[v] for v in (*self.outputs, *self.active_outputs)]
        return what, self.active, len(self.outputs), tuple(names)

    @property
    def passive_inputs(self) -> list[Var]:
        """Those of `inputs` that need no gradients."""
        return [v for v in self.inputs if v not in self.active_inputs]

    def evaluate(self, active: Sequence[Any], passive: Sequence[Any]) -> list[Any]:
        """The outputs at these values of `active_inputs` and `passive_inputs`."""
        env = dict(zip(self.active_inputs, active, strict=True))
        env |= zip(self.passive_inputs, passive, strict=True)
        return self.run(*(env[v] for v in self.inputs))

    def vjp(
        self, values: Sequence[Any], results: Sequence[Any] | None = None
    ) -> tuple[list[Any], PullBack]:
        """The outputs at these inputs, and the pull-back there.

        If `results` are given they are the outputs, which are then not recomputed.
        """
        key = self.key, results is None
        outs, pull_back = self.traced.call(("vjp", key), self._vjp, values, results)
        pull = functools.partial(self.traced.call, ("pull", key), _pull_first)
        return outs, Partial(pull, pull_back)

    def _vjp(
        self, values: Sequence[Any], results: Sequence[Any] | None
    ) -> tuple[list[Any], Any]:
        env = dict(zip(self.inputs, values, strict=True))
        passive = [env[v] for v in self.passive_inputs]

        def split_outputs(active: list[Any]) -> tuple[list[Any], list[Any]]:
            if results is None:
                outs = self.evaluate(active, passive)
            else:
                outs = reuse_results(self.evaluate, active, passive, results)
            by_var = dict(zip(self.outputs, outs, strict=True))
            others = [by_var[v] for v in self.outputs if v not in self.active_outputs]
            return [by_var[v] for v in self.active_outputs], others

        start = [env[v] for v in self.active_inputs]
        differentiated, pull_back, others = jax.vjp(split_outputs, start, has_aux=True)
        by_kind = iter(differentiated), iter(others)
        outs = [next(by_kind[v not in self.active_outputs]) for v in self.outputs]
        return outs, pull_back


def _pull_first(pull_back: Any, cotangents: list[Any]) -> list[Any]:
    return pull_back(cotangents)[0]


def extract_subgraph(
    body: RematGraph, start: int, stop: int, also: Sequence[Var] = ()
) -> Subgraph:
    """The operations from `start` to `stop`, with `also` among the outputs."""
    own = body.eqns[start:stop]
    eqns = body.include_free(own)
    all_defined = [v for e in eqns for v in e.outvars]
    defined = set(all_defined)
    # A dict keeps the order of the first reads. A set would sort variables by their
    # addresses, and give another program in each process.
    read = dict.fromkeys(v for e in eqns for v in variables(e.invars))
    inputs = [v for v in read if v not in defined]
    is_read_later = lambda v: body.last_use.get(v, -1) >= stop
    passed_on = [v for e in own for v in e.outvars if is_read_later(v)]
    outputs = [*passed_on, *(v for v in also if not is_read_later(v))]
    return Subgraph(
        eqns=eqns,
        inputs=inputs,
        outputs=outputs,
        run=body.graph.run(eqns, inputs, outputs),
        active_inputs=[v for v in inputs if v in body.active],
        active_outputs=[v for v in passed_on if v in body.active],
        active=tuple(v in body.active for v in [*inputs, *all_defined]),
        traced=body.traced,
    )


def inputs_to_tie(
    body: RematGraph, eqns: Sequence[JaxprEqn], inputs: Sequence[Var]
) -> list[bool]:
    """Which inputs must wait for a gate, so that no heavy operation can start before.

    XLA may copy each tied input, so as few as possible are tied: results of earlier
    operations; if some heavy operation does not depend on these, the data as well; and
    if need be, the weights, too.
    """
    intermediate = {v for v in inputs if v in body.defined_at}
    data = {v for v in inputs if v not in body.active}
    heavy = [e for e in eqns if is_heavy(e)]
    choice: set[Var] = set()
    for choice in (intermediate, intermediate | data, set(inputs)):
        reached = set(choice)
        for e in eqns:
            if reached & set(variables(e.invars)):
                reached |= set(e.outvars)
        if choice and all(set(e.outvars) <= reached for e in heavy):
            break
    return [v in choice for v in inputs]


def reuse_results(
    run: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
    active: Sequence[Any],
    passive: Sequence[Any],
    results: Sequence[Any],
) -> list[Any]:
    """`results`, which `run(active, passive)` returned, with the derivative of `run`.

    The derivatives of `tanh`, `exp` and the like read their own result. With the kept
    result at hand, neither the operation nor anything that leads to it runs again.
    `run` must close over nothing: its derivative may be taken when a closed-over tracer
    is no longer valid.
    """
    if not all(jnp.issubdtype(r.dtype, jnp.inexact) for r in results):
        return run(active, passive)

    @jax.custom_jvp
    def keep(active: list[Any], passive: list[Any], results: list[Any]) -> list[Any]:
        return results

    @keep.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        active, passive, results = primals

        def linearize(active: Any, tangents: Any, passive: Any) -> Any:
            return jax.jvp(lambda x: run(x, passive), (active,), (tangents,))

        graph = trace(linearize, (active, tangents[0], passive))
        wanted = graph.outputs[len(results) :]
        # Operations whose results are all kept are dropped, and readers get the kept
        # values. A variable that a remaining operation defines as well stays as it is.
        env: dict[Any, Any] = dict(zip(graph.outputs, results, strict=False))
        env = {v: r for v, r in env.items() if variables([v])}
        eqns = [e for e in graph.eqns if not set(e.outvars) <= env.keys()]
        defined = {v for e in eqns for v in e.outvars} | set(graph.inputs)
        env = {v: r for v, r in env.items() if v not in defined}
        push_forward = graph.run(eqns, [*graph.inputs, *env], wanted)
        values = [*graph.const_values, *active, *tangents[0], *passive, *env.values()]
        return results, push_forward(*values)

    return keep(list(active), list(passive), list(results))
