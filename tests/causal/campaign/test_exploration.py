"""Effects that no data show, doing nothing, and the shares of both kinds of models."""

from typing import Any

import numpy as np
import pytest

from frugax import ExperimentBudget
from frugax.causal.campaign import Campaign
from frugax.causal.posterior import (
    ActionProcess,
    ActionSpace,
    Outcomes,
    Points,
)


def campaign_on(simulate, variables, n, **more):
    settings: dict[str, Any] = {"num_posterior_samples": 16, **more}
    campaign = Campaign(
        variables=variables,
        target="y",
        budget=ExperimentBudget(n=n),
        rows_per_experiment=5,
        **settings,
    )
    campaign.tell_observations(simulate({}, 100, np.random.default_rng(0)))
    while (one := campaign.ask()) is not None:
        rng = np.random.default_rng([1, one.id])
        campaign.tell(one, simulate(one.intervention.values, 5, rng))
    return campaign


@pytest.mark.thorough
def test_an_effect_that_begins_outside_of_the_data_is_found():
    def simulate(do, n, rng):
        x = np.full(n, do["x"]) if "x" in do else rng.standard_normal(n)
        z = np.full(n, do["z"]) if "z" in do else rng.standard_normal(n)
        y = 0.2 * z - 4.0 * (x > 3.0) + rng.standard_normal(n)
        return {"x": x, "z": z, "y": y}

    campaign = campaign_on(simulate, {"x": (-4.0, 4.0), "z": (-4.0, 4.0)}, 9)
    assert campaign.recommend().value["x"] > 3.0
    # No point was tried a third time.
    tried = [
        tuple((name, round(value, 1)) for name, value in e.values.items())
        for e in campaign.experiments
    ]
    assert max(map(tried.count, tried)) <= 2


def test_no_draw_goes_further_than_four_deviations_or_twice_an_outcome():
    names = [f"x{i:02d}" for i in range(40)]
    rng = np.random.default_rng(5)
    x = rng.standard_normal((50, 40))
    y = x[:, 7] - 1.5 * x[:, 3] + 0.5 * rng.standard_normal(50)
    campaign = Campaign(
        variables=dict.fromkeys(names, (-3.0, 3.0)),
        target="y",
        budget=ExperimentBudget(n=3),
        num_posterior_samples=8,
    )
    campaign.tell_observations(dict(zip(names, x.T, strict=True)) | {"y": y})

    def farthest():
        inference = campaign.infer()
        drawn = inference.outlook.loss
        return np.abs(drawn - y.mean()).max() / inference.scale

    # Untried levers would be expected to do anything: few draws reach fifteen times as
    # far, and whichever lever they are about would be asked for.
    assert farthest() == pytest.approx(4.0, rel=1e-5)
    first = campaign.ask()
    assert first is not None
    campaign.tell(first, float(y.mean() - 5 * y.std()))
    assert farthest() == pytest.approx(10.0, rel=1e-2)


@pytest.mark.thorough
def test_variables_that_are_not_modelled_are_tried_too():
    names = [f"x{i:02d}" for i in range(14)]

    def simulate(do, n, rng):
        rows = {m: rng.standard_normal(n) for m in names}
        rows |= {m: np.full(n, x) for m, x in do.items()}
        # The last lever is related to nothing in the data.
        y = sum(rows[m] for m in names[:-1]) - 20.0 * (rows["x13"] > 3.0)
        return rows | {"y": y + 0.1 * rng.standard_normal(n)}

    def outside(outlook, rng):
        last = max(outlook.points.targets)
        group = outlook.points.targets.index(last)
        return int(np.flatnonzero(outlook.points.group == group)[-1])

    campaign = campaign_on(
        simulate,
        dict.fromkeys(names, (-4.0, 4.0)),
        1,
        policy=outside,
        num_posterior_samples=8,
    )
    (one,) = campaign.experiments
    assert one.values == {"x13": 4.0}
    assert one.forecast is not None
    assert one.forecast.expected > -10
    found = campaign.infer()
    assert {*found.levers} >= {*names}
    assert len(found.names) == 12
    assert campaign.recommend().value["x13"] > 3.0


def test_no_intervention_is_recommended_where_every_dose_does_harm():
    def simulate(do, n, rng):
        need = rng.standard_normal(n)
        dose = need + 0.2 * rng.standard_normal(n)
        if "dose" in do:
            dose = np.full(n, do["dose"])
        y = need + 2 * (dose - need) ** 2 + 0.2 * rng.standard_normal(n)
        return {"dose": dose, "y": y}

    campaign = campaign_on(simulate, {"dose": (-2.0, 2.0)}, 6)
    best = campaign.recommend()
    assert best.actions == {}
    assert str(best).startswith("for a small y, do nothing: ")
    assert best.prob_better == 0.0
    assert best.expected == pytest.approx(best.nothing)


SQUARE = ActionSpace((0, 1), -np.ones(2), np.ones(2), np.zeros(2))


def process_of(points, outcomes, space, error=0.1, **more):
    n = len(outcomes)
    measured = Outcomes(
        points=points,
        mean=np.array(outcomes, float),
        error=np.full(n, error),
    )
    told: dict[str, Any] = {"mean": 0.0, "mean_error": 0.01, "scale": 1.0}
    told |= {"effects": np.zeros((1, n)), **more}
    return ActionProcess(measured, space, rng=np.random.default_rng(0), **told)


def draw(process, points, count):
    """Draw without causal models."""
    return process.draw(points, count, np.zeros((1, len(points))))


def test_two_corners_of_a_product_tell_the_others():
    ends = np.array([[-1.0], [1.0]])
    corners = np.array([[1.0, -1.0], [-1.0, 1.0]])
    process = process_of(
        Points(((0,), (1,), (0, 1)), (ends, ends, corners)),
        [0.0, 0.0, 0.0, 0.0, 3.0, 3.0],
        SQUARE,
    )
    rest = Points(((0, 1),), (np.array([[1.0, 1.0], [-1.0, -1.0]]),))
    assert (np.median(draw(process, rest, 960), axis=0) < -0.5).all()


def test_three_variables_act_together():
    sets = (*((i,) for i in range(3)), (0, 1), (0, 2), (1, 2), (0, 1, 2))
    values = tuple(np.ones((1, len(s))) for s in sets)
    process = process_of(
        Points(sets, values),
        [0.0] * 6 + [3.0],
        ActionSpace((0, 1, 2), -np.ones(3), np.ones(3), np.zeros(3), largest=3),
    )
    drawn = draw(process, Points(sets, values), 96)
    assert drawn[:, 6].mean() == pytest.approx(3.0, abs=0.3)
    assert np.abs(drawn[:, :6].mean(0)).max() < 0.3
    assert process.noise == 1.0


def test_listed_values_count_by_their_rank():
    levels = np.array([0.1, 0.2, 1.0, 100.0])
    space = ActionSpace(
        (0,), levels[:1], levels[-1:], np.array([0.1]), levels={0: levels}
    )
    where = space.embed(Points(((0,),), (levels[:, None],)))[0][:, 0]
    assert where == pytest.approx(np.linspace(-1.0, 1.0, 4))


def test_the_process_agrees_with_outcomes_and_is_unsure_elsewhere():
    values = np.linspace(-1, 1, 5)[:, None]
    process = process_of(
        Points(((0,),), (values[:2],)), [3.0, -1.0], SQUARE, error=0.01, mean=0.5
    )
    points = Points(((0,), (0, 1)), (values, np.array([[1.0, 1.0]])))
    drawn = draw(process, points, 400)
    mean, std = drawn.mean(0), drawn.std(0)
    assert mean[:2] == pytest.approx([3.0, -1.0], abs=0.05)
    assert std[:2] == pytest.approx(0.01, abs=0.02)
    assert std[1] < 0.1 < std[4] < std[5]
    # A function does not depend on the other points at which it is drawn.
    alone = draw(process, Points(((0, 1),), (np.array([[1.0, 1.0]]),)), 400)
    assert alone[:, 0] == pytest.approx(drawn[:, 5])


@pytest.mark.parametrize("right", [True, False])
def test_outcomes_decide_how_far_passive_data_are_trusted(right):
    values = np.linspace(-1, 1, 9)[:, None]
    truth = np.where(right, 3 * np.sin(3 * values[:, 0]), 0.0)
    noise = 0.1 * np.random.default_rng(1).standard_normal((16, 1))
    effects = 3 * np.sin(3 * values[:, 0]) * (1 + noise)
    done = Points(((0,),), (values[::2],))
    told = {"error": 0.05, "effects": effects[:, ::2]}
    process = process_of(done, truth[::2], SQUARE, **told)
    other = 3.0 * np.ones((16, 1)) * (1 + noise)
    found = process.draw(Points(((1,),), (np.array([[1.0]]),)), 400, other).mean()
    assert (found > 2.0) if right else (found < 0.5)


def test_outcomes_show_more_noise_than_passive_rows():
    # Setting the lever breaks its tie to a hidden cause, which then is noise.
    rng = np.random.default_rng(3)
    values = np.sort(rng.uniform(-1, 1, 15))[:, None]
    process = process_of(
        Points(((0,),), (values,)),
        6.0 + 2.0 * rng.standard_normal(15),
        ActionSpace((0,), -np.ones(1), np.ones(1), np.zeros(1)),
        error=0.2,
        mean_error=0.05,
        scale=0.4,
    )
    assert 4 <= process.noise <= 16
    points = Points(((0,),), (np.linspace(-1, 1, 41)[:, None],))
    assert draw(process, points, 96).mean(0).min() > 2.0


def test_experiments_that_fail_are_not_asked_for_again_and_again():
    # Above 1 the reactor clogs, where most is expected.
    def observe(do, rows, rng):
        heat = np.full(rows, do["heat"]) if "heat" in do else rng.normal(0, 0.5, rows)
        stir = np.full(rows, do["stir"]) if "stir" in do else rng.normal(0, 0.5, rows)
        y = -heat + 0.3 * stir + 0.3 * rng.standard_normal(rows)
        return {"heat": heat, "stir": stir, "y": y}

    campaign = Campaign(
        variables={"heat": (-2.0, 2.0), "stir": (-2.0, 2.0)},
        target="y",
        budget=ExperimentBudget(n=8),
        max_targets=2,
        num_posterior_samples=8,
    )
    campaign.tell_observations(observe({}, 40, np.random.default_rng(0)))
    while (one := campaign.ask()) is not None:
        values, rng = one.intervention.values, np.random.default_rng([1, one.id])
        if values.get("heat", 0.0) > 1.0:
            campaign.tell_failed(one, "clogged")
        else:
            campaign.tell(one, observe(values, 1, rng))
    failed = [each for each in campaign.experiments if each.status == "failed"]
    assert 1 <= len(failed) <= 3
