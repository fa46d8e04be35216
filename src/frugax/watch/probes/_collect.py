"""A function whose records leave it as outputs."""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np

from frugax.jaxprs import ClosedJaxpr, close, jaxpr_as_fun

from ._expected import expecting
from ._made import Made, by_name, value_of
from ._probe import KINDS, Probe
from ._rebuild import Rebuild
from ._slots import Slot
from ._strip import is_nobody, probes_in, without_probes


def collect(
    fn: Callable[..., Any],
    *,
    keep: Collection[str] = KINDS,
    keep_rules: bool = True,
) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """The same function, with what it records as a second output.

    What `fn` gives is made by the same operations, and the program has no effect:
    nothing calls back. With more outputs XLA may fuse the operations otherwise; then
    last bits may differ.

    In a `scan`, records are stacked; of a `while` loop there are the `Last`
    ones; in a branch they are `Partly` there; in a `shard_map` there is a row for each
    device. What `jax.checkpoint` does a second time is not recorded a second time.

    Args:
        fn: a function of arrays and pytrees of arrays.
        keep: the kinds of probes to keep; the others are taken out.
        keep_rules: leave functions with derivative rules of their own (`custom_jvp`,
            `custom_vjp`, `custom_vmap`) as they are. Probes in these stay callbacks. If
            the result is not differentiated any more, False collects these too.

    Returns:
        A function of the same arguments, that gives `(fn(...), records)`. Records are
        by name: an array, or a dict of arrays by field. Another of the same name has
        `.2` after it, in the order of the program.

    Raises:
        ValueError: a kind in `keep` is unknown.

    Example:
        >>> import jax.numpy as jnp
        >>> from frugax.watch.probes import collect, record
        >>> def double(x, _):
        ...     record("x", x)
        ...     return 2 * x, None
        >>> run = lambda x: jax.lax.scan(double, x, None, length=4)[0]
        >>> value, records = collect(run)(jnp.float32(1))
        >>> float(value), records["x"].tolist()
        (16.0, [1.0, 2.0, 4.0, 8.0])
    """
    unknown = set(keep) - KINDS
    if unknown:
        raise ValueError(
            f"keep has unknown kinds {sorted(map(str, unknown))}; known are "
            f"{', '.join(sorted(KINDS))}."
        )

    @functools.wraps(fn)
    def collected(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        traced = trace_watched(fn, args, kwargs)
        chosen = traced.keeping(lambda probe: probe.kind in keep)
        out, made = chosen.run(keep_rules=keep_rules)
        return out, {n: value_of(m) for n, m in by_name(made).items()}

    return collected


@dataclasses.dataclass(frozen=True, slots=True)
class Traced:
    """A function traced on its arguments, its probes still in it.

    Attributes:
        program: its operations.
        args: the arguments that are arrays, in the order of the program's inputs.
        out_tree: how to put the outputs together again.
    """

    program: ClosedJaxpr
    args: tuple[Any, ...]
    out_tree: Any

    @property
    def probes(self) -> tuple[Probe, ...]:
        """Every probe in it, each once."""
        found = dict.fromkeys(p for p, _ in probes_in(self.program))
        return tuple(p for p in found if not is_nobody(p))

    def keeping(
        self, chosen: Callable[[Probe], bool], *, hush: bool = False
    ) -> "Traced":
        """The same without the probes that are not chosen, nor those done again."""
        first = {probe for probe, again in probes_in(self.program) if not again}
        unwanted = lambda probe, again: not chosen(probe) or (again and probe in first)
        program = without_probes(self.program, unwanted, hush=hush)
        return dataclasses.replace(self, program=program)

    def slots(self, *, keep_rules: bool = True) -> tuple[Slot, ...]:
        """What its probes give."""
        return Rebuild(rules=keep_rules).slots(self.program)

    def plainly(self) -> Any:
        """What the function gives; its probes stay where they are."""
        outs = jaxpr_as_fun(self.program)(*self.args)
        return jax.tree.unflatten(self.out_tree, outs)

    def run(
        self, *, keep_rules: bool = True, stride: Any = None
    ) -> tuple[Any, list[Made]]:
        """What the function gives, and what its probes give.

        Args:
            keep_rules: as for `collect`.
            stride: what the ambient stride is; None leaves it to whoever is outside.
        """
        rebuild = Rebuild(rules=keep_rules, stride=stride)
        slots = rebuild.slots(self.program)
        outs, taken = rebuild.run(self.program, self.args)
        made = [
            Made(s.probe, s.meaning, mark, values, s.axes)
            for s, (mark, values) in zip(slots, taken, strict=True)
        ]
        return jax.tree.unflatten(self.out_tree, outs), made


def trace_watched(fn: Callable[..., Any], args: Any, kwargs: Any) -> Traced:
    """Trace a function on its arguments; what is no array is part of the program."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    kinds = (jax.Array, np.ndarray, jax.ShapeDtypeStruct)
    moving = [isinstance(x, kinds) for x in leaves]
    arrays = tuple(x for x, m in zip(leaves, moving, strict=True) if m)

    def call(*given: Any) -> Any:
        rest = iter(given)
        pairs = zip(leaves, moving, strict=True)
        whole = [next(rest) if m else x for x, m in pairs]
        args, kwargs = jax.tree.unflatten(tree, whole)
        return fn(*args, **kwargs)

    with expecting() as called:
        program, shapes = jax.make_jaxpr(call, return_shape=True)(*arrays)
    traced = Traced(close(program), arrays, jax.tree.structure(shapes))
    for expected in called:
        expected.arrived(traced.probes)
    return traced
