"""Train one model in several processes; killed and started again, it resumes.

    frugax launch -n 2 --restarts 3 -- python examples/cluster/train.py checkpoints

On a cluster: trainjob.yaml for Kubeflow Trainer; for Kubernetes' JobSet and for Slurm,
`frugax launch --write` prints the file that starts it.
"""

import argparse
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from frugax import train
from frugax.train import distributed


def loss(params: dict, batch: dict) -> jax.Array:
    """The mean squared error of a small network."""
    hidden = jnp.tanh(batch["x"] @ params["in"])
    return ((hidden @ params["out"] - batch["y"]) ** 2).mean()


def main() -> int:
    """Train, and say with the exit code whether to start again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", help="a folder that every process can reach")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=256, help="in a whole batch")
    args = parser.parse_args()

    distributed.initialize()
    layout = distributed.Layout.over(kind="fully-sharded")
    rows = layout.local_rows(args.rows)

    def batch_of(step: int) -> dict:
        # Only this process's rows: read yours from a file by step and row.
        x = np.random.default_rng(step).normal(size=(args.rows, 64))[rows]
        x = x.astype(np.float32)
        return layout.from_local({"x": x, "y": np.sin(x[:, :4])})

    rng = np.random.default_rng(0)
    params = {
        "in": rng.normal(size=(64, 512)).astype(np.float32) / 8,
        "out": rng.normal(size=(512, 4)).astype(np.float32) / 20,
    }
    step = train.make_train_step(loss, optax.adam(1e-3), layout=layout)
    state = step.init(params)
    checkpoints = train.Checkpoints(args.checkpoints)
    last = checkpoints.latest_intact_step()
    if last is not None:
        state, _ = checkpoints.restore(state, step=last)
    result = train.fit(
        step,
        state,
        batch_of,
        steps=args.steps,
        checkpoints=checkpoints,
        save_every=100,
    )
    if jax.process_index() == 0:
        print(f"{result.steps} steps, loss {result.loss}")  # noqa: T201 - its result
    # After SIGTERM the state is saved, but this is not the end.
    stopped = result.stopped_because == "interrupted"
    return distributed.EXIT_PEER_LOST if stopped else 0


if __name__ == "__main__":
    sys.exit(main())
