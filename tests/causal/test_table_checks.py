"""Tables as people have them: slips, missing values, copies, commas, names, units."""

import warnings

import numpy as np
import pytest

from frugax import ExperimentBudget, causal
from frugax.causal.campaign.past_experiments import convert
from frugax.causal.data import describe_oddities, find_wild
from refusals import refuses, warns

SURROGATE = causal.load_default_surrogate()


def chain(n=300, seed=0):
    """x -> y -> z."""
    r = np.random.default_rng(seed)
    x = r.normal(size=n)
    y = 1.5 * x + 0.7 * r.normal(size=n)
    z = -y + 0.7 * r.normal(size=n)
    return np.stack([x, y, z], 1)


def table(values):
    return causal.Samples.observed([f"v{j}" for j in range(values.shape[1])], values)


def oddities(values):
    return " ".join(describe_oddities(table(values)))


HOLES = {
    "some of the mediator": lambda r, v: (r.random(v.shape) < 0.05) & [0, 1, 0],
    "some of all": lambda r, v: r.random(v.shape) < 0.05,
    "half of one": lambda r, v: (r.random(v.shape) < 0.5) & [0, 1, 0],
    "blocks": lambda r, v: np.arange(len(v))[:, None] // 60 == [0, 1, 2],
    "where it is large": lambda r, v: (v > 1.5) & [0, 1, 0],
    "where another is large": lambda r, v: (v[:, :1] > 1) & [0, 1, 0],
}


@pytest.mark.parametrize("kind", HOLES)
def test_rows_that_lack_a_value_count_as_if_they_were_not_there(kind):
    values = chain()
    holes = HOLES[kind](np.random.default_rng(0), values).astype(bool)
    gaps = np.where(holes, np.nan, values)
    with warns(UserWarning, int(holes.any(1).sum())):
        found = SURROGATE.edge_probabilities(table(gaps))
    with warns(UserWarning, "v1"):
        causes = SURROGATE.posterior(table(gaps), "v2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        left = table(values[~holes.any(1)])
        np.testing.assert_allclose(
            found, SURROGATE.edge_probabilities(left), rtol=1e-3, atol=1e-4
        )
        assert causes.best == SURROGATE.posterior(left, "v2").best
    if kind.startswith("some"):
        assert causes.best == {"v1"}
        assert found[0, 2] + found[2, 0] < 0.7


def test_a_part_that_is_not_random_is_said():
    values = chain()
    for kind, is_said in (("where another is large", True), ("some of all", False)):
        holes = HOLES[kind](np.random.default_rng(0), values).astype(bool)
        said = oddities(np.where(holes, np.nan, values))
        assert ("depends on v0" in said) is is_said


def test_columns_never_measured_together_are_refused_with_what_helps():
    values = chain()
    values[:150, 0], values[150:, 2] = np.nan, np.nan
    with refuses(ValueError, "v0", 0, 150):
        SURROGATE.edge_probabilities(table(values))
    left = table(values).select(["v1", "v2"])
    with warns(UserWarning, 150):
        assert SURROGATE.edge_probabilities(left).shape == (2, 2)


def test_many_columns_are_judged_on_the_rows_that_their_context_has():
    r = np.random.default_rng(0)
    rest = r.normal(size=(300, 20))
    values = np.concatenate([chain(), rest], axis=1)
    # Hardly a row is complete, and each context has a third of them.
    values[r.random(values.shape) < 0.08] = np.nan
    with warns(UserWarning, 300):
        found = SURROGATE.edge_probabilities(table(values))
    assert found[0, 1] + found[1, 0] > 0.8
    assert found[1, 2] + found[2, 1] > 0.8
    assert found[0, 2] + found[2, 0] < 0.7


@pytest.mark.parametrize("slip", [10.0, -12.0, 1e30])
def test_one_slip_is_named_in_discovery_and_in_a_campaign(slip):
    values = chain()
    values[7, 1] = slip
    with warns(UserWarning, "v1", 7, f"{slip:g}"):
        SURROGATE.edge_probabilities(table(values))
    with warns(UserWarning, "v1", 7, f"{slip:g}"):
        SURROGATE.posterior(table(values), "v2")
    campaign = causal.Campaign(
        variables={"v0": (-3, 3)}, target="v2", budget=ExperimentBudget(n=2)
    )
    with warns(UserWarning, "v1", 7, f"{slip:g}"):
        campaign.tell_observations(table(values))


@pytest.mark.parametrize(
    ("draw", "a"),
    [
        *((draw, {}) for draw in ("normal", "laplace", "uniform", "exponential")),
        *((draw, {}) for draw in ("lognormal", "standard_cauchy")),
        ("pareto", {"a": 1.5}),
        ("poisson", {"lam": 0.02}),
    ],
)
def test_values_of_a_distribution_are_not_slips(draw, a):
    flagged = sum(
        bool(
            find_wild(
                getattr(np.random.default_rng(seed), draw)(size=n, **a) * 1.0
            ).any()
        )
        for seed in range(40)
        for n in (5, 30, 300, 3000)
    )
    # Of a Cauchy variable the largest of many values is far from all others.
    assert flagged <= {"standard_cauchy": 80}.get(draw, 8)
    for values in ([1.0, 1.0, 1.0, 5.0], [0.0, 1e9], [0.0] * 295 + [1.0] * 5):
        assert not find_wild(np.array(values)).any()


@pytest.mark.parametrize("code", [-999.0, 9999.0])
def test_codes_for_missing_values_are_named_once(code):
    values = chain()
    assert "stands for a missing" not in oddities(np.round(values))
    for share in (0.05, 0.3):
        lost = np.random.default_rng(0).random(300) < share
        values[lost, 1] = code
        said = oddities(values)
        assert f"v1 is {code:g} in {lost.sum()} rows" in said or share > 0.05
        assert said.count("v1 is") == 1


def test_rows_that_follow_each_other_are_named():
    values = chain()
    walk = np.cumsum(values, 0)
    assert "v0, v1, v2 change little" in oddities(walk)
    # One column that drifts goes with none, and rows may be sorted by a column.
    assert oddities(np.where([True, False, False], walk, values)) == ""
    assert oddities(values[np.argsort(values[:, 0])]) == ""
    # Groups that no column tells: their rows are independent, what moves them is not.
    group = np.repeat([0, 3, 1], 100)[:, None]
    assert "v0, v1, v2 change with the order" in oddities(values + group)
    assert oddities(np.concatenate([values + group, np.sort(group, 0)], axis=1)) == ""
    numbered = np.concatenate([values, np.arange(300.0)[:, None]], axis=1)
    assert "v3 goes up or down by 1" in oddities(numbered)


def test_a_value_that_many_rows_share_is_named():
    values = chain()
    at_limit = np.random.default_rng(0).random(300) < 0.2
    values[at_limit, 1] = 0
    assert f"v1 is 0 in {at_limit.sum()} rows" in oddities(values)
    values[at_limit] = -9, 0, 9
    for each in range(2, 5):
        values = np.column_stack([values, values[:, 2] ** each])
    assert "; and so on for 3 more columns, far" in oddities(values)
    usual = np.round(np.random.default_rng(0).normal(40, 5, (300, 2)), 1)
    usual[:120, 0] = 40  # hours of work are no limit
    assert "40" not in oddities(usual)
    counts = np.random.default_rng(0).poisson([0.3, 2.0, 50.0], (300, 3)) * 1.0
    assert oddities(counts) == ""


def test_values_that_were_set_are_not_slips():
    values = chain()
    intervened = np.zeros(values.shape, bool)
    values[:10, 0], intervened[:10, 0] = 100.0, True
    assert not describe_oddities(causal.Samples(("x", "y", "z"), values, intervened))


def test_copies_of_rows_and_columns_are_named():
    values = chain()
    assert oddities(values) == ""
    assert " 20 of 320 rows " in " " + oddities(np.concatenate([values, values[:20]]))
    # The same temperature in two units.
    twice = np.concatenate([values, 1.8 * values[:, :1] + 32], axis=1)
    assert "v0 and v3" in oddities(twice)
    total = np.concatenate([values, values[:, :1] - values[:, 2:]], axis=1)
    assert "v3 is a weighted sum of v0 and v2" in oddities(total)
    parts = np.exp(values) / np.exp(values).sum(1, keepdims=True)
    assert "weighted sum" in oddities((100 * parts).round(2))
    rounded = np.random.default_rng(0).normal(size=(120, 2)).round(1)
    assert oddities(rounded) == ""  # whose values coincide
    # Switches repeat by nature.
    switches = (np.random.default_rng(0).random((300, 3)) < 0.5) * 1.0
    assert oddities(switches) == ""
    # A design of two levels and three doses, and one answer with a decimal.
    answers = np.random.default_rng(1).normal(20, 3, 60).round(1)
    design = np.stack([np.arange(60) % 2, np.arange(60) % 3, answers], axis=1)
    assert len(np.unique(design, axis=0)) < 60
    assert oddities(design) == ""
    with warns(UserWarning, "v0"):
        SURROGATE.edge_probabilities(table(np.where([1, 0, 0], 2.0, values)))


@pytest.mark.parametrize(
    ("cell", "named"),
    [
        ("1,500", ("'1500'", "'1.500'")),
        ("-12,500", ("'-12500'", "'-12.500'")),
        ("1,500,000", ("'1500000'",)),
        ("1,500.25", ("'1500.25'",)),
        ("1,5", ("'1.5'",)),
        ("1 500", ("'1500'",)),
        ("1\u00a0500", ("'1500'",)),
        ("1'500", ("'1500'",)),
        ("1.500,25", ("'1500.25'",)),
        ("$1,500.00", ("'1500.00'",)),
        ("1 500 kg", ("'1500'",)),
        ("1.50 €", ("'1.50'",)),
        ("5 kg/m^3", ("'5'",)),
    ],
)
def test_a_comma_in_a_number_is_read_neither_way(tmp_path, cell, named):
    with refuses(ValueError, "'x'", 0, *named) as caught:
        causal.Samples.from_frame({"x": [cell, cell], "y": [2, 4]})
    if len(named) > 1:  # a whole file does not tell either
        path = tmp_path / "a.csv"
        path.write_text(f'x,y\n"{cell}",2\n"{cell}",4\n')
        with refuses(ValueError, "'x'", 0, *named):
            causal.Samples.from_csv(path)
    if cell == "1,500,000":
        assert "1.5" not in str(caught.value)


@pytest.mark.parametrize("cell", ["1/2", "1_000", "0x1F", "1.5x10^3", "1.5D+03"])
def test_the_first_digits_of_other_numbers_are_not_advised(tmp_path, cell):
    path = tmp_path / "a.csv"
    path.write_text(f"x,y\n{cell},2\n3,4\n")
    with refuses(ValueError, "'x'", 0) as caught:
        causal.Samples.from_csv(path)
    assert " alone" not in str(caught.value)


def test_rows_without_text_and_typeset_numbers_are_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('x, "on"\n\u22121.5, "True"\n   \n#N/A,false\n,\n')
    found = causal.Samples.from_csv(path)
    assert found.variables == ("x", "on")
    np.testing.assert_array_equal(found.values, [[-1.5, 1.0], [np.nan, 0.0]])


def test_a_first_row_of_numbers_is_not_lost_as_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1.5,2\n3,4\n5,6\n")
    with refuses(ValueError, "1.5", 1):
        causal.Samples.from_csv(path)
    path.write_text("0,1\n3,4\n5,6\n")  # pandas' names of columns without names
    assert len(causal.Samples.from_csv(path)) == 2


def test_independent_columns_with_heavy_tails_get_no_edge():
    for seed in range(3):
        draw = np.random.default_rng(seed).standard_cauchy((300, 6))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            edges = SURROGATE.edge_probabilities(table(draw))
        assert edges.max() < 0.1


def test_names_of_categories_have_the_order_that_is_stated(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("size,y\nsmall,1\nlarge,2\n,3\nmedium,4\n")
    with refuses(ValueError, "'size'", "levels"):
        causal.Samples.from_csv(path)
    levels = {"size": ["small", "medium", "large"]}
    found = causal.Samples.from_csv(path, levels=levels)
    np.testing.assert_array_equal(found["size"], [0, 2, np.nan, 1])
    frame = {"size": ["small", "huge"], "y": [1, 2]}
    with refuses(ValueError, "'size'", 1, "huge"):
        causal.Samples.from_frame(frame, levels=levels)
    with refuses(ValueError, "'z'"):
        causal.Samples.from_frame(frame, levels={"z": ["a"]})


@pytest.mark.parametrize(
    ("value", "unit", "wanted", "found"),
    [
        (1.0, "kg/m3", "g/L", 1.0),
        (1.0, "g/cm3", "kg/m³", 1000.0),
        (5.0, "ul", "mL", 0.005),
        (5.0, "uL", "µl", 5.0),
        (2.0, "kg m-3", "mg/mL", 2.0),
        (1.0, "mol/m^3", "mM", 1.0),
        (60.0, "ml/h", "uL/min", 1000.0),
        (1.0, "g·L⁻¹", "kg/m3", 1.0),
        (100.0, "cm2", "m²", 0.01),
        (36.0, "km/h", "m/s", 10.0),
        (212.0, "°F", "degC", 100.0),
        (1.0, "atm", "kPa", 101.325),
        (7.0, "widgets", "widgets", 7.0),
    ],
)
def test_units_in_any_spelling(value, unit, wanted, found):
    assert convert(np.array([value]), unit, wanted, "x") == pytest.approx([found])


@pytest.mark.parametrize(("unit", "wanted"), [("g/L", "mol/L"), ("kg/s", "kg/m3")])
def test_units_of_another_kind_are_refused(unit, wanted):
    with refuses(ValueError, "'x'", unit, wanted):
        convert(np.array([1.0]), unit, wanted, "x")
