"""`frugax causal`: a campaign on a simulator or at a terminal, and its report."""

import gc
import re

import numpy as np
import pytest

import forked
from frugax import ExperimentBudget
from frugax.causal.campaign import (
    Binary,
    Campaign,
    Categorical,
    DoneExperiment,
    FailedExperiment,
    Integer,
    Logarithmic,
    UnknownColumnError,
    drive,
    load_campaign_config,
)
from frugax.cli import _at_terminal
from frugax.cli._user_experiment import OwnExperiment
from frugax.errors import ConfigError, FrugaxError
from refusals import refuses, warns


def frugax(*args, cwd):
    done = forked.inline(*args, cwd=cwd)
    gc.collect()  # a deleted campaign closes its journal
    return done


CONFIG = """
name: chain
campaign:
  variables: {x: [-2, 2], z: [-3, 3]}
  target: y
  budget: {cost: 5, costs: {x: 1, z: 2}}
  num_posterior_samples: 8
  minimize: true
simulator:
  linear: {x: {}, z: {x: 1.0}, y: {z: -1.0}}
  noise_scale: 0.1
observations: 40
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "chain.yaml"
    path.write_text(CONFIG)
    return path


def test_a_campaign_runs_to_its_report(config, tmp_path):
    done = frugax("causal", "run", config, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Recommended: for a small y, do(z = " in done.stdout
    assert "True mean -2.9" in done.stdout or "True mean -3" in done.stdout
    page = (tmp_path / "runs" / "chain" / "report.html").read_text()
    for part in ("What causes what", "true regret", "z to y"):
        assert part in page
    assert "://" not in re.sub(r"http://www.w3.org/\d+/svg", "", page)
    campaign = Campaign.load(tmp_path / "runs" / "chain" / "campaign")
    assert campaign.spent <= 5
    # In its own folder.
    short = ["--set", "campaign.budget.cost=1"]
    again = frugax("causal", "run", config, *short, cwd=tmp_path)
    assert "runs/chain-2/report.html" in again.stdout
    ended = frugax("causal", "run", "--resume", "runs/chain", cwd=tmp_path)
    assert ended.returncode == 0  # nothing is left to do
    assert (
        Campaign.load(tmp_path / "runs" / "chain" / "campaign").experiments
        == campaign.experiments
    )


def test_the_direction_is_stated_or_asked_for(config, tmp_path, monkeypatch):
    config.write_text(CONFIG.replace("  minimize: true\n", ""))
    run = ["causal", "run", config, "--set", "campaign.budget.cost=1"]
    words: list[str] = []

    def prompt(_):
        if not words:
            raise EOFError
        return words.pop(0)

    monkeypatch.setattr(_at_terminal, "_prompt", prompt)
    unasked = frugax(*run, cwd=tmp_path)
    assert unasked.returncode != 0
    assert "campaign.minimize" in unasked.stderr
    for goal, change, typed in (
        ("large", [], ["up", "large"]),
        ("small", ["campaign.minimize=true"], []),
    ):
        words[:] = typed
        done = frugax(*run, *change, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("Type small or large.") == typed.count("up")
        assert f"Recommended: for a {goal} y, " in done.stdout
        assert f" for a {goal} y: " in done.stdout.partition("Advice:")[2]
    assert "minimize: false" in (tmp_path / "runs/chain/config.yaml").read_text()


def test_a_campaign_refuses_a_changed_config(config, tmp_path):
    Campaign.begin(load_campaign_config(config).campaign).keep(tmp_path / "campaign")
    later = CONFIG.replace("budget: {", "budget: {n: 9, ")
    (tmp_path / "config.yaml").write_text(later)
    done = frugax("causal", "report", tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert "budget was changed since the campaign began with cost 5: " in done.stderr


OWN = CONFIG.partition("simulator:")[0] + 'simulator: {function: "lab.py:lab"}\n'


def test_an_exception_of_a_function_is_a_failed_experiment(config, tmp_path):
    lab = tmp_path / "lab.py"
    lab.write_text(
        "def lab(values, *, rows, seed):\n"
        "    if seed < 4:\n"
        "        return {'y': [0.0]}\n"
        "    if seed == 5:\n"
        "        return None\n"
        "    raise RuntimeError('boom')\n"
    )
    config.write_text(OWN.replace("cost: 5", "n: 8"))
    done = frugax("causal", "run", config, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.count("failed: RuntimeError: boom") == 2
    assert "an error or gave None or NaN in 3 experiments in a row" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert "--resume runs/chain" in done.stderr
    kept = Campaign.load(tmp_path / "runs" / "chain" / "campaign")
    assert [e.status for e in kept.experiments] == ["answered"] * 3 + ["failed"] * 3
    assert kept.experiments[-1].reason == "RuntimeError: boom"
    assert kept.spent >= 6  # those that failed are paid
    # Now one error at a time, and the run continues.
    lab.write_text(
        "def lab(values, *, rows, seed):\n    return {'y': [1 / (seed % 2)]}\n"
    )
    done = frugax("causal", "run", "--resume", "runs/chain", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "failed: ZeroDivisionError: " in done.stdout


def test_an_invalid_answer_of_a_function_is_not_charged(config, tmp_path):
    (tmp_path / "lab.py").write_text("def lab(values, *, rows, seed): return 'high'\n")
    config.write_text(OWN)
    done = frugax("causal", "run", config, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "experiment 0: lab.py:lab did not return an answer: " in done.stderr
    assert (
        "got a str. The experiment is still pending and costs nothing; mend"
        in done.stderr
    )
    assert done.stderr.count("\n") == 1
    kept = Campaign.load(tmp_path / "runs" / "chain" / "campaign")
    assert (kept.spent, len(kept.pending)) == (0, 1)


@pytest.mark.parametrize("at_import", [False, True])
def test_a_function_that_exits_the_program_is_reported_by_name(
    config, tmp_path, at_import
):
    text = "def lab(values, *, rows, seed): raise SystemExit(3)\n"
    lab = tmp_path / "lab.py"
    lab.write_text(f"{text}lab({{}}, rows=1, seed=0)\n" if at_import else text)
    config.write_text(OWN)
    done = frugax("causal", "run", config, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "ended the program " in done.stderr
    assert "(SystemExit 3)" in done.stderr
    assert done.stderr.count("\n") == 1
    if not at_import:
        kept = Campaign.load(tmp_path / "runs" / "chain" / "campaign")
        assert (kept.spent, len(kept.pending)) == (0, 1)


def test_a_person_is_asked_again_until_the_answer_can_be_taken(monkeypatch, capsys):
    going = Campaign(
        variables={"x": (-1.0, 1.0)},
        target="y",
        budget=ExperimentBudget(n=1),
        num_posterior_samples=8,
        rows_per_experiment=2,
    )
    going.ask()
    typed = iter(
        [
            *("", "much", "4,2", "1_0", "HELP", "1 2 3", "x=1", "y=1 2 x=3", "Y=3"),
            *("1e12", "no", "4.2 4.4"),
        ]
    )
    monkeypatch.setattr(_at_terminal.console, "input", lambda *a, **k: next(typed))
    told = _at_terminal.ask_person(going, going.experiments[0])
    assert isinstance(told, DoneExperiment)
    np.testing.assert_allclose(told.data["y"], [4.2, 4.4])
    out, said = capsys.readouterr()
    # Nothing was measured yet, so that nothing is expected.
    assert "Experiment 0: do(x = " in out
    assert "is expected" not in out
    for why in (
        "type a value of y (or several)",
        "'much' is not a number",
        "'1_0' is not a number",
        "'4,2' has a comma: put blanks between the values of several rows. For",
        "write '4.2'",
        "got 3 rows, but rows_per_experiment=2 in this campaign",
        "answer the other experiment",
        "as many values of one variable as of every other",
        "no column for the target 'y', only Y, x: is 'Y' meant?",
    ):
        assert why in " ".join(said.split())
    assert going.spent == 0
    assert said.count("back to correct") == 4  # once more for each that says nothing
    going.tell(0, _at_terminal.read_values("nan", "y"))
    _at_terminal.print_answer(going, going.experiments[0])
    assert "y not measured; it took place and is paid" in capsys.readouterr().out
    assert going.spent == 1


def test_a_misspelt_measurement_is_corrected_at_the_prompt(monkeypatch, capsys):
    going = Campaign(
        variables={"x": (-1.0, 1.0)},
        target="y",
        budget=ExperimentBudget(n=2),
        num_posterior_samples=8,
    )
    rng = np.random.default_rng(0)
    going.tell_observations({n: rng.normal(size=20) for n in ("x", "leaf", "y")})
    going.ask()
    typed = iter(["y=0.1 leef=0.2", "skip"])
    monkeypatch.setattr(_at_terminal.console, "input", lambda *a, **k: next(typed))
    _at_terminal.ask_person(going, going.experiments[0])
    said = " ".join(capsys.readouterr().err.split())
    assert "is it 'leaf'? If an earlier answer is wrong, type back." in said
    assert "replace" not in said
    with pytest.raises(UnknownColumnError) as refused:
        going.tell(0, {"y": 0.1, "leef": 0.2})
    assert str(refused.value).startswith(refused.value.problem)
    assert refused.value.problem in said


def test_a_person_confirms_an_outlier_and_corrects_an_answer(monkeypatch, capsys):
    going = Campaign(
        variables={"x": (-1.0, 1.0), "w": (0.0, 3.0)},
        target="y",
        budget=ExperimentBudget(n=4),
        num_posterior_samples=8,
    )
    going.ask()
    going.tell(0, {"y": 4.0})
    going.ask()
    going.tell_failed(1, "broken")
    going.ask()
    (other,) = {"x", "w"} - {*going.experiments[2].values}
    typed = iter(
        [
            *("BACK 7", "back", "skip it broke", "back 0", "y=4.5 bloood=2", "no"),
            *("keep", "back 0", "y=4.5 blood=2", "yes", "back", "keep"),
            *(f"y=1 {other}=99", "no", "Failed again"),
        ]
    )
    monkeypatch.setattr(_at_terminal.console, "input", lambda *a, **k: next(typed))
    told = _at_terminal.ask_person(going, going.experiments[2])
    assert told == FailedExperiment("again")
    assert not list(typed)
    assert [e.corrections for e in going.experiments] == [
        ("4",),
        ("failed: broken",),
        (),
    ]
    assert going.experiments[1].reason == "it broke"
    assert going.samples is not None
    assert going.samples.variables[:1] == ("y",)
    assert going.samples["y"].tolist() == [4.5]
    assert going.samples["blood"].tolist() == [2.0]
    assert going.spent == 2
    assert "There is no such answer to correct" in capsys.readouterr().err


def test_a_person_may_type_actual_settings(monkeypatch):
    going = Campaign(
        variables={"x": (-1.0, 1.0)},
        target="y",
        budget=ExperimentBudget(n=2),
        num_posterior_samples=8,
    )
    experiment = going.ask()
    assert experiment is not None
    asked = experiment.intervention.values["x"]
    x = f"{asked + 0.1:.3f}"
    typed = iter([f"4.2 x={x}", "no", f"x={x} 4.2", "yes", "4"])
    monkeypatch.setattr(_at_terminal.console, "input", lambda *a, **k: next(typed))
    drive(going, lambda record: _at_terminal.ask_person(going, record))
    assert going.experiments[0].actual == {"x": float(x)}
    assert going.get_rows(going.experiments[0])["x"] == np.float32(x)


def test_a_function_that_gives_nan_is_stopped_like_one_that_fails(capsys):
    going = Campaign(
        variables={"x": (-1.0, 1.0)},
        target="y",
        budget=ExperimentBudget(n=9),
        num_posterior_samples=8,
    )
    going.ask()
    given = iter([np.nan, np.nan, 1.0, *[np.nan] * 3])
    own = OwnExperiment("lab:lab", lambda *a, **k: next(given), 0, going, "runs/a")
    for _ in range(5):
        own(going.experiments[0])
        own.check()
    own(going.experiments[0])
    with refuses(FrugaxError, 3):
        own.check()


def test_a_function_that_cannot_be_asked_is_refused_first(config, tmp_path):
    (tmp_path / "lab.py").write_text("def lab(values, rows): return 0.0\n")
    config.write_text(OWN)
    done = frugax("causal", "run", config, cwd=tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "runs").exists()
    assert "must take (values, *, rows, seed)" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("x: [-2, 2]", "x: [2, -2]"), "chain.yaml:3: campaign"),
        (("target: y", "target: q"), "'q'"),
        (
            ("num_posterior_samples: 8", "required:\n  - [x, z]\n  - [z, 5]"),
            "chain.yaml:9: campaign.required[1][1]: expected text",
        ),
        (("observations: 40", "delimiter: '; '"), "delimiter: must be one character"),
        (("observations: 40", "observations: no.csv"), "no.csv"),
        (("  noise_scale: 0.1", "  environment: toy"), "one of environment, linear"),
        (("num_posterior_samples: 8", "word: 8"), "unknown key"),
        (
            ("num_posterior_samples: 8", "constraints: {Q: [0, 1]}"),
            "constraints names 'Q', but no",
        ),
        (
            ("num_posterior_samples: 8", "forbidden: [[x, y], [z, y]]"),
            "no path by which x, z could",
        ),
    ],
)
def test_a_config_error_is_reported_in_one_line(config, tmp_path, change, message):
    config.write_text(CONFIG.replace(*change))
    done = frugax("causal", "run", config, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_lab_must_be_stated_exactly_once(config, tmp_path):
    for args in ([], [config, "--resume", "runs/chain"]):
        done = frugax("causal", "run", *args, cwd=tmp_path)
        assert done.returncode == 2
        assert "give either a config file" in done.stderr
    done = frugax("causal", "report", tmp_path, cwd=tmp_path)
    assert done.returncode == 2


def test_without_a_terminal_it_stops_and_keeps_the_question(config, tmp_path):
    config.write_text(CONFIG.split("simulator:")[0])
    done = forked.frugax("causal", "run", config, cwd=tmp_path)
    assert done.returncode == 130
    assert "frugax causal run --resume runs/chain" in done.stderr
    campaign = Campaign.load(tmp_path / "runs" / "chain" / "campaign")
    assert len(campaign.pending) == 1
    assert (tmp_path / "runs" / "chain" / "report.html").exists()


def test_actions_are_read_from_a_config_and_a_function_gets_their_names(tmp_path):
    (tmp_path / "lab.py").write_text(
        "import numpy as np\n"
        "def lab(values, *, rows, seed):\n"
        "    rng = np.random.default_rng(seed)\n"
        "    assert values.get('stir', True) in (True, False)\n"
        "    kind = [values.get('kind', k) for k in rng.choice(['a', 'b'], rows)]\n"
        "    y = [{'a': 0.0, 'b': -2.0}[k] for k in kind] + rng.normal(0, 0.1, rows)\n"
        "    stir = rng.random(rows) < 0.5\n"
        "    return {'y': y} if values else {'kind': kind, 'stir': stir, 'y': y}\n"
    )
    config = tmp_path / "lab.yaml"
    config.write_text(
        "name: lab\n"
        "campaign:\n"
        "  variables:\n"
        "    kind: {levels: [a, b]}\n"
        "    stir: {binary: true}\n"
        "    cycles: {low: 1, high: 3}\n"
        "    filter: {values: [0.2, 1.0]}\n"
        "  target: y\n"
        "  budget: {n: 3}\n"
        "  num_posterior_samples: 8\n"
        "  minimize: true\n"
        'simulator: {function: "lab.py:lab"}\n'
        "observations: 40\n"
    )
    done = frugax("causal", "run", config, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Recommended: for a small y, do(kind = b)" in done.stdout
    ended = frugax("causal", "run", "--resume", "runs/lab", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_experiments_of_the_past_come_from_a_table(config, tmp_path):
    (tmp_path / "past.csv").write_text(
        "x,z,y,changed\n-1,-1,1,\n1,1.1,-1.2,\n0.5,-3,3.1,z\n0.1,3,-2.9,z\n"
    )
    text = CONFIG.replace("observations: 40", "observations: past.csv")
    config.write_text(text + "intervened: changed\n")
    loaded = load_campaign_config(config)
    assert loaded.intervened == "changed"
    done = frugax("causal", "run", config, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    campaign = Campaign.load(tmp_path / "runs" / "chain" / "campaign")
    assert campaign.samples is not None
    assert campaign.samples.intervened.any(1).sum() == len(campaign.experiments) + 2
    # As spreadsheets save where the comma is the decimal sign.
    past = tmp_path / "past.csv"
    past.write_text(past.read_text().replace(",", ";"))
    config.write_text(text + "intervened: changed\n")
    short = ["--set", "campaign.budget.cost=1"]
    done = frugax("causal", "run", config, *short, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config.write_text(CONFIG + "intervened: changed\n")
    with refuses(ConfigError, "chain.yaml"):
        load_campaign_config(config)


TABLE = """date,temp,conc,stir,solvent,salt,lab_id,batch,yield
2026-11-01,20,1e-9,yes,water,none,7,1,3.1
2026-11-02,35,1e-7,no,ethanol,NaCl,7,2,4.7
2026-11-03,50,1e-5,yes,water,none,9,3,6.2
2026-11-04,62,1e-4,no,ethanol,none,9,4,7.1
2026-11-05,80,1e-3,yes,water,none,7,5,8.4
2026-11-06,41,1e-6,no,ethanol,NaCl,9,6,5.3
"""


def test_a_table_alone_begins_a_campaign(tmp_path, monkeypatch):
    monkeypatch.setattr(_at_terminal, "_prompt", _quit)
    (tmp_path / "lab.csv").write_text(TABLE)
    command = ["causal", "run", "lab.csv", "--target", "yield", "--experiments", "3"]
    with warns(
        UserWarning, "date ('2026-11-01' is not a number), batch (numbers of rows)"
    ):
        done = frugax(*command, "--set", "campaign.minimize=false", cwd=tmp_path)
    assert done.returncode == 130, done.stdout + done.stderr  # nobody answers
    campaign = Campaign.load(tmp_path / "runs" / "lab" / "campaign")
    assert campaign.samples is not None
    assert campaign.settings.variables == {
        "temp": Integer(20, 80),
        "conc": Logarithmic((1e-9, 1e-3)),
        "stir": Binary(),
        "solvent": Categorical(("water", "ethanol")),
        "salt": Categorical(("none", "NaCl")),
    }
    assert campaign.samples["salt"].tolist() == [0, 1, 0, 0, 0, 1]
    assert campaign.settings.budget == ExperimentBudget(n=3)
    assert not campaign.settings.minimize
    assert len(campaign.samples) == 6
    stated = ["--set", "campaign.variables={temp: [10, 90]}"]
    assert "conc: {log_range: [1.0e-09, 0.001]}" in done.stdout
    with warns(UserWarning, "lab_id"):
        narrowed = load_campaign_config(
            tmp_path / "lab.csv", overrides=[*_overrides(command), stated[1]]
        )
    assert narrowed.campaign.variables == {"temp": (10, 90)}
    command[4] = "solvent"
    with warns(UserWarning, "left out"):
        done = frugax(*command, "--set", "campaign.minimize=true", cwd=tmp_path)
    assert "lab.csv: 'solvent' is not a number in row 0: 'water'" in done.stderr
    assert "observations" not in done.stderr


def _quit(question):
    raise EOFError


def _overrides(command):
    return [f"campaign.target={command[4]}", "campaign.budget={n: 3}"]


@pytest.mark.parametrize(
    ("target", "table", "named"),
    [
        (None, TABLE, "--target"),
        ("Yield", TABLE, "'Yield'"),
        ("y", "x,y\n1,2\n1,3\n", "'y'"),
        ("y", ",x,y\na,1,2\na,2,3\n", "index=False"),
        ("y", "x,y\n" + "1,2\n" * 10 + "Average,2\n", "'Average' in row 10"),
        ("y", "x,y\n", "no rows"),
        ("y", "x,y\n1 mg,2\n2 g,3\n", "'1'"),
    ],
)
def test_a_table_that_begins_no_campaign_is_refused(tmp_path, target, table, named):
    path = tmp_path / "lab.csv"
    path.write_text(table)
    overrides = ["campaign.budget={n: 3}"]
    if target:
        overrides.append(f"campaign.target={target}")
    with refuses(ConfigError, named):
        load_campaign_config(path, overrides=overrides)
