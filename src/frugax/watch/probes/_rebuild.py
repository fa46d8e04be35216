"""Run a traced program again with what its probes give as outputs.

Only operations that hold a probe are written anew, through JAX's public functions; all
others are run as they stand. What comes out, and in which order, is said by `_slots`.
"""

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
from ._primitive import ALWAYS, PRESENT, split, stride_p, watch_p
from ._slots import (
    CALLS,
    JITS,
    REMATS,
    RULES,
    Slot,
    Taken,
    counted,
    joined,
    manual_axes,
    slots_of,
    slots_of_operation,
)
from ._strip import is_rerun, is_watched, opened

_Outs = tuple[list[Any], list[Taken]]


class Rebuild:
    """Runs a program so that its probes become outputs.

    Args:
        rules: leave functions with derivative rules of their own as they are.
        stride: what takes the place of the ambient stride; None leaves it.
    """

    def __init__(self, *, rules: bool, stride: Any = None) -> None:
        self._rules = rules
        self._stride = stride
        # The axes of a `shard_map` around: all that is recorded differs along them, or
        # what a branch made and what stands for it in another would not fit.
        self._axes: tuple[str, ...] = ()
        # What is called twice stays one program, compiled once.
        self._jits: dict[int, tuple[Any, Any]] = {}

    def slots(self, jaxpr: Any) -> tuple[Slot, ...]:
        """What `run` will give besides the outputs."""
        return slots_of(jaxpr, rules=self._rules)

    def run(self, jaxpr: Any, args: Sequence[Any]) -> _Outs:
        """The program's outputs, and what fills its slots."""
        whole = close(jaxpr)
        program = opened(whole)
        env: dict[Var, Any] = dict(zip(program.constvars, whole.consts, strict=True))
        env |= zip(program.invars, args, strict=True)
        read = lambda v: v.val if isinstance(v, Literal) else env[v]
        taken: list[Taken] = []
        plain: list[JaxprEqn] = []

        # What is read later, by the place of the last operation that reads it.
        last: dict[Var, int] = {}
        for i, eqn in enumerate(program.eqns):
            last |= dict.fromkeys(variables(eqn.invars), i)
        last |= dict.fromkeys(variables(program.outvars), len(program.eqns))

        def run_plain(place: int) -> None:
            if not plain:
                return
            made = [v for eqn in plain for v in eqn.outvars]
            needed = [v for v in made if last.get(v, -1) >= place]
            known = set(made)
            reads = [v for eqn in plain for v in variables(eqn.invars)]
            inputs = [v for v in dict.fromkeys(reads) if v not in known]
            part = program.replace(
                constvars=[], invars=inputs, outvars=needed, eqns=plain[:]
            )
            outs = jaxpr_as_fun(ClosedJaxpr(part, ()))(*map(read, inputs))
            env.update(zip(needed, outs, strict=True))
            plain.clear()

        for i, eqn in enumerate(program.eqns):
            if not self._is_rebuilt(eqn):
                plain.append(eqn)
                continue
            run_plain(i)
            outs, made = self._operation(eqn, [read(v) for v in eqn.invars])
            env |= zip(eqn.outvars, outs, strict=True)
            taken += made
        run_plain(len(program.eqns))
        return [read(v) for v in program.outvars], taken

    def _is_rebuilt(self, eqn: JaxprEqn) -> bool:
        if eqn.primitive is stride_p:
            return self._stride is not None
        if slots_of_operation(eqn, rules=self._rules):
            return True
        if self._stride is None or is_rerun(eqn) or not is_watched(eqn):
            return False
        name = eqn.primitive.name
        return name in _KNOWN or name in CALLS or (name in RULES and not self._rules)

    def _operation(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        name = eqn.primitive.name
        if eqn.primitive is stride_p:
            return [self._stride], []
        if eqn.primitive is watch_p:
            return self._probe(eqn, args)
        if name in CALLS:
            return self.run(eqn.params[CALLS[name]], args)
        if name in RULES:
            return self.run(eqn.params[RULES[name]], args)
        return _KNOWN[name](self, eqn, args)

    def _probe(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        tied, mark, values = split(args, **eqn.params)
        return tied, self._spread([(mark, values)])

    def _spread(self, taken: list[Taken]) -> list[Taken]:
        def one(x: Any) -> Any:  # also a number that stands in the program
            lacking = tuple(a for a in self._axes if a not in varying_axes(x))
            return lax.pcast(x, lacking, to="varying") if lacking else x

        return jax.tree.map(one, taken)

    def _jit(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        body = eqn.params["jaxpr"]
        if id(body) not in self._jits:

            def again(*args: Any) -> Any:
                outs, taken = self.run(body, args)
                return tuple(outs), taken

            again.__name__ = str(eqn.params["name"])
            known = lambda s: None if type(s).__name__ == "UnspecifiedValue" else s
            placed: dict[str, Any] = {}
            into = tuple(map(known, eqn.params["in_shardings"]))
            out = tuple(map(known, eqn.params["out_shardings"]))
            if any(s is not None for s in into):
                placed["in_shardings"] = into
            if any(s is not None for s in out):
                placed["out_shardings"] = (out, None)
            jitted = jax.jit(again, inline=eqn.params["inline"], **placed)
            self._jits[id(body)] = body, jitted
        outs, taken = self._jits[id(body)][1](*args)
        return list(outs), taken

    def _remat(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        def again(*args: Any) -> Any:
            return self.run(eqn.params["jaxpr"], args)

        if is_rerun(eqn):
            # A gradient's own probe stands in it. There is no public way to write such
            # a part of a gradient, so its program is put in place of the old one.
            tree: Any = None

            def listed(*args: Any) -> list[Any]:
                nonlocal tree
                flat, tree = jax.tree.flatten(again(*args))
                return flat

            new = jax.make_jaxpr(listed)(*args)
            inner = opened(new)
            inner = inner.replace(
                constvars=[], invars=[*inner.constvars, *inner.invars]
            )
            params = eqn.params | {"jaxpr": inner}
            outs = eqn.primitive.bind(*new.consts, *args, **params)
            return jax.tree.unflatten(tree, outs)
        return jax.checkpoint(
            again,
            prevent_cse=eqn.params["prevent_cse"],
            policy=eqn.params["policy"],
        )(*args)

    def _scan(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        params = eqn.params
        held, carried = split_scan(eqn)
        bundle = Bundle()

        def one(carry: list[Any], x: list[Any]) -> Any:
            outs, taken = self.run(params["jaxpr"], [*args[:held], *carry, *x])
            return outs[:carried], (outs[carried:], bundle.pack(taken))

        options = {k: params[k] for k in ("_split_transpose",) if params.get(k)}
        carry, (ys, packed) = lax.scan(
            one,
            args[held : held + carried],
            args[held + carried :],
            params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
            **options,
        )
        return [*carry, *ys], bundle.unpack(packed)

    def _while(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        params = eqn.params
        in_cond, in_body = params["cond_nconsts"], params["body_nconsts"]
        asked, done = params["cond_jaxpr"], params["body_jaxpr"]
        of_cond, of_body = args[:in_cond], args[in_cond : in_cond + in_body]
        asking, doing = self.slots(asked), self.slots(done)
        # Under `vmap` each lane ends by itself; JAX has that in the operation.
        lanes = shape_of(opened(asked).outvars[0]).shape

        def go_on(state: list[Any]) -> tuple[Any, list[Taken]]:
            (more,), taken = self.run(asked, [*of_cond, *state])
            return more, taken

        def one(carry: Any) -> Any:
            more, state, before, held = carry
            if lanes and more is None:
                more, _ = go_on(state)
            new, taken = self.run(done, [*of_body, *state])
            if lanes:
                new = [_where_on(more, n, o) for n, o in zip(new, state, strict=True)]
            held = _latest(doing, held, taken, more if lanes else None)
            if not asking:
                return None, new, before, held
            more, said = go_on(new)
            return more, new, _latest(asking, before, said), held

        state = args[in_cond + in_body :]
        before, held = self._start(asking), self._start(doing)
        more = None
        if asking:
            more, said = go_on(state)
            before = _latest(asking, before, said)

        def ask(carry: Any) -> Any:
            more = carry[0] if asking else go_on(carry[1])[0]
            return more.any() if lanes else more

        loop = more, state, before, held
        _, state, before, held = lax.while_loop(ask, one, loop)
        return state, [*before, *held]

    def _start(self, slots: Sequence[Slot]) -> list[Taken]:
        """What a loop holds of its values before the first round."""
        return self._spread([counted(slot).blank() for slot in slots])

    def _cond(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        branches = eqn.params["branches"]
        union = joined([self.slots(b) for b in branches])

        def branch(which: int, *args: Any) -> _Outs:
            outs, taken = self.run(branches[which], args)
            filled = []
            for slot, places in union:
                place = places[which]
                if place is None:
                    filled += self._spread([slot.blank()])
                    continue
                mark, values = taken[place]
                if mark is None and slot.meaning == PRESENT:
                    mark = jnp.ones((), jnp.bool_)
                filled += self._spread([(mark, values)])
            return outs, filled

        fns = [functools.partial(branch, i) for i in range(len(branches))]
        return lax.switch(args[0], fns, *args[1:])

    def _shard_map(self, eqn: JaxprEqn, args: list[Any]) -> _Outs:
        params = eqn.params
        axes = manual_axes(eqn)

        def shard(*args: Any) -> Any:
            before = self._axes
            self._axes = (*before, *axes) if params["check_vma"] else before
            try:
                outs, taken = self.run(params["jaxpr"], args)
            finally:
                self._axes = before
            in_front = lambda x: x[None]  # one row for each device
            return tuple(outs), jax.tree.map(in_front, taken)

        outs, taken = jax.shard_map(
            shard,
            mesh=params["mesh"],
            in_specs=params["in_specs"],
            out_specs=(params["out_specs"], PartitionSpec(axes)),
            axis_names=frozenset(axes),
            check_vma=params["check_vma"],
        )(*args)
        return list(outs), taken


_KNOWN: dict[str, Callable[[Rebuild, JaxprEqn, list[Any]], _Outs]] = {
    "scan": Rebuild._scan,
    "while": Rebuild._while,
    "cond": Rebuild._cond,
    "shard_map": Rebuild._shard_map,
    **dict.fromkeys(JITS, Rebuild._jit),
    **dict.fromkeys(REMATS, Rebuild._remat),
}


def _latest(
    slots: Sequence[Slot],
    held: Sequence[Taken],
    taken: Sequence[Taken],
    lanes: Any = None,
) -> list[Taken]:
    """What a loop holds of its last values after one more round.

    Args:
        slots: of the loop's body.
        held: before the round.
        taken: in the round.
        lanes: which of the lanes took part in it; None: there are none.
    """
    found: list[Taken] = []
    for slot, (held_mark, old), (mark, new) in zip(slots, held, taken, strict=True):
        if lanes is not None:
            new = [_where_on(lanes, n, o) for n, o in zip(new, old, strict=True)]
        if slot.meaning == ALWAYS:
            found.append((held_mark + 1, new))
            continue
        if lanes is not None and mark.ndim:
            mark = _where_on(lanes, mark, jnp.zeros_like(mark))
        made = mark if slot.meaning == PRESENT else mark > 0
        values = [_where(made, n, o) for n, o in zip(new, old, strict=True)]
        if slot.meaning == PRESENT and slot.mark:
            found.append((held_mark | mark, values))
        else:
            found.append((held_mark + mark.astype(jnp.uint32), values))
    return found


def _where_on(lanes: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """The new values in those lanes, the old ones in the others.

    What has no axes for lanes does not depend on them. There may be fewer lanes than
    that, the first ones.
    """
    shape = new.shape[: lanes.ndim]
    fits = len(shape) == lanes.ndim
    if not fits or any(n > m for n, m in zip(shape, lanes.shape, strict=True)):
        return new
    return _where(lanes[tuple(slice(n) for n in shape)], new, old)


def _where(chosen: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """`jnp.where` of what chooses rows: its axes are the first of the others'."""
    wide = chosen.reshape(*chosen.shape, *[1] * (new.ndim - chosen.ndim))
    return jnp.where(wide, new, old)
