"""Four benchmark problems of causal Bayesian optimisation, with exact means.

Each is written twice: as an SCM to sample from, and as the mean of its target under
interventions, by quadrature. A test compares the two. Published optima come from a few
hundred random draws on a grid and are off by up to 0.08; see docs/causal_scm.md.

References:
    Aglietti et al. 2020, AISTATS, "Causal Bayesian optimization" (Toy, Complete, PSA);
    Branchini et al. 2023, AISTATS, "Causal entropy optimization" (Epidemiology).
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from frugax.causal.scm import SCM
from frugax.options import check_choice

from ._environment import Environment

Values = Mapping[str, Any]


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
        >>> print(toy.best, round(toy.optimum, 3))
        do(Z = -3.2003) -2.172
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

    def mean(do: Values) -> np.ndarray:
        if "Z" in do:
            return np.cos(do["Z"]) - np.exp(-do["Z"] / 20)
        # Means of a cosine and an exponential over normal noise have closed forms.
        # For standard normal e the mean of cos(z + e) is cos(z) exp(-1/2), and that of
        # exp(-(z + e) / 20) is exp(-z / 20 + 1 / 800).
        given_x = lambda z: np.cos(z) * np.exp(-0.5) - np.exp(-z / 20 + 1 / 800)
        if "X" in do:
            return given_x(np.exp(-do["X"]))
        fine, fine_weights = normal_nodes(20_001)  # cos(exp(-X)) oscillates fast
        return np.array([given_x(np.exp(-fine)) @ fine_weights])

    ranges = {"X": (-5.0, 5.0), "Z": (-5.0, 20.0)}
    return Environment(name="toy", scm=scm, ranges=ranges, mean=mean)


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
    nodes, weights = normal_nodes()
    root = np.sqrt(2)  # standard deviation of a sum of two unit noises

    def over_c(b: np.ndarray, function: Any) -> np.ndarray:
        """Mean over C given B: `(points,)`."""
        return function(np.exp(-b)[:, None] + nodes) @ weights

    def over_b(do: Values, function: Any) -> np.ndarray:
        """Mean over C, with B set or following its own distribution."""
        if "B" in do:
            return over_c(do["B"], function)
        return np.array([over_c(root * nodes, function) @ weights])

    # A = F^2 + U1 + noise: a squared normal variable and one of variance 2. U1 is also
    # a cause of Y, but its effect is additive and has mean 0.
    a = (nodes**2)[:, None] + root * nodes
    both = weights[:, None] * weights
    cos_a, sin_of, cos_of = (
        float((both * g(np.cos(a))).sum()) for g in (lambda x: x, np.sin, np.cos)
    )

    def mean(do: Values) -> np.ndarray:
        if "D" in do:
            d_part = np.cos(do["D"]) - do["D"] / 5
        else:
            # exp(-C) is huge where B is large, so its mean is taken in closed form.
            d_part = over_b(do, lambda c: np.cos(np.exp(-c) / 10)) * np.exp(-0.5)
            d_part = d_part - over_b(do, lambda c: np.exp(-c)) / 50
        if "E" in do:
            e_part = np.sin(do["E"]) - do["E"] / 4
        else:
            # A and C are independent, so the sine of their sum separates.
            sine = sin_of * over_b(do, lambda c: np.cos(c / 10))
            sine = sine + cos_of * over_b(do, lambda c: np.sin(c / 10))
            e_part = np.exp(-0.5) * sine
            e_part = e_part - (cos_a + over_b(do, lambda c: c / 10)) / 4
        # E exp(-U2) = exp(1/2), whatever is set: U2 is hidden and stays random.
        return d_part + e_part + np.exp(0.5)

    ranges = {"B": (-5.0, 4.0), "D": (-5.0, 5.0), "E": (-6.0, 3.0)}
    return Environment(
        name="complete", scm=scm, ranges=ranges, max_targets=3, mean=mean
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
    age, age_weights = uniform_nodes(55.0, 75.0, 24)
    noise, noise_weights = normal_nodes(49)
    age, bmi = np.broadcast_arrays(age[:, None], 27 - 0.01 * age[:, None] + 0.7 * noise)
    weights = age_weights[:, None] * noise_weights

    def mean(do: Values) -> np.ndarray:
        # Axes: points, nodes of age, nodes of the noise of the body mass index.
        given = {name: value[:, None, None] for name, value in do.items()}
        aspirin = given.get("aspirin", _sigmoid(-8 + 0.1 * age + 0.03 * bmi))
        statin = given.get("statin", _sigmoid(-13 + 0.1 * age + 0.2 * bmi))
        cancer = _sigmoid(
            2.2 - 0.05 * age + 0.01 * bmi - 0.04 * statin + 0.02 * aspirin
        )
        y = 6.8 + 0.04 * age - 0.15 * bmi - 0.6 * statin + 0.55 * aspirin + cancer
        return np.atleast_1d((weights * y).sum((-2, -1)))

    ranges = {"aspirin": (0.0, 1.0), "statin": (0.0, 1.0)}
    return Environment(name="psa", scm=scm, ranges=ranges, mean=mean)


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
    b, b_weights = uniform_nodes(-1.0, 1.0, 24)
    # More nodes than for B: cos(4 T) passes through two and a half periods.
    own_t, t_weights = uniform_nodes(4.0, 8.0)

    def mean(do: Values) -> np.ndarray:
        t = do["T"][:, None] if "T" in do else own_t[:, None]  # (points or nodes, 1)
        l = _sigmoid(0.5 * t + b)
        r = do["R"][:, None] if "R" in do else 4 + l * t
        if "R" in do and "T" not in do:
            r = r[:, None]  # (points, nodes of T, nodes of B)
        # B and the noise of Y have mean 0, so neither appears.
        given_t = np.cos(4 * t[:, 0]) + np.sin(2 * r - l) @ b_weights
        return 0.5 + (given_t if "T" in do else np.atleast_1d(given_t @ t_weights))

    ranges = {"T": (4.0, 8.0), "R": (-5.0, 5.0)}
    return Environment(name="epidemiology", scm=scm, ranges=ranges, mean=mean)


def normal_nodes(
    n: int = 401, reach: float = 8.5
) -> tuple[Float[np.ndarray, " {n}"], Float[np.ndarray, " {n}"]]:
    """Return nodes and weights of the trapezoidal rule for a standard normal variable.

    For smooth functions its error falls faster than any power of the step (Trefethen &
    Weideman 2014, SIAM Review 56:385-458). A fine step also resolves fast oscillations,
    for which Gauss-Hermite nodes are too far apart. Less than 1e-16 of the weight is
    beyond `reach`.
    """
    nodes = np.linspace(-reach, reach, n)
    weights = np.exp(-(nodes**2) / 2)
    return nodes, weights / weights.sum()


def uniform_nodes(
    low: float, high: float, n: int = 96
) -> tuple[Float[np.ndarray, " {n}"], Float[np.ndarray, " {n}"]]:
    """Return Gauss-Legendre nodes and weights for a uniform variable."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return low + (high - low) * (nodes + 1) / 2, weights / 2
