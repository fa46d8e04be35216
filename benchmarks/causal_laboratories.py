"""Ten simulated laboratories of mixed actions, for `causal_optimise.py`.

Rules of campaigns were chosen on the first five, and the other five are reported. Each
seed draws other constants. All have effects that most methods assume away: thresholds
outside of the observed range, interactions without main effects, plateaus, hidden
causes, and levers that are better left alone.
"""

from collections.abc import Iterator

import numpy as np
from benchmarks.causal_problems import Problem, Rows, Values, fix, sigmoid


def crystal(seed: int) -> Problem:
    """Seeding helps only when it is hotter than anyone has tried."""
    p = np.random.default_rng([51, seed])
    at, size, slope = p.uniform(65, 85), p.uniform(3, 5), p.uniform(0.1, 0.4)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((5, n))
        heat = fix(do, "heat", 40 + 6 * e[0])
        seeded = fix(do, "seeded", (rng.random(n) < 0.3).astype(float))
        passes = fix(do, "passes", rng.integers(1, 4, n).astype(float))
        stir = fix(do, "stir", 300 + 50 * e[1])
        gain = size * seeded * sigmoid((heat - at) / 3)
        purity = 0.3 * (stir - 300) / 50 + 0.5 * e[2]
        y = -gain - slope * passes - 0.3 * purity + 0.6 * e[3]
        rows = {"heat": heat, "seeded": seeded, "passes": passes, "stir": stir}
        return rows | {"purity": purity, "y": y}

    return Problem(
        name=f"crystal {seed}",
        parents={"purity": ["stir"], "y": ["heat", "seeded", "passes", "purity"]},
        simulate=simulate,
        ranges={
            "heat": (20.0, 95.0),
            "seeded": (0.0, 1.0),
            "passes": (1.0, 5.0),
            "stir": (100.0, 600.0),
        },
        levels={"seeded": (0.0, 1.0), "passes": (1.0, 2.0, 3.0, 4.0, 5.0)},
        prices={"heat": 2.0, "passes": 0.5},
        max_targets=2,
        cost=30.0,
    )


def ferment(seed: int) -> Problem:
    """A strain, days, air and acidity; a hidden quality decided past runs."""
    p = np.random.default_rng([52, seed])
    strain, best = p.normal(0, 0.8, 4), p.uniform(4.5, 7.5)
    air, hidden = p.uniform(-1, 1), p.uniform(0.8, 1.5)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((5, n))
        quality = e[0]
        kind = fix(do, "strain", rng.integers(0, 4, n).astype(float))
        # A good inoculum is fermented for longer, and is better in any case.
        long = np.clip(np.round(4 + 1.2 * quality + 0.5 * e[1]), 1, 9)
        days = fix(do, "days", long)
        acid = fix(do, "acid", 6 + 0.4 * e[2])
        aired = fix(do, "aired", (rng.random(n) < 0.5).astype(float))
        y = strain[kind.astype(int)] - hidden * quality + 0.15 * np.abs(days - 4)
        y = y + air * aired - 1.5 * np.exp(-0.5 * ((acid - best) / 0.5) ** 2)
        y = y + 0.5 * e[3]
        return {"strain": kind, "days": days, "acid": acid, "aired": aired, "y": y}

    return Problem(
        name=f"ferment {seed}",
        parents={"y": ["strain", "days", "acid", "aired"]},
        confounded=frozenset({"days"}),
        simulate=simulate,
        ranges={
            "strain": (0.0, 3.0),
            "days": (1.0, 9.0),
            "acid": (3.0, 9.0),
            "aired": (0.0, 1.0),
        },
        levels={
            "strain": (0.0, 1.0, 2.0, 3.0),
            "days": tuple(map(float, range(1, 10))),
            "aired": (0.0, 1.0),
        },
        categories=frozenset({"strain"}),
        prices={"strain": 3.0, "days": 2.0},
        max_targets=2,
        cost=36.0,
    )


def weld(seed: int) -> Problem:
    """A plateau but for a window of power and speed; the powers are a grid."""
    p = np.random.default_rng([53, seed])
    powers = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
    density, width = p.uniform(0.9, 1.8), p.uniform(0.25, 0.45)
    size, gas = p.uniform(2, 4), p.uniform(0.1, 0.3)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((4, n))
        power = fix(do, "power", rng.choice(powers[:3], n))
        speed = fix(do, "speed", np.clip(6 + e[0], 1, 10))
        flow = fix(do, "flow", e[1])
        ratio = np.log(power / speed) + density
        y = -size * np.exp(-0.5 * (ratio / width) ** 2) + gas * flow + 0.6 * e[2]
        return {"power": power, "speed": speed, "flow": flow, "y": y}

    return Problem(
        name=f"weld {seed}",
        parents={"y": ["power", "speed", "flow"]},
        simulate=simulate,
        ranges={"power": (0.5, 8.0), "speed": (1.0, 10.0), "flow": (-2.0, 2.0)},
        levels={"power": powers},
        max_targets=2,
        cost=24.0,
    )


def orchard(seed: int) -> Problem:
    """Every lever is set by need already: to fix any of them does harm."""
    p = np.random.default_rng([54, seed])
    harm, need = p.uniform(0.4, 1.0, 3), p.uniform(0.5, 1.2)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((8, n))
        dry, pest = e[0], e[1]
        water = fix(do, "water", dry + 0.2 * e[2])
        spray = fix(do, "spray", (pest > 0).astype(float))
        food = fix(do, "food", 0.7 * dry + 0.2 * e[3])
        y = need * (dry + pest) + harm[0] * (water - dry) ** 2
        y = y + harm[1] * (spray - (pest > 0)) ** 2 + harm[2] * (food - 0.7 * dry) ** 2
        y = y + 0.4 * e[5]
        leaf = 0.8 * y + 0.5 * e[4]
        fruit = fix(do, "fruit", -0.6 * y + 0.5 * e[6])
        rows = {"water": water, "spray": spray, "food": food, "leaf": leaf}
        return rows | {"fruit": fruit, "y": y}

    return Problem(
        name=f"orchard {seed}",
        parents={"y": ["water", "spray", "food"], "leaf": ["y"], "fruit": ["y"]},
        confounded=frozenset({"water", "spray", "food"}),
        simulate=simulate,
        ranges={
            "water": (-3.0, 3.0),
            "spray": (0.0, 1.0),
            "food": (-3.0, 3.0),
            "fruit": (-3.0, 3.0),
        },
        levels={"spray": (0.0, 1.0)},
        cost=16.0,
    )


def etch(seed: int) -> Problem:
    """A bent valley of two levers, of which a third moves the floor."""
    p = np.random.default_rng([55, seed])
    bend, turn = p.uniform(0.3, 0.6), p.choice([-1, 1])
    floor, at = p.uniform(0.3, 0.8), p.uniform(-2, 2)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((5, n))
        gas = fix(do, "gas", 0.5 * e[0])
        bias = fix(do, "bias", 0.4 * gas + 0.5 * e[1])
        chuck = fix(do, "chuck", 0.5 * e[2])
        rate = gas + bias + 0.3 * e[3]
        off = bias - turn * bend * gas**2
        y = np.minimum(0.6 * off**2, 3) + 0.15 * np.abs(gas - at) ** 1.5
        y = y - floor * np.tanh(2 * chuck) + 0.4 * e[4]
        return {"gas": gas, "bias": bias, "chuck": chuck, "rate": rate, "y": y}

    return Problem(
        name=f"etch {seed}",
        parents={
            "bias": ["gas"],
            "rate": ["gas", "bias"],
            "y": ["gas", "bias", "chuck"],
        },
        simulate=simulate,
        ranges=dict.fromkeys(("gas", "bias", "chuck"), (-3.0, 3.0)),
        prices={"gas": 1.0, "bias": 1.0, "chuck": 2.5},
        max_targets=2,
        cost=24.0,
    )


def battery(seed: int) -> Problem:
    """Six levers at six prices; one of them works beyond three times its range."""
    p = np.random.default_rng([56, seed])
    names = [f"l{i}" for i in range(6)]
    key, side = int(p.integers(6)), p.choice([-1, 1])
    at, size, weak = p.uniform(2.0, 2.8), p.uniform(2.5, 4), p.uniform(-0.25, 0.25, 6)
    prices = p.permutation([1.0, 1.0, 1.5, 2.0, 3.0, 4.0])

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((8, n))
        x = [fix(do, m, 0.8 * e[i]) for i, m in enumerate(names)]
        heat = 0.5 * x[0] + 0.5 * x[1] + 0.5 * e[6]
        y = sum(w * each for w, each in zip(weak, x, strict=True)) + 0.3 * heat
        y = y - size * sigmoid(6 * (side * x[key] - at)) + 0.7 * e[7]
        return dict(zip(names, x, strict=True)) | {"heat": heat, "y": y}

    return Problem(
        name=f"battery {seed}",
        parents={"heat": ["l0", "l1"], "y": [*names, "heat"]},
        simulate=simulate,
        ranges=dict.fromkeys(names, (-3.0, 3.0)),
        prices=dict(zip(names, prices.tolist(), strict=True)),
        cost=32.0,
    )


def glaze(seed: int) -> Problem:
    """A checkerboard of two categories: neither has a main effect."""
    p = np.random.default_rng([57, seed])
    table = p.normal(0, 1.2, (5, 3))
    table -= table.mean(0)
    table -= table.mean(1, keepdims=True)
    best = p.uniform(900, 1250)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((3, n))
        oxide = fix(do, "oxide", rng.integers(0, 5, n).astype(float))
        clay = fix(do, "clay", rng.integers(0, 3, n).astype(float))
        kiln = fix(do, "kiln", 1050 + 30 * e[0])
        y = table[oxide.astype(int), clay.astype(int)] + 0.6 * e[1]
        y = y + np.minimum(((kiln - best) / 150) ** 2, 1.5)
        return {"oxide": oxide, "clay": clay, "kiln": kiln, "y": y}

    return Problem(
        name=f"glaze {seed}",
        parents={"y": ["oxide", "clay", "kiln"]},
        simulate=simulate,
        ranges={"oxide": (0.0, 4.0), "clay": (0.0, 2.0), "kiln": (800.0, 1300.0)},
        levels={"oxide": (0.0, 1.0, 2.0, 3.0, 4.0), "clay": (0.0, 1.0, 2.0)},
        categories=frozenset({"oxide", "clay"}),
        max_targets=2,
        cost=30.0,
    )


def feed(seed: int) -> Problem:
    """Steps of a count and a grid of doses, under heavy tails."""
    p = np.random.default_rng([58, seed])
    doses = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
    step, least = p.uniform(0.8, 1.6), int(p.integers(4, 7))
    top, size = p.choice([0.3, 1.0, 3.0]), p.uniform(1, 2)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e, t = rng.standard_normal((2, n)), rng.standard_t(3, n)
        meals = fix(do, "meals", rng.integers(1, 4, n).astype(float))
        dose = fix(do, "dose", rng.choice(doses[:3], n))
        light = fix(do, "light", 10 + e[0])
        y = -step * (meals >= least) + 0.1 * meals + 0.05 * (light - 10)
        far = np.log10((dose + 0.03) / (top + 0.03))
        y = y - size * (np.abs(far) < 0.2) + 0.5 * (dose > 5) + 0.5 * t
        return {"meals": meals, "dose": dose, "light": light, "y": y}

    return Problem(
        name=f"feed {seed}",
        parents={"y": ["meals", "dose", "light"]},
        simulate=simulate,
        ranges={"meals": (1.0, 8.0), "dose": (0.0, 10.0), "light": (6.0, 18.0)},
        levels={"meals": tuple(map(float, range(1, 9))), "dose": doses},
        prices={"meals": 1.0, "dose": 1.5, "light": 1.0},
        max_targets=2,
        cost=28.0,
        rows=4,
    )


def clinic(seed: int) -> Problem:
    """A dose given by need, its dear mediator, and a therapy that helps a little."""
    p = np.random.default_rng([59, seed])
    need, works = p.uniform(1.0, 1.8), p.uniform(0.4, 0.9)
    bend, therapy = p.uniform(0.15, 0.3), p.uniform(0.1, 0.5)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((6, n))
        ill = e[0]
        dose = fix(do, "dose", np.clip(1.5 + ill + 0.3 * e[1], 0, 6))
        level = fix(do, "level", 0.8 * dose + 0.4 * e[2])
        care = fix(do, "care", (rng.random(n) < sigmoid(ill)).astype(float))
        walk = fix(do, "walk", e[3])
        y = need * ill - works * level + bend * level**2 - therapy * care
        y = y + 0.1 * walk + 0.5 * e[4]
        rows = {"dose": dose, "level": level, "care": care, "walk": walk}
        return rows | {"cost": 0.5 * level + 0.5 * e[5], "y": y}

    return Problem(
        name=f"clinic {seed}",
        parents={
            "level": ["dose"],
            "cost": ["level"],
            "y": ["level", "care", "walk"],
        },
        confounded=frozenset({"dose", "care"}),
        simulate=simulate,
        ranges={
            "dose": (0.0, 6.0),
            "level": (0.0, 5.0),
            "care": (0.0, 1.0),
            "walk": (-2.0, 2.0),
        },
        levels={"care": (0.0, 1.0)},
        prices={"dose": 1.0, "level": 5.0, "care": 1.0, "walk": 0.5},
        max_targets=2,
        cost=28.0,
    )


def press(seed: int) -> Problem:
    """Two levers help together, and each of them alone does harm."""
    p = np.random.default_rng([60, seed])
    signs, size = p.choice([-1, 1], 2), p.uniform(1.5, 3)
    harm = p.uniform(0.2, 0.6, 3)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((6, n))
        a, b = fix(do, "a", 0.3 * e[0]), fix(do, "b", 0.3 * e[1])
        c = fix(do, "c", 0.5 * a + 0.3 * e[2])
        both = np.maximum(signs[0] * a, 0) * np.maximum(signs[1] * b, 0) / 4
        y = harm[0] * a**2 / 4 + harm[1] * b**2 / 4 + harm[2] * c**2
        y = y - 2 * size * both + 0.6 * e[3]
        late = fix(do, "late", 0.7 * y + 0.5 * e[4])
        return {"a": a, "b": b, "c": c, "late": late, "y": y}

    return Problem(
        name=f"press {seed}",
        parents={"c": ["a"], "y": ["a", "b", "c"], "late": ["y"]},
        simulate=simulate,
        ranges=dict.fromkeys(("a", "b", "c", "late"), (-2.0, 2.0)),
        max_targets=2,
        cost=30.0,
    )


CHOSEN = (crystal, ferment, weld, orchard, etch)
REPORTED = (battery, glaze, feed, clinic, press)


def laboratories(count: int, *, chosen: bool = False) -> Iterator[Problem]:
    """`count` seeds of each of five laboratories."""
    for seed in range(count):
        for each in CHOSEN if chosen else REPORTED:
            yield each(seed)
