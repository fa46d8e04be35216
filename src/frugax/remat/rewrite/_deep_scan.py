"""A `lax.scan` with nested checkpoints: it keeps few carries and recomputes the rest.

`jax.checkpoint` around scans within scans does nearly the same. But each of its loops
adds up the gradients of what the iterations share, such as weights, in an array of its
own; here all levels add to the same arrays. The groups are equal ones, where those of
Griewank & Walther 2000 ("Algorithm 799: revolve") are binomial.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from frugax.jaxprs import shape_of

from ._gates import zeros_of


@dataclasses.dataclass(frozen=True, slots=True)
class ScanSteps:
    """The iterations of a `lax.scan`.

    Attributes:
        run: the body, from its inputs to its outputs.
        length: the number of iterations.
        reverse: whether they start at the last row.
        num_consts: the number of leading inputs that all iterations share.
        num_carry: the number of inputs and outputs that follow, which are carried.
        active: which of the inputs need gradients.
    """

    run: Callable[..., list[Any]]
    length: int
    reverse: bool
    num_consts: int
    num_carry: int
    active: Sequence[bool]


def scan_by_levels(steps: ScanSteps, levels: Sequence[int], *args: Any) -> list[Any]:
    """The scan, whose backward pass recomputes groups within groups of iterations.

    Args:
        steps: the iterations.
        levels: the lengths of groups, the longest first. They need not divide.
        args: the inputs of the scan.
    """
    return _Levels(steps, tuple(levels)).call(*args)


@dataclasses.dataclass(frozen=True, slots=True)
class _Levels:
    steps: ScanSteps
    levels: tuple[int, ...]

    def call(self, *args: Any) -> list[Any]:
        scan = jax.custom_vjp(lambda *args: self._forward(args)[0])
        scan.defvjp(lambda *args: self._forward(args), self._backward)
        return scan(*args)

    def _split(self, args: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        a, b = self.steps.num_consts, self.steps.num_consts + self.steps.num_carry
        return list(args[:a]), list(args[a:b]), list(args[b:])

    def _rows(self, xs: Sequence[Any], time: Any) -> list[Any]:
        return [lax.dynamic_index_in_dim(x, self._row(time), 0, False) for x in xs]

    def _row(self, time: Any) -> Any:
        return self.steps.length - 1 - time if self.steps.reverse else time

    def _advance(
        self, consts: list[Any], carry: list[Any], xs: list[Any], begin: Any, count: int
    ) -> tuple[list[Any], list[Any]]:
        """The carry after `count` iterations from `begin` on, and their results."""

        def step(carry: list[Any], time: Any) -> tuple[list[Any], list[Any]]:
            outs = self.steps.run(*consts, *carry, *self._rows(xs, time))
            return outs[: self.steps.num_carry], outs[self.steps.num_carry :]

        return lax.scan(step, carry, begin + jnp.arange(count))

    def _forward(self, args: Sequence[Any]) -> tuple[list[Any], Any]:
        consts, carry, xs = self._split(args)
        group = self.levels[0]
        groups, rest = divmod(self.steps.length, group)

        def run_group(carry: list[Any], begin: Any) -> tuple[list[Any], Any]:
            after, ys = self._advance(consts, carry, xs, begin, group)
            return after, (carry, ys)

        carry, (starts, ys) = lax.scan(run_group, carry, group * jnp.arange(groups))
        ys = [y.reshape(groups * group, *y.shape[2:]) for y in ys]
        last = carry
        if rest:
            carry, more = self._advance(consts, carry, xs, groups * group, rest)
            ys = [jnp.concatenate(pair) for pair in zip(ys, more, strict=True)]
        if self.steps.reverse:
            ys = [y[::-1] for y in ys]
        return [*carry, *ys], (consts, xs, starts, last)

    def _backward(self, saved: Any, cotangents: list[Any]) -> tuple[Any, ...]:
        consts, xs, starts, last = saved
        steps = self.steps
        count = steps.num_carry
        active = self._split(steps.active)
        keep = lambda values, part: list(itertools.compress(values, active[part]))
        ct_ys = cotangents[count:]
        # Integers have no gradient.
        smooth = [i for i, c in enumerate(ct_ys) if c.dtype != jax.dtypes.float0]

        def pull_one(carry: list[Any], time: Any, state: Any) -> Any:
            """Pull the cotangents back through one iteration."""
            ct_carry, sums, rows = state
            moved = keep(consts, 0), keep(carry, 1), keep(self._rows(xs, time), 2)

            def run(*moved: Any) -> tuple[list[Any], list[Any]]:
                whole = list[Any]()
                given = consts, carry, self._rows(xs, time)
                for own, new, flags in zip(given, moved, active, strict=True):
                    left = iter(new)
                    pairs = zip(own, flags, strict=True)
                    whole += [next(left) if flag else v for v, flag in pairs]
                outs = steps.run(*whole)
                return keep(outs[:count], 1), [outs[count + i] for i in smooth]

            _, pull = jax.vjp(run, *moved)
            ct_rows = self._rows([ct_ys[i] for i in smooth], time)
            d_consts, ct_carry, d_rows = pull((ct_carry, ct_rows))
            sums = [a + d for a, d in zip(sums, d_consts, strict=True)]
            rows = [
                lax.dynamic_update_index_in_dim(g, d, self._row(time), 0)
                for g, d in zip(rows, d_rows, strict=True)
            ]
            return ct_carry, sums, rows

        def pull_groups(
            levels: Sequence[int], starts: Any, begin: Any, groups: int, state: Any
        ) -> Any:
            """Pull back through whole groups, from the carry before each of them."""
            group = levels[0]

            def pull_group(state: Any, x: Any) -> tuple[Any, None]:
                start, begin = x
                return pull_range(levels[1:], start, begin, group, state), None

            x = starts, begin + group * jnp.arange(groups)
            return lax.scan(pull_group, state, x, reverse=True)[0]

        def pull_range(
            levels: Sequence[int], carry: list[Any], begin: Any, length: int, state: Any
        ) -> Any:
            """Pull back through `length` iterations, from the carry before them."""
            if length == 1:
                return pull_one(carry, begin, state)
            group = next((n for n in levels if n < length), 1)
            groups, rest = divmod(length, group)

            def emit(carry: list[Any], begin: Any) -> tuple[list[Any], list[Any]]:
                return self._advance(consts, carry, xs, begin, group)[0], carry

            inner = [group, *(n for n in levels if n < group)]
            carry, starts = lax.scan(emit, carry, begin + group * jnp.arange(groups))
            if rest:
                place = begin + groups * group
                state = pull_range(inner, carry, place, rest, state)
            return pull_groups(inner, starts, begin, groups, state)

        zeros = lambda values: [zeros_of(shape_of(v)) for v in values]
        state = keep(cotangents, 1), zeros(keep(consts, 0)), zeros(keep(xs, 2))
        group = self.levels[0]
        groups, rest = divmod(steps.length, group)
        if rest:
            state = pull_range(self.levels, last, groups * group, rest, state)
        state = pull_groups(self.levels, starts, 0, groups, state)
        ct_carry, sums, rows = map(iter, state)
        return tuple(
            next(found) if flag else None
            for found, flags in zip((sums, ct_carry, rows), active, strict=True)
            for flag in flags
        )
