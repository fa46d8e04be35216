"""One process of a run, for the tests of train.distributed.

    python tests/distributed_worker.py FOLDER STEPS [PHASE HOW [WHO [STEP]]]

Trains a small model and writes the last loss. In PHASE (step, compilation, checkpoint,
evaluation) process WHO misbehaves, the first time only: HOW is kill, stop, hang (sleeps
for ever in Python), raise or term (asks itself to end by SIGTERM).
"""

import os
import signal
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from frugax import train
from frugax.train import distributed


def loss(params, batch):
    out = jnp.tanh(batch["x"] @ params["a"]) @ params["b"]
    return ((out - batch["y"]) ** 2).mean()


def weights():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(64, 384)).astype(np.float32) / 8
    return {"a": a, "b": rng.normal(size=(384, 4)).astype(np.float32) / 20}


def batch_of(index):
    rng = np.random.default_rng(index)
    x = rng.normal(size=(48, 64)).astype(np.float32)
    return {"x": x, "y": np.sin(x[:, :4])}


def train_to(folder, steps, *, layout=None, batches=batch_of, **options):
    step = train.make_train_step(loss, optax.adam(1e-2), layout=layout)
    state = step.init(weights())
    checkpoints = train.Checkpoints(folder)
    last = checkpoints.latest_intact_step()
    if last is not None:
        state, _ = checkpoints.restore(state, step=last)
    return train.fit(
        step,
        state,
        batches,
        steps=steps,
        checkpoints=checkpoints,
        save_every=10,
        **options,
    )


class Fault:
    """Something that happens once in all attempts of a run."""

    def __init__(self, folder, phase="", how="", who="1", at="25"):
        self.once = Path(folder) / "once"
        self.phase, self.how, self.who, self.at = phase, how, int(who), int(at)

    def come(self, phase, step):
        here = phase == self.phase and jax.process_index() == self.who
        if not here or step < self.at or self.once.exists():
            return
        self.once.write_text(str(time.time()))
        if self.how == "raise":
            raise ValueError("a fault of its own")
        signals = {"kill": "SIGKILL", "stop": "SIGSTOP", "term": "SIGTERM"}
        if self.how in signals:
            os.kill(os.getpid(), signal.Signals[signals[self.how]])
        if self.how != "term":
            time.sleep(3600)


def main(folder, steps, *fault):
    distributed.initialize(heartbeat_s=10)
    come = Fault(folder, *fault).come
    completing = train.Checkpoints._complete

    def complete(self, step, leaves, extra):
        if step:  # all arrays are there, and the manifest is missing
            come("checkpoint", step)
        completing(self, step, leaves, extra)

    setattr(train.Checkpoints, "_complete", complete)  # noqa: B010  (a type checker knows no patches)

    def batches(index):
        come("compilation", 0)  # the others compile, or wait in the first step
        return layout.from_local({k: v[rows] for k, v in batch_of(index).items()})

    def evaluate(state):
        come("evaluation", int(state.step))
        return {"one": 1.0}

    losses = []

    def on_step(number, metrics, state):
        losses.append(float(metrics["loss"]))
        come("step", number)

    layout = distributed.Layout.over(kind="fully-sharded")
    rows = layout.local_rows(48)
    result = train_to(
        folder,
        int(steps),
        layout=layout,
        batches=batches,
        evaluate=evaluate,
        evaluate_every=10,
        on_step=on_step,
        watchdog=distributed.Watchdog(min_s=6, first_s=20),
    )
    if result.stopped_because == "interrupted":
        sys.exit(75)
    if jax.process_index() == 0:
        (Path(folder) / "losses").write_text(" ".join(map(repr, losses)))
        (Path(folder) / "result").write_text(
            f"{result.loss!r} {jax.process_count()} {jax.device_count()}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
