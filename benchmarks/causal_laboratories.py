"""Simulated laboratories of mixed actions, for `causal_optimise.py`.

Rules of campaigns were chosen on the first fifteen; the others are reported. Each
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


def dosing(seed: int) -> Problem:
    """A saturating dose with side effects; severity decides it; noise grows."""
    p = np.random.default_rng([61, seed])
    half, top, harm = p.uniform(0.5, 2), p.uniform(2, 4), p.uniform(0.02, 0.08)
    need, diet = p.uniform(0.5, 1.5), p.uniform(0.2, 0.6)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((6, n))
        dose = fix(do, "dose", np.clip(0.6 + 0.4 * e[0] + 0.2 * e[1], 0, 10))
        often = fix(do, "often", rng.integers(1, 3, n).astype(float))
        diet_on = fix(do, "diet", (rng.random(n) < sigmoid(e[0])).astype(float))
        level = dose * np.sqrt(often) + 0.1 * e[2]
        y = need * e[0] - top * np.maximum(level, 0) ** 2 / (half**2 + level**2)
        y = y + harm * level**2 - diet * diet_on + (0.4 + 0.1 * dose) * e[3]
        rows = {"dose": dose, "often": often, "diet": diet_on, "level": level}
        return rows | {"pulse": -0.5 * level + 0.5 * e[4], "y": y}

    return Problem(
        name=f"dosing {seed}",
        parents={
            "level": ["dose", "often"],
            "pulse": ["level"],
            "y": ["level", "diet"],
        },
        confounded=frozenset({"dose", "diet"}),
        simulate=simulate,
        ranges={"dose": (0.0, 10.0), "often": (1.0, 4.0), "diet": (0.0, 1.0)},
        levels={"often": (1.0, 2.0, 3.0, 4.0), "diet": (0.0, 1.0)},
        prices={"dose": 1.5, "often": 1.0, "diet": 2.0},
        max_targets=2,
        cost=24.0,
    )


def recipe(seed: int) -> Problem:
    """Each of four flours has a best temperature of its own."""
    p = np.random.default_rng([62, seed])
    best, size = p.uniform(150, 250, 4), p.uniform(0.5, 3, 4)
    salt, fan = p.uniform(-0.4, 0.4), p.uniform(-0.5, 0.5)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((3, n))
        flour = fix(do, "flour", rng.integers(0, 4, n).astype(float))
        heat = fix(do, "heat", 180 + 8 * e[0])
        salted = fix(do, "salt", 1 + 0.3 * e[1])
        on = fix(do, "fan", (rng.random(n) < 0.5).astype(float))
        which = flour.astype(int)
        y = -size[which] * np.exp(-0.5 * ((heat + 8 * on - best[which]) / 20) ** 2)
        y = y + salt * salted + fan * on + 0.5 * e[2]
        return {"flour": flour, "heat": heat, "salt": salted, "fan": on, "y": y}

    return Problem(
        name=f"recipe {seed}",
        parents={"y": ["flour", "heat", "salt", "fan"]},
        simulate=simulate,
        ranges={
            "flour": (0.0, 3.0),
            "heat": (120.0, 270.0),
            "salt": (0.0, 3.0),
            "fan": (0.0, 1.0),
        },
        levels={"flour": (0.0, 1.0, 2.0, 3.0), "fan": (0.0, 1.0)},
        categories=frozenset({"flour"}),
        max_targets=2,
        cost=30.0,
    )


def plant(seed: int) -> Problem:
    """Twenty-two variables, eight levers, and a peak inside of one of them."""
    p = np.random.default_rng([63, seed])
    names = [f"s{i}" for i in range(21)]
    levers = sorted(p.choice(20, 8, replace=False).tolist())
    weights = np.triu(p.normal(0, 0.8, (21, 21)) * (p.random((21, 21)) < 0.12), 1)
    key, others = levers[int(p.integers(8))], p.choice(levers, 3, replace=False)
    at, size, slopes = p.uniform(-2, 2), p.uniform(1.5, 3), p.uniform(-0.4, 0.4, 3)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((22, n))
        x = np.zeros((21, n))
        for j in range(21):
            x[j] = fix(do, names[j], np.tanh(weights[:, j] @ x) + 0.6 * e[j])
        y = -size * np.exp(-0.5 * ((x[key] - at) / 0.7) ** 2) + slopes @ x[others]
        rows = dict(zip(names, x, strict=True))
        return rows | {"y": y + 0.5 * e[21]}

    parents = {
        names[j]: [names[i] for i in np.flatnonzero(weights[:, j]).tolist()]
        for j in range(21)
    }
    return Problem(
        name=f"plant {seed}",
        parents=parents | {"y": sorted({names[i] for i in [key, *others.tolist()]})},
        simulate=simulate,
        ranges={names[j]: (-3.0, 3.0) for j in levers},
        cost=20.0,
    )


def alloy(seed: int) -> Problem:
    """Two interactions of opposite signs that share a lever; one metal is a grid."""
    p = np.random.default_rng([64, seed])
    one, two, line = p.uniform(0.4, 1.0), p.uniform(0.4, 1.0), p.uniform(-0.3, 0.3)
    parts = (0.0, 0.5, 1.0, 2.0, 4.0)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((5, n))
        tin = fix(do, "tin", rng.choice(parts[:3], n))
        heat = fix(do, "heat", 0.5 * e[0])
        cool = fix(do, "cool", 0.3 * heat + 0.4 * e[1])
        y = one * heat * (tin - 1) / 2 - two * heat * cool / 2 + line * cool
        y = y + 0.15 * heat**2 + 0.6 * e[2]
        grain = 0.5 * heat + 0.5 * cool + 0.3 * e[3]
        return {"tin": tin, "heat": heat, "cool": cool, "grain": grain, "y": y}

    return Problem(
        name=f"alloy {seed}",
        parents={
            "cool": ["heat"],
            "grain": ["heat", "cool"],
            "y": ["tin", "heat", "cool"],
        },
        simulate=simulate,
        ranges={"tin": (0.0, 4.0), "heat": (-2.0, 2.0), "cool": (-2.0, 2.0)},
        levels={"tin": parts},
        prices={"tin": 2.0},
        max_targets=2,
        cost=26.0,
    )


def paint(seed: int) -> Problem:
    """Coats help from a number on, thickness has a best value, drying is dear."""
    p = np.random.default_rng([65, seed])
    least, gain, best = int(p.integers(3, 6)), p.uniform(1, 2.5), p.uniform(20, 80)
    dry, width = p.uniform(0.3, 0.8), p.uniform(8, 16)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((5, n))
        coats = fix(do, "coats", rng.integers(1, 3, n).astype(float))
        thick = fix(do, "thick", 30 + 8 * e[0])
        hours = fix(do, "hours", np.clip(6 + 2 * e[1], 0, 48))
        y = -gain * (coats >= least) + 0.1 * coats
        y = y - 1.5 * np.exp(-0.5 * ((thick - best) / width) ** 2)
        y = y - dry * np.log1p(hours / 6) + 0.5 * e[2]
        shine = -0.7 * y + 0.5 * e[3]
        return {"coats": coats, "thick": thick, "hours": hours, "shine": shine, "y": y}

    return Problem(
        name=f"paint {seed}",
        parents={"y": ["coats", "thick", "hours"], "shine": ["y"]},
        simulate=simulate,
        ranges={"coats": (1.0, 6.0), "thick": (5.0, 100.0), "hours": (0.0, 48.0)},
        levels={"coats": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)},
        prices={"coats": 1.0, "thick": 1.0, "hours": 4.0},
        max_targets=2,
        cost=32.0,
    )


def brew(seed: int) -> Problem:
    """Yeasts with best temperatures, a hidden quality, and hops with a best dose."""
    p = np.random.default_rng([71, seed])
    best, size = p.uniform(12, 28, 3), p.uniform(0.8, 2.5, 3)
    hops, hidden = p.uniform(2, 8), p.uniform(0.5, 1.2)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((5, n))
        malt = e[0]
        yeast = fix(do, "yeast", rng.integers(0, 3, n).astype(float))
        heat = fix(do, "heat", 20 + 1.5 * e[1] + malt)
        hop = fix(do, "hop", np.clip(2 + 0.8 * malt + 0.5 * e[2], 0, 10))
        stir = fix(do, "stir", (rng.random(n) < 0.4).astype(float))
        which = yeast.astype(int)
        y = -size[which] * np.exp(-0.5 * ((heat - best[which]) / 3) ** 2)
        y = y + 0.08 * (hop - hops) ** 2 - hidden * malt + 0.2 * stir + 0.5 * e[3]
        foam = 0.6 * hop + 0.5 * e[4]
        rows = {"yeast": yeast, "heat": heat, "hop": hop, "stir": stir}
        return rows | {"foam": foam, "y": y}

    return Problem(
        name=f"brew {seed}",
        parents={"foam": ["hop"], "y": ["yeast", "heat", "hop", "stir"]},
        confounded=frozenset({"heat", "hop"}),
        simulate=simulate,
        ranges={
            "yeast": (0.0, 2.0),
            "heat": (8.0, 32.0),
            "hop": (0.0, 10.0),
            "stir": (0.0, 1.0),
        },
        levels={"yeast": (0.0, 1.0, 2.0), "stir": (0.0, 1.0)},
        categories=frozenset({"yeast"}),
        prices={"yeast": 1.5, "heat": 1.0, "hop": 1.0, "stir": 0.5},
        max_targets=2,
        cost=30.0,
    )


def laser(seed: int) -> Problem:
    """Power and speed must fit each other; noise is larger where power is."""
    p = np.random.default_rng([72, seed])
    total, size, width = p.uniform(-2, 2), p.uniform(1.5, 3), p.uniform(0.5, 1)
    tilt = p.uniform(-0.2, 0.2, 2)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((5, n))
        power = fix(do, "power", 0.6 * e[0])
        speed = fix(do, "speed", 0.4 * power + 0.5 * e[1])
        focus = fix(do, "focus", 0.7 * e[2])
        off = (power - speed - total) / width
        y = -size / (1 + off**2) + tilt[0] * power + tilt[1] * speed
        y = y + 0.3 * focus**2 + (0.4 + 0.15 * np.abs(power)) * e[3]
        glow = 0.8 * power + 0.3 * e[4]
        return {"power": power, "speed": speed, "focus": focus, "glow": glow, "y": y}

    return Problem(
        name=f"laser {seed}",
        parents={
            "speed": ["power"],
            "glow": ["power"],
            "y": ["power", "speed", "focus"],
        },
        simulate=simulate,
        ranges=dict.fromkeys(("power", "speed", "focus"), (-3.0, 3.0)),
        prices={"power": 2.0},
        max_targets=2,
        cost=28.0,
    )


def farm(seed: int) -> Problem:
    """Twenty-four variables, nine levers at different prices, effects that saturate."""
    p = np.random.default_rng([73, seed])
    names = [f"f{i}" for i in range(23)]
    weights = np.triu(p.normal(0, 0.7, (23, 23)) * (p.random((23, 23)) < 0.1), 1)
    levers = sorted(p.choice(20, 9, replace=False).tolist())
    gains, at = p.normal(0, 1.2, 4), p.uniform(-1.5, 1.5, 4)
    used = p.choice(20, 4, replace=False)
    prices = {names[j]: float(p.choice([1.0, 1.5, 3.0])) for j in levers}

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((25, n))
        x = np.zeros((23, n))
        for j in range(23):
            natural = (
                np.tanh(weights[:, j] @ x) + 0.6 * e[j] + 0.3 * (j % 3 == 0) * e[24]
            )
            x[j] = fix(do, names[j], natural)
        y = sum(
            g * sigmoid(2 * (x[i] - a)) for g, a, i in zip(gains, at, used, strict=True)
        )
        return dict(zip(names, x, strict=True)) | {"y": y + 0.4 * e[24] + 0.4 * e[23]}

    parents = {
        names[j]: [names[i] for i in np.flatnonzero(weights[:, j]).tolist()]
        for j in range(23)
    }
    return Problem(
        name=f"farm {seed}",
        parents=parents | {"y": sorted({names[i] for i in used.tolist()})},
        confounded=frozenset(names[i] for i in used.tolist() if i % 3 == 0),
        simulate=simulate,
        ranges={names[j]: (-3.0, 3.0) for j in levers},
        prices=prices,
        cost=26.0,
    )


def drugs(seed: int) -> Problem:
    """Two drugs: each helps alone and saturates, and together they do harm or more."""
    p = np.random.default_rng([74, seed])
    tops, halves, joint = p.uniform(0.8, 2, 2), p.uniform(1, 3, 2), p.uniform(-1.5, 1.5)
    rest, severe = p.uniform(0.1, 0.6), p.uniform(0.5, 1.2)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((6, n))
        one = fix(do, "one", np.clip(0.7 + 0.4 * e[0] + 0.3 * e[1], 0, 8))
        two = fix(do, "two", np.clip(0.5 + 0.3 * e[2], 0, 8))
        rests = fix(do, "rest", (rng.random(n) < 0.5).astype(float))
        times = fix(do, "times", rng.integers(1, 3, n).astype(float))
        a, b = one / (halves[0] + one), two / (halves[1] + two)
        y = severe * e[0] - tops[0] * a - tops[1] * b + 2 * joint * a * b
        y = y - rest * rests + 0.1 * (times - 3) ** 2 + 0.5 * e[3]
        rows = {"one": one, "two": two, "rest": rests, "times": times}
        return rows | {"fever": 0.7 * y + 0.5 * e[4], "y": y}

    return Problem(
        name=f"drugs {seed}",
        parents={"y": ["one", "two", "rest", "times"], "fever": ["y"]},
        confounded=frozenset({"one"}),
        simulate=simulate,
        ranges={
            "one": (0.0, 8.0),
            "two": (0.0, 8.0),
            "rest": (0.0, 1.0),
            "times": (1.0, 5.0),
        },
        levels={"rest": (0.0, 1.0), "times": (1.0, 2.0, 3.0, 4.0, 5.0)},
        prices={"one": 2.0, "two": 2.0, "rest": 1.0, "times": 0.5},
        max_targets=2,
        cost=32.0,
    )


def sieve(seed: int) -> Problem:
    """Steps of a count under one mesh of a grid; a cheap lever changes a little."""
    p = np.random.default_rng([75, seed])
    meshes = (0.1, 0.2, 0.45, 1.0, 2.0)
    good, least = int(p.integers(2, 5)), int(p.integers(3, 6))
    size, slope = p.uniform(1, 2.5), p.uniform(0.1, 0.3) * p.choice([-1, 1])

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((4, n))
        mesh = fix(do, "mesh", rng.choice(meshes[:3], n))
        runs = fix(do, "runs", rng.integers(1, 4, n).astype(float))
        tilt = fix(do, "tilt", e[0])
        fine = np.abs(mesh - meshes[good]) < 1e-6
        y = -size * fine * (0.3 + 0.7 * (runs >= least)) - 0.4 * (runs >= 2)
        y = y + slope * tilt + 0.6 * e[1]
        return {"mesh": mesh, "runs": runs, "tilt": tilt, "y": y}

    return Problem(
        name=f"sieve {seed}",
        parents={"y": ["mesh", "runs", "tilt"]},
        simulate=simulate,
        ranges={"mesh": (0.1, 2.0), "runs": (1.0, 6.0), "tilt": (-3.0, 3.0)},
        levels={"mesh": meshes, "runs": tuple(map(float, range(1, 7)))},
        prices={"mesh": 2.0, "runs": 1.0, "tilt": 0.5},
        max_targets=2,
        cost=26.0,
    )


def coat(seed: int) -> Problem:
    """Three levers act through a measured mediator, whose best value is inside."""
    p = np.random.default_rng([76, seed])
    a, b, c = p.uniform(0.4, 1.2, 3) * p.choice([-1, 1], 3)
    best, bend = p.uniform(-2.5, 2.5), p.uniform(0.3, 0.6)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((7, n))
        feed, heat = fix(do, "feed", 0.7 * e[0]), fix(do, "heat", 0.7 * e[1])
        spin = fix(do, "spin", 0.5 * heat + 0.5 * e[2])
        film = a * feed + b * np.tanh(heat) * 2 + c * spin + 0.3 * e[3]
        other = fix(do, "other", 0.6 * film + 0.5 * e[4])
        y = bend * (film - best) ** 2 + 0.5 * e[5]
        rows = {"feed": feed, "heat": heat, "spin": spin, "film": film}
        return rows | {"other": other, "y": y}

    return Problem(
        name=f"coat {seed}",
        parents={
            "spin": ["heat"],
            "film": ["feed", "heat", "spin"],
            "other": ["film"],
            "y": ["film"],
        },
        simulate=simulate,
        ranges=dict.fromkeys(("feed", "heat", "spin", "other"), (-2.0, 2.0)),
        prices={"feed": 1.5},
        max_targets=2,
        cost=24.0,
    )


def kiln(seed: int) -> Problem:
    """Three settings help only together: a switch, a category and great heat."""
    p = np.random.default_rng([81, seed])
    good, at, size = int(p.integers(3)), p.uniform(1.2, 2.0), p.uniform(2, 4)
    slope, glaze = p.uniform(-0.2, 0.2), p.normal(0, 0.3, 3)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((4, n))
        heat = fix(do, "heat", 0.5 * e[0])
        kind = fix(do, "kind", rng.integers(0, 3, n).astype(float))
        vented = fix(do, "vented", (rng.random(n) < 0.2).astype(float))
        soak = fix(do, "soak", e[1])
        all_three = vented * (kind == good) * sigmoid(5 * (heat - at))
        y = glaze[kind.astype(int)] + slope * soak - size * all_three + 0.7 * e[2]
        rows = {"heat": heat, "kind": kind, "vented": vented, "soak": soak}
        return rows | {"gloss": 0.5 * y + 0.5 * e[3], "y": y}

    return Problem(
        name=f"kiln {seed}",
        parents={"y": ["heat", "kind", "vented", "soak"], "gloss": ["y"]},
        simulate=simulate,
        ranges={
            "heat": (-3.0, 3.0),
            "kind": (0.0, 2.0),
            "vented": (0.0, 1.0),
            "soak": (-2.0, 2.0),
        },
        levels={"kind": (0.0, 1.0, 2.0), "vented": (0.0, 1.0)},
        categories=frozenset({"kind"}),
        max_targets=3,
        cost=40.0,
    )


def glass(seed: int) -> Problem:
    """Eight levers; two of them act only together, and a hidden cause moves a third."""
    p = np.random.default_rng([82, seed])
    names = [f"g{i}" for i in range(8)]
    one, two, third = p.choice(8, 3, replace=False).tolist()
    size, weak = p.uniform(0.5, 0.9), p.uniform(-0.15, 0.15, 8)
    prices = p.choice([0.5, 1.0, 1.5], 8).tolist()

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((10, n))
        batch = e[8]
        x = [fix(do, m, 0.6 * e[i] + batch * (i == third)) for i, m in enumerate(names)]
        y = sum(w * each for w, each in zip(weak, x, strict=True))
        y = y - size * x[one] * x[two] - batch + 0.6 * e[9]
        return dict(zip(names, x, strict=True)) | {"y": y}

    return Problem(
        name=f"glass {seed}",
        parents={"y": names},
        confounded=frozenset({names[third]}),
        simulate=simulate,
        ranges=dict.fromkeys(names, (-2.0, 2.0)),
        prices=dict(zip(names, prices, strict=True)),
        max_targets=2,
        cost=40.0,
    )


def dye(seed: int) -> Problem:
    """Six dyes and four fibres that must match, in a bath of the right acidity."""
    p = np.random.default_rng([83, seed])
    match, best = p.normal(0, 0.9, (6, 4)), p.uniform(3.5, 8.5)
    width, need = p.uniform(0.6, 1.2), p.uniform(0.5, 1.2)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((4, n))
        water = e[0]
        dye = fix(do, "dye", rng.integers(0, 6, n).astype(float))
        fibre = fix(do, "fibre", rng.integers(0, 4, n).astype(float))
        acid = fix(do, "acid", 6 + 0.5 * water + 0.3 * e[1])
        dips = fix(do, "dips", rng.integers(1, 3, n).astype(float))
        held = 0.3 + 0.7 * np.exp(-0.5 * ((acid - best) / width) ** 2)
        y = match[dye.astype(int), fibre.astype(int)] * held + need * water
        y = y - 0.3 * np.minimum(dips, 3) + 0.05 * dips**2 + 0.5 * e[2]
        rows = {"dye": dye, "fibre": fibre, "acid": acid, "dips": dips}
        return rows | {"shade": 0.6 * y + 0.4 * e[3], "y": y}

    return Problem(
        name=f"dye {seed}",
        parents={"y": ["dye", "fibre", "acid", "dips"], "shade": ["y"]},
        confounded=frozenset({"acid"}),
        simulate=simulate,
        ranges={
            "dye": (0.0, 5.0),
            "fibre": (0.0, 3.0),
            "acid": (2.0, 10.0),
            "dips": (1.0, 6.0),
        },
        levels={
            "dye": tuple(map(float, range(6))),
            "fibre": (0.0, 1.0, 2.0, 3.0),
            "dips": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
        },
        categories=frozenset({"dye", "fibre"}),
        prices={"dye": 1.5, "dips": 0.5},
        max_targets=2,
        cost=36.0,
    )


def pump(seed: int) -> Problem:
    """Ten levers of every kind; stages help from a count on that was never used."""
    p = np.random.default_rng([84, seed])
    least, size = int(p.integers(4, 7)), p.uniform(1, 2)
    speeds, best = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0), p.uniform(0.0, 4.0)
    mild = p.normal(0, 0.25, 6)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((10, n))
        speed = fix(do, "speed", rng.choice(speeds[:3], n))
        stages = fix(do, "stages", rng.integers(1, 3, n).astype(float))
        lined = fix(do, "lined", (rng.random(n) < 0.5).astype(float))
        oil = fix(do, "oil", rng.integers(0, 3, n).astype(float))
        x = [fix(do, f"p{i}", 0.8 * e[i]) for i in range(6)]
        wear = 0.5 * np.abs(np.log2(speed) - best) * (1 - 0.4 * lined) + 0.3 * e[6]
        y = wear - size * (stages >= least) + 0.1 * stages + 0.2 * (oil == 1)
        y = y + sum(w * each for w, each in zip(mild, x, strict=True)) + 0.5 * e[7]
        rows = {"speed": speed, "stages": stages, "lined": lined, "oil": oil}
        rows |= {f"p{i}": each for i, each in enumerate(x)}
        return rows | {"wear": wear, "y": y}

    return Problem(
        name=f"pump {seed}",
        parents={
            "wear": ["speed", "lined"],
            "y": ["wear", "stages", "oil", *(f"p{i}" for i in range(6))],
        },
        simulate=simulate,
        ranges={
            "speed": (0.5, 16.0),
            "stages": (1.0, 8.0),
            "lined": (0.0, 1.0),
            "oil": (0.0, 2.0),
            **{f"p{i}": (-2.5, 2.5) for i in range(6)},
        },
        levels={
            "speed": speeds,
            "stages": tuple(map(float, range(1, 9))),
            "lined": (0.0, 1.0),
            "oil": (0.0, 1.0, 2.0),
        },
        categories=frozenset({"oil"}),
        prices={"stages": 2.0, "lined": 1.5},
        max_targets=2,
        cost=40.0,
    )


def resin(seed: int) -> Problem:
    """A switch turns the effect of a dose round; past doses were set by need."""
    p = np.random.default_rng([85, seed])
    gain, bend = p.uniform(0.4, 0.9), p.uniform(0.08, 0.2)
    need, cure, late = p.uniform(0.8, 1.6), p.uniform(0.2, 0.5), p.uniform(1.8, 2.6)

    def simulate(do: Values, n: int, rng: np.random.Generator) -> Rows:
        e = rng.standard_normal((6, n))
        damp = e[0]
        dose = fix(do, "dose", 0.8 * damp + 0.4 * e[1])
        sealed = fix(do, "sealed", (rng.random(n) < sigmoid(-2 + damp)).astype(float))
        cured = fix(do, "cured", 0.7 * e[2])
        mix = fix(do, "mix", 0.6 * e[3])
        y = need * damp + (1 - 2 * sealed) * gain * dose + bend * dose**2
        y = y - cure * cured - 1.5 * sigmoid(5 * (mix - late)) + 0.3 * mix + 0.5 * e[4]
        rows = {"dose": dose, "sealed": sealed, "cured": cured, "mix": mix}
        return rows | {"smell": 0.7 * y + 0.5 * e[5], "y": y}

    return Problem(
        name=f"resin {seed}",
        parents={"y": ["dose", "sealed", "cured", "mix"], "smell": ["y"]},
        confounded=frozenset({"dose", "sealed"}),
        simulate=simulate,
        ranges={
            "dose": (-3.0, 3.0),
            "sealed": (0.0, 1.0),
            "cured": (-2.0, 2.0),
            "mix": (-3.0, 3.0),
        },
        levels={"sealed": (0.0, 1.0)},
        prices={"sealed": 2.0, "cured": 1.5},
        max_targets=2,
        cost=32.0,
    )


CHOSEN = (crystal, ferment, weld, orchard, etch, battery, glaze, feed, clinic, press)
CHOSEN += (dosing, recipe, plant, alloy, paint)
# Written before the rules of the day that they were first run on.
REPORTED = (brew, laser, farm, drugs, sieve, coat)
# Written later, before the lines of the process and its weight for each pair.
NEW = (kiln, glass, dye, pump, resin)


def laboratories(
    count: int, *, chosen: bool = False, new: bool = False
) -> Iterator[Problem]:
    """`count` seeds of each laboratory: reported ones, new, or for choosing rules."""
    for seed in range(count):
        for each in NEW if new else CHOSEN if chosen else REPORTED:
            yield each(seed)
