"""Plans at half and a quarter of the memory of nets whose batch can be divided, or not.

    python -m benchmarks.remat_chunks [NET ...]
    python -m benchmarks.remat_chunks --times mlp24 transformer12

Each row: the budget as a share of the program without a plan, the bytes that XLA
measures with the plan, the flops it adds (counted on the traced program), the number of
chunks of the batch, and the largest error of a gradient relative to its largest number.
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks import nets
from benchmarks.remat_race import race

from frugax import InfeasibleBudgetError, MemoryBudget, remat
from frugax.budget import table

SHARES = (0.5, 0.25)
TIMED_SHARES = (0.3, 0.2)
KEY = jax.random.key(0)
WS = list(jax.random.normal(KEY, (6, 64, 64)) / 8)
X, Y = jax.random.normal(KEY, (2, 512, 64))
LABELS = jax.random.randint(KEY, (512,), 0, 64)


def residual_mlp(ws: Any, x: Any, y: Any) -> Any:
    """Residual layers and a mean of squares."""
    for w in ws:
        x = x + jax.nn.relu(x @ w)
    return jnp.mean((x - y) ** 2)


def masked_cross_entropy(ws: Any, x: Any, labels: Any) -> Any:
    """A mean over the rows that a mask selects, and weight decay."""
    for w in ws:
        x = jax.nn.gelu(x @ w)
    logs = jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1)[:, 0]
    mask = (labels > 3).astype(x.dtype)
    return -(logs * mask).sum() / mask.sum() + 1e-3 * sum((w**2).sum() for w in ws)


def physics_informed(ws: Any, points: Any) -> Any:
    """First and second derivatives of the net with respect to its input."""

    def u(p: Any) -> Any:
        h = jnp.tanh(p @ ws[0][:2])
        for w in ws[1:]:
            h = jnp.tanh(h @ w)
        return h.sum()

    slope = jax.vmap(jax.grad(u))(points)
    curvature = jax.vmap(jax.hessian(u))(points)
    return jnp.mean((slope[:, 1] - curvature[:, 0, 0]) ** 2)


def recurrent(ws: Any, x: Any, y: Any) -> Any:
    """A scan over time, whose inputs have time before the batch."""

    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(x @ ws[0] + h @ ws[1])
        return h, h

    _, hs = jax.lax.scan(step, jnp.zeros((x.shape[1], 64)), x)
    return jnp.mean((hs - y) ** 2)


def convolutions(kernels: Any, x: Any) -> Any:
    """Convolutions and max pooling."""
    names = ("NHWC", "HWIO", "NHWC")
    for k in kernels:
        x = jax.nn.relu(
            jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=names)
        )
        x = jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"
        )
    return jnp.mean(x**2)


def ensemble(members: Any, x: Any) -> Any:
    """Members of an ensemble on the same data, by `vmap`."""
    one = lambda w: jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w) ** 2)
    return jax.vmap(one)(members).mean()


def decoder(ws: Any, tokens: Any) -> Any:
    """Causal attention, and the loss of the next token."""
    x = WS[0][tokens]
    rows, length, width = x.shape
    seen = jnp.tril(jnp.ones((length, length), bool))
    for w in ws:
        heads = (x @ w).reshape(rows, length, 4, width // 4).transpose(0, 2, 1, 3)
        scores = jnp.where(seen, heads @ heads.swapaxes(-1, -2) / 4, -9.0)
        mixed = jax.nn.softmax(scores) @ heads
        x = x + mixed.transpose(0, 2, 1, 3).reshape(rows, length, width)
    logs = jax.nn.log_softmax(x[:, :-1] @ WS[0].T)
    return -jnp.take_along_axis(logs, tokens[:, 1:, None], axis=-1).mean()


def meta_learning(ws: Any, x: Any, y: Any) -> Any:
    """A gradient step for each of eight tasks, and the loss after it."""

    def error(ws: Any, x: Any, y: Any) -> Any:
        for w in ws:
            x = jnp.tanh(x @ w)
        return jnp.mean((x - y) ** 2)

    def task(x: Any, y: Any) -> Any:
        step = jax.grad(error)(ws, x, y)
        moved = [w - 0.1 * g for w, g in zip(ws, step, strict=True)]
        return error(moved, x + 1, y)

    return jax.vmap(task)(x, y).mean()


def contrastive(ws: Any, x: Any) -> Any:
    """Similarities of all rows: this batch cannot be divided."""
    for w in ws:
        x = jnp.tanh(x @ w)
    return -jnp.diagonal(jax.nn.log_softmax(x @ x.T)).mean()


NETS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "residual MLP": (residual_mlp, (WS, X, Y)),
    "masked cross-entropy": (masked_cross_entropy, (WS, X, LABELS)),
    "PINN": (physics_informed, (WS, jax.random.normal(KEY, (1024, 2)))),
    "recurrent net": (
        recurrent,
        (WS, *jax.random.normal(KEY, (2, 32, 256, 64))),
    ),
    "convolutions": (
        convolutions,
        (
            list(jax.random.normal(KEY, (3, 3, 3, 8, 8)) / 8),
            jax.random.normal(KEY, (64, 16, 16, 8)),
        ),
    ),
    "ensemble": (ensemble, (jax.random.normal(KEY, (8, 64, 64)) / 8, X)),
    "decoder": (decoder, (WS, jax.random.randint(KEY, (16, 32), 0, 64))),
    "MAML": (meta_learning, (WS, X.reshape(8, 64, 64), Y.reshape(8, 64, 64))),
    "contrastive": (contrastive, (WS, X)),
}


def measure_row(name: str, share: float) -> list[str]:
    """One row of the table."""
    loss, args = NETS[name]
    try:
        plan = remat.plan(loss, MemoryBudget.share(share), args, cache=False)
    except InfeasibleBudgetError as e:
        best: Any = e.best
        needed = e.needed / best.unplanned_bytes
        return [name, f"{share:g}", f"needs {needed:.3f}", "-", "-", "-"]
    got = remat.apply(loss, plan)(*args)
    want = jax.value_and_grad(loss)(*args)
    error = max(
        float(np.abs(g - w).max() / np.abs(w).max())
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    )
    chunks = str(plan.batch.count) if plan.batch else "1"
    used = f"{plan.predicted / plan.unplanned_bytes:.3f}"
    more = f"+{plan.extra_share:.2%}"
    return [name, f"{share:g}", used, more, chunks, f"{error:.0e}"]


def measure_times(name: str) -> None:
    """Print step times of one of `benchmarks.nets`, recomputed and in chunks."""
    case = nets.NETS[name]()
    plain = jax.jit(jax.value_and_grad(case.loss))
    programs: dict[str, Any] = {"plain": plain, "plain again": jax.jit(plain)}
    for share in TIMED_SHARES:
        budget = MemoryBudget.share(share)
        for divide in (False, "first"):
            plan = remat.plan(case.loss, budget, case.arrays(), divide_batch=divide)
            label = f"{share:g}, {plan.batch or 'recomputed'}, +{plan.extra_share:.1%}"
            programs[label] = jax.jit(remat.apply(case.loss, plan))
    for label, t in race(programs, case.arrays(), rounds=12).items():
        print(f"{name}, {label}: {t['ratio']:.2f} ({t['low']:.2f} to {t['high']:.2f})")


def main() -> None:
    """Print the table, or step times: `--times mlp24 transformer12`."""
    if sys.argv[1:2] == ["--times"]:
        for name in sys.argv[2:]:
            measure_times(name)
        return
    names = sys.argv[1:] or list(NETS)
    rows: list[list[str]] = []
    for name in names:
        for share in SHARES:
            rows.append(measure_row(name, share))
            print("\t".join(rows[-1]), file=sys.stderr, flush=True)
    head = ["net", "budget", "measured", "more flops", "chunks", "error"]
    print(table(head, rows))


if __name__ == "__main__":
    main()
