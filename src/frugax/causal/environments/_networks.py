"""Networks whose graph and effects are known, from files: to test discovery on.

Reads: `.bif`, `.bif.gz` (discrete) and the JSON of linear networks, as bnlearn's
repository and pgmpy have them. Gives: SCMs.

References:
    Scutari 2010, J. Statistical Software 35(3), and https://www.bnlearn.com/bnrepository
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any

from frugax.causal.data import package_file
from frugax.causal.scm import SCM
from frugax.errors import CorruptFileError, UnsupportedFileError

from ._bif import scm_from_bif

_ENDINGS = (".json", ".bif", ".bif.gz")
_MOST_BYTES = 256 * 2**20


def load_network(
    name: str | os.PathLike[str], *, source: str | os.PathLike[str] | None = None
) -> SCM:
    """A model from a file, or one of those that the package pgmpy brings.

    Linear networks (`ecoli70`, `arth150`, `magic-niab`, `magic-irri`) have their
    coefficients and variances. The values of discrete ones (`asia`, `sachs`, `alarm`,
    `child`, `insurance`...) are numbers of states, from 0; what these are called says
    `scm.states(name)`.

    Args:
        name: a file that ends in `.json`, `.bif` or `.bif.gz`; or the name of a network
            of pgmpy, without an ending.
        source: where pgmpy is: a wheel, or a folder that it lies in. The installed one
            by default; it is never imported.

    Raises:
        CorruptFileError: the file is cut off, or not what it is called.
        FileNotFoundError: there is no such file, or no such network in pgmpy.
        MissingExtraError: pgmpy is not installed and no source is given.
        UnsupportedFileError: the file is of another kind.
    """
    where = os.fspath(name)
    if where.endswith(_ENDINGS):
        try:
            content = Path(where).read_bytes()
        except OSError as error:
            raise type(error)(
                f"{where}: {error.strerror or error}. Give the path of a network's "
                "file, or for one of pgmpy's its name without an ending."
            ) from error
        return _parse(content, where)
    if Path(where).suffix and Path(where).exists():
        raise UnsupportedFileError(
            f"{where}: networks are read from files that end in {', '.join(_ENDINGS)}."
        )
    for ending in (".json", ".bif.gz"):
        inside = f"utils/example_models/{where}{ending}"
        try:
            content = package_file("pgmpy", inside, source)
        except FileNotFoundError:
            if source is not None and not Path(source).exists():
                raise
            continue
        return _parse(content, inside)
    raise FileNotFoundError(
        f"this pgmpy has no network {where!r}; a file of yours must end in "
        f"{', '.join(_ENDINGS)}."
    )


def _parse(content: bytes, where: str) -> SCM:
    """The model in the bytes of a file.

    Raises:
        CorruptFileError: they are cut off, or no such network.
    """
    if where.endswith(".gz"):
        unpacking = zlib.decompressobj(wbits=31)
        try:
            content = unpacking.decompress(content, _MOST_BYTES)
        except zlib.error as error:
            raise CorruptFileError(f"{where} is no sound gzip: {error}.") from error
        if not unpacking.eof:
            raise CorruptFileError(
                f"{where} is cut off, or larger than {_MOST_BYTES:,} bytes unpacked."
            )
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{where}: byte {error.start} is no text.") from error
    try:
        if not where.endswith(".json"):
            return scm_from_bif(text, where)
        return _linear(json.loads(text))
    except json.JSONDecodeError as error:
        raise CorruptFileError(f"{where} is no JSON: {error}.") from error
    except RecursionError as error:
        raise CorruptFileError(f"{where} is nested without end.") from error
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise CorruptFileError(f"{where} holds no network: {error!r}.") from error


def _linear(network: Any) -> SCM:
    """A linear network of nodes, arcs and coefficients.

    Raises:
        ValueError: arcs and coefficients are not of the same graph.
    """
    equations: dict[str, dict[str, float]] = {}
    bias: dict[str, float] = {}
    noise_scale: dict[str, float] = {}
    for name in network["nodes"]:
        table = network["cpds"][name]
        weights = {key: float(value[0]) for key, value in table["coefficients"].items()}
        bias[name] = weights.pop("(Intercept)", 0.0)
        equations[name] = weights
        noise_scale[name] = float(table["variance"][0]) ** 0.5
    said = {(cause, effect) for cause, effect in network["arcs"]}
    has = {(cause, effect) for effect, causes in equations.items() for cause in causes}
    if said != has:
        only = sorted(said ^ has)[0]
        raise ValueError(f"arc {only} is in the arcs or the coefficients, not in both")
    return SCM.linear(equations, bias=bias, noise_scale=noise_scale)
