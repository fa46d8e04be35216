"""The character model of the examples, in little: the data, the model, the budget."""

import importlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from frugax import train
from frugax.budget import MemoryBudget, Verdict
from frugax.errors import ConfigError
from frugax.run import RunFolder, load_config, run
from refusals import refuses

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {"layers": 2, "width": 32, "heads": 2, "context": 32, "batch": 8}


@pytest.fixture(scope="module")
def lm():
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module("stdlib_lm")
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def task(lm):
    return lm.task(**SMALL)


def test_text_comes_back_but_for_characters_outside_the_alphabet(lm):
    places = lm.encode(["def f(x):\n    return '~'\n", "tab\there, é, \x7f, 字"])
    assert places.min() >= 0
    assert places.max() == lm.OTHER < lm.CHARACTERS
    assert lm.decode(places.tolist()) == (
        "def f(x):\n    return '~'\n\ntab\N{REPLACEMENT CHARACTER}here, "
        + ", ".join(["\N{REPLACEMENT CHARACTER}"] * 3)
    )


def test_no_file_is_in_both_parts(lm):
    texts = [f"file {i}" for i in range(20)]
    train, validation = lm.split(texts, share=0.1, seed=3)
    assert sorted(train + validation) == sorted(texts)
    assert len(validation) == 2
    assert lm.split(texts, share=0.1, seed=3) == (train, validation)
    assert lm.split(texts, share=0.1, seed=4) != (train, validation)
    # However small or large the share, there is something to train and to validate on.
    assert [len(lm.split(texts, share=s, seed=0)[1]) for s in (0.0, 1.0)] == [1, 19]


def test_a_python_without_sources_is_reported(lm, tmp_path):
    (tmp_path / "os.py").write_text("pass")
    (tmp_path / "mine.py").write_text("not the standard library's")
    with refuses(ConfigError, 1):
        lm.sources(tmp_path)


def test_heads_that_do_not_divide_the_width_are_refused(lm):
    with refuses(ConfigError, "heads", "width=32"):
        lm.task(**SMALL | {"heads": 3})


def test_a_context_longer_than_the_text_is_refused(lm, monkeypatch):
    monkeypatch.setattr(lm, "sources", lambda: ["import this"] * 10)
    with refuses(ConfigError, 11):
        lm.task(**SMALL)


def test_a_batch_depends_on_its_step_and_seed_alone(lm, task):
    np.testing.assert_array_equal(task.batches(7), task.batches(7))
    assert task.batches(7).shape == (8, 33)
    assert not np.array_equal(task.batches(7), task.batches(8))
    assert not np.array_equal(task.batches(7), lm.task(**SMALL, seed=1).batches(7))


def test_no_character_sees_a_later_one(task):
    params = task.init(jax.random.key(0))
    places = jnp.asarray(task.batches(0))[:, :-1]
    apply = jax.jit(task.apply)
    before = apply(params, places)
    after = apply(params, places.at[:, 20].set((places[:, 20] + 1) % 97))
    np.testing.assert_array_equal(before[:, :20], after[:, :20])
    # But those after it do.
    assert (before[:, 20:] != after[:, 20:]).any(axis=(0, 2)).all()


def test_a_fresh_model_has_the_loss_of_guessing(lm, task):
    scores = task.evaluate(task.init(jax.random.key(0)))
    # Scores near zero are as good as a guess among all characters; those of the fresh
    # head have a standard deviation of 0.1, which costs 0.01/2 nats.
    assert scores["bits_per_character"] == pytest.approx(
        np.log2(lm.CHARACTERS), abs=0.1
    )


@pytest.mark.thorough
def test_the_budget_is_kept_and_the_loss_stays_the_same(task):
    optimizer = optax.adam(2e-3)

    def curve(step):
        state = train.init_state(task.init(jax.random.key(0)), optimizer)
        losses = []
        for number in range(8):
            state, metrics = step(state, task.batches(number))
            losses.append(metrics["loss"])
        return np.array(losses)

    plain = train.make_train_step(task.loss, optimizer)
    expected = curve(plain)
    limit = plain.program.temp_bytes * 7 // 10  # two layers: much less is not possible
    planned = train.make_train_step(
        task.loss, optimizer, budget=MemoryBudget(limit_bytes=limit)
    )
    # The target of the example's benchmark, over its 200 steps.
    np.testing.assert_allclose(curve(planned), expected, rtol=0, atol=1e-3)
    assert expected[-1] < expected[0] - 0.5
    assert planned.report().verdict is Verdict.KEPT
    assert planned.program.temp_bytes <= limit
    assert planned.plan is not None
    assert planned.plan.extra_flops > 0


@pytest.mark.thorough
def test_a_finished_run_writes_text(lm, tmp_path, capsys):
    path = EXAMPLES / "stdlib_lm.yaml"
    small = [f"options.{name}={value}" for name, value in SMALL.items()]
    # How memory is planned is tried above; here it need not be a second time.
    overrides = [*small, "train.steps=4", "budgets.memory=100%"]
    folder = RunFolder(tmp_path / "lm")
    outcome = run(
        load_config(path, overrides=overrides), folder, config_folder=path.parent
    )
    # The budgets in seconds depend on what else this machine does.
    for spend in outcome.receipt.spends:
        assert spend.verdict is Verdict.KEPT or "time" in spend.name, str(spend)
    assert set(outcome.model.after) == {"bits_per_character", "accuracy"}

    command = ["sample", str(folder.path), "def ", "class ", "--length=40"]
    assert lm.main(command) == 0
    first = capsys.readouterr().out
    assert "def " in first
    assert "class " in first
    lm.main(command)
    assert capsys.readouterr().out == first
    lm.main([*command, "--seed=1"])
    assert capsys.readouterr().out != first
    assert lm.main(["sample", str(tmp_path), "def "]) == 2
    assert "there is no run here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prompt", "temperature", "named"),
    [
        ("", 1.0, 0),
        ("import this", 1.0, 9),
        ("def ", 0.0, "temperature"),
    ],
)
def test_an_unusable_prompt_or_temperature_is_named(lm, prompt, temperature, named):
    with refuses(ValueError, named):
        lm.sample(
            {},
            lambda params, text: text,
            [prompt],
            length=9,
            temperature=temperature,
            key=jax.random.key(0),
        )
