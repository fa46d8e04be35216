"""`StagedProgram`: a traced function whose marked gradients can be replaced."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from frugax.jaxprs import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    OutsideOfShardMap,
    Var,
    close,
    has_explicit_axes,
    jaxpr_as_fun,
    jaxprs_in_params,
    names_axes,
    shape_of,
    variables,
    varying_axes,
)

from ._marked_gradient import MarkedGradient, gradient_p

# Called as `jax.value_and_grad(loss, has_aux=True)` of `GradientSite.loss` is.
ValueAndGrad = Callable[..., Any]


@dataclasses.dataclass(frozen=True, eq=False)
class GradientSite:
    """A place in a program that takes a gradient which can be planned.

    Attributes:
        gradient: the differentiated function.
        forward: the operation of the forward pass.
        backwards: those of the backward pass, one for each call of the pullback.
        depth: the number of loops, branches and calls around it.
        axes: names and sizes of those of each `shard_map` around it.
        outer: the cotangents, or the values they are computed from, beside its results.
        rule: the results and `outer` to the cotangents, then to `made`; None if they
            do not depend on the results.
        made: what else reads of the operations of the rule.
    """

    gradient: MarkedGradient
    forward: JaxprEqn
    backwards: tuple[JaxprEqn, ...]
    depth: int
    axes: tuple[tuple[Any, int], ...] = ()
    outer: tuple[Any, ...] = ()
    rule: ClosedJaxpr | None = None
    made: tuple[Var, ...] = ()

    @functools.cached_property
    def cotangents(self) -> list[Any]:
        """The cotangents that the backward passes read, one pass after the other."""
        count = self.gradient.num_outputs
        return [x for e in self.backwards for x in e.invars[len(e.invars) - count :]]

    @functools.cached_property
    def is_mapped(self) -> bool:
        """Whether the backward pass has rows of cotangents, as in `jax.jacrev`."""
        return self.backwards[0].params.get("is_mapped", False)

    @functools.cached_property
    def is_unit(self) -> bool:
        """Whether it is the gradient of one number, as `jax.grad` takes it."""
        if len(self.cotangents) != 1 or self.is_mapped:
            return False
        return _is_number(self.cotangents[0], 1)

    def loss(self, leaves: Sequence[Any], rest: tuple[Any, Any]) -> tuple[Any, Any]:
        """A number whose gradients are those of this place, and all results.

        Args:
            leaves: the arguments that are differentiated.
            rest: the constants and `outer`.
        """
        consts, cotangents = rest
        function = self.gradient.function
        if self.axes and not jax.sharding.get_abstract_mesh().manual_axes:
            # The planner calls it outside of its `shard_map`.
            function = OutsideOfShardMap().change(function)
        results = jaxpr_as_fun(function)(*consts, *leaves)
        outs = results[: self.gradient.num_outputs]
        if self.is_unit:
            return outs[0], results
        if self.rule is not None:
            known = map(jax.lax.stop_gradient, results)
            found = jaxpr_as_fun(self.rule)(*known, *cotangents)
            cotangents, made = found[: len(outs)], found[len(outs) :]
            results = [*results, *made]
        dtype = self._sum_dtype
        # The gradient of a product with the cotangents is their pullback.
        products = [
            jnp.sum(out.astype(dtype) * jax.lax.stop_gradient(jnp.asarray(ct, dtype)))
            for i, (out, ct) in enumerate(zip(outs, cotangents, strict=True))
            if not all(_is_number(x, 0) for x in self.cotangents[i :: len(outs)])
        ]
        return functools.reduce(jnp.add, products), results

    @property
    def outer_shapes(self) -> list[Any]:
        """Of the part of `outer` that `loss` takes."""
        if self.is_unit:
            return []
        if self.rule is not None:
            return list(map(shape_of, self.outer))
        of_one = self.outer[: self.gradient.num_outputs]
        shapes = [x.aval.shape[1:] if self.is_mapped else x.aval.shape for x in of_one]
        return [jax.ShapeDtypeStruct(shape, self._sum_dtype) for shape in shapes]

    @property
    def _sum_dtype(self) -> Any:
        """The dtype of a sum of products with the cotangents: 64 bits if one has."""
        is_long = any(ct.aval.dtype.itemsize > 4 for ct in self.cotangents)
        return jnp.float64 if is_long else jnp.float32

    def split(self, values: Sequence[Any]) -> tuple[Any, Any]:
        """Constants and arguments, from the operands of the forward pass."""
        count = self.gradient.num_consts
        return list(values[:count]), list(values[count:])

    def run(
        self, grad: ValueAndGrad, operands: Sequence[Any], outer: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The results, then `made`; and the gradients of each pass by `grad`."""
        consts, leaves = self.split(operands)
        if self.rule is None:
            outer = [jnp.asarray(ct, self._sum_dtype) for ct in outer]
        given = [] if self.is_unit else list(outer)
        count = len(self.backwards)
        if count == 1 and not self.is_mapped:
            (_, results), grads = grad(leaves, (consts, given))
            return list(results), list(grads)
        # The passes are rows, which share what is computed before them.
        rows, each = given, len(given) // count
        if not self.is_mapped:
            rows = [jnp.stack(given[i::each]) for i in range(each)]
        run = jax.vmap(lambda given: grad(leaves, (consts, given)))
        (_, results), grads = run(rows)
        results = [x[0] for x in results]
        if self.is_mapped:
            return results, list(grads)
        return results, [g[i] for i in range(count) for g in grads]


@dataclasses.dataclass(frozen=True, eq=False)
class StagedProgram:
    """A function traced once, with its gradients marked.

    Attributes:
        traced: the whole function, with flat inputs and outputs.
        sites: the gradients that can be planned.
        unplanned: for each other gradient, where it is and why it cannot be planned.
    """

    traced: ClosedJaxpr
    sites: tuple[GradientSite, ...]
    unplanned: tuple[str, ...]

    @property
    def takes_gradient(self) -> bool:
        """Whether a gradient was found, planned or not."""
        return bool(self.sites or self.unplanned)

    @classmethod
    def of(cls, traced: ClosedJaxpr, unmarked: Sequence[str] = ()) -> "StagedProgram":
        """Look for the gradients of a program."""
        sites: list[GradientSite] = []
        unplanned = list(unmarked)
        _find_sites(traced.jaxpr, 0, sites, unplanned)
        sites.sort(key=lambda s: -s.gradient.residual_bytes)
        return cls(traced, tuple(sites), tuple(dict.fromkeys(unplanned)))

    def run(
        self, chosen: Mapping[MarkedGradient, ValueAndGrad], inputs: Sequence[Any]
    ) -> list[Any]:
        """The flat results, with some gradients replaced.

        Args:
            chosen: what computes a marked gradient; others run as JAX writes them.
            inputs: the flat arguments.
        """
        return _evaluate(self.traced.jaxpr, self.traced.consts, inputs, chosen)


@dataclasses.dataclass(frozen=True, eq=False)
class _Step:
    """One operation, or both passes of one gradient, which run together."""

    eqns: tuple[JaxprEqn, ...]
    site: GradientSite | None = None

    @property
    def has_effects(self) -> bool:
        """Whether an operation prints or calls back."""
        return any(e.effects for e in self.eqns)


def _is_number(atom: Any, number: float) -> bool:
    is_known = isinstance(atom, Literal) and shape_of(atom).shape == ()
    return is_known and atom.val == number


def _is_marked(eqn: JaxprEqn) -> bool:
    return eqn.primitive is gradient_p


def _has_marks(jaxpr: Jaxpr) -> bool:
    return any(map(_holds_marks, jaxpr.eqns))


def _holds_marks(eqn: JaxprEqn) -> bool:
    return _is_marked(eqn) or any(map(_has_marks, jaxprs_in_params(eqn.params)))


def _pulls_inside(eqn: JaxprEqn, gradient: MarkedGradient) -> bool:
    """Whether a body of an operation calls the pullback of a gradient."""
    return any(
        e.params["gradient"] is gradient
        if _is_marked(e)
        else _pulls_inside(e, gradient)
        for body in jaxprs_in_params(eqn.params)
        for e in body.eqns
    )


def _find_sites(
    jaxpr: Jaxpr, depth: int, sites: list[GradientSite], unplanned: list[str]
) -> None:
    steps, reasons = _pair(jaxpr, depth)
    unplanned += reasons
    sites += [s.site for s in steps if s.site is not None]
    for eqn in jaxpr.eqns:
        if _is_marked(eqn):
            continue
        if _is_marked_shard_map(eqn):
            inside: list[GradientSite] = []
            (body,) = jaxprs_in_params(eqn.params)
            _find_sites(body, depth + 1, inside, unplanned)
            for site in inside:
                why = _why_bound(site.gradient)
                if eqn.params["check_vma"] and why:
                    unplanned.append(
                        f"the loss at {site.gradient.source} is inside of shard_map "
                        f"with check_vma, and {why}"
                    )
                    continue
                mesh, names = eqn.params["mesh"], eqn.params["newly_manual_axes"]
                axes = [*site.axes, *((name, mesh.shape[name]) for name in names)]
                sites.append(dataclasses.replace(site, axes=tuple(axes)))
            continue
        for value in eqn.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                if isinstance(part, ClosedJaxpr):
                    _find_sites(part.jaxpr, depth + 1, sites, unplanned)
                elif isinstance(part, Jaxpr) and _is_checkpoint(eqn):
                    _find_sites(part, depth + 1, sites, unplanned)
                elif isinstance(part, Jaxpr) and _has_marks(part):
                    unplanned.append(
                        f"a gradient is inside of {eqn.primitive.name}, whose body is "
                        "left as it is"
                    )


def _why_bound(gradient: MarkedGradient) -> str:
    """Why a loss cannot leave a `shard_map` that checks types; "" if it can.

    The types of its values say that they vary between devices.
    """
    if names_axes(gradient.function):
        return "its devices exchange numbers in it"
    return "it has a custom_vjp" if gradient.has_custom_vjp else ""


def _pair(jaxpr: Jaxpr, depth: int = 0) -> tuple[list[_Step], list[str]]:
    """The operations in order, with both passes of a gradient as one where possible."""
    backwards: dict[MarkedGradient, list[int]] = {}
    forwards: dict[MarkedGradient, list[int]] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        if _is_marked(eqn):
            kind = forwards if eqn.params["is_forward"] else backwards
            kind.setdefault(eqn.params["gradient"], []).append(i)
    steps = [_Step((e,)) for e in jaxpr.eqns]
    reasons: list[str] = []
    for gradient, places in forwards.items():
        pulled = backwards.get(gradient, [])
        pullback = f"the pullback of the function at {gradient.source}"
        if len(places) != 1 or not pulled:
            times = "is never called"
            if len(places) != 1:
                times = f"belongs to {len(places)} copies of its function"
            elif inside := [e for e in jaxpr.eqns if _pulls_inside(e, gradient)]:
                times = f"is called inside of {inside[0].primitive}, without it"
            reasons.append(f"{pullback} {times}")
            continue
        merged = _merge(jaxpr, steps, places[0], pulled, gradient, depth)
        if merged is None and len(pulled) > 1:
            reasons.append(
                f"{pullback} is called {len(pulled)} times, for arguments that are "
                "computed from its results or by it, over a mesh, or with effects"
            )
        elif merged is None:
            reasons.append(
                f"the cotangent of the gradient at {gradient.source} is computed from "
                "the results of its function by another gradient, or with effects"
            )
        else:
            steps = merged
    return steps, reasons


def _merge(
    jaxpr: Jaxpr,
    steps: list[_Step],
    forward: int,
    backwards: Sequence[int],
    gradient: MarkedGradient,
    depth: int,
) -> list[_Step] | None:
    """The same steps with those of a gradient as one, in a new order.

    Operations with effects keep their order. None if no order works.
    """
    first, passes = jaxpr.eqns[forward], [jaxpr.eqns[i] for i in backwards]
    residuals = set(first.outvars[gradient.num_results :])
    readers = [e for e in jaxpr.eqns if residuals & {*variables(e.invars)}]
    if readers != passes or residuals & {*variables(jaxpr.outvars)}:
        return None
    on_mesh = any(
        has_explicit_axes(x) or varying_axes(x) for x in gradient.forward.in_avals
    )
    has_rows = any(e.params.get("is_mapped", False) for e in passes)
    if has_rows and len(passes) > 1:
        return None
    has_rows = has_rows or len(passes) > 1
    if has_rows and (on_mesh or first.effects):
        return None
    start = next(i for i, s in enumerate(steps) if first in s.eqns)
    stop = next(i for i, s in enumerate(steps) if passes[-1] in s.eqns)
    inside = [
        s for s in steps[start + 1 : stop] if not any(e in s.eqns for e in passes)
    ]
    # What the backward pass needs of the steps in between comes before both, or between
    # them if it is computed from the results.
    results = first.outvars[: gradient.num_results]
    of_results = {*results}
    reads = lambda step: {v for e in step.eqns for v in variables(e.invars)}
    for step in inside:
        if of_results & reads(step):
            of_results |= {v for e in step.eqns for v in e.outvars}
    read = {v for e in passes for v in variables(e.invars)} - residuals
    has_effects = any(e.effects for e in passes)
    before: list[_Step] = []
    between: list[JaxprEqn] = []
    after: list[_Step] = []
    for step in reversed(inside):
        is_read = any(read & {*e.outvars} for e in step.eqns)
        if not (is_read or (has_effects and step.has_effects)):
            after.insert(0, step)
            continue
        read |= reads(step)
        has_effects |= step.has_effects
        if not of_results & reads(step):
            before.insert(0, step)
        elif step.has_effects or any(map(_holds_marks, step.eqns)):
            return None
        else:
            between = [*step.eqns, *between]
    if first.effects and any(s.has_effects for s in before):
        return None
    if read & {v for e in passes for v in e.outvars}:
        return None
    site = GradientSite(gradient, first, tuple(passes), depth)
    site = dataclasses.replace(site, outer=tuple(site.cotangents))
    if of_results & {*variables(site.cotangents)}:
        if has_rows:
            return None
        site = _with_rule(site, jaxpr, between)
    both = _Step((first, *between, *passes), site)
    return [*steps[:start], *before, both, *after, *steps[stop + 1 :]]


def _with_rule(
    site: GradientSite, jaxpr: Jaxpr, between: Sequence[JaxprEqn]
) -> GradientSite:
    """The site, whose cotangents follow from its results by these operations."""
    results = site.forward.outvars[: site.gradient.num_results]
    defined = {v for e in between for v in e.outvars}
    read = dict.fromkeys(v for e in between for v in variables(e.invars))
    read.update(dict.fromkeys(variables(site.cotangents)))
    outer = [v for v in read if v not in defined and v not in {*results}]
    inside = {*map(id, site.backwards), *map(id, between)}
    used = {v for e in jaxpr.eqns if id(e) not in inside for v in variables(e.invars)}
    used.update(variables(jaxpr.outvars))
    made = [v for e in between for v in e.outvars if v in used]
    rule = jaxpr.replace(
        constvars=[],
        invars=[*results, *outer],
        outvars=[*site.cotangents, *made],
        eqns=list(between),
        effects=frozenset(),
    )
    return dataclasses.replace(
        site, outer=tuple(outer), rule=close(rule), made=tuple(made)
    )


def _evaluate(
    jaxpr: Jaxpr,
    consts: Sequence[Any],
    inputs: Sequence[Any],
    chosen: Mapping[MarkedGradient, ValueAndGrad],
) -> list[Any]:
    env: dict[Var, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, inputs, strict=True))
    value = lambda atom: _value(atom) if isinstance(atom, Literal) else env[atom]
    read = lambda atoms: list(map(value, atoms))
    pending: list[JaxprEqn] = []
    # Some results have no reader, and no variable that could be returned.
    used = {v for e in jaxpr.eqns for v in variables(e.invars)}
    used.update(variables(jaxpr.outvars))

    def flush() -> None:
        if pending:
            needed, made, run = _function_of(jaxpr, pending, used)
            env.update(zip(made, run(*read(needed)), strict=True))
            pending.clear()

    for step in _pair(jaxpr)[0]:
        site = step.site
        if site is not None and site.gradient in chosen:
            flush()
            grad = chosen[site.gradient]
            operands, outer = read(site.forward.invars), read(site.outer)
            results, grads = site.run(grad, operands, outer)
            count = site.gradient.num_results
            # Nothing else reads the residuals, which a plan does not have.
            env.update(zip(site.forward.outvars[:count], results[:count], strict=True))
            env.update(zip(site.made, results[count:], strict=True))
            found = [v for e in site.backwards for v in e.outvars]
            env.update(zip(found, grads, strict=True))
            continue
        for eqn in step.eqns:
            if _is_marked(eqn):
                flush()
                outs = jaxpr_as_fun(eqn.params["call"])(*read(eqn.invars))
                env.update(zip(eqn.outvars, outs, strict=True))
            elif _is_checkpoint(eqn) and _holds_marks(eqn):
                # Nothing is differentiated here, so nothing would be recomputed.
                flush()
                (body,) = jaxprs_in_params(eqn.params)
                outs = _evaluate(body, (), read(eqn.invars), chosen)
                env.update(zip(eqn.outvars, outs, strict=True))
            elif _is_marked_shard_map(eqn):
                if not chosen:
                    pending.append(eqn)
                    continue
                flush()
                outs = _evaluate_shard_map(eqn, read(eqn.invars), chosen)
                env.update(zip(eqn.outvars, outs, strict=True))
            else:
                pending.append(_replace_inside(eqn, chosen))
    flush()
    return read(jaxpr.outvars)


def _value(literal: Literal) -> Any:
    # JAX's own kind of float cannot be differentiated.
    return float(literal.val) if isinstance(literal.val, float) else literal.val


def _is_checkpoint(eqn: JaxprEqn) -> bool:
    """Whether it is a `jax.checkpoint`, whose program has no constants."""
    return eqn.primitive.name in ("checkpoint", "remat2")


def _is_marked_shard_map(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name != "shard_map":
        return False
    return any(map(_has_marks, jaxprs_in_params(eqn.params)))


def _evaluate_shard_map(
    eqn: JaxprEqn,
    inputs: Sequence[Any],
    chosen: Mapping[MarkedGradient, ValueAndGrad],
) -> Sequence[Any]:
    # Its body closes over nothing; JAX 0.12 wraps it all the same.
    (body,) = jaxprs_in_params(eqn.params)
    options = ("mesh", "in_specs", "out_specs", "check_vma")
    run = jax.shard_map(
        lambda *values: tuple(_evaluate(body, (), values, chosen)),
        axis_names=set(eqn.params["newly_manual_axes"]),
        **{name: eqn.params[name] for name in options},
    )
    return run(*inputs)


def _function_of(
    jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], used: set[Var]
) -> tuple[list[Var], list[Var], Callable[..., list[Any]]]:
    """The variables that operations read, those that they define, and a function."""
    defined = {v for e in eqns for v in e.outvars}
    made = [v for e in eqns for v in e.outvars if v in used]
    read = dict.fromkeys(v for e in eqns for v in variables(e.invars))
    needed = [v for v in read if v not in defined]
    part = jaxpr.replace(
        constvars=[],
        invars=needed,
        outvars=made,
        eqns=list(eqns),
        effects=frozenset().union(*(e.effects for e in eqns)),
    )
    return needed, made, jaxpr_as_fun(close(part))


def _replace_inside(
    eqn: JaxprEqn, chosen: Mapping[MarkedGradient, ValueAndGrad]
) -> JaxprEqn:
    """The same operation with the gradients inside of its bodies replaced."""
    params = dict(eqn.params)
    for name, value in params.items():
        if isinstance(value, ClosedJaxpr):
            params[name] = _rewrite(value, chosen)
        elif type(value) is tuple:  # a named tuple is a value of another kind
            params[name] = tuple(
                _rewrite(p, chosen) if isinstance(p, ClosedJaxpr) else p for p in value
            )
    return eqn.replace(params=params)


def _rewrite(
    closed: ClosedJaxpr, chosen: Mapping[MarkedGradient, ValueAndGrad]
) -> ClosedJaxpr:
    if not _has_marks(closed.jaxpr):
        return closed
    run = functools.partial(_evaluate, closed.jaxpr, closed.consts, chosen=chosen)
    shapes = list(map(shape_of, closed.jaxpr.invars))
    return jax.make_jaxpr(lambda *inputs: run(inputs))(*shapes)
