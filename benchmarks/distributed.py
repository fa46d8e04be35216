"""Kill processes at random; check that nothing is lost and how soon the others exit.

    python -m benchmarks.distributed --kills 20

Writes benchmarks/results/distributed.json and prints the table of docs/distributed.md.
Each trial starts two processes, of which a random one is killed (SIGKILL) or stopped
(SIGSTOP) after a random step, and then starts all again. Its last loss must be that of
a run that was not interrupted, to the last bit. The bars: 5 s after SIGKILL, 30 s after
SIGSTOP, counted until the launcher returns.

    python -m benchmarks.distributed --memory 512

measures the memory that a process of two needs to save and to restore a state of so
many MiB that is split over 2 x 4 devices: by `Checkpoints`, and gathered whole in every
process.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 60
BARS_S = {"SIGKILL": 5.0, "SIGSTOP": 30.0}
RESULTS = Path(__file__).parent / "results" / "distributed.json"
MEMORY_RESULTS = RESULTS.with_name("distributed_memory.json")


def worker(folder: Path, fault: tuple[int, int, str] | None) -> None:
    """Train in one process; `fault` is the process, the step and the signal."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    from frugax import train
    from frugax.train import distributed

    distributed.initialize()
    layout = distributed.Layout.over(kind="fully-sharded")
    rows = layout.local_rows(32)

    def loss(params, batch):
        out = jnp.tanh(batch["x"] @ params["a"]) @ params["b"]
        return ((out - batch["y"]) ** 2).mean()

    def batch_of(index):
        x = np.random.default_rng(index).normal(size=(32, 64)).astype(np.float32)[rows]
        return layout.from_local({"x": x, "y": np.sin(x[:, :4])})

    def on_step(number, metrics, state):
        if fault and (jax.process_index(), number) == fault[:2]:
            (folder / "fault").write_text(str(time.time()))
            os.kill(os.getpid(), signal.Signals[fault[2]])

    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(64, 512)) / 8, rng.normal(size=(512, 4)) / 20
    step = train.make_train_step(loss, optax.adam(1e-2), layout=layout)
    state = step.init({"a": a.astype(np.float32), "b": b.astype(np.float32)})
    checkpoints = train.Checkpoints(folder / "checkpoints")
    last = checkpoints.latest_intact_step()
    if last is not None:
        state, _ = checkpoints.restore(state, step=last)
    result = train.fit(
        step,
        state,
        batch_of,
        steps=STEPS,
        checkpoints=checkpoints,
        save_every=10,
        on_step=on_step,
    )
    if jax.process_index() == 0:
        (folder / "loss").write_text(repr(result.loss))


def memory_worker(folder: Path, mib: int) -> None:
    """Print how far the memory of this process rises, in MiB."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils

    from frugax import train
    from frugax.train import distributed

    distributed.initialize()
    layout = distributed.Layout.over(kind="fully-sharded")
    shapes = {
        str(i): jax.ShapeDtypeStruct((mib * 2**15 // 64, 64), "float32")
        for i in range(8)
    }
    shardings = layout.state_sharding(shapes)

    def make(scale):
        draw = lambda s: scale * jnp.cos(jnp.arange(s.shape[0] * 64, dtype="float32"))
        return jax.tree.map(lambda s: draw(s).reshape(s.shape), shapes)

    params = jax.jit(make, out_shardings=shardings)(1.0)
    state = train.TrainState(
        jax.device_put(jnp.int32(1), layout.replicated), params, ()
    )
    jax.block_until_ready(state)
    checkpoints = train.Checkpoints(folder / "checkpoints")

    def gather():
        return [
            multihost_utils.process_allgather(x, tiled=True) for x in params.values()
        ]

    def save_later():
        checkpoints.save(state._replace(step=state.step + 1), wait=False)
        checkpoints.wait()

    found = {"state": mib, "shards": mib / jax.process_count()}
    for name, action in {
        "save": lambda: checkpoints.save(state),
        "save in the background": save_later,
        "restore": lambda: checkpoints.restore(state),
        "gather whole": gather,
    }.items():
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
        before = resident_mib("VmRSS")
        kept = action()
        found[name] = resident_mib("VmHWM") - before
        del kept
    if jax.process_index() == 0:
        (folder / "memory").write_text(json.dumps(found))


def resident_mib(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(x for x in lines if x.startswith(what)).split()[1]) / 1024


def measure_memory(mib: int) -> dict:
    with tempfile.TemporaryDirectory() as place:
        work = [sys.executable, __file__, "--worker", place, "--memory", str(mib)]
        command = "from frugax.cli import main; main()"
        starting = [
            sys.executable,
            "-c",
            command,
            "launch",
            "-n",
            "2",
            "--devices",
            "4",
        ]
        subprocess.run([*starting, "--", *work], check=True)
        return json.loads((Path(place) / "memory").read_text())


def launch(folder: Path, processes: int, fault: tuple | None = None) -> dict:
    """Run the workers; return exit codes, and when the survivors and all had exited."""
    folder.mkdir(exist_ok=True)
    command = "from frugax.cli import main; main()"
    work = [sys.executable, __file__, "--worker", str(folder)]
    if fault:
        work += ["--fault", json.dumps(fault)]
    starting = [sys.executable, "-c", command, "launch", "-n", str(processes), "--"]
    codes, last = {}, 0.0
    # Compiled programs of an earlier run would hide that it works without.
    env = {**os.environ, "XLA_FLAGS": "", "FRUGAX_COMPILE_CACHE": "0"}
    with subprocess.Popen(
        [*starting, *work], env=env, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            words = line.split()
            if line.startswith("frugax launch: process"):
                codes[int(words[3])] = " ".join(words[6:]).split(";")[0].rstrip(".")
                last = time.time()
        code = process.wait()
    if not fault:
        assert code == 0, "".join(said)
        return {}
    began = float((folder / "fault").read_text())
    return {
        "code": code,
        "ended": codes,
        "survivors_out_s": round(last - began, 2),
        "all_out_s": round(time.time() - began, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", type=int, metavar="MIB")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fault", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker and args.memory:
        memory_worker(args.worker, args.memory)
        return 0
    if args.worker:
        worker(args.worker, args.fault and tuple(args.fault))
        return 0
    from benchmarks.machine import made_with  # the workers do without

    if args.memory:
        found = {"made_with": made_with(), "mib": measure_memory(args.memory)}
        MEMORY_RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(found["mib"], indent=1))
        return 0
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        launch(whole, args.processes)
        expected = (whole / "loss").read_text()
        trials = []
        for i in range(args.kills):
            folder = Path(place) / str(i)
            fault = (
                rng.randrange(args.processes),
                rng.randrange(1, STEPS),
                rng.choice(list(BARS_S)),
            )
            left = launch(folder, args.processes, fault)
            launch(folder, args.processes)
            loss = (folder / "loss").read_text()
            trial = {
                "process": fault[0],
                "step": fault[1],
                "signal": fault[2],
                **left,
                "same_loss": loss == expected,
                "load": round(os.getloadavg()[0], 1),
            }
            print(json.dumps(trial), flush=True)
            trials.append(trial)

    found = {
        "made_with": made_with(),
        "processes": args.processes,
        "expected_loss": expected,
        "trials": trials,
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print("\n| signal | kills | nothing lost | all out, median | worst | bar |")
    print("|---|---|---|---|---|---|")
    well = True
    for name, bar in BARS_S.items():
        of = [t for t in trials if t["signal"] == name]
        if not of:
            continue
        seconds = sorted(t["all_out_s"] for t in of)
        same = sum(t["same_loss"] for t in of)
        well &= same == len(of) and seconds[-1] <= bar
        middle = seconds[len(seconds) // 2]
        print(
            f"| {name} | {len(of)} | {same} of {len(of)} | {middle:.1f} s | "
            f"{seconds[-1]:.1f} s | {bar:.0f} s |"
        )
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
