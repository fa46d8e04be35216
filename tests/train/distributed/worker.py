"""What one process of a run does in the tests of this folder.

    python worker.py FOLDER STEPS [kill|hang|stop STEP]

Trains a small model and prints the last loss. At STEP the second process dies, sleeps
for ever in Python, or is stopped as a whole; the first time only.
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
    a = rng.normal(size=(64, 512)).astype(np.float32) / 8
    return {"a": a, "b": rng.normal(size=(512, 4)).astype(np.float32) / 20}


def batch_of(index):
    rng = np.random.default_rng(index)
    x = rng.normal(size=(32, 64)).astype(np.float32)
    return {"x": x, "y": np.sin(x[:, :4])}


def train_to(folder, steps, *, layout=None, on_step=None):
    step = train.make_train_step(loss, optax.adam(1e-2), layout=layout)
    state = step.init(weights())
    checkpoints = train.Checkpoints(folder)
    last = checkpoints.latest_sound_step()
    if last is not None:
        state, _ = checkpoints.restore(state, step=last)
    return train.fit(
        step,
        state,
        batch_of,
        steps=steps,
        checkpoints=checkpoints,
        save_every=10,
        on_step=on_step,
    )


def misbehave(how, once):
    if once.exists():
        return
    once.touch()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3600)


def main(folder, steps, how="", at="-1"):
    distributed.initialize(heartbeat_s=10)
    mine = jax.process_index()
    with distributed.Watchdog(least_s=6, first_s=300) as watchdog:

        def on_step(number, metrics, state):
            if how and mine == 1 and number == int(at):
                misbehave(how, Path(folder) / "once")
            jax.block_until_ready(metrics)
            watchdog.beat()

        layout = distributed.Layout.over(kind="fully-sharded")
        result = train_to(folder, int(steps), layout=layout, on_step=on_step)
    if mine == 0:
        (Path(folder) / "result").write_text(
            f"{result.loss!r} {jax.process_count()} {jax.device_count()}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
