"""Models under a budget: bytes of the compiled gradients, and shorter dtypes.

    python -m benchmarks.models_budget            # both; a quarter of an hour
    python -m benchmarks.models_budget --parts dtypes
    python -m benchmarks.models_budget --parts planning   # five minutes

Bytes and flops are those of the compiled programs, errors those of outputs and of
gradients against the model without a budget. Planning is timed in processor seconds,
beside those of compiling the same gradients without a budget.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from benchmarks.machine import made_with

import frugax as fx
from frugax import models
from frugax.errors import InfeasibleBudgetError
from frugax.measure import program

RESULT = Path(__file__).parent / "results" / "models_budget.json"
SHARES = (0.5, 0.25, 0.1)


def conv_net():
    layers = []
    for channels in (16, 16, 32, 32):
        layers += [models.Conv2D(channels), models.Relu()]
    return models.Model(*layers, models.Flatten(), models.Linear(10))


def encoder(depth):
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


def distance(a, b):
    """Norm of the difference over the norm, of outputs and of all gradients as one."""
    rows = lambda t: [
        jnp.concatenate([v.ravel() for v in jax.tree.leaves(part)]) for part in t
    ]
    pairs = zip(rows(a), rows(b), strict=True)
    return max(float(jnp.linalg.norm(x - y) / jnp.linalg.norm(y)) for x, y in pairs)


def memory():
    rows = []
    for name, (model, shape, scan_from) in NETS.items():
        how = {"shapes": {"input": shape}, "scan_from": scan_from}
        plain = models.compile(model, fx.JaxBackend(), **how)
        params = plain.randomize_params(0)
        data = {"input": jax.random.normal(jax.random.key(1), shape)}
        outputs = plain.evaluate(params, data)
        key = jax.random.key(2)
        pulls = {k: jax.random.normal(key, v.shape) for k, v in outputs.items()}

        def gradients(params, data, pulls, plain=plain):
            return plain.evaluate(params, data, pulls)

        compiled = jax.jit(gradients).lower(params, data, pulls).compile()
        whole = program(compiled).temp_bytes
        exact = plain.evaluate(params, data, pulls)
        for share in SHARES:
            budget = fx.MemoryBudget(limit_bytes=int(whole * share))
            row = {"net": name, "without": whole, "budget": share}
            try:
                fitted = models.compile(model, fx.JaxBackend(), **how, budget=budget)
            except InfeasibleBudgetError as e:
                rows.append({**row, "needed": e.needed / whole})
                continue
            (spend,) = fitted.report().spends
            row |= {
                "measured": spend.measured / whole,
                "verdict": str(fitted.report().verdict),
                "micro_batches": fitted.plan.micro_batches,
                "extra_flops": fitted.plan.extra_share,
                "error": distance(fitted.evaluate(params, data, pulls), exact),
            }
            print(row, flush=True)
            rows.append(row)
    return rows


def dtypes():
    model = models.MLP(input_size=64, hidden_sizes=[128] * 4, output_size=16)
    compiled = models.compile(model, fx.JaxBackend())
    params = compiled.randomize_params(0)
    draw = lambda i: {"input": jax.random.normal(jax.random.key(i), (64, 64))}
    seen, unseen = [draw(i) for i in range(6)], [draw(100 + i) for i in range(6)]
    rows = []
    for limit in (
        {"rel_error": 1e-4},
        {"rel_error": 5e-4},
        {"rel_error": 1e-3},
        {"rel_error": 1e-2},
        {"ratio": 1.5},
        {"ratio": 1.9, "rel_error": 1e-4},
        {"ratio": 3},
    ):
        row = {"budget": limit}
        try:
            budget = fx.SizeBudget(**limit)
            plan = models.plan(compiled, budget, params=params, batches=seen)
        except InfeasibleBudgetError as e:
            row |= {"needed": e.needed, "unit": e.unit}
        else:
            cast = models.apply(compiled, plan, params=params)
            row |= {
                "bytes_before": plan.bytes_before,
                "bytes_after": plan.bytes_after,
                "held_out_error": plan.error,
                "unseen": {s.name: s.measured for s in cast.report(unseen).spends},
            }
        print(row, flush=True)
        rows.append(row)
    return rows


def experts(depth):
    blocks = [
        (models.TransformerBlock(32, 4, 64), models.SparseExperts(4, 2))
        for _ in range(depth)
    ]
    return models.Model(*(layer for pair in blocks for layer in pair))


def planning():
    """Processor seconds until gradients are compiled, with budgets and without."""
    nets = {
        **NETS,
        "2 blocks of experts, 32 wide": (experts(2), (8, 32, 32), None),
        "12 encoder blocks, unrolled": (encoder(12), (8, 64, 64), None),
    }
    rows = []
    for name, (model, shape, scan_from) in nets.items():
        how = {"shapes": {"input": shape}, "scan_from": scan_from}

        def seconds(budget, model=model, shape=shape, how=how):
            """Processor seconds from a description to its first gradients."""
            jax.clear_caches()
            with tempfile.TemporaryDirectory() as folder:
                os.environ["XDG_CACHE_HOME"] = folder
                started = time.process_time()
                given = {} if budget is None else {"budget": budget}
                compiled = models.compile(model, fx.JaxBackend(), **how, **given)
                params = {k: jnp.zeros(compiled.shapes[k]) for k in compiled.param_keys}
                data = {"input": jnp.zeros(shape)}
                out = jax.eval_shape(compiled.evaluate, params, data)
                pulls = {k: jnp.zeros(v.shape) for k, v in out.items()}
                jax.block_until_ready(compiled.evaluate(params, data, pulls))
                spent = time.process_time() - started
                extra = compiled.plan.extra_share if budget is not None else 0.0
                step = jax.jit(compiled.evaluate).lower(params, data, pulls)
                held = program(step.compile()).temp_bytes if budget is None else 0
                return spent, held, extra

        seconds(None)
        plain, whole, _ = seconds(None)
        row = {"net": name, "plain_s": plain}
        for share in (1.0, 0.5):
            budget = fx.MemoryBudget(limit_bytes=int(whole * share))
            spent, _, extra = seconds(budget)
            row |= {f"times_{share}": spent / plain, f"flops_{share}": extra}
        print(row, flush=True)
        rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="memory,dtypes")
    wanted = parser.parse_args().parts.split(",")
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    found["environment"] = made_with()
    for name, part in (
        ("memory", memory),
        ("dtypes", dtypes),
        ("planning", planning),
    ):
        if name in wanted:
            found[name] = part()
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
