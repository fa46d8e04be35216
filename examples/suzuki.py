"""A Suzuki-Miyaura coupling in flow, emulated from 96 measured experiments.

`suzuki.csv` is case 1 of Reizman, Wang, Buchwald & Jensen 2016, Reaction Chemistry &
Engineering 1:658-666, as the package summit ships it (Felton, Rittig & Lapkin 2021,
Chemistry-Methods 1:116-122; MIT licence). The emulator is a Gaussian process:
between the measured experiments it is a guess, but a smooth one.

    frugax causal run examples/suzuki.yaml
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

CATALYSTS = (*(f"P1-L{i}" for i in range(1, 8)), "P2-L1")
_NOISE = 3.0  # of one yield, in per cent
_LOW, _HIGH = np.array([np.log(60), 30, 0.5]), np.array([np.log(600), 110, 2.5])


def _features(catalyst, time, temperature, loading) -> np.ndarray:
    numbers = np.stack([np.log(time), temperature, loading], axis=1)
    kinds = np.array([[0.5 * (c == one) for one in CATALYSTS] for c in catalyst])
    return np.concatenate([(numbers - _LOW) / (_HIGH - _LOW), kinds], axis=1)


def _kernel(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    apart = ((one[:, None] - other[None]) ** 2).sum(2)
    return 30.0**2 * np.exp(-0.5 * apart / 0.6**2)


with (Path(__file__).parent / "suzuki.csv").open(encoding="utf-8", newline="") as _file:
    _ROWS = list(csv.reader(_file))[1:]
_KINDS = [row[0] for row in _ROWS]
_NUMBERS = np.array([[float(cell) for cell in row[1:]] for row in _ROWS])
_MEASURED = _features(_KINDS, *_NUMBERS.T[:3])
_MEAN = _NUMBERS[:, 3].mean()
_WEIGHTS = np.linalg.solve(
    _kernel(_MEASURED, _MEASURED) + _NOISE**2 * np.eye(len(_ROWS)),
    _NUMBERS[:, 3] - _MEAN,
)


def expected_yield(values: Mapping[str, Any], n: int = 1000) -> float:
    """Return the mean yield in per cent where some variables are set."""
    return float(np.mean(_run(values, n, np.random.default_rng(0))["yield"]))


def react(values: Mapping[str, Any], *, rows: int, seed: int) -> dict[str, Any]:
    """Run the reaction; variables that are not set have their routine values."""
    rng = np.random.default_rng(seed)
    found = _run(values, rows, rng)
    return found | {"yield": found["yield"] + _NOISE * rng.standard_normal(rows)}


def _run(
    values: Mapping[str, Any], n: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    routine = {
        "catalyst": rng.choice(CATALYSTS[:3], n),
        "time": np.clip(300 + 60 * rng.standard_normal(n), 60, 600),
        "temperature": np.clip(65 + 6 * rng.standard_normal(n), 30, 110),
        "loading": np.clip(1.5 + 0.2 * rng.standard_normal(n), 0.5, 2.5),
    }
    now = {name: np.broadcast_to(values.get(name, x), n) for name, x in routine.items()}
    x = _features(*now.values())
    now["yield"] = np.clip(_MEAN + _kernel(x, _MEASURED) @ _WEIGHTS, 0, 100)
    return now
