"""Compare plans with hand-placed checkpoints on experts, a PINN and an ODE.

    python -m benchmarks.remat_by_hand [NET ...]

By hand: `experts` has one `jax.checkpoint` around each block, with XLA's barriers kept;
`pinn` runs an eighth of the batch at a time in a scan with a checkpoint; `ode` is
`equinox.internal.while_loop(kind="checkpointed")` with 16, 8 and 2 checkpoints, whose
steps are counted as they run. Each plan is made for the bytes of its rival. Bytes are
shares of the program without checkpoints, and flops more than its.
"""

import functools
import sys
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from benchmarks.remat_cases import said
from benchmarks.remat_policies import NETS, compile_gradient, normal, plan_within
from jax import lax

from frugax import MemoryBudget
from frugax.jaxprs import flops
from frugax.targets import Target

STEPS, END = 128, 6.4
CHUNKS = 8
HERE = Target("cpu")
compiled = functools.partial(compile_gradient, target=HERE)


def experts() -> None:
    """One checkpoint a block, as `remat_policies` has it."""
    loss, args = NETS["experts"](lambda f: f)
    by_hand, _ = NETS["experts"](jax.checkpoint)
    beside("experts, a checkpoint a block", loss, args, compiled(by_hand, args))


def pinn() -> None:
    """A scan over parts of the batch, each of which recomputes its forward pass."""
    loss, (ws, points) = NETS["pinn"](lambda f: f)

    def by_hand(ws: Any, points: Any) -> Any:
        part = jax.checkpoint(loss, prevent_cse=False)
        parts = points.reshape(CHUNKS, -1, *points.shape[1:])
        add = lambda total, rows: (total + part(ws, rows) / CHUNKS, None)
        return lax.scan(add, 0.0, parts)[0]

    name = f"PINN, a scan over 1/{CHUNKS} of the batch"
    beside(name, loss, (ws, points), compiled(by_hand, (ws, points)))


def ode() -> None:
    """Runge-Kutta steps in a loop that checkpoints itself."""
    count = [0]

    def step(w: Any, t: Any, y: Any) -> Any:
        f = lambda y: jnp.tanh(jnp.tanh(y @ w) @ w) - y
        h = END / STEPS
        k1 = f(y)
        k2 = f(y + h / 2 * k1)
        k3 = f(y + h / 2 * k2)
        k4 = f(y + h * k3)
        return t + h, y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def add_one(_: Any) -> None:
        count[0] += 1

    def by_hand(w: Any, y: Any, *, checkpoints: int, counts: bool = False) -> Any:
        def body(state: Any) -> Any:
            if counts:
                jax.debug.callback(add_one, state[0])
            return step(w, *state)

        start = jnp.zeros(()), y
        more = lambda state: state[0] < END - END / STEPS / 2
        how = {"max_steps": STEPS, "kind": "checkpointed", "checkpoints": checkpoints}
        return jnp.mean(eqxi.while_loop(more, body, start, **how)[1] ** 2)

    def loss(w: Any, y: Any) -> Any:
        go = lambda _, state: step(w, *state)
        return jnp.mean(lax.fori_loop(0, STEPS, go, (jnp.zeros(()), y))[1] ** 2)

    args = normal(0, 32, 32, scale=1 / 6), normal(1, 64, 32)
    _, plain_flops = compiled(loss, args)
    forward_flops = flops(jax.make_jaxpr(loss)(*args).jaxpr)
    for checkpoints in (16, 8, 2):
        run = functools.partial(by_hand, checkpoints=checkpoints)
        size, _ = compiled(run, args)
        count[0] = 0
        both = jax.value_and_grad(functools.partial(run, counts=True))
        jax.block_until_ready(jax.jit(both)(*args))
        jax.effects_barrier()
        again = (count[0] - STEPS) / STEPS * forward_flops
        name = f"ODE, {checkpoints} checkpoints of the library"
        beside(name, loss, args, (size, plain_flops + again))


def beside(name: str, loss: Any, args: Any, rival: tuple[int, float]) -> None:
    """Print the row of one rival, and of the plan for its bytes."""
    said(name)
    (plain, plain_flops), (size, count) = compiled(loss, args), rival
    budget = MemoryBudget(limit_bytes=size)
    ours = plan_within(loss, args, budget, HERE, divide_batch=True)
    chunks = f", {ours['chunks']} chunks" if ours["chunks"] else ""
    mine = f"{ours['bytes'] / plain:.4f} for {ours['extra']:+.1%}{chunks}"
    theirs = f"{size / plain:.4f} for {count / plain_flops - 1:+.1%}"
    row = [name, theirs, mine if ours["met"] else f"needs {mine}"]
    print("| " + " | ".join(row) + " |", flush=True)


def main() -> None:
    cases = {f.__name__: f for f in (experts, pinn, ode)}
    names = sys.argv[1:] or list(cases)
    if unknown := set(names) - set(cases):
        sys.exit(f"no such net: {', '.join(sorted(unknown))}; have {', '.join(cases)}.")
    print("| by hand | bytes and more flops | a plan for its bytes |")
    print("| --- | --: | --: |")
    for name in names:
        cases[name]()


if __name__ == "__main__":
    main()
