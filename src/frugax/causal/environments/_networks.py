"""Load Bayesian networks from BIF or JSON files as SCMs with known graphs.

Formats: BIF (`.bif`, `.bif.gz`) for discrete networks, and JSON for linear Gaussian
ones, as in bnlearn's repository and in pgmpy. The variables of a discrete network are
the numbers of states; each conditional probability table is a function that turns
uniform noise into a state.

References:
    Scutari 2010, J. Statistical Software 35(3), and https://www.bnlearn.com/bnrepository
"""

import dataclasses
import json
import math
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from frugax.causal.scm import SCM
from frugax.errors import CorruptFileError, UnsupportedFileError

_ENDINGS = (".json", ".bif", ".bif.gz")
# Far above any published network: a gzip file can unpack to a thousand times its size.
_MAX_BYTES = 256 * 2**20
# A few words can announce a table that does not fit into memory.
_MAX_ENTRIES = 10_000_000
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PART = re.compile(
    r"\s*(network|variable|probability)\b([^{]*)\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}"
)


def load_network(path: str | os.PathLike[str]) -> SCM:
    """Load a model from a file.

    Linear networks have their coefficients and variances. The values of discrete
    networks are numbers of states, from 0; `scm.states(name)` gives their names.

    Args:
        path: a file that ends in `.json`, `.bif` or `.bif.gz`.

    Raises:
        CorruptFileError: the file is truncated or damaged.
        FileNotFoundError: there is no such file.
        UnsupportedFileError: the file has another ending.
    """
    where = os.fspath(path)
    if not where.endswith(_ENDINGS):
        raise UnsupportedFileError(
            f"{where}: networks are read from files that end in {', '.join(_ENDINGS)}."
        )
    try:
        content = Path(where).read_bytes()
    except OSError as error:
        raise type(error)(
            f"{where}: {error.strerror or error}. Give the path of a network's file."
        ) from error
    return _parse(content, where)


def _parse(content: bytes, where: str) -> SCM:
    """Parse the bytes of a file."""
    if where.endswith(".gz"):
        # 31 stands for the largest window with a gzip header. Unlike `gzip.open`, this
        # object stops at a given number of bytes.
        unpacking = zlib.decompressobj(wbits=31)
        try:
            content = unpacking.decompress(content, _MAX_BYTES)
        except zlib.error as error:
            raise CorruptFileError(
                f"{where} is not a valid gzip file: {error}."
            ) from error
        if not unpacking.eof:
            raise CorruptFileError(
                f"{where} is truncated, or larger than {_MAX_BYTES:,} bytes unpacked."
            )
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise CorruptFileError(
            f"{where}: byte {error.start} is not UTF-8 text."
        ) from error
    try:
        if not where.endswith(".json"):
            return scm_from_bif(text, where)
        return _linear(json.loads(text))
    except json.JSONDecodeError as error:
        raise CorruptFileError(f"{where} is not valid JSON: {error}.") from error
    # The parser recurses once for each level of nesting, and the file chooses how many.
    except RecursionError as error:
        raise CorruptFileError(f"{where} is nested too deeply.") from error
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise CorruptFileError(f"{where} is not a network: {error!r}.") from error


def _linear(network: Any) -> SCM:
    """Build a linear model from nodes, arcs and coefficients."""
    equations: dict[str, dict[str, float]] = {}
    bias: dict[str, float] = {}
    noise_scale: dict[str, float] = {}
    for name in network["nodes"]:
        table = network["cpds"][name]
        # R has no scalars: bnlearn exports each number as a list of one, and the
        # constant under the name that R's regressions give it.
        weights = {key: float(value[0]) for key, value in table["coefficients"].items()}
        bias[name] = weights.pop("(Intercept)", 0.0)
        equations[name] = weights
        noise_scale[name] = float(table["variance"][0]) ** 0.5
    arcs = {(cause, effect) for cause, effect in network["arcs"]}
    weighted = {
        (cause, effect) for effect, causes in equations.items() for cause in causes
    }
    # The file states the graph twice. If the two differ, one is silently wrong.
    if arcs != weighted:
        only = sorted(arcs ^ weighted)[0]
        raise ValueError(f"arc {only} is in the arcs or the coefficients, not in both")
    return SCM.linear(equations, bias=bias, noise_scale=noise_scale)


@dataclasses.dataclass(frozen=True, eq=False)
class ConditionalTable:
    """A conditional probability table: maps parents' states and noise to a state.

    Attributes:
        states: names; the variable's value is the number of its state, from 0.
        parents: names, in the order of the table's dimensions.
        sizes: number of states of each parent.
        cumulative: cumulative probabilities of the states, `(*sizes, states)`.
    """

    states: tuple[str, ...]
    parents: tuple[str, ...]
    sizes: tuple[int, ...]
    cumulative: np.ndarray

    def __call__(self, parents: Mapping[str, Any], noise: Any) -> Any:
        """Invert the cumulative distribution at the noise."""
        # NumPy stays in NumPy: `sample` must not compile anything.
        xp: Any = jnp
        if isinstance(noise, np.ndarray):
            xp = np
        # The row of the flattened table: the last parent varies fastest, as in C order.
        row = xp.zeros(noise.shape, "int32")
        for name, size in zip(self.parents, self.sizes, strict=True):
            # Arrays passed to `simulate` are not checked: take the nearest state.
            state = xp.clip(xp.round(parents[name]), 0, size - 1)
            row = row * size + state.astype("int32")
        table = xp.asarray(self.cumulative.reshape(-1, len(self.states)))
        # The noise is uniform with variance 1; on (0, 1) the variance is 1/12.
        share = noise / 12**0.5 + 0.5
        # The last cumulative probability is left out: rounded below 1, it would let
        # large noise count one state too many.
        return (share[:, None] >= table[row][:, :-1]).sum(1).astype(noise.dtype)


def scm_from_bif(text: str, where: str) -> SCM:
    """Parse the text of a discrete network in the interchange format BIF."""
    states: dict[str, tuple[str, ...]] = {}
    tables: dict[str, ConditionalTable] = {}
    # Comments become blanks, and the lines keep their numbers.
    text = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text).rstrip()
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            word = text[at:].split(maxsplit=1)[0]
            line = text.count("\n", 0, text.index(word, at)) + 1
            raise CorruptFileError(
                f"{where}, line {line}: no part of a network begins with {word!r:.60}, "
                "or it does not end."
            )
        kind, head, body = found.groups()
        try:
            if kind == "variable":
                states[head.strip()] = _parse_states(body)
            elif kind == "probability":
                child, table = _parse_table(head, body, states)
                tables[child] = table
        except (CorruptFileError, UnsupportedFileError) as error:
            line = text.count("\n", 0, found.start(1)) + 1
            raise type(error)(f"{where}, line {line}: {error}") from None
        at = found.end()
    if not states:
        raise CorruptFileError(f"{where} has no variables: it is not a BIF file.")
    for name in states:
        if name not in tables:
            raise CorruptFileError(f"{where} has no probabilities for {name!r}.")
    return SCM.create(
        {name: tables[name] for name in states},
        parents={name: tables[name].parents for name in states},
        noise="uniform",
    )


def _parse_states(body: str) -> tuple[str, ...]:
    """Parse the block of a variable: its states."""
    kind = re.search(r"\btype\s+(\w+)", body)
    if kind is not None and kind[1] != "discrete":
        raise UnsupportedFileError(
            f"variables of type {kind[1]!r} are not read, only discrete ones."
        )
    listed = re.search(r"\btype\s+discrete\s*\[([^]]*)\]\s*\{([^}]*)\}\s*;", body)
    if listed is None:
        raise CorruptFileError("the states of a variable are missing.")
    found = _split(listed[2])
    if listed[1].strip() != str(len(found)) or not found:
        raise CorruptFileError(
            f"{listed[1].strip()} states are announced and {len(found)} listed."
        )
    return found


def _parse_table(
    head: str, body: str, states: Mapping[str, tuple[str, ...]]
) -> tuple[str, ConditionalTable]:
    """Parse a probability block: the variable and its table."""
    named = re.fullmatch(r"\s*\(\s*([^\s|,()]+)\s*(?:\|([^()|]*))?\)\s*", head)
    if named is None:
        raise CorruptFileError(
            f"{head.strip():.60} where one variable, | and parents belong."
        )
    child, parents = named[1], _split(named[2] or "")
    for name in (child, *parents):
        if name not in states:
            raise CorruptFileError(f"there is no variable {name!r}.")
    sizes = tuple(len(states[name]) for name in parents)
    if math.prod((*sizes, len(states[child]))) > _MAX_ENTRIES:
        raise UnsupportedFileError(
            f"the table of {child!r} has more than {_MAX_ENTRIES:,} probabilities."
        )
    # NaN marks the rows that the file has not given yet.
    table = np.full((*sizes, len(states[child])), math.nan)
    *entries, rest = body.split(";")
    for entry in [*entries, *([rest] if rest.strip() else [])]:
        if entry.strip().startswith("property"):
            continue
        found = re.fullmatch(r"\s*(?:(table|default)\b|\(([^)]*)\))(.*)", entry, re.S)
        if found is None or (found[1] == "table" and parents):
            raise CorruptFileError(
                f"{entry.strip():.60} where states of the parents of {child!r} and "
                "probabilities belong."
            )
        row = _parse_row(found[3], len(states[child]))
        if found[1] == "default":
            table[np.isnan(table).any(-1)] = row
        else:
            table[_find_index(_split(found[2] or ""), parents, states)] = row
    if np.isnan(table).any():
        raise CorruptFileError(
            f"the table of {child!r} misses some states of its parents."
        )
    return child, ConditionalTable(states[child], parents, sizes, table.cumsum(-1))


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _find_index(
    given: Sequence[str],
    parents: Sequence[str],
    states: Mapping[str, tuple[str, ...]],
) -> tuple[int, ...]:
    if len(given) != len(parents):
        raise CorruptFileError(f"{len(given)} states for {len(parents)} parents.")
    for name, state in zip(parents, given, strict=True):
        if state not in states[name]:
            raise CorruptFileError(f"{name!r} has no state {state!r}.")
    pairs = zip(parents, given, strict=True)
    return tuple(states[name].index(state) for name, state in pairs)


def _parse_row(text: str, states: int) -> np.ndarray:
    """Parse the probabilities of all states; normalize them."""
    try:
        row = np.array([float(word) for word in _split(text)])
    except ValueError:
        row = np.full(1, math.nan)
    # Files round to a few digits, so the sum is not exactly 1.
    if len(row) != states or not (row >= 0).all() or abs(row.sum() - 1) > 0.02:
        raise CorruptFileError(f"{text.strip():.60} are not {states} probabilities.")
    return row / row.sum()
