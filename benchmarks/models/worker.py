"""A process that runs some of the contestants, one call of the driver at a time.

    python -m benchmarks.models.worker KIND NET

Reads a JSON line for each wish and answers with one. `load` makes the contestants and
checks them: the first one of all writes its loss and gradients to a file, to which the
others, in other processes too, are compared. `again` compiles a hand-written one once
more. `time` runs one for a number of calls.
"""

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from .contestant import Arrays, Contestant
from .nets import NETS, Net

KINDS = ("jax", "torch", "torch.compile")
# float32 sums in another order, through four blocks; a wrong formula is off by 1e-2.
TOLERANCE = 2e-5


def contestants(kind: str, net: Net) -> dict[str, Contestant]:
    # Only this process's own library is imported, torch or JAX, never both.
    if kind == "jax":
        from . import by_hand, equinox_nets, flax_nets, frugax_nets

        made = by_hand.contestants(net) | frugax_nets.contestants(net)
        return made | flax_nets.contestants(net) | equinox_nets.contestants(net)
    from . import torch_nets

    return torch_nets.contestants(net, compiled=kind == "torch.compile")


def again(net: Net, name: str) -> Contestant:
    from . import by_hand

    return by_hand.contestants(net, name)[name]


def difference(got: Arrays, wanted: Arrays) -> float:
    """The largest, as a share of the largest number in each array.

    Raises:
        ValueError: not the same names and shapes.
    """
    if {k: v.shape for k, v in got.items()} != {k: v.shape for k, v in wanted.items()}:
        raise ValueError(f"gradients of {sorted(got)}, not of {sorted(wanted)}.")
    worst = (np.abs(got[k] - w).max() / np.abs(w).max() for k, w in wanted.items())
    return float(max(worst))


def keep(arrays: Arrays, file: Path) -> None:
    """To a file; safetensors writes transposed arrays as if they were not."""
    save_file({k: np.ascontiguousarray(a) for k, a in arrays.items()}, file)


def checked(made: dict[str, Contestant], file: Path) -> dict[str, float]:
    """How far each one's loss and gradients are from those in the file.

    Raises:
        ValueError: too far.
    """
    found = {}
    for name, one in made.items():
        loss, grads = one.result()
        grads = grads | {"loss": np.float32(loss).reshape(1)}
        if not file.exists():
            keep(grads, file)
        found[name] = difference(grads, load_file(file))
        if not found[name] < TOLERANCE:
            raise ValueError(f"{name}: gradients differ by {found[name]:.1e}.")
    return found


def timed(one: Contestant, what: str, calls: int, *, each: bool) -> dict[str, float]:
    """Seconds a call; `each`: wait for each result, else for the last."""
    run, wait = (one.step if what == "step" else one.forward), one.wait
    wait(run())  # untimed: the contestant before has left its data in the caches
    gc.collect()
    gc.disable()
    wall, cpu, out = time.perf_counter(), time.process_time(), None
    if each:
        for _ in range(calls):
            wait(run())
    else:
        for _ in range(calls):
            out = run()
        wait(out)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    gc.enable()
    return {"wall": wall / calls, "cpu": cpu / calls}


def serve(kind: str, net: Net) -> None:
    # Output of libraries must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    made: dict[str, Contestant] = {}
    for line in sys.stdin:
        wish: dict[str, Any] = json.loads(line)
        do = wish.pop("do")
        answer: dict[str, Any]
        try:
            if do == "load":
                made = contestants(kind, net)
                answer = checked(made, Path(wish["file"]))
            elif do == "again":
                made[wish["called"]] = again(net, wish["who"])
                answer = {}
            else:
                answer = timed(made[wish.pop("who")], **wish)
        except Exception as e:
            # The driver notes the failure and continues without this process.
            answer = {"error": f"{type(e).__name__}: {e}"}
        answers.write(json.dumps(answer) + "\n")


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("kind", choices=KINDS)
    ask.add_argument("net", choices=list(NETS))
    given = ask.parse_args()
    serve(given.kind, NETS[given.net])


if __name__ == "__main__":
    main()
