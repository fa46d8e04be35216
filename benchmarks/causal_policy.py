"""A learned policy beside those that are not, at equal cost on models not seen before.

    python -m benchmarks.causal_policy learn --folder POLICY
    python -m benchmarks.causal_policy compare --folder POLICY --models 50

`learn` lets the default policy play campaigns on random models (linear and networks),
clones it, and continues from there with GRPO. `compare` plays whole campaigns on other
random models, a third of them of random Fourier features, which were in no training:
every policy sees the same observed rows and has the same budget of money, five
experiments of the usual price. Regret is the difference of the target's true mean under
the best intervention and under the last recommendation, in standard deviations of the
target. The oracle's is 0.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.machine import made_with

from frugax.budget import table
from frugax.compat.causal_training import (
    AcquisitionPolicy,
    Demonstrations,
    GRPOConfig,
    PolicyConfig,
    Task,
    clone_expert,
    collect_grpo_batch,
    create_acquisition_policy,
    create_grpo_trainer,
    expert_demonstrations,
    play,
    random_tasks,
)

RESULTS = Path(__file__).parent / "results" / "causal_policy.json"
TRAINING, VALIDATION, HELD_OUT = 100, 200, 300  # seeds of models
NAMED = ("improvement", "thompson", "gain", "ucb", "random")


def demonstrations(folder: Path, campaigns: int, seed: int) -> Demonstrations:
    """The default policy's campaigns, played once and then kept in the folder."""
    path = folder / f"shown-{seed}-{campaigns}.npz"
    if not path.exists():
        began = time.process_time()
        expert_demonstrations(campaigns, seed=seed).save(path)
        print(f"{campaigns} campaigns: {time.process_time() - began:.0f} CPU-s")
    return Demonstrations.load(path)


def learn(
    folder: Path, campaigns: int, validation: int, batches: int, moments: int
) -> dict[str, Any]:
    """Clone, then GRPO; the state that is best on the validation models is kept."""
    shown = demonstrations(folder, campaigns, TRAINING)
    held = demonstrations(folder, validation, VALIDATION)
    began = time.process_time()
    start = create_acquisition_policy(PolicyConfig())
    cloned, _ = clone_expert(start, shown)
    clone_cpu = time.process_time() - began
    # Chosen on the validation models among a few.
    config = GRPOConfig(
        group_size=32,
        interventions_per_state=4,
        learning_rate=1e-3,
        entropy_coeff=1e-3,
        scale_rewards=False,
    )
    trainer = create_grpo_trainer(cloned, config)
    rng = np.random.default_rng(0)
    curve = [(0, game_regret(cloned, held))]
    best, kept = curve[0][1], cloned
    for batch in range(batches):
        some = shown.take(rng.integers(0, len(shown), moments))
        games = collect_grpo_batch(trainer.policy, some, config, seed=[1, batch])
        update = trainer.update(games)
        if batch % 15 == 14:
            regret = game_regret(trainer.policy, held)
            curve.append((batch + 1, regret))
            if regret < best:
                best, kept = regret, trainer.policy
            print(
                f"{batch + 1:4} reward {update.reward:.4f} kl {update.kl:.4f} entropy "
                f"{update.entropy:.3f} clipped {update.clipped:.2f} validation regret "
                f"{regret:.4f} {time.process_time() - began:.0f} CPU-s",
                flush=True,
            )
    cloned.save(folder / "cloned.fxz")
    kept.save(folder / "grpo.fxz")
    return {
        "moments": len(shown),
        "clone_cpu_s": clone_cpu,
        "cpu_s": time.process_time() - began,
        "compiles": trainer.step.compiles,
        "games": batches * moments * config.group_size,
        "validation": curve,
        "validation of an untrained one": game_regret(start, held, greedy=False),
    }


def game_regret(
    policy: AcquisitionPolicy, moments: Demonstrations, *, greedy: bool = True
) -> float:
    """Mean regret after games of five experiments, 16 from each moment."""
    each = moments.take(np.repeat(np.arange(len(moments)), 16))
    rng = np.random.default_rng(0)
    played = play(policy.weights, each.board, each.truth, 5, rng, greedy=greedy)
    return float(played.regret.mean())


def regret_of(task: Task, policy: Any) -> float:
    """True regret of the last recommendation of a whole campaign."""
    campaign = task.campaign(policy)
    while (ask := campaign.ask()) is not None:
        done = ask.intervention
        rows = task.truth.sample(
            task.rows, seed=task.seed + 1 + ask.id, intervention=done
        )
        campaign.tell(ask, rows)
    return max(task.truth.regret(campaign.recommend().intervention), 0.0)


def compare(folder: Path, models: int, part: tuple[int, int]) -> dict[str, Any]:
    """Run every policy on the same models; stored results are not measured again.

    Args:
        folder: with the policies; each model's result is a line of a file in it.
        models: how many.
        part: number and count of parts, for several processes at once.
    """
    policies: dict[str, Any] = {
        "grpo": AcquisitionPolicy.load(folder / "grpo.fxz"),
        "cloned": AcquisitionPolicy.load(folder / "cloned.fxz"),
    }
    policies |= {name: name for name in NAMED}
    path = folder / "compared.jsonl"
    tasks = random_tasks(HELD_OUT, families=("linear", "mlp", "rff"))
    for number in range(models):
        task = next(tasks)
        if number % part[1] != part[0] or number in measured(path):
            continue
        line: dict[str, Any] = {
            "number": number,
            "variables": len(task.truth.variables),
            "observed": task.observed,
            "rows": task.rows,
            "doing nothing": task.truth.regret(),
            "regret": {},
            "cpu_s": {},
        }
        for name, policy in policies.items():
            began = time.process_time()
            line["regret"][name] = regret_of(task, policy)
            line["cpu_s"][name] = time.process_time() - began
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        said = " ".join(f"{name} {each:.3f}" for name, each in line["regret"].items())
        print(f"{number:3} {line['variables']} variables {said}", flush=True)
    return summary([line for n, line in measured(path).items() if n < models])


def measured(path: Path) -> dict[int, dict[str, Any]]:
    """Read the results in the file, by number of the model."""
    lines = path.read_text().splitlines() if path.exists() else []
    each = sorted((json.loads(line) for line in lines), key=lambda line: line["number"])
    return {line["number"]: line for line in each}


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    regret = {
        name: np.array([line["regret"][name] for line in lines])
        for name in lines[0]["regret"]
    }
    return {
        "models": len(lines),
        "doing nothing": float(np.mean([line["doing nothing"] for line in lines])),
        "policies": {
            name: {
                "mean": float(each.mean()),
                "interval": interval(each),
                "grpo minus it": interval(regret["grpo"] - each),
                "default minus it": interval(regret["improvement"] - each),
                "cpu_s": float(np.mean([line["cpu_s"][name] for line in lines])),
            }
            for name, each in regret.items()
        },
        "lines": lines,
    }


def interval(values: np.ndarray) -> list[float]:
    """Bootstrapped 95 % interval of a mean."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(0, len(values), (4000, len(values)))].mean(1)
    return np.quantile(means, (0.025, 0.975)).tolist()


def keep(found: dict[str, Any]) -> None:
    old = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(
        json.dumps({**old, **found, "made with": made_with()}, indent=1) + "\n"
    )


def main() -> None:
    """Learn, compare, or both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=["learn", "compare", "all"])
    parser.add_argument("--folder", type=Path, default=Path("runs/policy"))
    parser.add_argument("--campaigns", type=int, default=100)
    parser.add_argument("--validation", type=int, default=24, help="campaigns")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--moments", type=int, default=16, help="in one batch")
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument(
        "--of", type=int, nargs=2, default=(0, 1), help="part and count of parts"
    )
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.part != "compare":
        sizes = (given.campaigns, given.validation, given.batches, given.moments)
        keep({"learn": learn(given.folder, *sizes)})
    if given.part != "learn":
        found = compare(given.folder, given.models, tuple(given.of))
        keep({"compare": found})
        lines = [
            [
                name,
                f"{each['mean']:.3f}",
                "{:.3f} to {:.3f}".format(*each["interval"]),
                "{:+.3f} to {:+.3f}".format(*each["grpo minus it"]),
                f"{each['cpu_s']:.1f}",
            ]
            for name, each in found["policies"].items()
        ]
        print(found["models"], "models; doing nothing", found["doing nothing"])
        head = ["policy", "mean regret", "95 %", "grpo minus it", "CPU-s"]
        print(table(head, lines))


if __name__ == "__main__":
    main()
