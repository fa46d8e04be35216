"""Interpret a traced program so that the results of its probes become outputs.

Only operations that contain a probe are rebuilt, through JAX's public functions; all
others run as they are.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from frugax.jaxprs import (
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    Var,
    close,
    jaxpr_as_fun,
    shape_of,
    split_scan,
    variables,
    varying_axes,
)

from ._bundle import Bundle
from ._primitive import ALWAYS, COUNT, PRESENT, split_operands, watch_p
from ._remove_probes import is_recomputation, open_jaxpr
from ._result_specs import (
    CALLS,
    JITS,
    REMATS,
    RULES,
    has_results,
    keep_last,
    manual_axes,
    merge_branches,
)
from ._results import ProbeResult

# Outputs of the program, and the results of its probes.
_Outs = tuple[list[Any], list[ProbeResult]]


class Interpreter:
    """Runs programs so that the results of their probes become outputs."""

    def __init__(self, *, keep_rules: bool) -> None:
        self._keep_rules = keep_rules
        # The manual axes of enclosing shard_maps. JAX types values by the mesh axes
        # along which they vary; every result is cast to vary along all of them, or the
        # results of a branch and their blanks in another would have different types.
        self._axes: tuple[str, ...] = ()
        # A function that is called twice stays one program, and compiles once.
        self._jits: dict[int, tuple[Any, Any]] = {}

    def result_specs(self, jaxpr: Any) -> list[ProbeResult]:
        """Return the shapes of the results of `run`."""
        args = map(shape_of, open_jaxpr(jaxpr).invars)
        specs = jax.eval_shape(lambda *args: self.run(jaxpr, args)[1], *args)
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), specs)

    def run(self, jaxpr: Any, args: Sequence[Any]) -> _Outs:
        """Return the outputs of the program, and the results of its probes."""
        whole = close(jaxpr)
        program = open_jaxpr(whole)
        env: dict[Var, Any] = dict(zip(program.constvars, whole.consts, strict=True))
        env |= zip(program.invars, args, strict=True)
        read = lambda v: v.val if isinstance(v, Literal) else env[v]
        taken: list[ProbeResult] = []
        # Consecutive operations without a probe are evaluated as one program: binding
        # them one by one would trace several times slower.
        pending: list[JaxprEqn] = []

        # The index of the last operation that reads each variable.
        last: dict[Var, int] = {}
        for i, eqn in enumerate(program.eqns):
            last |= dict.fromkeys(variables(eqn.invars), i)
        last |= dict.fromkeys(variables(program.outvars), len(program.eqns))

        def run_pending(index: int) -> None:
            if not pending:
                return
            produced = [v for eqn in pending for v in eqn.outvars]
            needed = [v for v in produced if last.get(v, -1) >= index]
            known = set(produced)
            reads = [v for eqn in pending for v in variables(eqn.invars)]
            inputs = [v for v in dict.fromkeys(reads) if v not in known]
            part = program.replace(
                constvars=[], invars=inputs, outvars=needed, eqns=pending[:]
            )
            outs = jaxpr_as_fun(ClosedJaxpr(part, ()))(*map(read, inputs))
            env.update(zip(needed, outs, strict=True))
            pending.clear()

        for i, eqn in enumerate(program.eqns):
            if not has_results(eqn, keep_rules=self._keep_rules):
                pending.append(eqn)
                continue
            run_pending(i)
            outs, results = self._rebuild(eqn, [read(v) for v in eqn.invars])
            env |= zip(eqn.outvars, outs, strict=True)
            taken += results
        run_pending(len(program.eqns))
        return [read(v) for v in program.outvars], taken

    def _rebuild(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        name = eqn.primitive.name
        if eqn.primitive is watch_p:
            return self._probe(eqn, args)
        if body := CALLS.get(name) or RULES.get(name):
            return self.run(eqn.params[body], args)
        return _REBUILDERS[name](self, eqn, args)

    def _probe(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        params = eqn.params
        # JAX turns a number such as 0.1 into a value that is neither array nor number.
        pairs = zip(eqn.invars, args, strict=True)
        args = [
            jnp.asarray(x, shape_of(v).dtype) if isinstance(v, Literal) else x
            for v, x in pairs
        ]
        tied, mark, values = split_operands(args, **params)
        probe, kind, axes = params["probe"], params["mark_kind"], params["axes"]
        result = ProbeResult(probe, kind, mark, tuple(values), axes, params["lanes"])
        return tied, self._cast_to_varying([result])

    def _cast_to_varying(self, taken: list[ProbeResult]) -> list[ProbeResult]:
        def cast(x: Any) -> Any:
            missing = tuple(
                a for a in self._axes if a not in varying_axes(jax.typeof(x))
            )
            if missing:
                x = lax.pcast(x, missing, to="varying")
            return x

        return jax.tree.map(cast, taken)

    def _jit(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        body = eqn.params["jaxpr"]
        if id(body) not in self._jits:

            def run_body(*args: Any) -> Any:
                outs, taken = self.run(body, args)
                return tuple(outs), taken

            run_body.__name__ = str(eqn.params["name"])
            # JAX's own marker for "unspecified" is private; None means the same.
            known = lambda s: None if type(s).__name__ == "UnspecifiedValue" else s
            options: dict[str, Any] = {}
            in_shardings = tuple(map(known, eqn.params["in_shardings"]))
            out_shardings = tuple(map(known, eqn.params["out_shardings"]))
            if any(s is not None for s in in_shardings):
                options["in_shardings"] = in_shardings
            if any(s is not None for s in out_shardings):
                options["out_shardings"] = (out_shardings, None)
            jitted = jax.jit(run_body, inline=eqn.params["inline"], **options)
            self._jits[id(body)] = body, jitted
        outs, taken = self._jits[id(body)][1](*args)
        return list(outs), taken

    def _remat(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        def run_body(*args: Any) -> Any:
            return self.run(eqn.params["jaxpr"], args)

        if is_recomputation(eqn):
            # The probe is in the backward pass itself. JAX has no public function that
            # writes a recomputation, so its program is replaced in the operation.
            tree: Any = None

            def run_flat(*args: Any) -> list[Any]:
                nonlocal tree
                flat, tree = jax.tree.flatten(run_body(*args))
                return flat

            new = jax.make_jaxpr(run_flat)(*args)
            inner = open_jaxpr(new)
            inner = inner.replace(
                constvars=[], invars=[*inner.constvars, *inner.invars]
            )
            params = eqn.params | {"jaxpr": inner}
            outs = eqn.primitive.bind(*new.consts, *args, **params)
            return jax.tree.unflatten(tree, outs)
        return jax.checkpoint(
            run_body,
            prevent_cse=eqn.params["prevent_cse"],
            policy=eqn.params["policy"],
        )(*args)

    def _scan(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        params = eqn.params
        num_consts, num_carry = split_scan(eqn)
        bundle = Bundle()

        def step(carry: list[Any], x: list[Any]) -> Any:
            outs, taken = self.run(params["jaxpr"], [*args[:num_consts], *carry, *x])
            return outs[:num_carry], (outs[num_carry:], bundle.pack(taken))

        # An experimental option of `lax.scan`, passed on only where it is set.
        options = {k: params[k] for k in ("_split_transpose",) if params.get(k)}
        # The results leave as stacked outputs and not in the carry, which XLA would
        # have to copy or update in place in every round.
        carry, (ys, packed) = lax.scan(
            step,
            args[num_consts : num_consts + num_carry],
            args[num_consts + num_carry :],
            params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
            **options,
        )
        return [*carry, *ys], [r.stacked("steps") for r in bundle.unpack(packed)]

    # A `while` loop cannot stack results, as its number of rounds is unknown. It
    # carries the last values and their count instead. A probe in the condition stays
    # a callback.
    def _while(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        params = eqn.params
        num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
        cond, body = params["cond_jaxpr"], params["body_jaxpr"]
        cond_consts = args[:num_cond]
        body_consts = args[num_cond : num_cond + num_body]
        # Under `vmap` the condition has a value for each lane. JAX batches the loop by
        # running the body on all lanes and keeping the state of finished ones.
        lanes = shape_of(open_jaxpr(cond).outvars[0]).shape

        def run_cond(state: list[Any]) -> Any:
            (more,) = jaxpr_as_fun(cond)(*cond_consts, *state)
            return more

        def run_round(carry: Any) -> Any:
            state, kept = carry
            new, taken = self.run(body, [*body_consts, *state])
            # Only lanes whose condition still holds take part in the round.
            active: Any = None
            if lanes:
                active = run_cond(state)
                new = [
                    _select_lanes(active, n, o) for n, o in zip(new, state, strict=True)
                ]
            return new, _keep_latest(kept, taken, active)

        def should_continue(carry: Any) -> Any:
            # The batched loop runs until its last lane has finished.
            more = run_cond(carry[0])
            return more.any() if lanes else more

        specs = [keep_last(spec, lanes) for spec in self.result_specs(body)]
        blank = self._cast_to_varying([spec.blank() for spec in specs])
        loop = args[num_cond + num_body :], blank
        return lax.while_loop(should_continue, run_round, loop)

    def _cond(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        branches = eqn.params["branches"]
        # Every branch must return the results of all branches, blank where it has none.
        union = merge_branches([self.result_specs(b) for b in branches])

        def run_branch(which: int, *args: Any) -> _Outs:
            outs, taken = self.run(branches[which], args)
            filled: list[ProbeResult] = []
            for spec, positions in union:
                position = positions[which]
                result = spec.blank() if position is None else taken[position]
                if result.mark is None and spec.mark_kind == PRESENT:
                    there = jnp.ones((), jnp.bool_)
                    result = dataclasses.replace(result, mark_kind=PRESENT, mark=there)
                filled.append(result)
            return outs, self._cast_to_varying(filled)

        # A partial binds `i` now; a lambda in a comprehension would see the last one.
        fns = [functools.partial(run_branch, i) for i in range(len(branches))]
        return lax.switch(args[0], fns, *args[1:])

    def _shard_map(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        params = eqn.params
        axes = manual_axes(eqn)

        def shard(*args: Any) -> Any:
            before = self._axes
            # Without check_vma JAX does not type values by mesh axes.
            if params["check_vma"]:
                self._axes = (*before, *axes)
            try:
                outs, taken = self.run(params["jaxpr"], args)
            finally:
                self._axes = before
            # A new first axis, sharded over the mesh, makes one row for each device.
            return tuple(outs), jax.tree.map(lambda x: x[None], taken)

        # Of a partially manual shard_map only the manual axes have one row per device.
        outs, taken = jax.shard_map(
            shard,
            mesh=params["mesh"],
            in_specs=params["in_specs"],
            out_specs=(params["out_specs"], PartitionSpec(axes)),
            axis_names=frozenset(axes),
            check_vma=params["check_vma"],
        )(*args)
        return list(outs), [result.stacked("devices") for result in taken]


_REBUILDERS: dict[str, Callable[[Interpreter, JaxprEqn, list[Any]], _Outs]] = {
    "scan": Interpreter._scan,
    "while": Interpreter._while,
    "cond": Interpreter._cond,
    "shard_map": Interpreter._shard_map,
    **dict.fromkeys(JITS, Interpreter._jit),
    **dict.fromkeys(REMATS, Interpreter._remat),
}


def _keep_latest(
    kept: Sequence[ProbeResult], taken: Sequence[ProbeResult], lanes: Any = None
) -> list[ProbeResult]:
    """Update the last values of a loop with those of one more round."""
    latest: list[ProbeResult] = []
    for before, result in zip(kept, taken, strict=True):
        count, mark, old, new = before.mark, result.mark, before.values, result.values
        if lanes is not None:
            pairs = zip(new, old, strict=True)
            new = tuple(_select_lanes(lanes, n, o) for n, o in pairs)
        if result.mark_kind == ALWAYS:
            more = jnp.ones((), count.dtype)
            if lanes is not None and count.ndim:
                more = lanes[tuple(slice(n) for n in count.shape)].astype(count.dtype)
            latest.append(dataclasses.replace(before, mark=count + more, values=new))
            continue
        if lanes is not None and mark.ndim:
            mark = _select_lanes(lanes, mark, jnp.zeros_like(mark))
        is_new = mark
        if result.mark_kind == COUNT:
            is_new = mark > 0
        new = tuple(_select_rows(is_new, n, o) for n, o in zip(new, old, strict=True))
        if result.mark_kind == PRESENT and mark.ndim:
            # A mask of lanes stays a mask, since each lane has a count of its own.
            mark = count | mark
        else:
            mark = count + mark.astype(jnp.uint32)
        latest.append(dataclasses.replace(before, mark=mark, values=new))
    return latest


def _select_lanes(lanes: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Select the new values in the given lanes, and the old ones in the others.

    Values without axes for lanes do not depend on them. Values may have fewer lanes,
    the first ones, where a probe limits them.
    """
    shape = new.shape[: lanes.ndim]
    fits = len(shape) == lanes.ndim
    if not fits or any(n > m for n, m in zip(shape, lanes.shape, strict=True)):
        return new
    return _select_rows(lanes[tuple(slice(n) for n in shape)], new, old)


def _select_rows(chosen: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """`jnp.where` with a condition whose axes are the first axes of the values."""
    wide = chosen.reshape(*chosen.shape, *[1] * (new.ndim - chosen.ndim))
    return jnp.where(wide, new, old)
