"""`collect`: transform a function so that its records become a second output."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np

from frugax.jaxprs import ClosedJaxpr, close

from ..journal import MAX_COLUMNS
from ._interpreter import Interpreter
from ._probe import RECORDED_KINDS, Probe
from ._remove_probes import find_probes, remove_probes
from ._result_specs import has_results
from ._results import ProbeResult, name_results, to_value


def collect(
    fn: Callable[..., Any],
    *,
    keep: Collection[str] = RECORDED_KINDS,
    keep_rules: bool = True,
) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """Transform a function so that its records are a second output.

    The first output comes from the same operations, and the program has no effect
    and no callback, except for probes of kind "call". With more outputs XLA may fuse
    the operations differently; then last bits may differ.

    Records of a `scan` are stacked; those of a `while` loop are `LastValues`; those of
    a branch are `MaskedValues`; those of a `shard_map` have one row for each device.
    The second run of a function under `jax.checkpoint` is not recorded.

    Args:
        fn: a function of arrays and pytrees of arrays.
        keep: the kinds of probes to keep; the others are removed.
        keep_rules: leave functions with derivative rules of their own (`custom_jvp`,
            `custom_vjp`, `custom_vmap`) as they are. Probes in these stay callbacks.
            False collects these too, for results that are not differentiated any more.

    Returns:
        A function of the same arguments that returns `(fn(...), records)`. Records are
        an array, or a dict of arrays by field, under the name of the probe. Further
        probes of the same name get `.2`, `.3`, ... in the order of the program.

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
    unknown = set(keep) - RECORDED_KINDS
    if unknown:
        raise ValueError(
            f"keep has unknown kinds {sorted(map(str, unknown))}; known are "
            f"{', '.join(sorted(RECORDED_KINDS))}."
        )

    @functools.wraps(fn)
    def collecting(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        traced = trace_function(fn, args, kwargs)
        out, results = traced.keep(lambda p: p.kind in keep).run(keep_rules=keep_rules)
        return out, {name: to_value(r) for name, r in name_results(results).items()}

    return collecting


@dataclasses.dataclass(frozen=True, slots=True)
class TracedFunction:
    """A function traced on its arguments, with its probes still in it.

    Attributes:
        program: the operations.
        args: the arguments that are arrays, in the order of the program's inputs.
        out_tree: the tree structure of the outputs.
    """

    program: ClosedJaxpr
    args: tuple[Any, ...]
    out_tree: Any

    @property
    def probes(self) -> tuple[Probe, ...]:
        """The distinct probes whose values can become outputs."""
        found = dict.fromkeys(p for p, _ in find_probes(self.program))
        return tuple(p for p in found if p.kind != "call")

    def keep(self, chosen: Callable[[Probe], bool]) -> "TracedFunction":
        """Remove the probes that are not chosen, and those in recomputed parts.

        Those of calls stay, in the first run.
        """
        first_run = {probe for probe, again in find_probes(self.program) if not again}
        # A checkpointed function stands twice in a gradient. Its probes are recorded
        # in the first run only, unless they exist in the recomputation alone.
        unwanted = lambda probe, again: (
            (probe.kind != "call" and not chosen(probe))
            or (again and probe in first_run)
        )
        program = remove_probes(self.program, unwanted)
        return dataclasses.replace(self, program=program)

    @property
    def has_results(self) -> bool:
        """Whether `run` gives results, as a derivative rule stays as it is."""
        return any(has_results(eqn, keep_rules=True) for eqn in self.program.jaxpr.eqns)

    def run(self, *, keep_rules: bool = True) -> tuple[Any, list[ProbeResult]]:
        """Return the outputs of the function, and the results of its probes."""
        interpreter = Interpreter(keep_rules=keep_rules)
        outs, results = interpreter.run(self.program, self.args)
        return jax.tree.unflatten(self.out_tree, outs), results


def trace_function(fn: Callable[..., Any], args: Any, kwargs: Any) -> TracedFunction:
    """Trace a function; arguments that are not arrays become part of the program."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    # Unlike in `jax.jit`, Python numbers stay constants, so that a flag may choose the
    # values to record.
    kinds = (jax.Array, np.ndarray, jax.ShapeDtypeStruct)
    is_array = [isinstance(x, kinds) for x in leaves]
    arrays = tuple(x for x, m in zip(leaves, is_array, strict=True) if m)

    def call(*values: Any) -> Any:
        rest = iter(values)
        merged = [next(rest) if m else x for x, m in zip(leaves, is_array, strict=True)]
        args, kwargs = jax.tree.unflatten(tree, merged)
        return fn(*args, **kwargs)

    _local.numbers.append(0)
    try:
        program, shapes = jax.make_jaxpr(call, return_shape=True)(*arrays)
    finally:
        _local.numbers.pop()
    return TracedFunction(close(program), arrays, jax.tree.structure(shapes))


def is_collected() -> bool:
    """Whether a program is traced in this thread whose records are collected."""
    return bool(_local.numbers)


def count_numbers(name: str, count: int) -> None:
    """Count numbers of the traced program; refuse more than a record holds."""
    if not _local.numbers:
        return
    _local.numbers[-1] += count
    if _local.numbers[-1] > MAX_COLUMNS:
        raise ValueError(
            f"probe {name!r} makes {_local.numbers[-1]:,} numbers of one step; at most "
            f"{MAX_COLUMNS:,}: record an array with `frame` or `summarise`."
        )


class _Local(threading.local):
    """The traces that are under way in this thread, innermost last.

    Attributes:
        numbers: how many numbers each of them records.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []


_local = _Local()
