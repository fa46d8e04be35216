"""What every room's plan promises, checked on all of them alike."""

import dataclasses
import importlib.util
import itertools
import json
import pickle
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import frugax as fx
from frugax.budget import Plan
from frugax.errors import InfeasibleBudgetError
from frugax.watch import probes


@dataclasses.dataclass(frozen=True)
class Room:
    """How to plan in a room, as a function of the limit alone.

    Attributes:
        plan: from a limit to a plan.
        enough: a limit that is met.
        too_little: a limit that nothing meets.
        below: the largest limit that is less than this one.
    """

    plan: Callable[..., Plan]
    enough: float
    too_little: float
    below: Callable[[float], float] = lambda limit: limit - 1


def _loss(weights, x):
    for w in weights:
        x = x + jnp.tanh(x @ w)
    return (x**2).mean()


_EXAMPLES = ([jnp.eye(32)] * 6, jnp.ones((256, 32)))
_WEIGHTS = {"w": np.random.default_rng(0).normal(size=(40, 50)).astype("float32")}


def _causal(cost):
    budget = fx.ExperimentBudget(cost=cost, costs={"X": 2.0, "Y": 3.0, "Z": 4.0})
    subject = {"variables": dict.fromkeys("XYZ", (0.0, 1.0)), "target": "T"}
    return fx.causal.plan(subject, budget)


def _watch(share):
    ticks = itertools.count()

    def double(x):
        probes.record("sum", x.sum())
        return 2 * x

    return fx.watch.plan(
        double,
        fx.OverheadBudget(share=share),
        example_args=(jnp.ones(4),),
        steps=1000,
        seconds=0.01,
        chunk_s=1e-3,
        clock=lambda: next(ticks) * 1e-3,
    )


def _train(seconds):
    ticks = itertools.count()  # every reading of the clock is half a second later
    step = fx.train.make_train_step(lambda w, x: ((w - x) ** 2).sum(), optax.sgd(0.1))
    return fx.train.plan(
        step,
        fx.TimeBudget(seconds=seconds),
        state=step.init(jnp.zeros(2)),
        batch=jnp.ones(2),
        steps=100,
        clock=lambda: next(ticks) * 0.5,
    )


_MODEL = fx.models.MLP(input_size=16, hidden_sizes=[16] * 3, output_size=4)


def _models(limit: float) -> Any:
    budget = fx.MemoryBudget(limit_bytes=int(limit))
    shapes = {"input": (64, 16)}
    return fx.models.plan(_MODEL, budget, backend=fx.JaxBackend(), shapes=shapes)


def _dtypes(limit):
    compiled = fx.compile(_MODEL, fx.JaxBackend())
    batches = [{"input": jnp.full((4, 16), 0.5)}, {"input": jnp.ones((4, 16))}]
    params = compiled.randomize_params(0)
    budget = fx.SizeBudget(bytes=int(limit))
    return fx.models.plan(compiled, budget, params=params, batches=batches)


def _distributed(limit):
    # A batch so small that the weights are most of what a device holds.
    return fx.train.distributed.plan(
        lambda layout, accum: fx.train.make_train_step(
            lambda w, x: ((x @ w) ** 2).mean(), optax.sgd(0.1), layout=layout
        ),
        fx.MemoryBudget(limit_bytes=int(limit), kind="total"),
        params=jnp.ones((256, 256)),
        batch=jnp.ones((8, 256)),
    )


_LESS = lambda limit: float(np.nextafter(limit, 0))
ROOMS = {
    "remat": Room(
        lambda n: fx.remat.plan(
            _loss, fx.MemoryBudget(limit_bytes=int(n)), example_args=_EXAMPLES
        ),
        enough=2**20,
        too_little=100,
        # What is needed has been measured; that nothing less would do is not proved.
        below=lambda limit: limit / 2,
    ),
    "compress": Room(
        lambda n: fx.compress.plan(_WEIGHTS, fx.SizeBudget(bytes=int(n))),
        enough=4000,
        too_little=10,
    ),
    "train": Room(_train, enough=10.0, too_little=0.5, below=_LESS),
    "train, distributed": Room(_distributed, enough=2**21, too_little=100),
    "watch": Room(_watch, enough=0.5, too_little=1e-9, below=_LESS),
    # As for remat.
    "models": Room(_models, 2**20, 10, below=lambda limit: limit / 2),
    "models, dtypes": Room(_dtypes, enough=4000, too_little=10),
    "causal": Room(_causal, enough=5.0, too_little=1.0, below=_LESS),
}
every_room = pytest.mark.parametrize("room", ROOMS.values(), ids=ROOMS)


@every_room
def test_a_plan_is_frozen_hashable_and_prints_as_a_table(room):
    plan = room.plan(room.enough)
    assert isinstance(plan, Plan)
    assert dataclasses.is_dataclass(plan)
    assert hash(plan) == hash(pickle.loads(pickle.dumps(plan)))
    assert plan == room.plan(room.enough)
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        plan.budget = None  # pyright: ignore[reportAttributeAccessIssue]
    lines = str(plan).splitlines()
    assert any(set(line) <= {"-", " "} for line in lines), "no table"


@every_room
def test_a_plan_survives_json_both_ways(room):
    plan = room.plan(room.enough)
    text = plan.to_json()
    assert isinstance(json.loads(text), dict)
    assert type(plan).from_json(text) == plan


@every_room
def test_what_is_predicted_is_within_the_limit(room):
    assert 0 <= room.plan(room.enough).predicted <= room.enough


# Every limit that models tries is some seconds of compilations.
@pytest.mark.parametrize(
    "room",
    [
        pytest.param(room, id=name, marks=[pytest.mark.thorough] * (name == "models"))
        for name, room in ROOMS.items()
    ],
)
def test_at_needed_planning_succeeds_and_below_it_raises(room):
    with pytest.raises(InfeasibleBudgetError) as caught:
        room.plan(room.too_little)
    needed = caught.value.needed
    assert needed > room.too_little == caught.value.limit
    assert room.plan(needed).predicted <= needed
    with pytest.raises(InfeasibleBudgetError):
        room.plan(room.below(needed))


def _is_room(name):
    return importlib.util.find_spec(f"frugax.{name}") is not None


def test_every_room_that_plans_is_here():
    rooms = {n for n in fx.__all__ if _is_room(n) and hasattr(getattr(fx, n), "plan")}
    assert rooms - {"run"} == {name.split(",")[0] for name in ROOMS}
