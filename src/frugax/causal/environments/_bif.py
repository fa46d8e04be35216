"""Discrete Bayesian networks in the interchange format BIF, as causal models.

Reads: the text of a `.bif` file. Gives: an SCM whose variables are the numbers of
states; each table of probabilities is a function that turns uniform noise into a state.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from frugax.causal.scm import SCM
from frugax.errors import CorruptFileError, UnsupportedFileError

# A few words can announce a table that no memory holds.
_MOST_ENTRIES = 10_000_000
_COMMENT = r"//[^\n]*|/\*.*?\*/"
_WORD = r"[{}()\[\],;|]|[^\s{}()\[\],;|]+"
_TOKENS = re.compile(rf"\s*(?:({_COMMENT})|({_WORD}))", re.DOTALL)


@dataclasses.dataclass(frozen=True, eq=False)
class StateTable:
    """How likely each state of a variable is, given those of its parents.

    Attributes:
        states: names; the variable's value is their number, from 0.
        parents: names, in the order of the table's dimensions.
        sizes: how many states each parent has.
        cumulative: probability of a state or one before it, `(*sizes, states)`.
    """

    states: tuple[str, ...]
    parents: tuple[str, ...]
    sizes: tuple[int, ...]
    cumulative: np.ndarray

    def __call__(self, parents: Mapping[str, Any], noise: Any) -> Any:
        """The state that the noise picks: a number where noise is one of many."""
        np_or_jnp: Any = np if isinstance(noise, np.ndarray) else jnp
        row = np_or_jnp.zeros(noise.shape, "int32")
        for name, size in zip(self.parents, self.sizes, strict=True):
            # What arrays set in `simulate` is not checked: the nearest state counts.
            state = np_or_jnp.clip(np_or_jnp.round(parents[name]), 0, size - 1)
            row = row * size + state.astype("int32")
        table = np_or_jnp.asarray(self.cumulative.reshape(-1, len(self.states)))
        # The noise has variance 1; what is uniform from 0 to 1 has 1/12.
        share = noise / 12**0.5 + 0.5
        return (share[:, None] >= table[row][:, :-1]).sum(1).astype(noise.dtype)


def scm_from_bif(text: str, where: str) -> SCM:
    """The model that a file describes.

    Args:
        text: of the file.
        where: what it is called in messages.

    Raises:
        CorruptFileError: the text is cut off, or no BIF.
        UnsupportedFileError: it has variables that are not discrete, or a table that
            is too large.
    """
    states: dict[str, tuple[str, ...]] = {}
    tables: dict[str, StateTable] = {}
    tokens = _Tokens(text, where)
    while (word := tokens.next_or_none()) is not None:
        if word == "network":
            tokens.until("{")
            tokens.skip_block()
        elif word == "variable":
            name = tokens.next()
            states[name] = _states(tokens)
        elif word == "probability":
            name, table = _table(tokens, states)
            tables[name] = table
        else:
            tokens.fail(f"{word!r} begins no part of a network")
    if not states:
        raise CorruptFileError(f"{where} holds no variable: it is no BIF file.")
    for name in states:
        if name not in tables:
            raise CorruptFileError(f"{where} has no probabilities for {name!r}.")
    return SCM.create(
        {name: tables[name] for name in states},
        parents={name: tables[name].parents for name in states},
        noise="uniform",
    )


class _Tokens:
    """The words and marks of a text, with the line they are in."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where, self.at = text, where, 0
        self._found = self._all()

    def _all(self) -> Iterator[str]:
        for match in _TOKENS.finditer(self.text):
            self.at = match.start(2)
            if match[2]:
                yield match[2]

    def next_or_none(self) -> str | None:
        return next(self._found, None)

    def next(self) -> str:
        word = self.next_or_none()
        if word is None:
            raise CorruptFileError(f"{self.where} ends in the middle of a part.")
        return word

    def expect(self, *wanted: str) -> str:
        word = self.next()
        if word not in wanted:
            self.fail(f"{word!r} where {' or '.join(wanted)} belongs")
        return word

    def until(self, mark: str) -> list[str]:
        """The words before a mark, without commas."""
        words: list[str] = []
        while (word := self.next()) != mark:
            if word != ",":
                words.append(word)
        return words

    def skip_block(self) -> None:
        depth = 1
        while depth:
            word = self.next()
            depth += {"{": 1, "}": -1}.get(word, 0)

    def fail(self, what: str) -> None:
        """Say what is wrong and in which line.

        Raises:
            CorruptFileError: always.
        """
        line = self.text.count("\n", 0, self.at) + 1
        raise CorruptFileError(f"{self.where}, line {line}: {what}.")


def _states(tokens: _Tokens) -> tuple[str, ...]:
    """The states that a variable's part lists.

    Raises:
        UnsupportedFileError: the variable is not discrete.
    """
    tokens.expect("{")
    found: list[str] = []
    while (word := tokens.expect("type", "property", "}")) != "}":
        if word == "property":
            tokens.until(";")
            continue
        if (kind := tokens.next()) != "discrete":
            raise UnsupportedFileError(
                f"{tokens.where}: variables of type {kind!r} are not read, only "
                "discrete ones."
            )
        tokens.expect("[")
        (count,) = tokens.until("]") or [""]
        tokens.expect("{")
        found = tokens.until("}")
        tokens.expect(";")
        if count != str(len(found)) or not found:
            tokens.fail(f"{count} states are announced and {len(found)} listed")
    return tuple(found)


def _table(
    tokens: _Tokens, states: Mapping[str, tuple[str, ...]]
) -> tuple[str, StateTable]:
    """The variable that a part is about, and its probabilities.

    Raises:
        UnsupportedFileError: there are too many to hold.
    """
    tokens.expect("(")
    names = tokens.until(")")
    if len(names) > 1 and names[1] != "|":
        tokens.fail(f"{' '.join(names):.60} where one variable, | and parents belong")
    child, parents = names[0], tuple(names[2:])
    for name in (child, *parents):
        if name not in states:
            tokens.fail(f"there is no variable {name!r}")
    sizes = tuple(len(states[name]) for name in parents)
    if math.prod((*sizes, len(states[child]))) > _MOST_ENTRIES:
        raise UnsupportedFileError(
            f"{tokens.where}: the table of {child!r} has more than "
            f"{_MOST_ENTRIES:,} probabilities."
        )
    table = np.full((*sizes, len(states[child])), math.nan)
    tokens.expect("{")
    while (word := tokens.expect("table", "(", "default", "property", "}")) != "}":
        if word == "property":
            tokens.until(";")
            continue
        if word == "table" and parents:
            tokens.fail(f"the table of {child!r} must list the states of its parents")
        index: tuple[Any, ...] = ()
        if word == "(":
            given = tokens.until(")")
            if len(given) != len(parents):
                tokens.fail(f"{len(given)} states for {len(parents)} parents")
            for name, state in zip(parents, given, strict=True):
                if state not in states[name]:
                    tokens.fail(f"{name!r} has no state {state!r}")
            pairs = zip(parents, given, strict=True)
            index = tuple(states[name].index(state) for name, state in pairs)
        row = _row(tokens, len(states[child]))
        if word == "default":
            table[np.isnan(table).any(-1)] = row
        else:
            table[index] = row
    if np.isnan(table).any():
        tokens.fail(f"the table of {child!r} misses some states of its parents")
    return child, StateTable(states[child], parents, sizes, table.cumsum(-1))


def _row(tokens: _Tokens, states: int) -> np.ndarray:
    """Probabilities up to a semicolon; they add up to 1."""
    words = tokens.until(";")
    try:
        row = np.array([float(word) for word in words])
    except ValueError:
        row = np.full(1, math.nan)
    # Files round to a few digits, so the sum may be a little off.
    if len(row) != states or not (row >= 0).all() or abs(row.sum() - 1) > 0.02:
        tokens.fail(f"{' '.join(words):.60} are no {states} probabilities")
    return row / row.sum()
