"""Simulated laboratories of mixed actions, on which no rule of campaigns was chosen.

Each seed draws other constants. The fifteen on which rules were chosen are in this file
at commit 9cf7e74d. All have effects that most methods assume away: thresholds
outside of the observed range, interactions without main effects, plateaus, hidden
causes, and levers that are better left alone.
"""

from collections.abc import Iterator

import numpy as np
from benchmarks.causal_problems import Problem, Rows, Values, fix, sigmoid


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


# Written before the rules of the day that they were first run on.
REPORTED = (brew, laser, farm, drugs, sieve, coat)
# Written later, before the lines of the process and its weight for each pair.
NEW = (kiln, glass, dye, pump, resin)


def laboratories(count: int, *, new: bool = False) -> Iterator[Problem]:
    """`count` seeds of each laboratory: the reported ones, or the new ones."""
    for seed in range(count):
        for each in NEW if new else REPORTED:
            yield each(seed)
