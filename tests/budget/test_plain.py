"""Plain data becomes dataclasses, and an error names the value and its place."""

import dataclasses
from typing import Any, Literal

import pytest
from hypothesis import given, strategies as st

import frugax as fx
from frugax.budget import WrongValueError, from_plain, to_plain
from refusals import refuses


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int
    kind: Literal["a", "b"] = "a"
    rate: float = 1.0

    def __post_init__(self):
        if self.size < 0:
            raise ValueError(f"size must be >= 0, got {self.size}.")


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    memory: fx.MemoryBudget | None = None
    parts: tuple[Inner, ...] = ()
    pair: tuple[int, str] = (0, "")
    notes: dict[str, float] = dataclasses.field(default_factory=dict)


GOOD = {"name": "x", "inner": {"size": 1}}


def test_integers_are_read_as_floats_and_text_as_budgets():
    made = from_plain(Outer, GOOD | {"memory": "1KiB", "notes": {"a": 1}})
    assert made.memory == fx.MemoryBudget(limit_bytes=1024)
    assert made.notes == {"a": 1.0}
    assert isinstance(made.notes["a"], float)


@given(st.integers(0, 99), st.floats(allow_nan=False), st.text(), st.integers())
def test_there_and_back(size, rate, name, n):
    inner = Inner(size=size, rate=rate)
    made = Outer(name, inner, fx.MemoryBudget("1MB"), (inner, inner), (n, name))
    assert from_plain(Outer, to_plain(made)) == made


@pytest.mark.parametrize(
    ("change", "at", "named"),
    [
        ({"nane": "x"}, "nane", "'name'"),
        ({"inner": {"size": "1"}}, "inner.size", "quotes"),
        ({"inner": {"size": 1, "rate": "1e-3"}}, "inner.rate", "quotes"),
        ({"inner": {"size": 1, "rate": "2%"}}, "inner.rate", "0.02"),
        ({"inner": {"size": 1, "rate": "x%"}}, "inner.rate", "'x%'"),
        ({"inner": {"size": True}}, "inner.size", "True"),
        ({"inner": {"size": -1}}, "inner.size", "-1"),
        ({"inner": {"size": 1, "kind": "c"}}, "inner.kind", "'c'"),
        ({"inner": {"kind": "a"}}, "inner.size", "size"),
        ({"inner": 3}, "inner", "3"),
        ({"memory": "1 parsec"}, "memory", "'parsec'"),
        ({"memory": {"limit": 3}}, "memory.limit", "'limit_bytes'"),
        ({"parts": [{"size": 1}, {"size": None}]}, "parts[1].size", "None"),
        ({"pair": [1]}, "pair", "2"),
        ({"notes": {"a": "b"}}, "notes.a", "'b'"),
    ],
)
def test_an_error_names_the_value_and_its_place(change, at, named):
    with refuses(WrongValueError, named, at=at):
        from_plain(Outer, GOOD | change)


@dataclasses.dataclass(frozen=True)
class Switch:
    on: bool = True


def test_the_union_member_that_was_meant_reports_the_error():
    """Of several mappings, the one with the keys that were written."""
    kind: Any = str | Inner
    with refuses(WrongValueError, "'size'"):
        from_plain(kind, {"sizee": 1})
    kind = tuple[float, float] | Switch | Inner
    for data, named in (
        ({"size": -1}, ("size", -1)),
        ({"on": 3}, ("on", 3)),
        ({"sizee": 1}, ({"sizee": 1},)),
        ([1.0], (2,)),
        ("on", ("'on'",)),
    ):
        with refuses(WrongValueError, *named):
            from_plain(kind, data)


@dataclasses.dataclass(frozen=True)
class Names:
    names: tuple[str, ...]


@pytest.mark.parametrize("data", [["a", "b"], ["a", "b", "c"]])
def test_a_list_in_place_of_a_mapping_with_one_list_names_its_key(data):
    kind: Any = tuple[float, float] | Switch | Names
    with refuses(WrongValueError, f"{{names: {data}}}"):
        from_plain(kind, data)


def test_only_plain_things_are_written():
    with refuses(TypeError, "object"):
        to_plain({"a": [object()]})
