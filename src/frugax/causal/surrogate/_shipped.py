"""The surrogate that comes with the package, and surrogates in files."""

import os
from functools import cache
from pathlib import Path

import numpy as np

from frugax import compress
from frugax.budget import SizeBudget
from frugax.errors import CorruptFileError

from ._network import initial_weights
from ._surrogate import Surrogate

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
        path: where; replaced if it is there.
        surrogate: what to keep.
    """
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
    with compress.open(path) as file:
        arrays = dict(file.tree())
    expected = initial_weights(0, 4, 0).keys() | {"temperature"}
    if arrays.keys() != expected:
        odd = sorted(arrays.keys() ^ expected)
        raise CorruptFileError(
            f"{os.fspath(path)} is no surrogate: {', '.join(odd):.200} is missing or "
            "too much."
        )
    temperature = float(arrays.pop("temperature")[0])
    return Surrogate({k: np.asarray(v) for k, v in arrays.items()}, temperature)
