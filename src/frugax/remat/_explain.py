"""A plan in words and numbers: what is in each segment, what it costs, and why."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from frugax.budget import MemoryBudget, amount, format_bytes, format_share, table
from frugax.jaxprs import JaxprEqn, flops_of, is_heavy

_GATES = {
    "cond": "a branch that only the gradient opens: the least memory",
    "select": "its inputs wait for the gradient: convolutions are slow in a branch",
    "barrier": "an optimisation barrier, which this kind of device keeps",
}
_MOST_KINDS = 2


@runtime_checkable
class Explained(Protocol):
    """What is asked of a segment."""

    @property
    def start(self) -> int:
        """Its first operation."""
        ...

    @property
    def stop(self) -> int:
        """One past its last."""
        ...

    @property
    def gate(self) -> str | None:
        """How it is done again; None if it is kept."""
        ...

    @property
    def saved_bytes(self) -> int:
        """Kept for it."""
        ...

    @property
    def recomputed_flops(self) -> int:
        """Done again for it."""
        ...

    @property
    def kept(self) -> tuple[int, ...]:
        """Operations whose results are kept though others are done again."""
        ...

    @property
    def inside(self) -> "tuple[Explained, ...]":
        """How it is done again, if not all at once."""
        ...

    @property
    def what(self) -> str:
        """What is in it."""
        ...

    @property
    def peak_bytes(self) -> int:
        """Held while its backward pass runs, by the model."""
        ...


def describe(eqns: Sequence[JaxprEqn]) -> str:
    """What is in a segment, in a few words: the costly first, and how often.

    Args:
        eqns: its operations.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jnp.ones((2, 2))
        >>> describe(jax.make_jaxpr(lambda x: jnp.sin(x @ x) @ x)(x).eqns)
        'dot_general x2, sin'
    """
    counts = Counter(e.primitive.name for e in eqns)
    heavy = {e.primitive.name for e in eqns if is_heavy(e)}
    moves = {e.primitive.name for e in eqns if not flops_of(e)}
    names = sorted(counts, key=lambda n: (n not in heavy, n in moves, -counts[n]))
    times = lambda n: f"{n} x{counts[n]}" if counts[n] > 1 else n
    shown = [times(n) for n in names[:_MOST_KINDS]]
    rest = sum(counts[n] for n in names[_MOST_KINDS:])
    return ", ".join([*shown, *([f"{rest} more"] if rest else [])])


def explain(
    *,
    budget: MemoryBudget,
    predicted: int,
    unplanned_bytes: int,
    extra_flops: int,
    unplanned_flops: int,
    compiles: int,
    insides: Sequence[str],
    segments: Sequence[Explained],
) -> str:
    """The text of `RematPlan.explain`; the arguments are the plan's attributes."""
    limit = budget.usable_bytes
    flops = max(unplanned_flops, 1)
    lines = [
        f"{'fits' if predicted <= limit else 'does not fit'} {budget}: "
        f"{format_bytes(predicted)} measured, {format_share(predicted / limit)} of the "
        "limit",
        f"without a plan: {format_bytes(unplanned_bytes)}, "
        f"{format_share(unplanned_bytes / limit)} of the limit",
        f"done a second time: {extra_flops:,} flops, "
        f"{format_share(extra_flops / flops)} more; "
        f"programs compiled to find this: {compiles}",
        *insides,
        "",
    ]
    if not segments:
        return "\n".join([*lines, "everything is kept for the backward pass"])
    head = ["operations", "what", "backward pass", "keeps", "flops again", "more"]
    lines += [table(head, list(_rows(segments, flops))), ""]
    highest = max(segments, key=lambda s: s.peak_bytes)
    if highest.peak_bytes:
        lines += [
            f"the peak is at the backward pass of {_range(highest)}: "
            f"{format_bytes(highest.peak_bytes)} by the model",
        ]
    used = {s.gate for s in _all(segments)}
    lines += [f"{gate}: {why}" for gate, why in _GATES.items() if gate in used]
    return "\n".join(lines)


def _rows(
    segments: Sequence[Explained], flops: int, depth: int = 0
) -> Iterator[list[str]]:
    for s in segments:
        how = f"recompute ({s.gate})" if s.gate else "keep"
        yield [
            "  " * depth + _range(s),
            s.what or "-",
            how + (f", {len(s.kept)} kept" if s.kept else ""),
            amount(s.saved_bytes, "bytes"),
            f"{s.recomputed_flops:,}",
            format_share(s.recomputed_flops / flops),
        ]
        yield from _rows(s.inside, flops, depth + 1)


def _all(segments: Sequence[Explained]) -> Iterator[Explained]:
    for s in segments:
        yield s
        yield from _all(s.inside)


def _range(segment: Explained) -> str:
    return f"{segment.start}-{segment.stop - 1}"
