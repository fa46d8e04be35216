"""The cost of a described model beside the same one by hand and in other libraries.

    python -m benchmarks.models [step tiny memory]

`step`: value and gradients of three nets by hand in JAX, in frugax, flax nnx, equinox
and torch, each in the fastest forms that their guides name, on the same two cores.
Before the clock starts, the loss of every program and the norm of its gradients must
agree. `tiny`: the cost of a call, by processor time.

`memory`: models under budgets. Bytes and flops are those of the compiled programs,
errors those of outputs and gradients against the model without a budget.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks import models_nets
from benchmarks.harness import (
    Case,
    Figures,
    Part,
    choose,
    run,
    time_cases,
)

import frugax as fx
from frugax import models
from frugax.errors import InfeasibleBudgetError
from frugax.measure import program

# float32 sums in another order, through four blocks; a wrong formula is off by 1e-2.
TOLERANCE = 2e-5


def programs(net: models_nets.Net) -> dict[str, models_nets.Program]:
    """Every library's, ours first; all are checked against the first by hand.

    Raises:
        ValueError: a loss, or the norm of the gradients, differs.
    """
    made = {
        "frugax": models_nets.in_frugax(net),
        "frugax again": models_nets.in_frugax(net),
    }
    made |= models_nets.by_hand(net) | models_nets.in_flax(net)
    made |= models_nets.in_equinox(net) | models_nets.in_torch(net)
    summaries = {name: summarise(p.step()) for name, p in made.items()}
    wanted = summaries[next(name for name in made if name.startswith("JAX"))]
    for name, found in summaries.items():
        apart = np.abs(found / wanted - 1).max()
        if not apart < TOLERANCE:
            raise ValueError(f"{name}: loss or gradients differ by {apart:.1e}.")
    return made


def summarise(step: Any) -> np.ndarray:
    """The loss, and the norm of all gradients, which no layout changes."""
    loss, grads = step
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(grads)]
    norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in leaves))
    return np.array([float(loss), norm])


def time_steps(given: argparse.Namespace) -> Iterator[Case]:
    """Value and gradients, by the clock on the wall: a user waits for it."""
    for name in choose(models_nets.SIZED, given, 1):
        steps = {k: p.step for k, p in programs(models_nets.NETS[name]).items()}
        ours, again = steps.pop("frugax"), steps.pop("frugax again")
        task = f"{name}: value and gradients"
        yield Case(name=name, ours=ours, control=again, rivals=steps, task=task)


def time_tiny(given: argparse.Namespace) -> Iterator[Case]:
    """Calls that show the wrapper and nothing else."""
    for net in choose(models_nets.TINY, given, 1):
        made = programs(models_nets.NETS[net])
        for what in ("forward", "step"):
            each = {k: getattr(p, what) for k, p in made.items()}
            ours, again = each.pop("frugax"), each.pop("frugax again")
            how: dict[str, Any] = {"control": again, "rivals": each, "clock": "cpu"}
            yield Case(name=f"{net}, {what}", ours=ours, **how)


# --- budgets ------------------------------------------------------------------------


def conv_net() -> Any:
    layers = []
    for channels in (16, 16, 32, 32):
        layers += [models.Conv2D(channels), models.Relu()]
    return models.Model(*layers, models.Flatten(), models.Linear(10))


def encoder(depth: int) -> Any:
    return models.Model(*(models.TransformerBlock(64, 4, 256) for _ in range(depth)))


NETS = {
    "MLP, 8 layers of 256": (
        models.MLP(input_size=64, hidden_sizes=[256] * 8, output_size=64),
        (512, 64),
        None,
    ),
    "4 encoder blocks, unrolled": (encoder(4), (8, 64, 64), None),
    "8 encoder blocks, one loop": (encoder(8), (8, 64, 64), 2),
    "4 convolutions": (conv_net(), (32, 16, 16, 3), None),
}


def distance(a: Any, b: Any) -> float:
    """Norm of the difference over the norm, of outputs and of all gradients as one."""
    rows = lambda t: [
        jnp.concatenate([v.ravel() for v in jax.tree.leaves(part)]) for part in t
    ]
    pairs = zip(rows(a), rows(b), strict=True)
    return max(float(jnp.linalg.norm(x - y) / jnp.linalg.norm(y)) for x, y in pairs)


def measure_memory(given: argparse.Namespace) -> Figures:
    """Gradients in shares of the bytes that they take without a budget."""
    found: Figures = {}
    for name in choose(NETS, given, 1):
        model, shape, scan_from = NETS[name]
        how: dict[str, Any] = {"shapes": {"input": shape}, "scan_from": scan_from}
        plain = models.compile(model, fx.JaxBackend(), **how)
        params = plain.randomize_params(0)
        data = {"input": jax.random.normal(jax.random.key(1), shape)}
        outputs, key = plain.evaluate(params, data), jax.random.key(2)
        pulls = {k: jax.random.normal(key, v.shape) for k, v in outputs.items()}
        gradients = lambda *args, plain=plain: plain.evaluate(*args)
        compiled = jax.jit(gradients).lower(params, data, pulls).compile()
        whole, exact = program(compiled).temp_bytes, plain.evaluate(params, data, pulls)
        for share in (0.5,) if given.quick else (0.5, 0.25, 0.1):
            budget = fx.MemoryBudget(limit_bytes=int(whole * share))
            row: Figures = {"without": whole}
            try:
                fitted: Any = models.compile(
                    model, fx.JaxBackend(), **how, budget=budget
                )
            except InfeasibleBudgetError as e:
                found[f"{name}, {share:g}"] = row | {"needed": e.needed / whole}
                continue
            (spend,) = fitted.report().spends
            found[f"{name}, {share:g}"] = row | {
                "measured": (spend.measured or 0) / whole,
                "verdict": str(fitted.report().verdict),
                "chunks": fitted.plan.batch.count if fitted.plan.batch else 1,
                "extra_flops": fitted.plan.extra_share,
                "error": distance(fitted.evaluate(params, data, pulls), exact),
            }
    return found


PARTS = {
    "step": time_cases(time_steps, unit="ms"),
    "tiny": time_cases(time_tiny),
    "memory": Part(measure=measure_memory),
}


if __name__ == "__main__":
    run("models", PARTS, about=__doc__, cores=2)
