"""The protein signals of Sachs et al., with the graph that biologists agree on.

Read from the package cdt, which need not be installed: its wheel is enough.

References:
    Sachs et al. 2005, Science 308:523-529.
"""

import os

import numpy as np
from jaxtyping import Bool

from frugax.errors import CorruptFileError

from ._csv import columns_of_text
from ._package_file import package_file
from ._samples import Samples

_FOLDER = "data/resources"


def load_sachs(
    source: str | os.PathLike[str] | None = None,
) -> tuple[Samples, Bool[np.ndarray, "d d"]]:
    """7,466 cells with 11 proteins each, and the 18 edges between these.

    The file pools cells of all conditions without saying which: as far as it tells,
    nobody intervened, although in some conditions somebody had.

    Args:
        source: a wheel of cdt or a folder with the package; the installed one by
            default.

    Returns:
        The samples, and the edges `[cause, effect]`.

    Raises:
        CorruptFileError: a file is damaged.
        FileNotFoundError: this cdt has no such files.
        MissingExtraError: cdt is not installed and no source is given.
    """
    tables: dict[str, dict[str, list[str]]] = {}
    for name in ("cyto_full_data.csv", "cyto_full_target.csv"):
        content = package_file("cdt", f"{_FOLDER}/{name}", source)
        try:
            tables[name] = columns_of_text(content.decode(), name)
        except ValueError as error:
            raise CorruptFileError(f"{name} of cdt: {error}") from error
    data, target = tables.values()
    samples = Samples.from_frame(data)
    edges = np.zeros((len(data), len(data)), bool)
    for cause, effect in zip(target["Cause"], target["Effect"], strict=True):
        edges[samples.index(cause), samples.index(effect)] = True
    return samples, edges
