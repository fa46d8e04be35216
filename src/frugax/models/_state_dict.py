"""`load_state_dict`: load weights of other libraries into a model, by a map of names.

Everything is matched and checked first; then all of it is loaded, or nothing.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from frugax.compress import load_weights
from frugax.errors import ShapeError

from ._compiled_model import CompiledModel
from .dtypes import to_numpy
from .serialization import (
    assign_weights,
    expected_weights,
    find_mismatches,
)

Transform = Callable[[np.ndarray], np.ndarray] | Sequence[int]
Target = str | tuple[str, Transform]
Names = Mapping[str, Target | Sequence[Target] | None]


class Weights(NamedTuple):
    """The result of `load_state_dict`: `params, state = load_state_dict(...)`.

    Attributes:
        params: the parameters by key.
        state: weights that go in with the data, such as running statistics, by key.
    """

    params: dict[str, Any]
    state: dict[str, Any]


def load_state_dict(
    compiled: CompiledModel,
    source: str | os.PathLike[str] | Mapping[str, Any],
    names: Names | None = None,
    *,
    cast: bool = False,
    allow_non_finite: bool = False,
) -> Weights:
    """Load weights that have other names and layouts into a compiled model.

    `names` maps each name in the source to its name in the model. `{i}` matches text
    without a dot, as in `"layers.{i}.weight"` or `"weight_ih_l{i}"`, and stands for it
    in the target. A name without such parts takes precedence over patterns, and of
    several patterns that with most text of its own. The names of the model are those of
    its single layers, also where a loop holds the weights of equal blocks stacked.

    A weight with another layout takes a pair: the name, and the order of the source's
    axes (as in `numpy.transpose`) or a function of the array. Frugax lays out `Linear`
    as (out, in), as torch does, and `Conv2D` as (height, width, in, out); torch's is
    (out, in, height, width), so its axes are `(2, 3, 1, 0)`. A list of targets splits
    one source; None leaves it out.

    Args:
        compiled: the model.
        source: a file or folder that `frugax.compress.load_weights` reads, such as
            `.safetensors` or the index of several, or arrays of NumPy, JAX or torch by
            name, such as a torch module's `state_dict()`.
        names: the map of names; without it the names must be the same.
        cast: cast the weights to the backend's dtype even where digits are lost.
        allow_non_finite: accept NaN and infinite weights.

    Returns:
        The parameters, and the weights that go in with the data.

    Raises:
        CorruptFileError: the file is damaged or cut off.
        FileNotFoundError: the file does not exist.
        ShapeError: names are missing, unknown or matched twice, or shapes do not fit;
            all are named at once.
        TypeError: the source or the map is of a wrong type.
        UnsupportedFileError: the file is of another kind.
        ValueError: a pattern is malformed, there are NaN or infinite numbers, or the
            dtype would lose digits in the backend's.

    Example:
        >>> import numpy as np, frugax as ml
        >>> layer, backend = ml.models.Linear(3), ml.JaxBackend()
        >>> compiled = ml.compile(layer, backend, shapes={"input": [2, 4]})
        >>> theirs = {"fc.kernel": np.ones((4, 3), "f4"), "fc.bias": np.zeros(3, "f4")}
        >>> names = {"fc.kernel": ("weight", (1, 0)), "fc.bias": "bias"}
        >>> params, state = ml.models.load_state_dict(compiled, theirs, names)
        >>> params["weight"].shape
        (3, 4)
    """
    arrays, source_name = _read_source(source)
    matched = Matches(set(expected_weights(compiled.program)))
    if names is None:
        for key, array in arrays.items():
            matched.take(key, array, key, None)
    else:
        matched.match_rules(arrays, [Rule(k, v) for k, v in names.items()])
    return matched.assign(
        compiled, source_name, cast=cast, allow_non_finite=allow_non_finite
    )


class Matches:
    """Arrays by the names of the model, and all problems of the match."""

    def __init__(self, needed: set[str]) -> None:
        self.needed = needed
        self.found: dict[str, np.ndarray] = {}
        self.origin: dict[str, str] = {}
        self.problems: list[str] = []

    def match_rules(
        self, arrays: Mapping[str, np.ndarray], rules: Sequence["Rule"]
    ) -> None:
        """Match each array with the only rule that fits its name."""
        used: set[str] = set()
        for key, array in arrays.items():
            found = self.find(key, rules, key, array)
            if found is None:
                self.problems.append(
                    f"{key!r} {list(array.shape)} matches no name of the map"
                )
                continue
            rule, parts = found
            used.add(rule.pattern)
            for target, change in rule.targets(parts):
                self.take(key, array, target, change)
        self.report_unused(rules, used)

    def find(
        self, name: str, rules: Sequence["Rule"], key: str, array: np.ndarray
    ) -> tuple["Rule", dict[str, str]] | None:
        """The rule for a name: of several, the one that states most of it."""
        matches = [(r, parts) for r in rules if (parts := r.match(name)) is not None]
        if not matches:
            return None
        most = max(r.stated for r, _ in matches)
        matches = [m for m in matches if m[0].stated == most]
        if len(matches) > 1:
            patterns = " and ".join(repr(r.pattern) for r, _ in matches)
            self.problems.append(f"{key!r} {list(array.shape)} matches {patterns}")
        return matches[0]

    def report_unused(self, rules: Sequence["Rule"], used: set[str]) -> None:
        """Note the rules that no array has matched."""
        for rule in rules:
            if rule._targets and rule.pattern not in used:
                self.problems.append(f"{rule.pattern!r} of the map matches nothing")

    def take(
        self, key: str, array: np.ndarray, target: str, change: Transform | None
    ) -> None:
        """Assign an array to a name of the model."""
        if target not in self.needed:
            relation = ","
            if target != key:
                relation = f" is for {target!r}, which"
            self.problems.append(
                f"{key!r} {list(array.shape)}{relation} no layer reads"
            )
        elif target in self.origin:
            self.problems.append(
                f"{target!r} is given by {self.origin[target]!r} and by {key!r}"
            )
        else:
            self.origin[target] = key
            try:
                self.found[target] = _transform(array, change)
            except (TypeError, ValueError, IndexError) as e:
                self.problems.append(f"{key!r} {list(array.shape)}: {e}")

    def assign(
        self,
        compiled: CompiledModel,
        source: str,
        *,
        cast: bool = False,
        allow_non_finite: bool = False,
    ) -> Weights:
        """Make weights of the arrays.

        Raises:
            ShapeError: they do not fit the model; all problems are named at once.
        """
        program = compiled.program
        problems = [
            *self.problems,
            *find_mismatches(program, self.found, self.origin),
        ]
        if problems:
            raise ShapeError(f"{source} does not fit the model: {'; '.join(problems)}.")
        filled = assign_weights(
            program,
            self.found,
            source,
            keep=False,
            cast=cast,
            allow_non_finite=allow_non_finite,
        )
        return Weights(*filled)


class Rule:
    """One entry of the map of names: a pattern and its targets."""

    def __init__(self, pattern: str, targets: Any) -> None:
        self.pattern = pattern
        self._targets: list[tuple[str, Transform | None]] = []
        if targets is not None:
            if not isinstance(targets, list):
                targets = [targets]
            self._targets = [_parse_target(a) for a in targets]
        self.parts = _parts(pattern)
        self.regex = re.compile(_regex(pattern))
        # How much of a name it states: all of it, or a number of characters.
        self.stated = (not self.parts, len(re.sub(r"\{\w+\}", "", pattern)))
        for target, _ in self._targets:
            unknown = _parts(target) - self.parts
            if unknown:
                raise ValueError(
                    f"names: {target!r} has {{{min(unknown)}}}, {pattern!r} has not."
                )

    def match(self, key: str) -> dict[str, str] | None:
        """The text of each `{part}` of the pattern in a name; None without a match."""
        found = self.regex.fullmatch(key)
        return None if found is None else found.groupdict()

    def targets(self, parts: dict[str, str]) -> Iterator[tuple[str, Transform | None]]:
        """The names in the model, with the transform of the array for each."""
        for target, change in self._targets:
            yield re.sub(r"\{(\w+)\}", lambda m: parts[m[1]], target), change


def _parse_target(target: Any) -> tuple[str, Transform | None]:
    if isinstance(target, str):
        return target, None
    if (
        isinstance(target, tuple)
        and len(target) == 2
        and isinstance(target[0], str)
        and (callable(target[1]) or isinstance(target[1], (tuple, list)))
    ):
        return target
    raise TypeError(
        "names: a target is a name, or a pair of a name and axes or a function, got "
        f"{target!r:.80}."
    )


def _parts(text: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", text))


def _regex(pattern: str) -> str:
    """Compile a pattern to a regular expression; repeated parts must be equal."""
    pieces, seen = [], set()
    for i, piece in enumerate(re.split(r"\{(\w+)\}", pattern)):
        if i % 2 == 0:
            if "{" in piece or "}" in piece:
                raise ValueError(
                    f"names: {pattern!r} has a brace that is not a {{part}}."
                )
            pieces.append(re.escape(piece))
        elif piece in seen:
            pieces.append(f"(?P={piece})")
        else:
            seen.add(piece)
            pieces.append(f"(?P<{piece}>[^.]+)")
    return "".join(pieces)


def _transform(array: np.ndarray, change: Transform | None) -> np.ndarray:
    if change is None:
        return array
    if callable(change):
        return np.asarray(change(array))
    return np.transpose(array, tuple(change))


def _read_source(
    source: str | os.PathLike[str] | Mapping[str, Any],
) -> tuple[dict[str, np.ndarray], str]:
    """The arrays, and the name of their source in errors."""
    if isinstance(source, Mapping):
        return {k: to_numpy(v) for k, v in source.items()}, "the state dict"
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            "source must be a file or arrays by name, got "
            f"{type(source).__name__}; for a torch module pass module.state_dict()."
        )
    return load_weights(source), os.fspath(source)
