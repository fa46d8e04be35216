"""Rows of past experiments from a CSV file."""

import numpy as np
import pytest

from frugax import ExperimentBudget
from frugax.causal import Samples
from frugax.causal.campaign import Binary, Campaign, Categorical
from refusals import refuses, warns

FILE = """heat [K],solvent,stirred,yield (%),changed
298.15,water,yes,10,
313.15,toluene,off,30,"heat, solvent"
,water,1,20,stirred
"""
UNITS = {"heat": "°C", "yield": "1"}


def campaign_of():
    return Campaign(
        variables={
            "heat": (20.0, 90.0),
            "solvent": Categorical(("water", "toluene")),
            "stirred": Binary(),
        },
        target="yield",
        minimize=False,
        budget=ExperimentBudget(n=3),
    )


def test_units_are_converted_and_levels_are_read_by_name(tmp_path):
    path = tmp_path / "past.csv"
    path.write_text(FILE)
    campaign = campaign_of()
    with warns(UserWarning, 1, "heat"):
        campaign.tell_csv(path, intervened="changed", units=UNITS)
    rows = campaign.samples
    assert rows is not None
    assert rows["heat"] == pytest.approx([25, 40, np.nan], nan_ok=True)
    assert rows["solvent"].tolist() == [0, 1, 0]
    assert rows["stirred"].tolist() == [1, 0, 1]
    assert rows["yield"] == pytest.approx([0.1, 0.3, 0.2])
    marked = rows.select(["heat", "solvent", "stirred", "yield"]).intervened
    assert marked.tolist() == [
        [False, False, False, False],
        [True, True, False, False],
        [False, False, True, False],
    ]
    again = campaign_of()
    path.write_text("heat,solvent,stirred,yield\n25,water,no,1\n30,water,no,2\n")
    again.tell_csv(path, intervened=["heat"])
    assert again.samples is not None
    assert again.samples.intervened[:, again.samples.index("heat")].all()


@pytest.mark.parametrize(
    ("change", "units", "message"),
    [
        (
            ("", ""),
            {"heat": "min", "yield": "%"},
            "heat",
        ),
        (("", ""), {"hot": "K"}, "hot"),
        (("[K]", "[°F]"), {"heat [°F]": "°C"}, "units"),
        (("", ""), {"heat": "°C"}, "units"),
        (("", ""), {"yield": "%"}, "units"),
        (
            ("heat [K]", "heat"),
            {"heat": "K", "yield": "%"},
            "heat",
        ),
        (
            ("toluene", "oil"),
            UNITS,
            "toluene",
        ),
        (("stirred", "heat"), UNITS, "heat"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path, change, units, message):
    path = tmp_path / "past.csv"
    path.write_text(FILE.replace(*change) if change[0] else FILE)
    with refuses(ValueError, message):
        campaign_of().tell_csv(path, intervened="changed", units=units)


def test_a_column_without_numbers_is_left_out_and_named(tmp_path):
    path = tmp_path / "past.csv"
    path.write_text(
        "date,heat,solvent,stirred,yield,note,purity,model\n"
        "2024-01-01,25,water,n/a,1,too hot,,900\n"
        "2024-01-02,30,N/A,on,2,,,Integra\n"
    )
    campaign = campaign_of()
    with warns(UserWarning, "'2024-01-01'", "'too hot'", "'Integra'"):
        campaign.tell_csv(path)
    assert campaign.samples is not None
    assert campaign.samples.variables == (
        *("heat", "solvent", "stirred", "yield", "purity"),
    )
    assert campaign.samples["solvent"] == pytest.approx([0, np.nan], nan_ok=True)
    path.write_text(
        "heat,yield,dark,ticket\n25,1,yes,1000000000001\n30,2,no,1000000000002\n"
    )
    campaign = campaign_of()
    with warns(UserWarning, "ticket", "float32"):
        campaign.tell_csv(path)
    assert campaign.samples is not None
    assert campaign.samples["dark"].tolist() == [1, 0]
    path.write_text('heat,yield,mass\n25,1,"1,500"\n')
    with refuses(ValueError, "'1500'", "mass"):
        campaign.tell_csv(path)
    path.write_text("heat;yield\n25,500;1\n")
    with refuses(ValueError, "'25,500'", "heat"):
        campaign.tell_csv(path)


def test_a_past_experiment_whose_setting_is_lost_gives_no_nan():
    rng = np.random.default_rng(0)
    heat, mask = rng.uniform(20, 90, 20), np.zeros((20, 2), bool)
    mask[:4, 0], heat[:4] = True, np.nan
    campaign = Campaign(
        variables={"heat": (20.0, 90.0)},
        target="yield",
        budget=ExperimentBudget(n=3),
        num_posterior_samples=8,
    )
    values = np.stack([heat, rng.standard_normal(20)], axis=1)
    with warns(UserWarning, 4, "heat"):
        campaign.tell_observations(Samples(("heat", "yield"), values, mask))
    best = campaign.recommend()
    assert np.isfinite([best.expected, best.low, best.high]).all()


@pytest.mark.parametrize("levels", [("none", "salt"), ("1", "2", "4")])
def test_levels_may_look_like_numbers_or_missing_values(tmp_path, levels):
    path = tmp_path / "past.csv"
    cells = [*levels, levels[0]]
    path.write_text("kind,yield\n" + "".join(f"{cell},{len(cell)}\n" for cell in cells))
    campaign = Campaign(
        variables={"kind": Categorical(levels)},
        target="yield",
        budget=ExperimentBudget(n=3),
    )
    campaign.tell_csv(path)
    assert campaign.samples is not None
    assert campaign.samples["kind"].tolist() == [*range(len(levels)), 0]
    beyond = Samples.observed(("kind", "yield"), [[len(levels), 1.0]])
    with refuses(ValueError, "row 0", "'kind'"):
        campaign.tell_observations(beyond)
