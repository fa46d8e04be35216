"""The surrogate that comes with the package, and surrogates in files."""

import os
from functools import cache
from pathlib import Path

import numpy as np

from frugax import compress
from frugax.budget import SizeBudget
from frugax.errors import CorruptFileError
from frugax.fileio import check_ownership

from ..checks import check_kind
from ._surrogate import Surrogate
from .network import initial_weights

_SHIPPED = Path(__file__).with_name("default.fxz")
# Weights this near answer like the ones that were trained; see the test.
_REL_ERROR = 0.0005


@cache
def default_surrogate() -> Surrogate:
    """The surrogate that comes with the package, ready to be asked.

    `benchmarks/causal_train.py` made it; docs/causal_surrogate.md has the command and
    what it was measured to do.
    """
    return load_surrogate(_SHIPPED)


def save_surrogate(path: str | os.PathLike[str], surrogate: Surrogate) -> None:
    """Keep a surrogate in a file of frugax.compress.

    Weights are kept to 0.05 % of their size, all of them together.

    Args:
        path: where; what is there must be a surrogate.
        surrogate: what to keep.

    Raises:
        OutputError: it cannot be written, or something else is there.
        TypeError: this is no surrogate.
    """
    check_kind("surrogate", surrogate, Surrogate, "it comes after the path")
    check_ownership(path, load_surrogate, "surrogate")
    arrays = {
        **surrogate.weights,
        "temperature": np.array([surrogate.temperature], np.float64),
    }
    compress.save(path, arrays, SizeBudget(rel_error=_REL_ERROR))


def load_surrogate(path: str | os.PathLike[str]) -> Surrogate:
    """A surrogate from a file that `save_surrogate` wrote.

    Args:
        path: the file.

    Raises:
        CorruptFileError: the file is damaged, or holds something else.
        FileNotFoundError: there is no such file.
    """
    try:
        with compress.open(path) as file:
            arrays = dict(file.tree())
    except OSError as error:
        raise type(error)(
            f"{os.fspath(path)}: {error.strerror or error}. Give the path of a file "
            "that save_surrogate wrote."
        ) from error
    expected = initial_weights(0, 4, 0).keys() | {"temperature"}
    if arrays.keys() != expected:
        odd = sorted(arrays.keys() ^ expected)
        raise CorruptFileError(
            f"{os.fspath(path)} is no surrogate: {', '.join(odd):.200} is missing or "
            "too much."
        )
    try:
        hidden, blocks = np.shape(arrays["embed"])[-1], np.shape(arrays["row"])[0]
        like = initial_weights(0, hidden, blocks)
    except (IndexError, ValueError) as e:
        raise CorruptFileError(f"{os.fspath(path)} is no surrogate: {e}") from e
    like["temperature"] = np.ones(1)
    for key, expected_of in like.items():
        array = np.asarray(arrays[key])
        if array.shape != expected_of.shape or not np.isfinite(array).all():
            raise CorruptFileError(
                f"{os.fspath(path)} is no surrogate: {key} is not of shape "
                f"{expected_of.shape}, or not finite."
            )
    temperature = float(arrays.pop("temperature")[0])
    return Surrogate({k: np.asarray(v) for k, v in arrays.items()}, temperature)
