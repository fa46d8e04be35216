"""Plans beside the checkpoints that a user can name: policies, and one for each block.

    python -m benchmarks.remat_policies [--nets a,b] [--target h100]

Each net is planned for 0.5 and 0.25 of its plain temporary bytes, and for the bytes of
each rival that needs less than plain, and 0.1 % more, because the gates of a plan hold
a few hundred bytes. The rivals are one `jax.checkpoint` around each block, with each
policy. On CPU they are compiled with XLA's barriers kept
(`xla_disable_hlo_passes=cse_barrier_expander`), without which they save nothing there.
Bytes and flops are the same each time; nothing is run. The results are merged into
`benchmarks/results/remat_policies.json`, net by net.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from benchmarks.machine import made_with
from benchmarks.remat_cases import KEEP_BARRIERS, said
from jax import lax

from frugax import InfeasibleBudgetError, MemoryBudget, measure, remat
from frugax.fileio import write_whole
from frugax.jaxprs import flops
from frugax.targets import Target

RESULTS = Path(__file__).parent / "results" / "remat_policies.json"
SHARES = (0.5, 0.25)
# The share of a rival's bytes that a plan may need beyond them.
GATES = 0.001
POLICIES = (
    "everything_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "nothing_saveable",
)
Checkpoint = Callable[[Callable[..., Any]], Callable[..., Any]]
Case = tuple[Callable[..., Any], tuple[Any, ...]]


def normal(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    return scale * jax.random.normal(jax.random.key(seed), shape)


def _norm(x: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5)


def _attend(w: jax.Array, x: jax.Array) -> jax.Array:
    q, k, v = jnp.split(_norm(x) @ w[:, :-1].reshape(w.shape[0], -1), 3, axis=-1)
    scores = jnp.einsum("bsd,btd->bst", q, k) / w.shape[0] ** 0.5
    return jax.nn.softmax(scores) @ v @ w[:, -1]


def mlp(checkpoint: Checkpoint) -> Case:
    block = checkpoint(lambda w, x: x + jax.nn.gelu(x @ w[0]) @ w[1])

    def loss(ws: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in ws:
            x = block(w, x)
        return jnp.mean(x**2)

    return loss, (
        [normal(i, 2, 64, 64, scale=0.1) for i in range(8)],
        jnp.ones((512, 64)),
    )


def transformer(checkpoint: Checkpoint) -> Case:
    @checkpoint
    def block(w: Any, x: jax.Array) -> jax.Array:
        x = x + _attend(w["a"], x)
        return x + jax.nn.gelu(_norm(x) @ w["up"]) @ w["down"]

    def loss(ws: list[Any], x: jax.Array) -> jax.Array:
        for w in ws:
            x = block(w, x)
        return jnp.mean(x**2)

    ws = [
        {
            "a": normal(i, 32, 4, 32, scale=0.2),
            "up": normal(i, 32, 128, scale=0.2),
            "down": normal(i, 128, 32, scale=0.1),
        }
        for i in range(6)
    ]
    return loss, (ws, normal(9, 8, 48, 32))


def experts(checkpoint: Checkpoint) -> Case:
    """The two best of four experts for each token, and a loss that balances them."""

    @checkpoint
    def block(w: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = x + _attend(w["a"], x)
        h = _norm(x)
        probabilities = jax.nn.softmax(h @ w["gate"])
        top, _ = lax.top_k(probabilities, 2)
        chosen = jnp.where(probabilities >= top[..., -1:], probabilities, 0)
        u = jax.nn.gelu(jnp.einsum("btd,edf->btef", h, w["up"]))
        y = jnp.einsum("btef,efd->bted", u, w["down"])
        used = jnp.mean(chosen > 0, (0, 1)) @ probabilities.mean((0, 1))
        return x + jnp.einsum("bted,bte->btd", y, chosen), used

    def loss(ws: list[Any], x: jax.Array) -> jax.Array:
        balance = jnp.zeros(())
        for w in ws:
            x, used = block(w, x)
            balance += used
        return jnp.mean(x**2) + 0.01 * balance

    ws = [
        {
            "a": normal(i, 32, 4, 32, scale=0.2),
            "gate": normal(i, 32, 4),
            "up": normal(i, 4, 32, 64, scale=0.2),
            "down": normal(i, 4, 64, 32, scale=0.1),
        }
        for i in range(6)
    ]
    return loss, (ws, normal(9, 8, 48, 32))


def maml(checkpoint: Checkpoint) -> Case:
    """A gradient through a gradient step."""
    block = checkpoint(lambda w, x: x + jnp.tanh(x @ w[0]) @ w[1])

    def fit(ws: Any, x: jax.Array) -> jax.Array:
        for w in ws:
            x = block(w, x)
        return jnp.mean((x - 1) ** 2)

    def loss(ws: Any, x: jax.Array) -> jax.Array:
        moved = jax.tree.map(lambda w, g: w - g, ws, jax.grad(fit)(ws, x))
        return fit(moved, x[::-1])

    return loss, (
        [normal(i, 2, 32, 32, scale=0.2) for i in range(5)],
        normal(9, 1024, 32),
    )


def gru(checkpoint: Checkpoint) -> Case:
    def loss(w: Any, xs: jax.Array) -> jax.Array:
        @checkpoint
        def cell(h: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            a, b = jnp.split(x @ w[0], 3, -1), jnp.split(h @ w[1], 3, -1)
            r, z = jax.nn.sigmoid(a[0] + b[0]), jax.nn.sigmoid(a[1] + b[1])
            return (1 - z) * jnp.tanh(a[2] + r * b[2]) + z * h, None

        return jnp.mean(lax.scan(cell, jnp.zeros((8, 32)), xs)[0] ** 2)

    return loss, (
        (normal(0, 8, 96, scale=0.3), normal(1, 32, 96, scale=0.2)),
        normal(2, 997, 8, 8),
    )


def scanned(checkpoint: Checkpoint) -> Case:
    def loss(ws: Any, x: jax.Array) -> jax.Array:
        @checkpoint
        def block(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            x = x + _attend(w["a"], x)
            return x + jax.nn.gelu(_norm(x) @ w["up"]) @ w["down"], None

        return jnp.mean(lax.scan(block, x, ws)[0] ** 2)

    ws = {
        "a": normal(0, 12, 32, 4, 32, scale=0.2),
        "up": normal(1, 12, 32, 128, scale=0.2),
        "down": normal(2, 12, 128, 32, scale=0.1),
    }
    return loss, (ws, normal(9, 8, 48, 32))


def pinn(checkpoint: Checkpoint) -> Case:
    """The residual of a differential equation: second derivatives of the input."""
    block = checkpoint(lambda w, x: jnp.tanh(w @ x))

    def net(ws: Any, x: jax.Array) -> jax.Array:
        for w in ws:
            x = block(w, x)
        return x.sum()

    def loss(ws: Any, xs: jax.Array) -> jax.Array:
        def residual(x: jax.Array) -> jax.Array:
            return jnp.trace(jax.hessian(net, argnums=1)(ws, x)) - jnp.sin(x).sum()

        return jnp.mean(jax.vmap(residual)(xs) ** 2)

    ws = [normal(0, 32, 2), *(normal(i, 32, 32, scale=0.2) for i in range(1, 4))]
    return loss, (ws, normal(9, 512, 2))


def batch_norm(checkpoint: Checkpoint) -> Case:
    """Convolutions with statistics of the batch, which cannot be divided."""

    @checkpoint
    def block(w: jax.Array, x: jax.Array) -> jax.Array:
        y = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = (y - y.mean((0, 1, 2))) * lax.rsqrt(y.var((0, 1, 2)) + 1e-5)
        return x + jax.nn.relu(y)

    def loss(ws: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in ws:
            x = block(w, x)
        return jnp.mean(x**2)

    ws = [normal(i, 3, 3, 16, 16, scale=0.1) for i in range(6)]
    return loss, (ws, normal(9, 16, 16, 16, 16))


def convnext(checkpoint: Checkpoint) -> Case:
    """Convolutions by channel, a wide pair of products, and a learned scale."""

    @checkpoint
    def block(w: Any, x: jax.Array) -> jax.Array:
        y = lax.conv_general_dilated(
            x,
            w["by_channel"],
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=x.shape[-1],
        )
        return x + w["scale"] * (jax.nn.gelu(_norm(y) @ w["up"]) @ w["down"])

    def loss(ws: list[Any], x: jax.Array) -> jax.Array:
        for w in ws:
            x = block(w, x)
        return jnp.mean(x**2)

    ws = [
        {
            "by_channel": normal(i, 5, 5, 1, 24, scale=0.2),
            "up": normal(i, 24, 96, scale=0.2),
            "down": normal(i, 96, 24, scale=0.1),
            "scale": jnp.full(24, 0.1),
        }
        for i in range(6)
    ]
    return loss, (ws, normal(9, 8, 16, 16, 24))


def decoder(checkpoint: Checkpoint) -> Case:
    """Queries that attend to an encoded image, and the nearest of several boxes."""

    def across(w: Any, x: jax.Array, memory: jax.Array) -> jax.Array:
        scores = jnp.einsum("bqd,bmd->bqm", _norm(x) @ w["q"], memory @ w["k"])
        return jax.nn.softmax(scores / w["q"].shape[0] ** 0.5) @ (memory @ w["v"])

    @checkpoint
    def block(w: Any, x: jax.Array, memory: jax.Array) -> jax.Array:
        x = x + _attend(w["a"], x)
        x = x + across(w, x, memory)
        return x + jax.nn.relu(_norm(x) @ w["up"]) @ w["down"]

    def loss(ws: Any, memory: jax.Array, boxes: jax.Array) -> jax.Array:
        layers, queries = ws
        x = jnp.broadcast_to(queries, (memory.shape[0], *queries.shape))
        for w in layers:
            x = block(w, x, memory)
        apart = jnp.abs(x[:, :, None, :4] - boxes[:, None]).sum(-1)
        return jnp.mean(apart.min(1))

    layers = [
        {
            "a": normal(i, 32, 4, 32, scale=0.2),
            "q": normal(i + 20, 32, 32, scale=0.2),
            "k": normal(i + 40, 32, 32, scale=0.2),
            "v": normal(i + 60, 32, 32, scale=0.2),
            "up": normal(i, 32, 128, scale=0.2),
            "down": normal(i, 128, 32, scale=0.1),
        }
        for i in range(5)
    ]
    data = normal(9, 8, 64, 32), normal(10, 8, 6, 4)
    return loss, ((layers, normal(8, 24, 32)), *data)


NETS = {
    f.__name__: f
    for f in (
        mlp,
        transformer,
        experts,
        maml,
        gru,
        scanned,
        pinn,
        batch_norm,
        convnext,
        decoder,
    )
}


def compile_gradient(loss: Any, args: Any, target: Target) -> tuple[int, int]:
    """Temporary bytes and flops of the loss with its gradient, without a plan."""
    options = KEEP_BARRIERS if target.platform == "cpu" else {}
    with target.tracing():
        traced = jax.jit(jax.value_and_grad(loss)).trace(*target.place(args))
    compiled = target.compile(traced, options=dict(options))
    return measure.program(compiled).temp_bytes, flops(traced.jaxpr.jaxpr)


def plan_within(
    loss: Any, args: Any, budget: Any, target: Target, *, divide_batch: bool
) -> dict[str, Any]:
    """Measure a plan for this budget; after a refusal, one for the needed limit."""
    met, needed = True, None
    how: dict[str, Any] = {"cache": False, "target": target}
    started = time.process_time()
    try:
        plan = remat.plan(loss, budget, args, divide_batch=divide_batch, **how)
    except InfeasibleBudgetError as e:
        met, needed, plan = False, int(e.needed), e.best
    assert isinstance(plan, remat.RematPlan)
    seconds = time.process_time() - started
    placed = target.place(args)
    measured = remat.apply(loss, plan).report(*placed).spends[0].measured
    assert measured is not None
    return {
        "met": met,
        "bytes": measured,
        "over": met and measured > plan.budget.usable_bytes,
        "needed": needed,
        "extra": plan.extra_share,
        "compiles": plan.compiles,
        "cpu_seconds": round(seconds, 1),
        "chunks": plan.batch.count if plan.batch else None,
    }


def measured(name: str, target: Target) -> dict[str, Any]:
    """All figures of one net."""
    make = NETS[name]
    loss, args = make(lambda f: f)
    plain, plain_flops = compile_gradient(loss, args, target)
    found: dict[str, Any] = {"plain": plain, "rivals": {}}
    planned: dict[int, dict[str, Any]] = {}
    for policy in POLICIES:
        chosen = getattr(jax.checkpoint_policies, policy)
        mark = lambda f, chosen=chosen: jax.checkpoint(f, policy=chosen)
        size, count = compile_gradient(*make(mark), target)
        rival = {"bytes": size, "extra": count / plain_flops - 1}
        if size < plain:
            if size not in planned:
                budget = MemoryBudget(limit_bytes=int((1 + GATES) * size))
                planned[size] = plan_within(
                    loss, args, budget, target, divide_batch=False
                )
            rival["ours"] = planned[size]
        found["rivals"][policy] = rival
    for share in SHARES:
        budget = MemoryBudget.share(share)
        found[str(share)] = plan_within(loss, args, budget, target, divide_batch=True)
    return found


def _cell(found: dict[str, Any], plain: int) -> str:
    return f"{found['bytes'] / plain:.3f} for {found['extra']:+.1%}"


def _ours(found: dict[str, Any], plain: int) -> str:
    chunks = f", {found['chunks']} chunks" if found["chunks"] else ""
    start = "" if found["met"] else "**needs** "
    return start + _cell(found, plain) + chunks + " **over**" * found["over"]


def _beside(rival: dict[str, Any], plain: int) -> tuple[str, str]:
    """One rival, and the plan for its bytes; a plan that loses is marked."""
    ours = rival.get("ours")
    if ours is None:
        return "more than plain", ""
    # The gates of a plan compute next to nothing, which is not worth a mark.
    loses = not ours["met"] or ours["extra"] > rival["extra"] + 1e-4
    return _cell(rival, plain), _ours(ours, plain) + " **loses**" * loses


def table(nets: dict[str, Any]) -> str:
    """The figures as a Markdown table; bytes are shares of plain."""
    names = {p: p.removesuffix("_saveable") for p in POLICIES[1:]}
    names["nothing_saveable"] = "one checkpoint a block"
    lines = ["| net | 0.5 | 0.25 |", "| --- | --: | --: |"]
    for name in names.values():
        lines[0] += f" {name} | ours at its bytes |"
        lines[1] += " --: | --: |"
    for name, net in nets.items():
        plain, rivals = net["plain"], net["rivals"]
        row = [name, *(_ours(net[str(s)], plain) for s in SHARES)]
        for p in names:
            row += _beside(rivals[p], plain)
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--nets", default=",".join(NETS))
    ask.add_argument("--target", default="cpu")
    ask.add_argument("--out", type=Path, default=RESULTS)
    given = ask.parse_args()
    names = given.nets.split(",")
    if unknown := set(names) - set(NETS):
        ask.error(f"no such net: {', '.join(sorted(unknown))}.")
    target = Target(given.target)
    record = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name in names:
        said(f"{name} on {target.name}")
        targets = record.get("targets", {})
        found = measured(name, target) | {"date": made_with()["date"]}
        nets = targets.get(target.name, {}) | {name: found}
        targets[target.name] = {n: nets[n] for n in NETS if n in nets}
        record = {"environment": made_with(), "targets": targets}
        write_whole(given.out, json.dumps(record, indent=1) + "\n")
    for name, nets in record["targets"].items():
        print(f"\n{name}\n\n{table(nets)}")


if __name__ == "__main__":
    main()
