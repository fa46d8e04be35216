"""Laboratories with a known truth, in thirteen families, for `causal_optimise.py`.

Each is a function that simulates rows: natural ones, or those of an experiment. The
truth of an experiment is the mean of many rows with the same noise, so regret has no
luck in it.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from frugax import causal

Rows = dict[str, np.ndarray]
Values = Mapping[str, float]
_TRUE_ROWS = 4000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One laboratory.

    Attributes:
        name: the family and a number.
        simulate: rows of all measured variables, from the settings, their number and a
            generator.
        ranges: the variables that may be set.
        levels: the only values of some of them; names of levels for categories.
        target: to make small.
        prices: of setting each variable.
        cost: the budget.
        max_targets: most variables of one experiment.
        observed: rows seen in advance.
        rows: of one experiment.
        parents: the true causes of each variable, for rivals that need them.
        confounded: direct causes of the target that share a hidden cause with it.
    """

    name: str
    simulate: Callable[[Values, int, np.random.Generator], Rows]
    ranges: dict[str, tuple[float, float]]
    levels: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    categories: frozenset[str] = frozenset()
    target: str = "y"
    prices: dict[str, float] = dataclasses.field(default_factory=dict)
    cost: float = 20.0
    max_targets: int = 1
    observed: int = 100
    rows: int = 5
    parents: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    confounded: frozenset[str] = frozenset()

    @property
    def family(self) -> str:
        return self.name.rsplit(" ", 1)[0]

    def price(self, names: Any) -> float:
        return sum(self.prices.get(n, 1.0) for n in names)

    @functools.cached_property
    def observations(self) -> Rows:
        return self.simulate({}, self.observed, np.random.default_rng([7, 1]))

    def answer(self, values: Values, number: int, seed: int) -> Rows:
        found = self.simulate(values, self.rows, np.random.default_rng([seed, number]))
        return {k: np.asarray(v, float) for k, v in found.items()}

    def mean(self, values: Values) -> float:
        rng = np.random.default_rng(123)
        return float(np.mean(self.simulate(values, _TRUE_ROWS, rng)[self.target]))

    @functools.cached_property
    def scale(self) -> float:
        rng = np.random.default_rng(124)
        return float(np.std(self.simulate({}, _TRUE_ROWS, rng)[self.target]))

    def axis(self, name: str, count: int) -> np.ndarray:
        if name in self.levels:
            return np.array(self.levels[name], float)
        return np.linspace(*self.ranges[name], count)

    def candidates(self) -> list[dict[str, float]]:
        found: list[dict[str, float]] = []
        for k in range(1, self.max_targets + 1):
            for names in itertools.combinations(self.ranges, k):
                axes = [self.axis(n, {1: 61, 2: 17}.get(k, 7)) for n in names]
                found += [
                    dict(zip(names, map(float, v), strict=True))
                    for v in itertools.product(*axes)
                ]
        return found

    @functools.cached_property
    def optimum(self) -> float:
        return min(map(self.mean, [{}, *self.candidates()]))

    def regret(self, values: Values) -> float:
        """How much worse than the best, in standard deviations of the target."""
        return max(self.mean(values) - self.optimum, 0.0) / self.scale


def fix(do: Values, name: str, natural: np.ndarray) -> np.ndarray:
    return np.full(len(natural), do[name]) if name in do else natural


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _find_parents(names: Sequence[str], weights: np.ndarray) -> dict[str, list[str]]:
    return {
        name: [names[i] for i in np.flatnonzero(weights[:, j]).tolist()]
        for j, name in enumerate(names)
    }


def threshold(seed: int) -> Problem:
    """An effect that begins at about three times the range that was seen."""
    p = np.random.default_rng([31, seed])
    at, size, slope = p.uniform(2.2, 3.2), p.uniform(3, 5), p.uniform(0.1, 0.3)
    side, extra = p.choice([-1, 1]), int(p.integers(0, 3))

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((5 + extra, n))
        x, z = fix(do, "x", e[0]), fix(do, "z", e[1])
        m = size * sigmoid(8 * (side * x - at)) + 0.3 * e[2]
        rows = {"x": x, "z": z, "m": m, "y": slope * z - m + e[3]}
        return rows | {f"w{i}": fix(do, f"w{i}", e[5 + i]) for i in range(extra)}

    names = ["x", "z", *(f"w{i}" for i in range(extra))]
    return Problem(
        name=f"threshold {seed}",
        parents={"m": "x", "y": "zm"},
        simulate=simulate,
        ranges=dict.fromkeys(names, (-4.0, 4.0)),
        cost=18.0,
    )


def interaction(seed: int) -> Problem:
    """Two levers, each flat alone; others do little."""
    p = np.random.default_rng([32, seed])
    size, gate = p.uniform(2, 4), p.random() < 0.5
    signs, slope = p.choice([-1, 1], 2), p.uniform(0.1, 0.3)
    extra = int(p.integers(1, 3))

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((4 + extra, n))
        a, b = fix(do, "a", 0.4 * e[0]), fix(do, "b", 0.4 * e[1])
        if gate:
            both = sigmoid(5 * (signs[0] * a - 1.2)) * sigmoid(5 * (signs[1] * b - 1.2))
        else:
            both = signs[0] * signs[1] * a * b / 4
        w = {f"w{i}": fix(do, f"w{i}", 0.4 * e[4 + i]) for i in range(extra)}
        return {"a": a, "b": b, "y": slope * w["w0"] - size * both + e[2], **w}

    names = ["a", "b", *(f"w{i}" for i in range(extra))]
    return Problem(
        name=f"interaction {seed}",
        parents={"y": ["a", "b", "w0"]},
        simulate=simulate,
        ranges=dict.fromkeys(names, (-2.0, 2.0)),
        max_targets=2,
        cost=30.0,
    )


def plateau(seed: int) -> Problem:
    """Flat nearly everywhere, with a well or a few steps."""
    p = np.random.default_rng([33, seed])
    at, width = p.uniform(-2.5, 2.5), p.uniform(0.3, 0.6)
    size, steps = p.uniform(2, 4), p.random() < 0.5

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((3, n))
        x, z = fix(do, "x", 0.5 * e[0]), fix(do, "z", 0.5 * e[1])
        if steps:
            low = size * ((x > at) * 0.4 + (x > at + 0.8) * 0.6 - (x > at + 2.0) * 0.8)
        else:
            low = size * np.exp(-0.5 * ((x - at) / width) ** 2)
        return {"x": x, "z": z, "y": 0.15 * z - low + e[2]}

    return Problem(
        name=f"plateau {seed}",
        parents={"y": "xz"},
        simulate=simulate,
        ranges={"x": (-3.0, 3.0), "z": (-3.0, 3.0)},
        cost=20.0,
    )


def hidden(seed: int) -> Problem:
    """A dose given by need: raising it harms; another variable helps, or none does."""
    p = np.random.default_rng([34, seed])
    need, helps = p.uniform(0.8, 1.5), p.choice([0.0, 0.4])
    harm, linear = p.uniform(0.4, 1.0), seed % 2

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((4, n))
        u = e[0]
        dose = fix(do, "dose", u + 0.3 * e[1])
        z = fix(do, "z", e[2])
        miss = (dose - u) ** 2
        if linear:
            miss = np.abs(dose) * 0.5
        y = need * u + harm * miss + helps * z + 0.5 * e[3]
        return {"dose": dose, "z": z, "y": y}

    return Problem(
        name=f"hidden cause {seed}",
        parents={"y": ["dose", "z"]},
        confounded=frozenset({"dose"}),
        simulate=simulate,
        ranges={"dose": (-2.0, 2.0), "z": (-2.0, 2.0) if helps else (-0.5, 0.5)},
        cost=14.0,
    )


def mixed(seed: int) -> Problem:
    """A switch, a category, a count and a temperature."""
    p = np.random.default_rng([35, seed])
    gains = p.normal(0, 1, 4)
    best, size = p.uniform(30, 70), p.uniform(1, 3)
    on = p.uniform(-1.5, 1.5)
    joint = p.uniform(-1, 1)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((3, n))
        switch = fix(do, "switch", (rng.random(n) < 0.3).astype(float))
        kind = fix(do, "kind", rng.integers(0, 4, n).astype(float))
        count = fix(do, "count", rng.integers(1, 4, n).astype(float))
        t = fix(do, "t", 25 + 5 * e[0])
        y = gains[np.clip(kind.round().astype(int), 0, 3)] + on * switch
        y = y - size * np.exp(-0.5 * ((t - best) / 12) ** 2) - 0.2 * count
        y = y + joint * switch * (count - 2) + 0.7 * e[1]
        return {"switch": switch, "kind": kind, "count": count, "t": t, "y": y}

    return Problem(
        name=f"mixed actions {seed}",
        parents={"y": ["switch", "kind", "count", "t"]},
        simulate=simulate,
        ranges={
            "switch": (0.0, 1.0),
            "kind": (0.0, 3.0),
            "count": (1.0, 5.0),
            "t": (20.0, 80.0),
        },
        levels={
            "switch": (0.0, 1.0),
            "kind": (0.0, 1.0, 2.0, 3.0),
            "count": (1.0, 2.0, 3.0, 4.0, 5.0),
        },
        categories=frozenset({"kind"}),
        max_targets=2,
        cost=30.0,
    )


def costs(seed: int) -> Problem:
    """A chain, whose nearest lever is dear."""
    p = np.random.default_rng([36, seed])
    a, b, c = p.uniform(0.4, 1.2, 3) * p.choice([-1, 1], 3)
    bend = p.uniform(0.1, 0.4)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((5, n))
        r = fix(do, "r", e[0])
        s = fix(do, "s", a * r + 0.5 * e[1])
        t = fix(do, "t", b * s - bend * s**2 + 0.5 * e[2])
        v = fix(do, "v", e[3])
        return {"r": r, "s": s, "t": t, "v": v, "y": c * t + 0.3 * v + 0.5 * e[4]}

    return Problem(
        name=f"costs {seed}",
        parents={"s": "r", "t": "s", "y": "tv"},
        simulate=simulate,
        ranges=dict.fromkeys("rstv", (-2.0, 2.0)),
        prices={"r": 1.0, "s": 3.0, "t": 8.0, "v": 1.5},
        cost=40.0,
    )


def many(seed: int) -> Problem:
    """Twenty to thirty variables, of which ten may be set."""
    p = np.random.default_rng([37, seed])
    d = int(p.integers(20, 31))
    weights = np.triu(p.normal(0, 1, (d, d)) * (p.random((d, d)) < 2.0 / d), 1)
    weights /= np.maximum(np.sqrt((weights**2).sum(0)), 1)
    kinds = p.integers(0, 3, d)
    weights[p.choice(d - 1, 3, replace=False), d - 1] = p.choice([-0.8, 0.8], 3)
    settable = p.choice(d - 1, 10, replace=False)
    names = [f"v{i}" for i in range(d - 1)] + ["y"]

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((d, n)) * 0.6
        x = np.zeros((d, n))
        for j in range(d):
            total = weights[:, j] @ x
            bent = (total, np.tanh(2 * total), np.sin(1.5 * total))[kinds[j]]
            x[j] = fix(do, names[j], bent + e[j])
        return dict(zip(names, x, strict=True))

    return Problem(
        name=f"many variables {seed}",
        parents=_find_parents(names, weights),
        simulate=simulate,
        ranges={names[j]: (-3.0, 3.0) for j in sorted(settable)},
        cost=20.0,
    )


def useless(seed: int) -> Problem:
    """Levers without an effect, or that only do harm."""
    p = np.random.default_rng([38, seed])
    harm, common = p.uniform(0, 0.5) * (seed % 2), p.uniform(0.5, 1.5)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((5, n))
        x = fix(do, "x", common * e[0] + 0.5 * e[1])
        z = fix(do, "z", e[2])
        y = common * e[0] + e[3] + harm * ((x if "x" in do else 0) ** 2)
        # An effect of the target: it looks like a cause.
        w = fix(do, "w", 0.8 * y + 0.5 * e[4])
        return {"x": x, "z": z, "w": w, "y": y}

    return Problem(
        name=f"out of reach {seed}",
        parents={"y": "x", "w": "y"},
        confounded=frozenset("x"),
        simulate=simulate,
        ranges=dict.fromkeys("xzw", (-2.0, 2.0)),
        cost=14.0,
    )


def wavy(seed: int) -> Problem:
    """Several basins."""
    p = np.random.default_rng([39, seed])
    f, phase, tilt = p.uniform(1.2, 2.2), p.uniform(0, 6), p.uniform(-0.2, 0.2)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((4, n))
        r = fix(do, "r", e[0])
        x = fix(do, "x", 0.8 * np.tanh(r) + 0.4 * e[1])
        z = fix(do, "z", 0.7 * e[2])
        y = np.sin(f * x + phase) + tilt * x + 0.4 * np.cos(2 * z) + 0.4 * e[3]
        return {"r": r, "x": x, "z": z, "y": y}

    return Problem(
        name=f"wavy {seed}",
        parents={"x": "r", "y": "xz"},
        simulate=simulate,
        ranges={"r": (-3.0, 3.0), "x": (-4.0, 4.0), "z": (-2.0, 2.0)},
        cost=20.0,
    )


def random_model(seed: int) -> Problem:
    """Random models of four to nine variables, each with one kind of function."""
    p = np.random.default_rng([40, seed])
    d = int(p.integers(4, 10))
    weights = np.triu(p.uniform(0.5, 1.5, (d, d)) * p.choice([-1, 1], (d, d)), 1)
    weights *= p.random((d, d)) < min(2.5 / (d - 1), 1)
    weights[int(p.integers(d - 1)), d - 1] = p.choice([-1, 1])
    kind, shift = seed % 3, p.normal(0, 1, d)
    names = [f"v{i}" for i in range(d - 1)] + ["y"]

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((d, n)) * 0.6
        x = np.zeros((d, n))
        for j in range(d):
            total = weights[:, j] @ x
            if kind == 1:
                total = 1.5 * np.tanh(total + shift[j])
            elif kind == 2:
                total = np.sin(1.3 * total + shift[j]) + 0.3 * total
            x[j] = fix(do, names[j], total + e[j])
        return dict(zip(names, x, strict=True))

    return Problem(
        name=f"random model {seed}",
        parents=_find_parents(names, weights),
        simulate=simulate,
        ranges=dict.fromkeys(names[:-1], (-3.0, 3.0)),
        cost=14.0,
    )


def classic(seed: int) -> Problem:
    """Toy, Complete, PSA and Epidemiology."""
    name = ("toy", "complete", "psa", "epidemiology")[seed % 4]
    env = causal.load_environment(name)
    sign = 1.0 if env.minimize else -1.0

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        seed = int(rng.integers(1 << 30))
        found = env.sample(n, seed=seed, intervention=causal.intervene(**do))
        rows = {v: found[v].astype(float) for v in found.variables}
        return rows | {env.target: sign * rows[env.target]}

    class Known(Problem):
        def mean(self, values: Values) -> float:
            return sign * env.expected(causal.intervene(**values))

        @functools.cached_property
        def optimum(self) -> float:
            return min(sign * env.optimum, self.mean({}))

    return Known(
        name=f"classic {seed}",
        parents={
            v: [p for p in causes if p in env.variables]
            for v, causes in _find_parents(env.scm.variables, env.scm.adjacency).items()
            if v in env.variables
        },
        simulate=simulate,
        ranges=dict(env.ranges),
        target=env.target,
        max_targets=env.max_targets,
        cost=30.0,
        rows=50,
    )


def reaction(seed: int) -> Problem:
    """A reaction whose product decomposes: temperature, time, catalyst and solvent."""
    p = np.random.default_rng([41, seed])
    make, lose = p.uniform(40, 70), p.uniform(80, 120)  # activation, kJ/mol
    speed = p.normal(0, 0.8, 3)
    best = p.uniform(0.2, 0.8)
    dirty = p.uniform(0.2, 0.6)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((5, n))
        batch = e[0]  # an unmeasured impurity of the batch
        heat = fix(do, "heat", 50 + 6 * e[1] - 3 * batch)
        hours = fix(do, "hours", np.clip(4 + e[2], 1, 12))
        load = fix(do, "load", np.clip(0.3 + 0.08 * e[3], 0.0, 1.0))
        solvent = fix(do, "solvent", (rng.random(n) < 0.3).astype(float))
        which = np.clip(solvent.round().astype(int), 0, 2)
        inverse = 1000 / 8.314 * (1 / 333 - 1 / (273 + heat))
        first = 0.2 * np.exp(make * inverse + speed[which])
        first = first * np.exp(-0.5 * ((load - best) / 0.25) ** 2)
        second = 0.01 * np.exp(lose * inverse)
        # Two steps of first order: product is made, then lost.
        gap = np.where(np.abs(first - second) < 1e-9, 1e-9, first - second)
        made = first / gap * (np.exp(-second * hours) - np.exp(-first * hours))
        y = -100 * np.clip(made, 0, 1) + 8 * dirty * batch + 4 * e[4]
        return {"heat": heat, "hours": hours, "load": load, "solvent": solvent, "y": y}

    return Problem(
        name=f"reaction {seed}",
        parents={"y": ["heat", "hours", "load", "solvent"]},
        confounded=frozenset({"heat"}),
        simulate=simulate,
        ranges={
            "heat": (20.0, 110.0),
            "hours": (1.0, 12.0),
            "load": (0.0, 1.0),
            "solvent": (0.0, 2.0),
        },
        levels={"solvent": (0.0, 1.0, 2.0)},
        categories=frozenset({"solvent"}),
        prices={"heat": 1.0, "hours": 2.0, "load": 1.0, "solvent": 1.5},
        max_targets=2,
        cost=30.0,
        rows=3,
    )


def compound(seed: int) -> Problem:
    """A hidden cause, a step far outside, a switch and two prices, all at once."""
    p = np.random.default_rng([42, seed])
    at, side = p.uniform(1.5, 3.0), p.choice([-1, 1])
    size, confound = p.uniform(1, 3), p.uniform(0.5, 1.5)
    a, b, gate = p.uniform(-1, 1, 3)
    heavy = seed % 3 == 0

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((7, n))
        noise = e[0]
        if heavy:
            noise = rng.standard_t(3, n) / np.sqrt(3)
        u = fix(do, "u", confound * e[1] + 0.5 * e[2])
        v = fix(do, "v", e[3])
        m = fix(do, "m", a * u + np.tanh(b * v) + 0.5 * e[4])
        on = fix(do, "on", (rng.random(n) < sigmoid(e[5])).astype(float))
        step = size * sigmoid(6 * (side * v - at))
        y = m + confound * e[1] + gate * on * (1 + 0.5 * m) - step + noise
        seen = 0.7 * y + 0.7 * e[6]
        return {"u": u, "v": v, "m": m, "on": on, "seen": seen, "y": y}

    return Problem(
        name=f"all at once {seed}",
        parents={"m": "uv", "y": ["m", "on", "v"], "seen": "y"},
        confounded=frozenset("u"),
        simulate=simulate,
        ranges={"u": (-3.0, 3.0), "v": (-3.5, 3.5), "m": (-2.0, 2.0), "on": (0.0, 1.0)},
        levels={"on": (0.0, 1.0)},
        prices={"u": 1.0, "v": 2.0, "m": 4.0, "on": 1.0},
        max_targets=1 + seed % 2,
        cost=36.0,
        rows=4,
    )


FAMILIES = (classic, threshold, interaction, plateau, hidden, mixed, costs, many)
FAMILIES += (useless, wavy, random_model)
# Rules were chosen without any problem of these families.
HELD_OUT = (reaction, compound)


def problems(count: int, *, chosen: bool = False) -> Iterator[Problem]:
    """`count` problems of each family: odd numbers, or even ones to choose rules by."""
    for number in range(0 if chosen else 1, 2 * count, 2):
        for family in FAMILIES if chosen else FAMILIES + HELD_OUT:
            yield family(number)
