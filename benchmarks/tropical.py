"""Max-plus algebra in JAX beside NumPy, torch and SciPy, and merged ReLU layers.

Every library has one thread, on one core of the machine. One round times all forms in
turn, frugax twice (the second is the control); a speed-up is the median of the ratios
within rounds, with its 95 % bootstrap interval. Times are the processor's, because the
machine is shared. All results are compared with NumPy's first. Prints tables and writes
`benchmarks/results/tropical.json`:

    python -m benchmarks.tropical [--parts matmul,closure,viterbi,polynomial,...]
"""

import os

# Before any library starts its threads.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch  # noqa: TID253
from benchmarks import tropical_relu
from benchmarks.machine import made_with
from benchmarks.train_calls import paired_ratio
from scipy.sparse import csgraph

from frugax import tropical
from frugax.budget import table
from frugax.fileio import write_whole
from frugax.tropical import _jax_product  # noqa: PLC2701

RESULTS = Path(__file__).parent / "results" / "tropical.json"
SIZES = (128, 256, 512, 1024)
Forms = dict[str, Callable[[], Any]]


def race(
    want: np.ndarray, forms: Forms, rounds: int, rtol: float = 0.0
) -> dict[str, Any]:
    """Milliseconds of each form, and how many times as long as frugax it takes.

    Raises:
        SystemExit: a form gives another result than NumPy; SciPy's are in float64.
    """
    for name, form in forms.items():
        near = 1e-5 if name.startswith("SciPy") else rtol
        got = np.asarray(form())  # the first call compiles
        if not np.allclose(got, want, rtol=near, atol=near):
            raise SystemExit(f"{name} gives another result.")
    spent: dict[str, list[float]] = {name: [] for name in forms}
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        for name in rng.permutation(list(forms)):
            if max(spent[name], default=0) < 100:
                forms[name]()  # untimed: the form before has emptied the caches
            start = time.process_time()
            forms[name]()
            spent[name].append(1e3 * (time.process_time() - start))
    found: dict[str, Any] = {}
    for name, times in spent.items():
        pairs = zip(times, spent["frugax"], strict=True)
        ratios = paired_ratio([theirs / ours for theirs, ours in pairs])
        found[name] = {"ms": float(np.median(times)), "times_frugax": ratios}
    return found


def jax_call(function: Callable[..., jax.Array], *args: jax.Array) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(function(*args))


def torch_loop(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One k at a time into the same memory: torch's usual best."""
    out = a[:, :1] + b[0]
    term = torch.empty_like(out)
    for k in range(1, a.shape[1]):
        torch.add(a[:, k, None], b[k], out=term)
        torch.maximum(out, term, out=out)
    return out


def torch_rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = a.new_empty(a.shape[0], b.shape[1])
    for i in range(a.shape[0]):
        torch.amax(a[i, :, None] + b, dim=0, out=out[i])
    return out


def torch_broadcast(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a[:, :, None] + b[None]).amax(dim=1)


def matmul(rounds: int) -> dict[str, Any]:
    found = {}
    for n in SIZES:
        rng = np.random.default_rng(n)
        a, b = (rng.normal(size=(n, n)).astype(np.float32) for _ in range(2))
        ja, jb, ta, tb = (f(x) for f in (jnp.asarray, torch.from_numpy) for x in (a, b))
        forms: Forms = {
            "frugax": jax_call(tropical.matmul, ja, jb),
            "frugax again": jax_call(tropical.matmul, ja, jb),
            "torch loop, out=": lambda a=ta, b=tb: torch_loop(a, b),
            "torch rows": lambda a=ta, b=tb: torch_rows(a, b),
        }
        if n <= 512:  # 4 GiB at 1,024
            forms["torch broadcast"] = lambda a=ta, b=tb: torch_broadcast(a, b)
        if n >= 512:  # compiling takes a minute for each size
            quick = torch.compile(torch_broadcast, dynamic=False)
            forms["torch.compile"] = lambda f=quick, a=ta, b=tb: f(a, b)
        found[f"n = {n}"] = race(tropical.matmul(a, b), forms, rounds)
    return found


def polynomial(rounds: int) -> dict[str, Any]:
    found = {}
    for monomials, variables, points in ((64, 8, 4096), (512, 32, 4096)):
        rng = np.random.default_rng(0)
        c = rng.normal(size=monomials).astype(np.float32)
        e = rng.integers(0, 4, (monomials, variables)).astype(np.float32)
        x = rng.normal(size=(points, variables)).astype(np.float32)
        on_jax = [jnp.asarray(v) for v in (c, e, x)]
        tc, te, tx = (torch.from_numpy(v) for v in (c, e, x))
        forms: Forms = {
            "frugax": jax_call(tropical.polynomial, *on_jax),
            "frugax again": jax_call(tropical.polynomial, *on_jax),
            "torch GEMM + c, max": lambda c=tc, e=te, x=tx: (x @ e.T + c).amax(1),
            "torch addmm, max": lambda c=tc, e=te, x=tx: torch.addmm(c, x, e.T).amax(1),
            "torch broadcast": lambda c=tc, e=te, x=tx: (
                (e[None] * x[:, None]).sum(-1) + c
            ).amax(1),
        }
        name = f"{monomials} monomials, {variables} variables, {points} points"
        want = tropical.polynomial(c, e, x)
        found[name] = race(want, forms, rounds, rtol=1e-4)
    return found


def torch_closure(d: torch.Tensor) -> torch.Tensor:
    out = d.clone()
    for k in range(len(out)):
        torch.minimum(out, out[:, k, None] + out[k], out=out)
    return out


def closure(rounds: int) -> dict[str, Any]:
    found = {}
    for n in SIZES:
        d = np.random.default_rng(n).random((n, n)).astype(np.float32)
        np.fill_diagonal(d, 0)
        on_jax, on_torch = jnp.asarray(d), torch.from_numpy(d)
        forms: Forms = {
            "frugax": jax_call(tropical.closure, on_jax),
            "frugax again": jax_call(tropical.closure, on_jax),
            "torch in place": lambda d=on_torch: torch_closure(d),
            "SciPy floyd_warshall": lambda d=d: csgraph.floyd_warshall(d),
        }
        found[f"n = {n}"] = race(tropical.closure(d), forms, rounds)
    return found


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


def viterbi(rounds: int) -> dict[str, Any]:
    found = {}
    path = lambda *args: tropical.viterbi(*args)[0]
    for shape in ((4, 100, 20), (16, 200, 40), (2, 64, 256)):
        rng = np.random.default_rng(0)
        scores = rng.normal(size=shape).astype(np.float32)
        moves = rng.normal(size=(shape[2],) * 2).astype(np.float32)
        on_jax = jax.device_put(scores), jax.device_put(moves)
        forms: Forms = {
            "frugax": jax_call(path, *on_jax),
            "frugax again": jax_call(path, *on_jax),
            "frugax under jit": jax_call(jax.jit(path), *on_jax),
            "JAX, textbook, under jit": jax_call(textbook_viterbi, *on_jax),
            "frugax, NumPy": lambda a=scores, b=moves: path(a, b),
        }
        name = "{} x {} steps, {} states".format(*shape)
        found[name] = race(path(scores, moves), forms, rounds)
    return found


def width(rounds: int) -> dict[str, Any]:
    """Measure a pass of fewer terms than the kernel's width of 16."""
    n = 512
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=(n, n)), np.float32) for _ in range(2))
    usual = _jax_product._WIDTH
    forms: Forms = {}
    try:
        for terms in (usual, 4, 8, 32):
            _jax_product._WIDTH = terms
            built = jax.jit(lambda a, b: tropical.matmul(a, b)).lower(a, b).compile()
            name = "frugax" if terms == usual else f"{terms} terms"
            forms[name] = jax_call(built, a, b)
            _jax_product.matmul.clear_cache()
    finally:
        _jax_product._WIDTH = usual
    return {f"n = {n}": race(np.asarray(tropical.matmul(a, b)), forms, rounds)}


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "matmul": matmul,
    "polynomial": polynomial,
    "closure": closure,
    "viterbi": viterbi,
    "width": width,
}


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--parts", default=",".join([*PARTS, "zonotope"]))
    ask.add_argument("--rounds", type=int, default=15)
    ask.add_argument("--out", type=Path, default=RESULTS)
    given = ask.parse_args()
    parts = given.parts.split(",")
    if unknown := set(parts) - {*PARTS, "zonotope"}:
        ask.error(f"no such part: {', '.join(sorted(unknown))}.")
    torch.set_num_threads(1)
    record = json.loads(given.out.read_text()) if given.out.exists() else {}
    for part in parts:
        if part == "zonotope":
            found = tropical_relu.accuracies()
            print(tropical_relu.shown(found))
        else:
            found = PARTS[part](given.rounds)
            print(shown(part, found))
        record[part] = {"made": made_with(), "rounds": given.rounds, "found": found}
        write_whole(given.out, (json.dumps(record, indent=1) + "\n").encode())


def shown(part: str, found: dict[str, Any]) -> str:
    rows = [
        [size, name, f"{form['ms']:.2f} ms", "{ratio:.2f} ({low:.2f} to {high:.2f})"]
        for size, forms in found.items()
        for name, form in forms.items()
    ]
    ratios = [f["times_frugax"] for forms in found.values() for f in forms.values()]
    for row, ratio in zip(rows, ratios, strict=True):
        row[-1] = row[-1].format(**ratio)
    return table([part, "form", "time", "times frugax"], rows)


if __name__ == "__main__":
    main()
