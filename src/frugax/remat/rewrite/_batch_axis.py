"""Run a traced loss on a part of its batch.

The programs inside of loops, branches, checkpoints and rules of the user's own run on
the part as well. What an operation on arrays does is in `_batch_rules.py`; nothing is
guessed, and a program that mixes rows of the batch raises `MixesBatchError`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from frugax.jaxprs import (
    ClosedJaxpr,
    Graph,
    JaxprEqn,
    Var,
    jaxpr_as_fun,
    shape_of,
    split_scan,
    trace,
    user_context,
    variables,
)

from ._batch_rules import (
    Along,
    BatchRows,
    MixesBatchError,
    State,
    Value,
    apply_rule,
    bind,
)

# Operations that only call a program, and the parameter that holds it.
_CALLS = {"closed_call": "call_jaxpr", "core_call": "call_jaxpr"} | {
    "jit": "jaxpr",
    "pjit": "jaxpr",
}


class BatchPart(BatchRows):
    """Runs programs on one of several equal parts of the batch."""

    _keeps_rules = True

    def _inside_rule(self, index: Any) -> "BatchPart":
        count = self.batch // self.part
        part = BatchPart(self.batch, count, index, is_spread=self.is_spread)
        part._keeps_rules = False
        return part

    def run(
        self, graph: Graph, eqns: Sequence[JaxprEqn], env: dict[Var, Value]
    ) -> None:
        """Run operations of a graph, adding their results to `env`."""
        for eqn in eqns:
            values = [_read(env, a) for a in eqn.invars]
            # As the user's own line, so that `measure.peak` names it.
            with user_context(eqn.source_info.traceback):
                outs = self._apply(graph, eqn, values)
            env |= zip(eqn.outvars, outs, strict=True)

    def call(self, program: Any, values: Sequence[Value]) -> list[Value]:
        """Run a whole program, such as the body of a loop."""
        inner = trace(jaxpr_as_fun(program), list(map(shape_of, program.jaxpr.invars)))
        env = {
            v: Value(None, c)
            for v, c in zip(inner.consts, inner.const_values, strict=True)
        }
        env |= zip(inner.args, values, strict=True)
        self.run(inner, inner.eqns, env)
        return [_read(env, a) for a in inner.outputs]

    def _apply(
        self, graph: Graph, eqn: JaxprEqn, values: Sequence[Value]
    ) -> list[Value]:
        name = eqn.primitive.name
        if eqn.effects and name not in _CALLS:
            raise MixesBatchError(f"{name} has a side effect")
        if all(v.state is None for v in values):
            return [Value(None, o) for o in bind(eqn, [v.array for v in values])]
        if name in _CALLS:
            return self.call(eqn.params[_CALLS[name]], values)
        if name == "scan":
            return self._scan(eqn, values)
        if name == "cond":
            return self._cond(eqn, values)
        if name == "remat2" or name == "checkpoint":
            return self._checkpoint(eqn, values)
        if name.startswith("custom_"):
            return self._custom_rule(eqn, values)
        return apply_rule(self, graph, eqn, values)

    def _scan(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        num_consts, num_carry = split_scan(eqn)
        body, p = eqn.params["jaxpr"], eqn.params
        consts = list(values[:num_consts])
        carry = list(values[num_consts : num_consts + num_carry])
        xs = list(values[num_consts + num_carry :])
        shift = lambda s, by: (
            dataclasses.replace(s, axis=s.axis + by) if isinstance(s, Along) else s
        )
        for x in xs:
            if x.state == "sum" or (isinstance(x.state, Along) and not x.state.axis):
                raise MixesBatchError("a loop goes over the batch")
        inner_states = [shift(x.state, -1) for x in xs]

        def run(states: Sequence[State], carry: Any, x: Any) -> list[Value]:
            inputs = [
                *consts,
                *map(Value, states, carry),
                *map(Value, inner_states, x),
            ]
            return self.call(body, inputs)

        # A carry that starts the same for all rows may come to depend on them.
        states = [v.state for v in carry]
        seen: list[State] = []
        for _ in range(num_carry + 1):
            seen = []

            def probe(
                carry: Any, x: Any, states: Any = states, seen: Any = seen
            ) -> Any:
                outs = run(states, carry, x)
                seen[:] = [o.state for o in outs]
                return [o.array for o in outs]

            start = [self.coerce(v, s) for v, s in zip(carry, states, strict=True)]
            first = [jax.ShapeDtypeStruct(x.array.shape[1:], x.array.dtype) for x in xs]
            jax.eval_shape(probe, [v.array for v in start], first)
            joined = [n if o is None else o for o, n in zip(states, seen, strict=False)]
            if joined == states:
                break
            states = joined

        def step(carry: Any, x: Any) -> Any:
            outs = run(states, carry, x)
            new = [self.coerce(v, s) for v, s in zip(outs, states, strict=False)]
            return [v.array for v in new], [v.array for v in outs[num_carry:]]

        start = [self.coerce(v, s).array for v, s in zip(carry, states, strict=True)]
        end, ys = lax.scan(
            step,
            start,
            [x.array for x in xs],
            p["length"],
            reverse=p["reverse"],
            unroll=p["unroll"],
        )
        y_states = [shift(s, 1) for s in seen[num_carry:]]
        return [*map(Value, states, end), *map(Value, y_states, ys)]

    def _cond(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        index, *rest = values
        if index.state is not None:
            raise MixesBatchError("a branch depends on the batch")
        branches, states = eqn.params["branches"], []
        for b in branches:
            seen: list[State] = []

            def probe(*arrays: Any, b: Any = b, seen: Any = seen) -> Any:
                outs = self.call(
                    b, [Value(v.state, a) for v, a in zip(rest, arrays, strict=False)]
                )
                seen[:] = [o.state for o in outs]
                return [o.array for o in outs]

            jax.eval_shape(probe, *(v.array for v in rest))
            states.append(seen)
        joined = [
            next((s for s in each if s), None) for each in zip(*states, strict=False)
        ]

        def branch(b: Any) -> Callable[..., Any]:
            def run(*arrays: Any) -> Any:
                outs = self.call(
                    b, [Value(v.state, a) for v, a in zip(rest, arrays, strict=False)]
                )
                pairs = zip(outs, joined, strict=True)
                return [self.coerce(o, s).array for o, s in pairs]

            return run

        outs = lax.switch(
            index.array, [branch(b) for b in branches], *(v.array for v in rest)
        )
        return list(map(Value, joined, outs))

    def _checkpoint(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        seen: list[State] = []
        states = [v.state for v in values]
        body = eqn.params["jaxpr"]
        closed = ClosedJaxpr(body, ())

        def run(*arrays: Any) -> Any:
            outs = self.call(closed, list(map(Value, states, arrays)))
            seen[:] = [o.state for o in outs]
            return [o.array for o in outs]

        policy, cse = eqn.params["policy"], eqn.params["prevent_cse"]
        run = jax.checkpoint(run, policy=policy, prevent_cse=cse)
        outs = run(*(v.array for v in values))
        return list(map(Value, seen, outs))

    def _custom_rule(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        """An operation with a rule of its own, which is traced at the full batch."""
        if not self._keeps_rules:
            # Nothing inside of a rule is differentiated by reverse mode once more, and
            # a rule may call its own function.
            return self.call(eqn.params["call_jaxpr"], values)
        shapes = list(map(shape_of, eqn.invars))
        moved = [
            i for i, s in enumerate(shapes) if jnp.issubdtype(s.dtype, jnp.inexact)
        ]
        floats = [
            i
            for i, v in enumerate(eqn.outvars)
            if jnp.issubdtype(shape_of(v).dtype, jnp.inexact)
        ]

        def forward_and_back(xs: Any, cotangents: Any) -> Any:
            def split(*some: Any) -> Any:
                full = list(xs)
                for i, x in zip(moved, some, strict=True):
                    full[i] = x
                outs = bind(eqn, full)
                rest = [o for i, o in enumerate(outs) if i not in floats]
                return [outs[i] for i in floats], rest

            outs, pull, rest = jax.vjp(split, *(xs[i] for i in moved), has_aux=True)
            return outs, rest, list(pull(cotangents))

        given = [shape_of(eqn.outvars[i]) for i in floats]
        graph = trace(forward_and_back, (shapes, given))
        xs, cotangents = graph.args[: len(shapes)], graph.args[len(shapes) :]
        back = set(cotangents)
        forward_eqns, back_eqns = [], []
        for e in graph.eqns:
            if back & set(variables(e.invars)):
                back |= set(e.outvars)
                back_eqns.append(e)
            else:
                forward_eqns.append(e)
        read = {v for e in back_eqns for v in variables(e.invars)}
        read |= set(variables(graph.outputs[len(eqn.outvars) :]))
        residuals = [
            v for v in dict.fromkeys(graph.defined_at) if v in read and v not in back
        ]
        residuals = [v for v in residuals if v not in graph.consts]
        states = [v.state for v in values]
        out_states: list[State] = []
        residual_states: list[State] = []
        consts = {
            v: Value(None, c)
            for v, c in zip(graph.consts, graph.const_values, strict=True)
        }

        # The index is handed on and not closed over: the backward rule may run when
        # the loop that holds it is traced again.
        def forward(index: Any, *arrays: Any) -> Any:
            env = consts | dict(zip(xs, map(Value, states, arrays), strict=True))
            self._inside_rule(index).run(graph, forward_eqns, env)
            outs = [_read(env, a) for a in graph.outputs[: len(eqn.outvars)]]
            out_states[:] = [o.state for o in outs]
            residual_states[:] = [env[v].state for v in residuals]
            return [o.array for o in outs], (index, [env[v].array for v in residuals])

        @jax.custom_vjp
        def rule(index: Any, *arrays: Any) -> Any:
            return forward(index, *arrays)[0]

        def backward(kept: Any, given: Any) -> Any:
            index, saved = kept
            part = self._inside_rule(index)
            env = consts | dict(
                zip(residuals, map(Value, residual_states, saved), strict=True)
            )
            # Terms of a sum have the cotangent of the sum, the same for each chunk. The
            # cotangent of a result that all rows share is itself a sum over the rows.
            swap: dict[State, State] = {"sum": None, None: "sum"}
            kinds = [swap.get(s, s) for s in out_states[: len(floats)]]
            env |= zip(cotangents, map(Value, kinds, given[: len(floats)]), strict=True)
            part.run(graph, back_eqns, env)
            found: list[Any] = [None] * len(shapes)
            outs = graph.outputs[len(eqn.outvars) :]
            for i, atom in zip(moved, outs, strict=True):
                # A gradient of what all rows share is a sum over the rows.
                state = states[i] if isinstance(states[i], Along) else "sum"
                found[i] = part.coerce(_read(env, atom), state).array
            return None, *found

        rule.defvjp(forward, backward)
        outs = rule(self.index, *(v.array for v in values))
        places = [*floats, *(i for i in range(len(eqn.outvars)) if i not in floats)]
        by_place = dict(zip(places, map(Value, out_states, outs), strict=True))
        return [by_place[i] for i in range(len(eqn.outvars))]


def _read(env: dict[Var, Value], atom: Any) -> Value:
    return env[atom] if variables([atom]) else Value(None, atom.val)
