"""Run a traced loss on a part of its batch.

The programs inside of loops, branches, checkpoints and rules of the user's own run on
the part as well. What an operation on arrays does is in `_batch_rules.py`; nothing is
guessed, and a program that mixes rows of the batch raises `MixesBatchError`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.tree_util import Partial

from frugax.jaxprs import (
    ClosedJaxpr,
    Graph,
    JaxprEqn,
    Var,
    jaxpr_as_fun,
    jaxprs_in_params,
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
from ._custom_rules import CustomRule, has_custom_rule, split_rule
from ._gates import zeros_of

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
        # A rule of the user's own reads cotangents, of which a part has one term each.
        if all(v.state is None for v in values) and not (
            self._keeps_rules and _holds_rule(eqn)
        ):
            return [Value(None, o) for o in bind(eqn, [v.array for v in values])]
        if name in _CALLS:
            return self.call(eqn.params[_CALLS[name]], values)
        if name == "scan":
            return self._scan(eqn, values)
        if name == "while":
            return self._while(eqn, values)
        if name == "cond":
            return self._cond(eqn, values)
        if name == "remat2" or name == "checkpoint":
            return self._checkpoint(eqn, values)
        if name == "custom_linear_solve":
            return self._linear_solve(eqn, values)
        if has_custom_rule(eqn):
            return self._custom_rule(eqn, values)
        if not self._keeps_rules and (opened := _open_primitive(eqn)) is not None:
            return self.call(opened, values)
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

        first = [jax.ShapeDtypeStruct(x.array.shape[1:], x.array.dtype) for x in xs]
        states, seen = self._settle(carry, run, first)

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

    def _while(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        """A loop that ends after as many iterations for each part of the batch."""
        p = eqn.params
        num_test, num_body = p["cond_nconsts"], p["body_nconsts"]
        test_consts = values[:num_test]
        consts = values[num_test : num_test + num_body]
        carry = values[num_test + num_body :]

        def run(states: Sequence[State], carry: Sequence[Any]) -> list[Value]:
            return self.call(p["body_jaxpr"], [*consts, *map(Value, states, carry)])

        states, _ = self._settle(carry, run)

        def goes_on(carry: Any) -> Any:
            inputs = [*test_consts, *map(Value, states, carry)]
            (found,) = self.call(p["cond_jaxpr"], inputs)
            if found.state is not None:
                raise MixesBatchError("the batch decides when a loop ends")
            return found.array

        def step(carry: Any) -> Any:
            pairs = zip(run(states, carry), states, strict=True)
            return [self.coerce(v, s).array for v, s in pairs]

        pairs = zip(carry, states, strict=True)
        start = [self.coerce(v, s).array for v, s in pairs]
        return list(map(Value, states, lax.while_loop(goes_on, step, start)))

    def _settle(
        self,
        carry: Sequence[Value],
        run: Callable[..., list[Value]],
        *more: Any,
    ) -> tuple[list[State], list[State]]:
        """The states of a loop's carry, and of all results of its body.

        A carry that starts the same for all rows may come to depend on them.

        Args:
            carry: the first one.
            run: the body, from the states and the arrays of a carry, and from `more`.
            *more: shapes.
        """
        states = [v.state for v in carry]
        while True:
            probe, seen = _noting_states(functools.partial(run, states))
            start = [self.coerce(v, s) for v, s in zip(carry, states, strict=True)]
            jax.eval_shape(probe, [v.array for v in start], *more)
            joined = [n if o is None else o for o, n in zip(states, seen, strict=False)]
            if joined == states:
                return states, seen
            states = joined

    def _cond(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        index, *rest = values
        if index.state is not None:
            raise MixesBatchError("a branch depends on the batch")
        arrays, inputs = [v.array for v in rest], [v.state for v in rest]

        def call(branch: Any, *arrays: Any) -> list[Value]:
            return self.call(branch, list(map(Value, inputs, arrays)))

        branches = [functools.partial(call, b) for b in eqn.params["branches"]]
        states: list[list[State]] = []
        for branch in branches:
            probe, seen = _noting_states(branch)
            jax.eval_shape(probe, *arrays)
            states.append(seen)
        joined = [
            next((s for s in each if s), None) for each in zip(*states, strict=True)
        ]

        def run(branch: Callable[..., list[Value]], *arrays: Any) -> list[Any]:
            pairs = zip(branch(*arrays), joined, strict=True)
            return [self.coerce(o, s).array for o, s in pairs]

        runs = [functools.partial(run, b) for b in branches]
        return list(map(Value, joined, lax.switch(index.array, runs, *arrays)))

    def _checkpoint(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        closed, states = ClosedJaxpr(eqn.params["jaxpr"], ()), [v.state for v in values]
        run, seen = _noting_states(
            lambda *arrays: self.call(closed, list(map(Value, states, arrays)))
        )
        policy, cse = eqn.params["policy"], eqn.params["prevent_cse"]
        again = jax.checkpoint(run, policy=policy, prevent_cse=cse)
        outs = again(*(v.array for v in values))
        return list(map(Value, seen, outs))

    def _linear_solve(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        """A solve whose equations do not mix rows, such as a batch of matrices."""
        lengths, programs = eqn.params["const_lengths"], eqn.params["jaxprs"]
        consts = iter(values)
        own = [list(itertools.islice(consts, n)) for n in lengths]
        known = list(consts)
        if len(eqn.outvars) != len(known):
            raise MixesBatchError("a solve returns more than the unknowns")
        parts = dict(
            zip(programs._fields, zip(programs, own, strict=True), strict=True)
        )

        def run(name: str, states: Sequence[State], arrays: Sequence[Any]) -> Any:
            program, consts = parts[name]
            return self.call(program, [*consts, *map(Value, states, arrays)])

        given = [v.state for v in known]
        probe, states = _noting_states(lambda *b: run("solve", given, b))
        jax.eval_shape(probe, *(v.array for v in known))

        def apply(name: str) -> Callable[..., list[Any]]:
            def function(*args: Any) -> list[Any]:
                outs = run(name, states, args[-1])
                pairs = zip(outs, states, strict=True)
                return [self.coerce(v, s).array for v, s in pairs]

            return function

        pairs = zip(known, states, strict=True)
        found = lax.custom_linear_solve(
            apply("matvec"),
            [self.coerce(v, s).array for v, s in pairs],
            apply("solve"),
            apply("transpose_solve") if programs.transpose_solve else None,
        )
        return list(map(Value, states, found))

    def _custom_rule(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        """An operation with a derivative rule of its own."""
        primal = eqn.params["call_jaxpr"]
        if not self._keeps_rules:
            # Nothing inside of a rule is differentiated by reverse mode once more, and
            # a rule may call its own function.
            return self.call(primal, values)
        states = [v.state for v in values]
        out_states: list[State] = []
        rules: dict[tuple[bool, ...], _PartOfRule] = {}

        # The index is handed on and not closed over: the backward rule may run when
        # the loop that holds it is traced again.
        @jax.custom_vjp
        def operation(index: Any, *arrays: Any) -> Any:
            part = self._inside_rule(index)
            outs = part.call(primal, list(map(Value, states, arrays)))
            out_states[:] = [o.state for o in outs]
            return [o.array for o in outs]

        # Only JAX knows which operands are differentiated here. The others may have no
        # gradient: a rule may refuse them, or mix the rows of the batch in theirs.
        def forward(index: Any, *operands: Any) -> Any:
            perturbed = tuple(x.perturbed for x in operands)
            if perturbed not in rules:
                rule = split_rule(eqn, perturbed)
                rules[perturbed] = _PartOfRule(self, rule, states)
            arrays = [x.value for x in operands]
            outs, saved = rules[perturbed].forward(index.value, arrays)
            out_states[:] = [o.state for o in outs]
            pull_back = Partial(rules[perturbed].backward, index.value, saved)
            return [o.array for o in outs], pull_back

        def backward(pull_back: Any, cotangents: Any) -> Any:
            return None, *pull_back(cotangents)

        operation.defvjp(forward, backward, symbolic_zeros=True)
        arrays = operation(self.index, *(v.array for v in values))
        return list(map(Value, out_states, arrays))


class _PartOfRule:
    """Runs the two passes of an operation's own rule on a part of the batch."""

    def __init__(self, part: BatchPart, rule: CustomRule, states: list[State]) -> None:
        self._part, self._rule, self._states = part, rule, states
        graph = rule.graph
        pairs = zip(graph.consts, graph.const_values, strict=True)
        self._consts = {v: Value(None, c) for v, c in pairs}
        self._out_states: list[State] = []
        self._residual_states: list[State] = []

    def forward(self, index: Any, arrays: list[Any]) -> tuple[list[Value], list[Any]]:
        """The results, and the arrays that the backward pass needs."""
        rule, operands = self._rule, map(Value, self._states, arrays)
        env = self._consts | dict(zip(rule.operands, operands, strict=True))
        self._part._inside_rule(index).run(rule.graph, rule.forward, env)
        outs = [_read(env, a) for a in rule.results]
        self._out_states = [o.state for o in outs]
        self._residual_states = [env[v].state for v in rule.residuals]
        return outs, [env[v].array for v in rule.residuals]

    def backward(self, index: Any, saved: list[Any], cotangents: Any) -> list[Any]:
        """The gradients of the operands; None for those without one."""
        rule, part = self._rule, self._part._inside_rule(index)
        residuals = map(Value, self._residual_states, saved)
        env = self._consts | dict(zip(rule.residuals, residuals, strict=True))
        for v, i in zip(rule.cotangents, rule.inexact, strict=True):
            state = _cotangent_state(self._out_states[i])
            env[v] = Value(state, _materialise(cotangents[i]))
        part.run(rule.graph, rule.backward, env)
        found: list[Any] = [None] * len(self._states)
        for i, atom in zip(rule.differentiated, rule.gradients, strict=True):
            state = _cotangent_state(self._states[i])
            found[i] = part.coerce(_read(env, atom), state).array
        return found


def _cotangent_state(state: State) -> State:
    """How the cotangent of a value in this state lies."""
    # Each term of a sum has the cotangent of the sum, the same for each chunk. The
    # cotangent of what all rows share is itself a sum over the rows.
    swap: dict[State, State] = {"sum": None, None: "sum"}
    return swap.get(state, state)


def check_backward(
    eqns: Sequence[JaxprEqn], run: Callable[..., list[Any]], *args: Any
) -> None:
    """Check that no derivative rule of the user's own mixes rows of the batch.

    Only a program that is differentiated shows it.

    Args:
        eqns: the operations of the program.
        run: it, from the values that are differentiated to results with gradients.
        *args: these values, or their shapes.

    Raises:
        MixesBatchError: a rule does.
    """
    if not args or not any(map(_holds_rule, eqns)):
        return

    def forward_and_back(*values: Any) -> Any:
        outs, pull_back = jax.vjp(run, *values)
        return pull_back(outs)

    jax.eval_shape(forward_and_back, *args)


def _holds_rule(eqn: JaxprEqn) -> bool:
    """Whether an operation has a derivative rule of its own, or one inside."""
    inside = (e for j in jaxprs_in_params(eqn.params) for e in j.eqns)
    return has_custom_rule(eqn) or any(map(_holds_rule, inside))


def _open_primitive(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """The implementation of a library's own primitive; None for JAX's, which have none.

    Its derivative rules are lost, so nothing may differentiate it any more.
    """
    implementation: Any = eqn.primitive.impl
    if implementation.__module__.partition(".")[0] in ("functools", "jax"):
        return None
    shapes = list(map(shape_of, eqn.invars))
    return jax.make_jaxpr(functools.partial(implementation, **eqn.params))(*shapes)


def _noting_states(
    fn: Callable[..., list[Value]],
) -> tuple[Callable[..., list[Any]], list[State]]:
    """The function with arrays as results, and a list for the states of the last."""
    seen: list[State] = []

    def run(*args: Any) -> list[Any]:
        outs = fn(*args)
        seen[:] = [o.state for o in outs]
        return [o.array for o in outs]

    return run, seen


def _materialise(cotangent: Any) -> Any:
    if isinstance(cotangent, SymbolicZero):
        aval: Any = cotangent.aval
        return zeros_of(aval)
    return cotangent


def _read(env: dict[Var, Value], atom: Any) -> Value:
    return env[atom] if variables([atom]) else Value(None, atom.val)
