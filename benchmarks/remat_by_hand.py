"""Compare plans with hand-placed checkpoints on experts, a PINN and ODEs.

    python -m benchmarks.remat_by_hand [--nets NET,...]

By hand: `experts` has one `jax.checkpoint` around each block, with XLA's barriers kept;
`pinn` runs an eighth of the batch at a time in a scan with a checkpoint; `ode` is
`equinox.internal.while_loop(kind="checkpointed")` with 16, 8 and 2 checkpoints, and
`diffrax` the solver with `RecursiveCheckpointAdjoint`, by default and with 16 and 8;
their steps are counted as they run. `loop` is the usual loop of loops by hand, with a
checkpoint in each. Each plan is made for the bytes of its rival. Bytes are shares of
the program without checkpoints, and flops more than its. The results are merged into
`benchmarks/results/remat_by_hand.json`, net by net.
"""

import argparse
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from benchmarks.machine import made_with
from benchmarks.real_weights import install
from benchmarks.remat_cases import said
from benchmarks.remat_policies import NETS, compile_gradient, normal, plan_within
from jax import lax

from frugax import MemoryBudget
from frugax.fileio import write_whole
from frugax.jaxprs import flops
from frugax.targets import Target

STEPS, END = 128, 6.4
CHUNKS = 8
HERE = Target("cpu")
RESULTS = Path(__file__).parent / "results" / "remat_by_hand.json"
Rows = list[dict[str, Any]]
compiled = functools.partial(compile_gradient, target=HERE)


def experts() -> Rows:
    """One checkpoint a block, as `remat_policies` has it."""
    loss, args = NETS["experts"](lambda f: f)
    by_hand, _ = NETS["experts"](jax.checkpoint)
    name = "experts, a checkpoint a block"
    return [beside(name, "by hand", loss, args, compiled(by_hand, args))]


def pinn() -> Rows:
    """A scan over parts of the batch, each of which recomputes its forward pass."""
    loss, (ws, points) = NETS["pinn"](lambda f: f)

    def by_hand(ws: Any, points: Any) -> Any:
        part = jax.checkpoint(loss, prevent_cse=False)
        parts = points.reshape(CHUNKS, -1, *points.shape[1:])
        add = lambda total, rows: (total + part(ws, rows) / CHUNKS, None)
        return lax.scan(add, 0.0, parts)[0]

    name = f"PINN, a scan over 1/{CHUNKS} of the batch"
    rival = compiled(by_hand, (ws, points))
    return [beside(name, "by hand", loss, (ws, points), rival)]


def field(w: Any, y: Any) -> Any:
    return jnp.tanh(jnp.tanh(y @ w) @ w) - y


def ode() -> Rows:
    """Runge-Kutta steps in a loop that checkpoints itself."""
    count = [0]

    def by_hand(w: Any, y: Any, *, checkpoints: int, counts: bool = False) -> Any:
        def body(state: Any) -> Any:
            if counts:
                jax.debug.callback(functools.partial(add_one, count), state[0])
            return state[0] + END / STEPS, rk4(w, state[1])

        start = jnp.zeros(()), y
        more = lambda state: state[0] < END - END / STEPS / 2
        how = {"max_steps": STEPS, "kind": "checkpointed", "checkpoints": checkpoints}
        return jnp.mean(eqxi.while_loop(more, body, start, **how)[1] ** 2)

    rows: Rows = []
    for checkpoints in (16, 8, 2):
        run = functools.partial(by_hand, checkpoints=checkpoints)
        name = f"ODE, {checkpoints} checkpoints of the library"
        rival = counted(run, count, STEPS, solve(rk4))
        rows.append(beside(name, "equinox", solve(rk4), ODE_ARGS, rival))
    return rows


def loop() -> Rows:
    """The same steps in scans of scans by hand, each with a checkpoint."""

    def by_hand(w: Any, y: Any, *, across: int) -> Any:
        @jax.checkpoint
        def group(y: Any, _: Any) -> Any:
            one = jax.checkpoint(lambda y, _: (rk4(w, y), None))
            return lax.scan(one, y, None, length=across)

        return jnp.mean(lax.scan(group, y, None, length=STEPS // across)[0] ** 2)

    rows: Rows = []
    for across in (8, 16):
        rival = compiled(functools.partial(by_hand, across=across), ODE_ARGS)
        name = f"ODE, {STEPS // across} groups of {across} steps by hand"
        rows.append(beside(name, "by hand", solve(rk4), ODE_ARGS, rival))
    return rows


def solve_by_diffrax() -> Rows:
    """Midpoint steps of diffrax, whose adjoint recomputes them."""
    sys.path.append(str(install("diffrax", "lineax", "optimistix")))
    import diffrax  # pyright: ignore[reportMissingImports]

    count = [0]

    def by_hand(w: Any, y: Any, *, counts: bool = False, **how: Any) -> Any:
        def term(t: Any, y: Any, w: Any) -> Any:
            if counts:
                jax.debug.callback(functools.partial(add_one, count), t)
            return field(w, y)

        found = diffrax.diffeqsolve(
            diffrax.ODETerm(term), diffrax.Midpoint(), 0.0, END, END / STEPS, y, w,
            max_steps=STEPS + 1, throw=False,
            adjoint=diffrax.RecursiveCheckpointAdjoint(**how),
        )  # fmt: skip
        return jnp.mean(found.ys[-1] ** 2)

    ours, theirs = (jax.jit(f)(*ODE_ARGS) for f in (solve(midpoint), by_hand))
    assert jnp.allclose(ours, theirs, rtol=1e-4), (ours, theirs)
    rows: Rows = []
    for checkpoints in (None, 16, 8):
        run = functools.partial(by_hand, checkpoints=checkpoints)
        name = f"ODE, {checkpoints or 'as many'} checkpoints of diffrax"
        name += "" if checkpoints else " as it chooses"
        rival = counted(run, count, 2 * STEPS, solve(midpoint))
        rows.append(beside(name, "diffrax", solve(midpoint), ODE_ARGS, rival))
    return rows


def rk4(w: Any, y: Any) -> Any:
    h = END / STEPS
    k1 = field(w, y)
    k2 = field(w, y + h / 2 * k1)
    k3 = field(w, y + h / 2 * k2)
    k4 = field(w, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def midpoint(w: Any, y: Any) -> Any:
    h = END / STEPS
    return y + h * field(w, y + h / 2 * field(w, y))


def solve(step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The loss without checkpoints, of which plans are made."""
    return lambda w, y: jnp.mean(
        lax.fori_loop(0, STEPS, lambda _, y: step(w, y), y) ** 2
    )


def add_one(count: list[int], _: Any) -> None:
    count[0] += 1


def counted(run: Any, count: list[int], once: int, plain: Any) -> tuple[int, float]:
    """Bytes of a program, and its flops from how often its loop's body ran."""
    size, _ = compiled(run, ODE_ARGS)
    _, plain_flops = compiled(plain, ODE_ARGS)
    forward_flops = flops(jax.make_jaxpr(plain)(*ODE_ARGS).jaxpr)
    count[0] = 0
    both = jax.value_and_grad(functools.partial(run, counts=True))
    jax.block_until_ready(jax.jit(both)(*ODE_ARGS))
    jax.effects_barrier()
    return size, plain_flops + (count[0] - once) / once * forward_flops


ODE_ARGS = normal(0, 32, 32, scale=1 / 6), normal(1, 64, 32)


def beside(
    name: str, peer: str, loss: Any, args: Any, rival: tuple[int, float]
) -> dict[str, Any]:
    """One rival, and the plan for its bytes."""
    said(name)
    (plain, plain_flops), (size, count) = compiled(loss, args), rival
    budget = MemoryBudget(limit_bytes=size)
    ours = plan_within(loss, args, budget, HERE, divide_batch=True)
    return {
        "task": name,
        "peer": peer,
        "plain": plain,
        "theirs": {"bytes": size, "extra": count / plain_flops - 1},
        "ours": ours,
    }


def show(row: dict[str, Any]) -> str:
    """A row of the table of docs/remat.md."""
    ours, plain = row["ours"], row["plain"]
    chunks = f", {ours['chunks']} chunks" if ours["chunks"] else ""
    mine = f"{ours['bytes'] / plain:.4f} for {ours['extra']:+.1%}{chunks}"
    theirs = f"{row['theirs']['bytes'] / plain:.4f} for {row['theirs']['extra']:+.1%}"
    return f"| {row['task']} | {theirs} | {'' if ours['met'] else 'needs '}{mine} |"


CASES: dict[str, Callable[[], Rows]] = {
    "experts": experts,
    "pinn": pinn,
    "ode": ode,
    "loop": loop,
    "diffrax": solve_by_diffrax,
}


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--nets", default=",".join(CASES))
    ask.add_argument("--out", type=Path, default=RESULTS)
    given = ask.parse_args()
    names = given.nets.split(",")
    if unknown := set(names) - set(CASES):
        ask.error(
            f"no such net: {', '.join(sorted(unknown))}; have {', '.join(CASES)}."
        )
    record = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name in names:
        record[name] = {"made_with": made_with(), "rows": CASES[name]()}
        write_whole(given.out, json.dumps(record, indent=1) + "\n")
    print("| by hand | bytes and more flops | a plan for its bytes |")
    print("| --- | --: | --: |")
    for name in record:
        print("\n".join(map(show, record[name]["rows"])))


if __name__ == "__main__":
    main()
