"""Save and load trained surrogate networks; load the one that ships with frugax."""

import os
from functools import cache
from pathlib import Path

import numpy as np

from frugax import compress
from frugax.budget import SizeBudget
from frugax.errors import CorruptFileError
from frugax.fileio import check_ownership
from frugax.options import check_instance

from ._surrogate import Surrogate
from .network import initial_weights

_DEFAULT = Path(__file__).with_name("default.fxz")
# Lossy weights this close give the same probabilities to 0.01; see the test.
_REL_ERROR = 0.0005


@cache
def load_default_surrogate() -> Surrogate:
    """Load the surrogate that ships with the package.

    docs/causal_surrogate.md has the command that trained it, and its measured accuracy.
    """
    return load_surrogate(_DEFAULT)


def save_surrogate(path: str | os.PathLike[str], surrogate: Surrogate) -> None:
    """Save a surrogate to a file of frugax.compress.

    The weights are compressed to a relative error of 0.05 %, over all of them.

    Args:
        path: the file; an existing file must hold a surrogate.
        surrogate: the surrogate.

    Raises:
        OutputError: the file cannot be written, or holds something else.
        TypeError: `surrogate` is not a Surrogate.
    """
    check_instance("surrogate", surrogate, Surrogate)
    # A file of another kind is refused: a mistyped path must not destroy data.
    check_ownership(path, load_surrogate, "surrogate")
    arrays = {
        **surrogate.weights,
        # The container stores arrays, so the temperature is an array of one number.
        "temperature": np.array([surrogate.temperature], np.float64),
    }
    compress.save(path, arrays, SizeBudget(rel_error=_REL_ERROR))


def load_surrogate(path: str | os.PathLike[str]) -> Surrogate:
    """Load a surrogate from a file that `save_surrogate` wrote.

    Args:
        path: the file.

    Raises:
        CorruptFileError: the file is damaged, or holds something else.
        FileNotFoundError: the file does not exist.
    """
    try:
        with compress.open(path) as file:
            arrays = dict(file.tree())
    except OSError as error:
        raise type(error)(
            f"{os.fspath(path)}: {error.strerror or error}. Give the path of a file "
            "that save_surrogate wrote."
        ) from error
    # The names do not depend on the sizes: the smallest network has them all.
    expected = initial_weights(0, 4, 0).keys() | {"temperature"}
    if arrays.keys() != expected:
        wrong = sorted(arrays.keys() ^ expected)
        raise CorruptFileError(
            f"{os.fspath(path)} is not a surrogate: {', '.join(wrong):.200} is missing "
            "or unexpected."
        )
    try:
        # Two arrays give the sizes; the loop below holds all others to them.
        hidden, blocks = np.shape(arrays["embed"])[-1], np.shape(arrays["row"])[0]
        like = initial_weights(0, hidden, blocks)
    except (IndexError, ValueError) as e:
        raise CorruptFileError(f"{os.fspath(path)} is not a surrogate: {e}") from e
    like["temperature"] = np.ones(1)
    for key, expected_of in like.items():
        array = np.asarray(arrays[key])
        if array.shape != expected_of.shape or not np.isfinite(array).all():
            raise CorruptFileError(
                f"{os.fspath(path)} is not a surrogate: {key} is not of shape "
                f"{expected_of.shape}, or not finite."
            )
    temperature = float(arrays.pop("temperature")[0])
    return Surrogate({k: np.asarray(v) for k, v in arrays.items()}, temperature)
