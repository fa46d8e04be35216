"""Known networks from files: in the formats of bnlearn's repository and of pgmpy."""

import gzip
import json

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from frugax import causal
from frugax.errors import CorruptFileError, UnsupportedFileError
from refusals import refuses

BIF = """// who smokes
network unknown { property author nobody; }
variable Smoker { type discrete [ 2 ] { no, yes }; }
variable Cancer {
  type discrete [ 3 ] { none, early, late };
}
variable Xray { type discrete [ 2 ] { clear, spot }; }
probability ( Smoker ) { table 0.7, 0.3; }
probability ( Cancer | Smoker ) {
  (yes) 0.5, 0.3, 0.2;
  (no) 0.9, 0.1, 0.0;
}
/* the smoke itself
   is seen too */
probability ( Xray | Smoker, Cancer ) {
  (no, late) 0.2, 0.8;
  (yes, late) 0.1, 0.9;
  default 0.8, 0.2;
}
"""
LINEAR = {
    "nodes": ["b", "a"],
    "arcs": [["a", "b"]],
    "cpds": {
        "a": {"coefficients": {"(Intercept)": [1.0]}, "variance": [4.0], "parents": []},
        "b": {
            "coefficients": {"(Intercept)": [0.0], "a": [-0.5]},
            "variance": [0.25],
            "parents": ["a"],
        },
    },
}


@pytest.fixture
def bif(tmp_path):
    path = tmp_path / "smoke.bif.gz"
    path.write_bytes(gzip.compress(BIF.encode()))
    return causal.load_network(path)


def test_a_discrete_network_has_its_probabilities(bif):
    assert bif.parents("Xray") == ("Smoker", "Cancer")
    assert bif.functions[bif.index("Cancer")].states == ("none", "early", "late")
    n = 40_000
    data = causal.sample(bif, n, seed=0)
    share = lambda given, value: float((given == value).mean())
    error = 4 * 0.5 / n**0.5
    assert share(data["Smoker"], 1) == pytest.approx(0.3, abs=error)
    smokers = data["Cancer"][data["Smoker"] == 1]
    for state, p in enumerate((0.5, 0.3, 0.2)):
        assert share(smokers, state) == pytest.approx(p, abs=2 * error)
    assert not (data["Cancer"][data["Smoker"] == 0] == 2).any()
    late = causal.sample(bif, n, seed=0, intervention=causal.intervene(Cancer=2.0))
    # Setting the disease leaves who smokes alone: 0.7 * 0.8 + 0.3 * 0.9.
    assert share(late["Xray"], 1) == pytest.approx(0.83, abs=error)
    assert share(late["Smoker"], 1) == pytest.approx(0.3, abs=error)


def test_a_discrete_network_runs_in_jax(bif):
    n = 20_000
    draw = jax.jit(lambda key: causal.simulate(bif, key, n))
    by_jax = np.asarray(draw(jax.random.key(0)))
    by_numpy = causal.sample(bif, n, seed=0).values
    np.testing.assert_allclose(by_jax.mean(0), by_numpy.mean(0), atol=0.03)
    assert set(np.unique(by_jax)) == {0, 1, 2}


def test_only_known_states_can_be_set(bif):
    assert bif.states("Xray") == ("clear", "spot")
    assert causal.SCM.linear({"x": {}}).states("x") == ()
    named = "Cancer"
    set_it, tried = causal.intervene, causal.intervene_imperfectly
    for wrong in (
        set_it(Cancer=7),
        set_it(Cancer=0.5),
        set_it(Cancer=-1),
        causal.shift(Cancer=1),
        causal.scale(Cancer=1),
        tried({"Cancer": 1}, sd=0.1),
    ):
        with refuses(ValueError, named):
            causal.sample(bif, 4, seed=0, intervention=wrong)
    with refuses(ValueError, named):
        causal.simulate(bif, jax.random.key(0), 4, set_it(Cancer=7))
    with refuses(ValueError, named):
        causal.interventional_mean(bif, "Xray", {"Cancer": np.array([0.0, 0.5])})
    right = tried({"Cancer": 2}, hit=0.9)
    assert causal.sample(bif, 4, seed=0, intervention=right)["Cancer"].max() == 2
    with refuses(ValueError, "Cancer"):
        causal.environment_from_scm(bif.with_target("Xray"), {"Cancer": (0.0, 2.0)})
    with refuses(ValueError, "Smoker"):
        causal.standardize(bif)


def test_a_linear_network_has_its_coefficients(tmp_path):
    (tmp_path / "two.json").write_text(json.dumps(LINEAR))
    scm = causal.load_network(tmp_path / "two.json")
    assert scm.variables == ("b", "a")
    assert scm.parents("b") == ("a",)
    data = causal.sample(scm, 40_000, seed=0)
    assert data["a"].mean() == pytest.approx(1.0, abs=4 * 2 / 200)
    assert data["a"].std() == pytest.approx(2.0, rel=0.02)
    assert data["b"].std() == pytest.approx((0.25 * 4 + 0.25) ** 0.5, rel=0.02)
    assert data["b"].mean() == pytest.approx(-0.5, abs=4 * 1.1 / 200)


@pytest.mark.parametrize(
    ("old", "new", "error", "named"),
    [
        ("[ 3 ]", "[ 4 ]", CorruptFileError, "bad.bif"),
        ("discrete [ 3 ]", "continuous", UnsupportedFileError, "continuous"),
        ("Cancer | Smoker )", "Cancer | Nobody )", CorruptFileError, "bad.bif"),
        (
            "(yes) 0.5",
            "(maybe) 0.5",
            CorruptFileError,
            "'Smoker'",
        ),
        ("(yes) 0.5, 0.3", "(yes) 0.5, 0.9", CorruptFileError, "bad.bif"),
        ("(yes) 0.5, 0.3", "(yes) 0.5", CorruptFileError, "bad.bif"),
        ("(yes) 0.5", "(yes) half", CorruptFileError, "bad.bif"),
        ("  (yes) 0.5, 0.3, 0.2;\n", "", CorruptFileError, "bad.bif"),
        ("default 0.8, 0.2;\n}", "", CorruptFileError, "bad.bif"),
        ("(no, late)", "(no)", CorruptFileError, "bad.bif"),
        (
            "variable Xray",
            "varible Xray",
            CorruptFileError,
            "varible",
        ),
        (
            "probability ( Smoker ) { table 0.7, 0.3; }",
            "",
            CorruptFileError,
            "Smoker",
        ),
        ("(yes) 0.5, 0.3, 0.2;", "table 1, 0, 0;", CorruptFileError, "bad.bif"),
        (BIF, "", CorruptFileError, "BIF"),
        (
            "Smoker, Cancer ) {",
            f"Smoker, {', '.join(['Cancer'] * 20)} ) {{",
            UnsupportedFileError,
            "bad.bif",
        ),
    ],
)
def test_a_damaged_bif_file_is_refused_with_its_line(tmp_path, old, new, error, named):
    assert old in BIF
    (tmp_path / "bad.bif").write_text(BIF.replace(old, new))
    with refuses(error, named):
        causal.load_network(tmp_path / "bad.bif")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"{", "bad.json"),
        (b"\xff", "bad.json"),
        (b"[]", "bad.json"),
        (json.dumps({**LINEAR, "arcs": []}).encode(), "('a', 'b')"),
        (json.dumps({**LINEAR, "nodes": ["a", "b", "c"]}).encode(), "'c'"),
        (json.dumps({**LINEAR, "cpds": {}}).encode(), "bad.json"),
    ],
)
def test_a_damaged_json_file_is_refused(tmp_path, content, named):
    (tmp_path / "bad.json").write_bytes(content)
    with refuses(CorruptFileError, named):
        causal.load_network(tmp_path / "bad.json")


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=60, deadline=None)
def test_a_file_with_any_damage_is_read_or_refused_by_name(tmp_path_factory, data):
    whole = data.draw(st.sampled_from([BIF, json.dumps(LINEAR)]))
    start = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, 20))
    middle = data.draw(st.text('{}()[],;|/* 01ae."', max_size=6))
    ending = "bif" if whole is BIF else "json"
    path = tmp_path_factory.mktemp("any") / f"any.{ending}"
    path.write_text(whole[:start] + middle + whole[start + length :])
    try:
        causal.load_network(path)
    except (CorruptFileError, UnsupportedFileError) as error:
        assert "any." in str(error)  # noqa: PT017 - most damage, but not all, is seen


def test_json_nested_without_end_is_refused(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with refuses(CorruptFileError, "deep.json"):
        causal.load_network(tmp_path / "deep.json")


def test_a_cut_off_gzip_is_refused(tmp_path):
    whole = gzip.compress(BIF.encode())
    for content in (whole[:-20], b"no gzip", b""):
        (tmp_path / "bad.bif.gz").write_bytes(content)
        with refuses(CorruptFileError, "bad.bif.gz"):
            causal.load_network(tmp_path / "bad.bif.gz")


def test_a_file_that_is_not_there_or_of_another_kind_is_refused(tmp_path):
    with refuses(FileNotFoundError, "my.bif"):
        causal.load_network(tmp_path / "my.bif")
    with refuses(UnsupportedFileError, "bif.gz"):
        causal.load_network(tmp_path / "graph.xml")
