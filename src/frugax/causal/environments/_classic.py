"""Four benchmark problems of causal Bayesian optimisation.

Published optima come from a few hundred random draws on a grid and are off by up to
0.08; see docs/causal_scm.md.

References:
    Aglietti et al. 2020, AISTATS, "Causal Bayesian optimization" (Toy, Complete, PSA);
    Branchini et al. 2023, AISTATS, "Causal entropy optimization" (Epidemiology).
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from frugax.causal.scm import SCM
from frugax.options import check_choice

from ._environment import Environment


def _dispatch(name: str) -> Callable[[Any], Any]:
    """Return NumPy's function for NumPy arrays, else JAX's, which would compile."""

    def function(x: Any) -> Any:
        module = np if isinstance(x, np.ndarray) else jnp
        return getattr(module, name)(x)

    return function


_cos, _sin, _exp = map(_dispatch, ("cos", "sin", "exp"))
_sigmoid = lambda x: 1 / (1 + _exp(-x))


def load_environment(name: str) -> Environment:
    """Load a benchmark problem with a known best intervention.

    Args:
        name: `"toy"`, `"complete"`, `"psa"` or `"epidemiology"`.

    Raises:
        ValueError: the name is unknown.

    Example:
        >>> toy = load_environment("toy")
        >>> toy.best.targets, round(toy.optimum, 3)
        (('Z',), -2.172)
    """
    known = {
        "toy": _toy,
        "complete": _complete,
        "psa": _psa,
        "epidemiology": _epidemiology,
    }
    check_choice("environment", name, known)
    return known[name]()


def _toy() -> Environment:
    """Three variables in a chain; the nearer of two basins is the worse one."""
    scm = SCM.create(
        {
            "X": {},
            "Z": lambda p, e: _exp(-p["X"]) + e,
            "Y": lambda p, e: _cos(p["Z"]) - _exp(-p["Z"] / 20) + e,
        },
        target="Y",
    )

    ranges = {"X": (-5.0, 5.0), "Z": (-5.0, 20.0)}
    return Environment(name="toy", scm=scm, ranges=ranges, max_targets=2)


def _complete() -> Environment:
    """Seven variables and two hidden causes; the optimum sets B and D together."""
    scm = SCM.create(
        {
            "U1": {},
            "U2": {},
            "F": {},
            "A": lambda p, e: p["F"] ** 2 + p["U1"] + e,
            "B": {"U2": 1.0},
            "C": lambda p, e: _exp(-p["B"]) + e,
            "D": lambda p, e: _exp(-p["C"]) / 10 + e,
            "E": lambda p, e: _cos(p["A"]) + p["C"] / 10 + e,
            "Y": lambda p, e: (
                _cos(p["D"])
                - p["D"] / 5
                + _sin(p["E"])
                - p["E"] / 4
                + p["U1"]
                + _exp(-p["U2"])
                + e
            ),
        },
        target="Y",
        hidden=("U1", "U2"),
    )
    ranges = {"B": (-5.0, 4.0), "D": (-5.0, 5.0), "E": (-6.0, 3.0)}
    # The mean of exp(-U2) needs points far out in its tail.
    return Environment(
        name="complete", scm=scm, ranges=ranges, max_targets=3, nodes=8192
    )


def _psa() -> Environment:
    """Drugs that lower a blood value; the optimum is at a corner of both ranges."""
    scm = SCM.create(
        {
            "age": {},
            "bmi": {"age": -0.01},
            "aspirin": lambda p, e: _sigmoid(-8 + 0.1 * p["age"] + 0.03 * p["bmi"]) + e,
            "statin": lambda p, e: _sigmoid(-13 + 0.1 * p["age"] + 0.2 * p["bmi"]) + e,
            "cancer": lambda p, e: (
                _sigmoid(
                    2.2
                    - 0.05 * p["age"]
                    + 0.01 * p["bmi"]
                    - 0.04 * p["statin"]
                    + 0.02 * p["aspirin"]
                )
                + e
            ),
            "psa": {
                "age": 0.04,
                "bmi": -0.15,
                "statin": -0.6,
                "aspirin": 0.55,
                "cancer": 1.0,
            },
        },
        bias={"age": 65.0, "bmi": 27.0, "psa": 6.8},
        noise={"age": "uniform"},
        noise_scale={
            "age": 20 / 12**0.5,  # from 55 to 75
            "bmi": 0.7,
            "aspirin": 0.0,
            "statin": 0.0,
            "cancer": 0.0,
            "psa": 0.4,
        },
        target="psa",
    )
    ranges = {"aspirin": (0.0, 1.0), "statin": (0.0, 1.0)}
    return Environment(name="psa", scm=scm, ranges=ranges, max_targets=2)


def _epidemiology() -> Environment:
    """A treatment and a viral load, both with many local optima."""
    scm = SCM.create(
        {
            "B": {},
            "T": {},
            "L": lambda p, e: _sigmoid(0.5 * p["T"] + p["B"]) + e,
            "R": lambda p, e: 4 + p["L"] * p["T"] + e,
            "Y": lambda p, e: (
                0.5 + _cos(4 * p["T"]) + _sin(2 * p["R"] - p["L"]) + p["B"] + e
            ),
        },
        bias={"T": 6.0},
        noise={"B": "uniform", "T": "uniform"},
        noise_scale={"B": 2 / 12**0.5, "T": 4 / 12**0.5, "L": 0.0, "R": 0.0},
        target="Y",
    )
    ranges = {"T": (4.0, 8.0), "R": (-5.0, 5.0)}
    return Environment(name="epidemiology", scm=scm, ranges=ranges, max_targets=2)
