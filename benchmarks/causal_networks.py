"""Networks with known graphs, out of the wheels of pgmpy and cdt.

Discrete networks are in the interchange format BIF, linear ones in pgmpy's JSON. A
variable of a discrete network is the number of its state.

References:
    Scutari 2010, J. Statistical Software 35(3), and https://www.bnlearn.com/bnrepository
"""

import csv
import gzip
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from frugax import causal

_VARIABLE = re.compile(r"variable\s+(\S+)\s*\{[^{]*\{([^}]*)\}")
_TABLE = re.compile(r"probability\s*\(([^)]*)\)\s*\{([^}]*)\}")
_ROW = re.compile(r"(?:table|\(([^)]*)\))([^;]*);")


def read_from_wheel(wheels: Path | None, package: str, inside: str) -> tuple[str, str]:
    """Return the name and the text of a file; `inside` lacks the file's ending.

    Raises:
        SystemExit: there is no folder of wheels.
    """
    if wheels is None:
        raise SystemExit(f"--wheels names no folder with {package}'s wheel")
    with zipfile.ZipFile(next(wheels.glob(f"{package}-*.whl"))) as wheel:
        name = next(n for n in wheel.namelist() if n.startswith(f"{package}/{inside}."))
        content = wheel.read(name)
    return name, (gzip.decompress(content) if name.endswith("gz") else content).decode()


def load_sachs(wheels: Path | None) -> tuple[causal.Samples, np.ndarray]:
    """The protein data of Sachs et al. 2005 (Science 308:523-529), and 18 edges."""
    data, target = (
        [
            *csv.DictReader(
                read_from_wheel(wheels, "cdt", f"data/resources/{name}")[1].splitlines()
            )
        ]
        for name in ("cyto_full_data", "cyto_full_target")
    )
    samples = causal.Samples.from_frame({n: [row[n] for row in data] for n in data[0]})
    edges = np.zeros((len(samples.variables),) * 2, bool)
    for edge in target:
        edges[samples.index(edge["Cause"]), samples.index(edge["Effect"])] = True
    return samples, edges


def load_network(wheels: Path | None, name: str) -> tuple[causal.SCM, dict[str, int]]:
    """A network of pgmpy, and the number of states of each discrete variable."""
    inside = f"utils/example_models/{name}"
    path, text = read_from_wheel(wheels, "pgmpy", inside)
    if path.endswith(".json"):
        return _read_linear(json.loads(text)), {}
    states = {name: _split(listed) for name, listed in _VARIABLE.findall(text)}
    sizes = {name: len(each) for name, each in states.items()}
    functions: dict[str, Callable[..., Any]] = {}
    causes: dict[str, tuple[str, ...]] = {}
    for head, body in _TABLE.findall(text):
        child, _, listed = head.partition("|")
        child, parents = child.strip(), _split(listed)
        table = np.empty((*(sizes[p] for p in parents), sizes[child]))
        for given, numbers in _ROW.findall(body):
            pairs = zip(parents, _split(given), strict=True)
            row = np.array([float(number) for number in _split(numbers)])
            table[tuple(states[p].index(s) for p, s in pairs)] = row / row.sum()
        functions[child] = _invert(parents, table.cumsum(-1))
        causes[child] = parents
    scm = causal.SCM.create(
        {name: functions[name] for name in states}, parents=causes, noise="uniform"
    )
    return scm, sizes


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _invert(parents: tuple[str, ...], cumulative: np.ndarray) -> Callable[..., Any]:
    """Draw a state by inverting its cumulative distribution at the noise."""

    def function(values: Mapping[str, Any], noise: Any) -> Any:
        rows = cumulative[tuple(values[p].astype(int) for p in parents)]
        # The noise is uniform with variance 1; on (0, 1) the variance is 1/12.
        share = noise / 12**0.5 + 0.5
        return (share[:, None] >= rows[..., :-1]).sum(-1).astype(float)

    return function


def _read_linear(network: Any) -> causal.SCM:
    equations: dict[str, dict[str, float]] = {}
    bias: dict[str, float] = {}
    noise_scale: dict[str, float] = {}
    for name in network["nodes"]:
        table = network["cpds"][name]
        # R has no scalars: each number is a list of one.
        weights = {key: float(value[0]) for key, value in table["coefficients"].items()}
        bias[name] = weights.pop("(Intercept)", 0.0)
        equations[name] = weights
        noise_scale[name] = float(table["variance"][0]) ** 0.5
    return causal.SCM.linear(equations, bias=bias, noise_scale=noise_scale)
