"""Every package has the same interface: plan, apply, a receipt, and `needed`."""

import dataclasses
import functools
import importlib
import inspect
import itertools
import json
import pickle
import pkgutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import frugax as fx
from frugax.budget import Plan, Receipt
from frugax.errors import InfeasibleBudgetError
from frugax.run import Budgets, RunConfig, RunFolder, TrainConfig
from frugax.targets import Target
from frugax.watch import probes


@dataclasses.dataclass(frozen=True)
class Package:
    """How to plan in a package, as a function of the limit alone.

    Attributes:
        plan: from a limit to a plan.
        carry_out: from a plan to the receipt of its result.
        enough: a limit that is met.
        too_little: a limit that nothing meets.
        below: the largest limit that is less than this one.
        predicted: the prediction that the limit bounds.
    """

    plan: Callable[..., Plan]
    carry_out: Callable[[Any], Any]
    enough: float
    too_little: float
    below: Callable[[float], float] = lambda limit: limit - 1
    predicted: Callable[[Any], float] = lambda plan: plan.predicted


def _loss(weights, x):
    for w in weights:
        x = x + jnp.tanh(x @ w)
    return (x**2).mean()


_EXAMPLES = ([jnp.eye(8)] * 2, jnp.ones((64, 8)))
_WEIGHTS = {"w": np.random.default_rng(0).normal(size=(40, 50)).astype("float32")}


_VARIABLES = {"variables": dict.fromkeys("XYZ", (0.0, 1.0)), "target": "T"}


def _causal(cost):
    budget = fx.ExperimentBudget(cost=cost, costs={"X": 2.0, "Y": 3.0, "Z": 4.0})
    return fx.causal.plan(_VARIABLES, budget)


def _double(x):
    probes.record("sum", x.sum())
    return 2 * x


def _watch(share):
    ticks = itertools.count()
    return fx.watch.plan(
        _double,
        fx.OverheadBudget(share=share),
        example_args=(jnp.ones(4),),
        steps=1000,
        seconds=0.01,
        chunk_s=1e-3,
        clock=lambda: next(ticks) * 1e-3,
    )


def _carry_out_watch(plan):
    program = fx.watch.apply(_double, plan)
    program(jnp.ones(4))
    return program.report()


def _make_train_step():
    return fx.train.make_train_step(lambda w, x: ((w - x) ** 2).sum(), optax.sgd(0.1))


def _train(seconds):
    ticks = itertools.count()  # every reading of the clock is half a second later
    step = _make_train_step()
    return fx.train.plan(
        step,
        fx.TimeBudget(seconds=seconds),
        state=step.init(jnp.zeros(2)),
        batch=jnp.ones(2),
        steps=100,
        clock=lambda: next(ticks) * 0.5,
    )


def _carry_out_train(plan):
    step = _make_train_step()
    state = step.init(jnp.zeros(2))
    return fx.train.apply(step, plan, state=state, batches=[jnp.ones(2)]).receipt


_MODEL = fx.models.MLP(input_size=16, hidden_sizes=[16] * 3, output_size=4)
_SHAPES = {"input": (64, 16)}


def _models(limit: float) -> Any:
    budget = fx.MemoryBudget(limit_bytes=int(limit))
    return fx.models.plan(_MODEL, budget, backend=fx.JaxBackend(), shapes=_SHAPES)


def _carry_out_models(plan):
    return fx.models.apply(
        _MODEL, plan, backend=fx.JaxBackend(), shapes=_SHAPES
    ).report()


_STEP = fx.train.make_train_step(lambda w, x: ((x @ w) ** 2).mean(), optax.sgd(0.1))
# A batch so small that the weights are most of a device's bytes.
_WIDE, _ROWS = jnp.ones((256, 256)), jnp.ones((8, 256))


def _layouts(limit):
    return fx.fit.search(
        fx.fit.Workload.of(_STEP, (_STEP.init_shapes(_WIDE), _ROWS)),
        Target.here(),
        fx.MemoryBudget(limit_bytes=int(limit), kind="total"),
        over=("layout",),
    )


def _carry_out_layouts(plan):
    step = fx.fit.apply(_STEP, plan)
    step(step.init(_WIDE), _ROWS)
    return step.report()


_CONFIG = RunConfig(name="contract", train=TrainConfig(steps=2), task="tiny_task:task")


def _run(limit):
    ticks = itertools.count()
    budgets = Budgets(memory=fx.MemoryBudget(limit_bytes=int(limit)))
    return fx.run.plan(
        _CONFIG,
        budgets,
        config_folder=Path(__file__).parent,
        clock=lambda: next(ticks) * 1e-3,
    )


def _carry_out_run(plan):
    with tempfile.TemporaryDirectory() as folder:
        return fx.run.apply(
            _CONFIG,
            plan,
            config_folder=Path(__file__).parent,
            folder=RunFolder(Path(folder) / "contract"),
        ).receipt


_LESS = lambda limit: float(np.nextafter(limit, 0))
# A measured `needed` is feasible, but nothing proves that less is not.
_HALF = lambda limit: limit / 2
PACKAGES = {
    "remat": Package(
        lambda n: fx.remat.plan(
            _loss, fx.MemoryBudget(limit_bytes=int(n)), example_args=_EXAMPLES
        ),
        lambda plan: fx.remat.apply(_loss, plan).report(*_EXAMPLES),
        enough=2**20,
        too_little=100,
        below=_HALF,
    ),
    "fit": Package(
        lambda n: fx.plan(
            _loss, _EXAMPLES, fx.MemoryBudget(limit_bytes=int(n)), target="cpu"
        ),
        lambda plan: fx.fit.apply(_loss, plan).report(*_EXAMPLES),
        enough=2**20,
        too_little=100,
        below=_HALF,
    ),
    "compress": Package(
        lambda n: fx.compress.plan(_WEIGHTS, fx.SizeBudget(bytes=int(n))),
        lambda plan: fx.compress.apply(_WEIGHTS, plan).receipt,
        enough=4000,
        too_little=10,
    ),
    "train": Package(
        _train, _carry_out_train, enough=10.0, too_little=0.5, below=_LESS
    ),
    "fit, layouts": Package(_layouts, _carry_out_layouts, enough=2**21, too_little=100),
    "watch": Package(
        _watch, _carry_out_watch, enough=0.5, too_little=1e-9, below=_LESS
    ),
    "models": Package(_models, _carry_out_models, 2**20, 10, below=_HALF),
    "causal": Package(
        _causal,
        lambda plan: fx.causal.apply(_VARIABLES, plan).receipt,
        enough=5.0,
        too_little=1.0,
        below=_LESS,
    ),
    "run": Package(
        _run,
        _carry_out_run,
        enough=2**20,
        too_little=100,
        below=_HALF,
        predicted=lambda plan: plan.memory_bytes,
    ),
}


@functools.cache
def plan_enough(package: Package) -> Plan:
    """Plan for a limit that is met, once for all tests."""
    return package.plan(package.enough)


every_package = pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)


@every_package
def test_a_plan_is_frozen_hashable_and_prints_as_a_table(package):
    plan = plan_enough(package)
    assert isinstance(plan, Plan)
    assert dataclasses.is_dataclass(plan)
    assert hash(plan) == hash(pickle.loads(pickle.dumps(plan)))
    assert plan == package.plan(package.enough)
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        plan.budget = None  # pyrefly: ignore[read-only]
    lines = str(plan).splitlines()
    assert any(set(line) <= {"-", " "} for line in lines), "no table"


@every_package
def test_a_plan_survives_json_both_ways(package):
    plan = plan_enough(package)
    text = plan.to_json()
    assert isinstance(json.loads(text), dict)
    assert type(plan).from_json(text) == plan


@every_package
def test_the_prediction_is_within_the_limit(package):
    assert 0 <= package.predicted(plan_enough(package)) <= package.enough


@every_package
def test_the_receipt_of_a_result_compares_the_prediction(package):
    receipt = package.carry_out(plan_enough(package))
    assert isinstance(receipt, Receipt)
    assert receipt.spends
    assert all(spend.limit > 0 for spend in receipt.spends)
    assert any(spend.predicted is not None for spend in receipt.spends)


# Every limit that models tries takes some seconds of compilations.
@pytest.mark.parametrize(
    "package",
    [
        pytest.param(
            package, id=name, marks=[pytest.mark.thorough] * (name == "models")
        )
        for name, package in PACKAGES.items()
    ],
)
def test_at_needed_planning_succeeds_and_below_it_raises(package):
    with pytest.raises(InfeasibleBudgetError) as caught:
        package.plan(package.too_little)
    needed = caught.value.needed
    assert needed > package.too_little == caught.value.limit
    assert package.predicted(package.plan(needed)) <= needed
    with pytest.raises(InfeasibleBudgetError):
        package.plan(package.below(needed))


def planning_packages():
    """Find every public package that plans, by its shortest name."""
    found = {}
    for module in pkgutil.walk_packages(fx.__path__, "frugax."):
        private = any(part.startswith("_") for part in module.name.split("."))
        # The torch backend may be missing, and compat has the names of older systems.
        elsewhere = {"compat", "to_torch"} & set(module.name.split("."))
        if module.ispkg and not private and not elsewhere:
            function = getattr(importlib.import_module(module.name), "plan", None)
            if inspect.isfunction(function):
                name = module.name.removeprefix("frugax.")
                found[function] = min(name, found.get(function, name), key=len)
    return sorted(found.values())


def test_every_package_that_plans_is_here():
    assert set(planning_packages()) == {name.split(",")[0] for name in PACKAGES}


@pytest.mark.parametrize("package", planning_packages())
def test_plan_and_apply_have_the_same_signatures(package):
    module = importlib.import_module(f"frugax.{package}")
    for function, second in (("plan", "budget"), ("apply", "plan")):
        parameters = list(
            inspect.signature(getattr(module, function)).parameters.values()
        )
        if (package, function) == ("fit", "plan"):
            # A program that is not run yet: its arguments are given beside it.
            assert parameters.pop(1).name == "args"
        assert parameters[1].name == second
        # Acceptance tests of an older guide give the examples of remat by position.
        rest = [
            p for p in parameters[2:] if (package, p.name) != ("remat", "example_args")
        ]
        assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in rest)
