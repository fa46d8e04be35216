"""Train the surrogate that ships with frugax, and measure the cost of a training step.

    python -m benchmarks.causal_train --seed 1 --steps 3000 --cpu-minutes 20
    python -m benchmarks.causal_train --cost
    python -m benchmarks.causal_train --raw

The first puts the surrogate into the package and prints what training cost. `--cost`
compares the compiled step with the same step run op by op, and writes compile seconds,
milliseconds a step, their ratio and the number of steps after which compiling has paid
for itself to results/causal_train.json. All are CPU-seconds of this process, all
threads together; the compile cache is off. `--raw` trains the guide's model of pairs
and its raw one for as many CPU-seconds each, compiling left out, and prints the
negative log-likelihood of the true parents in problems that neither has seen.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from benchmarks.machine import made_with

import frugax.causal.surrogate
from frugax import causal
from frugax.budget import table
from frugax.causal import save_surrogate, train_surrogate
from frugax.compat import causal_training

_PLACE = Path(frugax.causal.surrogate.__file__).with_name("default.fxz")


_RESULT = Path(__file__).parent / "results" / "causal_train.json"
# As in the guide's own test.
_SIZE = {"batch": 3, "rows": 20, "variables": 3, "hidden": 16, "layers": 2}


def cost_of_guide_step(size: dict[str, int], repeats: int) -> dict[str, Any]:
    """The guide's step, compiled and op by op, on the same batch in turns."""
    config = causal_training.SurrogateTrainingConfig(
        model_hidden_dim=size["hidden"],
        model_n_layers=size["layers"],
        batch_size=size["batch"],
    )
    scm = causal.generate_scm("erdos_renyi", size["variables"], seed=0)
    samples = causal.collect_observational_data(scm, size["rows"], seed=0)
    batch = causal_training.create_training_batch(samples, scm, size["batch"])
    b = causal_training.convert_to_jax_batch(batch)
    model = causal_training.create_parent_set_model(config)
    optimizer = optax.adam(1e-3)
    params = model.init(jax.random.key(0))
    state = optimizer.init(params)
    loss = causal_training.kl_divergence_loss
    compiled = causal_training.create_jax_surrogate_train_step(model, optimizer, loss)
    eager = causal_training.create_surrogate_train_step(model, optimizer, loss)

    def call(step: Any) -> tuple[float, Any]:
        began = time.process_time()
        out = step(
            params, state, b.parent_sets, b.variable_orders, b.target_variables,
            b.observational_data, b.expert_probs, b.expert_accuracies,
        )  # fmt: skip
        jax.block_until_ready(out)
        return time.process_time() - began, out

    first, out = call(compiled)
    first_eager, other = call(eager)
    pairs = [(call(compiled)[0], call(eager)[0]) for _ in range(repeats)]
    ours, theirs = np.array(pairs).T
    ratios = np.sort(theirs / ours)
    return {
        "size": size,
        "weights": int(sum(w.size for w in params.values())),
        "compile_s": first - float(np.median(ours)),
        "step_ms": 1e3 * float(np.median(ours)),
        "eager_ms": 1e3 * float(np.median(theirs)),
        "eager_first_s": first_eager,
        "eager/jit": float(np.median(ratios)),
        "eager/jit least and greatest": [float(ratios[0]), float(ratios[-1])],
        "break_even_steps": first / max(float(np.median(theirs - ours)), 1e-9),
        "compiles": compiled.compiles,
        "difference": max(
            float(np.abs(np.asarray(out[0][n] - other[0][n])).max()) for n in params
        ),
    }


def cost_of_training() -> dict[str, Any]:
    """The training step of the shipped weights: one compile, 64 data sets a step."""
    seconds: list[float] = []
    began = time.process_time()
    trained = train_surrogate(
        seed=1,
        steps=12,
        progress=lambda index, metrics: (
            jax.block_until_ready(metrics["loss"]),
            seconds.append(time.process_time()),
        ),
    )
    each = np.diff(seconds)
    return {
        "compiles": trained.receipt.spends[0].measured,
        "until the first step is done_s": seconds[0] - began,
        "step_ms, data included": 1e3 * float(np.median(each)),
    }


def keep(found: dict[str, Any]) -> None:
    """Add to the file of results."""
    old = json.loads(_RESULT.read_text()) if _RESULT.exists() else {}
    told = {**old, **found, "made with": made_with()}
    _RESULT.write_text(json.dumps(told, indent=1) + "\n")


def cost() -> None:
    """Measure, print and keep."""
    jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))  # JAX's own start
    result: dict[str, Any] = {"training": cost_of_training()}
    print(result["training"], flush=True)
    result["guide"] = each = cost_of_guide_step(_SIZE, 5)
    keep(result)
    head = ["compile s", "step ms", "op by op ms", "ratio", "break-even"]
    row = [
        f"{each['compile_s']:.1f}",
        f"{each['step_ms']:.1f}",
        f"{each['eager_ms']:.0f}",
        f"{each['eager/jit']:.0f}",
        f"{each['break_even_steps']:.0f}",
    ]
    print(each, table(head, [row]), sep="\n")


def problem_batch(seed: int) -> causal_training.TrainingBatchJAX:
    """Four random models of five variables, each variable a target."""
    examples: list[Any] = []
    for number in range(4):
        rng = np.random.default_rng([seed, number])
        family = str(rng.choice(["linear", "mlp"]))
        scm = causal.generate_scm("erdos_renyi", 5, family=family, seed=rng)
        samples = causal.sample(scm, 32, seed=seed)
        for name in scm.variables:
            do = causal.intervene(**{name: float(rng.uniform(-2, 2))})
            samples = samples.concat(causal.sample(scm, 6, seed=seed, intervention=do))
        examples += causal_training.create_training_batch(samples, scm, 5).examples
    return causal_training.convert_to_jax_batch(causal_training.TrainingBatch(examples))


def raw_beside_pairs(cpu_s: float) -> dict[str, Any]:
    """Both models of the guide after as many CPU-seconds of training."""
    unseen = [problem_batch(10**6 + i) for i in range(10)]
    found: dict[str, Any] = {"cpu_s": cpu_s}
    for kind in ("pairs", "raw"):
        config = causal_training.SurrogateTrainingConfig(
            model=kind, model_hidden_dim=16, batch_size=20
        )
        model = causal_training.create_parent_set_model(config)
        optimizer = optax.adam(3e-3)
        loss = causal_training.kl_divergence_loss
        step = causal_training.create_jax_surrogate_train_step(model, optimizer, loss)
        params = model.init(jax.random.key(0))

        def surprise(params: Any, model: Any = model) -> float:
            each = [
                -np.asarray(
                    jax.nn.log_softmax(model.apply(params, b)["parent_set_logits"])
                )
                for b in unseen
            ]
            probs = [np.asarray(b.expert_probs) for b in unseen]
            return float(
                np.mean([(p * e).sum(1) for p, e in zip(probs, each, strict=True)])
            )

        state, steps, spent, before = optimizer.init(params), -1, 0.0, surprise(params)
        while spent < cpu_s:
            b = problem_batch(steps + 1)
            began = time.process_time()
            params, state, _ = step(
                params, state, b.parent_sets, b.variable_orders, b.target_variables,
                b.observational_data, b.expert_probs, b.expert_accuracies,
            )  # fmt: skip
            jax.block_until_ready(params)
            steps += 1
            spent += (time.process_time() - began) if steps else 0.0  # first: compiles
        found[kind] = {
            "steps": steps,
            "surprise before": before,
            "surprise": surprise(params),
            "compiles": step.compiles,
        }
        print(kind, found[kind], flush=True)
    return found


def main() -> None:
    """Train and save, or measure a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--cpu-minutes", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=_PLACE)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--raw", action="store_true")
    given = parser.parse_args()
    if given.cost:
        cost()
        return
    if given.raw:
        keep({"raw beside pairs": raw_beside_pairs(20.0)})
        return

    def tell(index: int, metrics: dict) -> None:
        if index % 100 == 0:
            sets, edges = float(metrics["sets"]), float(metrics["edges"])
            cpu = time.process_time()
            print(f"{index:6d} {cpu:7.1f} CPU-s  sets {sets:.3f}  edges {edges:.3f}")

    trained = train_surrogate(
        seed=given.seed,
        steps=given.steps,
        cpu_seconds=60 * given.cpu_minutes,
        prefetch=2,
        progress=tell,
    )
    save_surrogate(given.out, trained.surrogate)
    print(trained.receipt)
    print(
        f"{trained.steps} steps, {trained.graphs} data sets, "
        f"{trained.cpu_seconds:.0f} CPU-s; temperature "
        f"{trained.surrogate.temperature:.3f}; {given.out.stat().st_size} bytes"
    )


if __name__ == "__main__":
    main()
