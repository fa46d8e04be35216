"""Max-plus algebra in JAX beside torch, SciPy and textbook JAX.

    python -m benchmarks.tropical [matmul closure viterbi polynomial]

Every library has one thread, on one core of the machine. Times are the processor's,
because the machine is shared. All results are compared with NumPy's first.
"""

import argparse
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.harness import Case, run, time_cases

from frugax import tropical

SIZES = (128, 256, 512, 1024)


def on_cpu(name: str, ours: Callable[[], Any], rivals: Any, **more: Any) -> Case:
    """A case that is timed by the processor's time."""
    return Case(name=name, ours=ours, rivals=rivals, clock="cpu", **more)


def torch_tensors(*arrays: np.ndarray) -> list[Any]:
    """The arrays in torch, which gets one thread."""
    import torch

    torch.set_num_threads(1)
    return [torch.from_numpy(a) for a in arrays]


def torch_loop(a: Any, b: Any) -> Any:
    """One k at a time into the same memory: torch's usual best."""
    import torch

    out = a[:, :1] + b[0]
    term = torch.empty_like(out)
    for k in range(1, a.shape[1]):
        torch.add(a[:, k, None], b[k], out=term)
        torch.maximum(out, term, out=out)
    return out


def torch_rows(a: Any, b: Any) -> Any:
    """One row of the result at a time."""
    import torch

    out = a.new_empty(a.shape[0], b.shape[1])
    for i in range(a.shape[0]):
        torch.amax(a[i, :, None] + b, dim=0, out=out[i])
    return out


def torch_broadcast(a: Any, b: Any) -> Any:
    """All terms at once."""
    return (a[:, :, None] + b[None]).amax(dim=1)


def torch_closure(d: Any) -> Any:
    """Floyd and Warshall's algorithm, in place."""
    import torch

    out = d.clone()
    for k in range(len(out)):
        torch.minimum(out, out[:, k, None] + out[k], out=out)
    return out


def matmul(given: argparse.Namespace) -> Iterator[Case]:
    """Products of square matrices."""
    for n in (8,) if given.quick else SIZES:
        rng = np.random.default_rng(n)
        a, b = (rng.normal(size=(n, n)).astype(np.float32) for _ in range(2))
        ja, jb = jnp.asarray(a), jnp.asarray(b)
        ta, tb = torch_tensors(a, b)
        rivals = {
            "torch loop, out=": functools.partial(torch_loop, ta, tb),
            "torch rows": functools.partial(torch_rows, ta, tb),
        }
        if n <= 512:  # 4 GiB at 1,024
            rivals["torch broadcast"] = functools.partial(torch_broadcast, ta, tb)
        if n >= 512:  # compiling takes a minute for each size
            import torch

            quick = torch.compile(torch_broadcast, dynamic=False)
            rivals["torch.compile"] = functools.partial(quick, ta, tb)
        ours = functools.partial(tropical.matmul, ja, jb)
        expected = tropical.matmul(a, b)
        task = f"max-plus product, n = {n}"
        yield on_cpu(f"n = {n}", ours, rivals, expected=expected, task=task)


def closure(given: argparse.Namespace) -> Iterator[Case]:
    """Shortest paths between all nodes."""
    from scipy.sparse import csgraph

    for n in (8,) if given.quick else SIZES:
        d = np.random.default_rng(n).random((n, n)).astype(np.float32)
        np.fill_diagonal(d, 0)
        rivals = {
            "torch in place": functools.partial(torch_closure, *torch_tensors(d)),
            "SciPy floyd_warshall": functools.partial(csgraph.floyd_warshall, d),
        }
        yield on_cpu(
            f"n = {n}",
            functools.partial(tropical.closure, jnp.asarray(d)),
            rivals,
            expected=tropical.closure(d),
            tolerance=1e-5,  # SciPy's are in float64
            task=f"all paths, n = {n}",
        )


def polynomial(given: argparse.Namespace) -> Iterator[Case]:
    """Values of max-plus polynomials at many points."""
    sizes = ((64, 8, 4096), (512, 32, 4096))
    for monomials, variables, points in ((4, 2, 8),) if given.quick else sizes:
        rng = np.random.default_rng(0)
        c = rng.normal(size=monomials).astype(np.float32)
        e = rng.integers(0, 4, (monomials, variables)).astype(np.float32)
        x = rng.normal(size=(points, variables)).astype(np.float32)
        import torch

        tc, te, tx = torch_tensors(c, e, x)
        rivals: dict[str, Callable[[], Any]] = {
            "torch GEMM + c, max": lambda c=tc, e=te, x=tx: (x @ e.T + c).amax(1),
            "torch addmm, max": lambda c=tc, e=te, x=tx: torch.addmm(c, x, e.T).amax(1),
            "torch broadcast": lambda c=tc, e=te, x=tx: (
                (e[None] * x[:, None]).sum(-1) + c
            ).amax(1),
        }
        sizes = f"{monomials} monomials, {variables} variables, {points} points"
        yield on_cpu(
            sizes,
            functools.partial(tropical.polynomial, *map(jnp.asarray, (c, e, x))),
            rivals,
            expected=tropical.polynomial(c, e, x),
            tolerance=1e-4,
            task=f"polynomial of {sizes}",
        )


@jax.jit
def textbook_viterbi(scores: jax.Array, moves: jax.Array) -> jax.Array:
    """The weights by a scan that keeps the place of each optimum, as is usual."""

    def forward(total: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
        terms = total[:, :, None] + moves[None]
        came = terms.argmax(axis=1)
        best = jnp.take_along_axis(terms, came[:, None], axis=1)[:, 0]
        return best + now, came

    def back(state: jax.Array, came: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.take_along_axis(came, state[:, None], axis=1)[:, 0], state

    steps = scores.swapaxes(0, 1)
    total, before = jax.lax.scan(forward, steps[0], steps[1:])
    first, path = jax.lax.scan(back, total.argmax(axis=1), before, reverse=True)
    return jnp.concatenate([first[None], path]).T


def viterbi(given: argparse.Namespace) -> Iterator[Case]:
    """Best walks through hidden states."""
    path = lambda *args: tropical.viterbi(*args)[0]
    sizes = ((4, 100, 20), (16, 200, 40), (2, 64, 256))
    for shape in ((1, 4, 3),) if given.quick else sizes:
        rng = np.random.default_rng(0)
        scores = rng.normal(size=shape).astype(np.float32)
        moves = rng.normal(size=(shape[2],) * 2).astype(np.float32)
        on_jax = jax.device_put(scores), jax.device_put(moves)
        rivals = {
            "frugax under jit": functools.partial(jax.jit(path), *on_jax),
            "JAX, textbook, under jit": functools.partial(textbook_viterbi, *on_jax),
            "frugax, NumPy": functools.partial(path, scores, moves),
        }
        name = "{} x {} steps, {} states".format(*shape)
        ours = functools.partial(path, *on_jax)
        expected, task = path(scores, moves), f"Viterbi walks, {name}"
        yield on_cpu(name, ours, rivals, expected=expected, task=task)


PARTS = {
    "matmul": time_cases(matmul, unit="ms"),
    "closure": time_cases(closure, unit="ms"),
    "viterbi": time_cases(viterbi),
    "polynomial": time_cases(polynomial),
}


if __name__ == "__main__":
    run("tropical", PARTS, about=__doc__, cores=1)
