"""Static arguments: equality, refusals, and cheap look-ups."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import pytest

from frugax.train import Frozen
from refusals import refuses


@dataclasses.dataclass(frozen=True)
class Point:
    x: object


DIFFERENT = [
    1, 1.0, True, "1", b"1", None, 0.0, -0.0, [1], (1,), {1}, frozenset({1}), {1: 1},
    {1: 1.0}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, [1, [2]], [[1], 2], Point(1),
    Point(1.0), np.float32(1), np.float64(1), np.dtype("int8"), int, range(1), 1j,
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(DIFFERENT)))
def test_values_of_another_structure_are_not_equal(i):
    for j, other in enumerate(DIFFERENT):
        assert (Frozen(DIFFERENT[i]) == Frozen(other)) is (i == j)


def test_equal_structures_are_equal_and_hash_alike():
    a = Frozen([{"x": {1, (2, "y")}}, math.nan, Point((1, 2))])
    b = Frozen([{"x": {(2, "y"), 1}}, float("nan"), Point((1, 2))])
    assert a == b
    assert hash(a) == hash(b)


def test_later_changes_do_not_reach_the_frozen_value():
    given: list[Any] = [["a"], {"k": [1]}]
    static = Frozen(given)
    given[0].append("b")
    given[1]["k"].append(2)
    assert static.value == [["a"], {"k": [1]}]


@pytest.mark.parametrize(
    ("value", "error", "named"),
    [
        ([1, np.ones(3)], TypeError, "value[1]"),
        ({"a": [jax.numpy.ones(2)]}, TypeError, "'a'"),
        ([[bytearray(b"x"), memoryview(bytearray(b"y"))]], TypeError, "value[0][0]"),
    ],
)
def test_values_that_cannot_be_static_are_named(value, error, named):
    with refuses(error, named):
        Frozen(value)


def test_a_list_that_contains_itself_is_refused():
    endless: list[object] = []
    endless.append(endless)
    with refuses(ValueError, "value[0]"):
        Frozen(endless)


def test_jit_compiles_once_for_equal_values_and_again_for_others():
    traces = []

    def f(x, static):
        traces.append(static)
        return x * len(static.value)

    jitted = jax.jit(f, static_argnums=1)
    for value in ([1, 2], [1, 2], [1, 2.0], (1, 2), [1, 2]):
        jitted(1.0, Frozen(value))
    assert [t.value for t in traces] == [[1, 2], [1, 2.0], (1, 2)]


def test_hashing_is_cached():
    reads = []

    class Counted(str):
        def __hash__(self):
            reads.append(self)
            return super().__hash__()

    static = Frozen([Counted(i) for i in range(50)])
    reads.clear()
    hash(static)
    assert static == static
    assert not reads


def test_values_that_were_equal_once_are_not_compared_member_by_member():
    class Key(tuple):
        def __ne__(self, other):
            raise AssertionError("read again")

        __hash__ = tuple.__hash__

    one, two = Frozen([1, 2]), Frozen([1, 2])
    assert one == two
    assert one._key is two._key
    one._key = two._key = Key(("a", "b"))
    assert one == two
