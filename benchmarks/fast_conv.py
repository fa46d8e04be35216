"""Gradients of convolutional nets on CPU: `remat.fast_convolutions` against plain JAX.

Each net is four layers, in a `lax.scan`, in branches, or written out. One round times
plain JAX, plain JAX again (compiled once more: the control), and the fast form, in
turn; a speed-up is the ratio within a round, so that other load on the machine affects
all alike. Prints a table and writes `benchmarks/results/fast_conv.json`:

    python -m benchmarks.fast_conv
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.machine import made_with
from jax import lax

from frugax import measure, remat
from frugax.fileio import write_whole

RESULTS = Path(__file__).parent / "results" / "fast_conv.json"
LAYERS = 4
SPECS = {
    "NHWC": ("NHWC", "HWIO", "NHWC"),
    "NCHW": ("NCHW", "OIHW", "NCHW"),
    "NWC": ("NWC", "WIO", "NWC"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Net:
    """Four equal layers; every convolution keeps the number of features.

    Attributes:
        where: `scan`, `branches`, or `unrolled`.
        spec: layout of data and, to go with it, of kernels.
        stride: of one convolution in each layer; a second one, dilated, undoes it.
        groups: feature groups.
        dtype: of data and kernels.
        features, space, window: sizes; the batch is 8.
    """

    where: str = "scan"
    spec: str = "NHWC"
    stride: int = 1
    groups: int = 1
    dtype: str = "float32"
    features: int = 32
    space: int = 32
    window: int = 3

    def loss(self, kernels: jax.Array, x: jax.Array) -> jax.Array:
        if self.where == "scan":
            step = lambda x, w: (self.layer(x, w), None)
            return lax.scan(step, x, kernels)[0].sum().astype(jnp.float32)
        for w in kernels:
            if self.where == "branches":
                x = lax.cond(x.ravel()[0] < 100, self.layer, lambda x, _: x, x, w)
            else:
                x = self.layer(x, w)
        return x.sum().astype(jnp.float32)

    def layer(self, x: jax.Array, w: jax.Array) -> jax.Array:
        spatial = x.ndim - 2
        conv = lambda x, strides, pads, holes: lax.conv_general_dilated(
            x,
            w,
            (strides,) * spatial,
            pads,
            lhs_dilation=(holes,) * spatial,
            dimension_numbers=SPECS[self.spec],
            feature_group_count=self.groups,
        )
        out = conv(x, self.stride, "SAME", 1)
        if self.stride > 1:
            edge = self.window // 2
            pads = [(edge, edge + self.stride - 1)] * spatial
            out = conv(jnp.tanh(out), 1, pads, self.stride)
        return jnp.tanh(out)

    def args(self) -> tuple[jax.Array, jax.Array]:
        sizes = {"N": 8, "C": self.features, "O": self.features}
        sizes["I"] = self.features // self.groups
        data, kernel, _ = SPECS[self.spec]
        keys = jax.random.split(jax.random.key(0))
        shape = [sizes.get(axis, self.space) for axis in data]
        window = [LAYERS, *(sizes.get(axis, self.window) for axis in kernel)]
        scale = (sizes["I"] * self.window ** (len(data) - 2)) ** -0.5
        x = jax.random.normal(keys[0], shape).astype(self.dtype)
        return (jax.random.normal(keys[1], window) * scale).astype(self.dtype), x


NETS = {
    "scan, 3x3, NHWC": Net(),
    "scan, 3x3, NCHW": Net(spec="NCHW"),
    "scan, 3x3, NHWC, stride 2 and back": Net(stride=2),
    "scan, 3x3, NCHW, stride 2 and back": Net(spec="NCHW", stride=2),
    "scan, 3x3, NHWC, 8 groups": Net(groups=8),
    "scan, 3x3, NHWC, depthwise": Net(groups=32),
    "scan, 3x3, NHWC, bfloat16": Net(dtype="bfloat16"),
    "scan, 5, NWC": Net(spec="NWC", space=512, window=5),
    "branches, 3x3, NHWC": Net(where="branches"),
    "branches, 3x3, NCHW": Net(where="branches", spec="NCHW"),
    "unrolled, 3x3, NHWC": Net(where="unrolled"),
    "unrolled, 3x3, NCHW": Net(where="unrolled", spec="NCHW"),
    "unrolled, 3x3, NHWC, 8 groups": Net(where="unrolled", groups=8),
    "unrolled, 3x3, NHWC, stride 2 and back": Net(where="unrolled", stride=2),
    "unrolled, 3x3, NHWC, depthwise": Net(where="unrolled", groups=32),
}


def compare(net: Net, rounds: int) -> dict[str, Any]:
    """Times, bytes and the largest difference of gradients, for one net."""
    args = net.args()
    fast = jax.grad(remat.fast_convolutions(net.loss), (0, 1))
    plain = jax.grad(net.loss, (0, 1))
    # Wrapped, so that JAX compiles the control again and not the first program.
    functions = {"plain": plain, "again": lambda *a: plain(*a), "fast": fast}
    compiled = {k: jax.jit(f).lower(*args).compile() for k, f in functions.items()}
    results = {k: jax.block_until_ready(c(*args)) for k, c in compiled.items()}
    seconds: dict[str, list[float]] = {k: [] for k in compiled}
    order = list(compiled)
    for i in range(rounds):
        for k in order[i % 3 :] + order[: i % 3]:
            seconds[k].append(once(compiled[k], args))
    pairs = zip(seconds["plain"], seconds["again"], seconds["fast"], strict=True)
    ratios = [(p / f, p / a) for p, a, f in pairs]
    bytes_of = lambda k: measure.program(compiled[k]).bytes_of("temp")
    return {
        "plain_ms": 1e3 * statistics.median(seconds["plain"]),
        "fast_ms": 1e3 * statistics.median(seconds["fast"]),
        "speed_ups": sorted(r for r, _ in ratios),
        "controls": sorted(c for _, c in ratios),
        "plain_temp_bytes": bytes_of("plain"),
        "fast_temp_bytes": bytes_of("fast"),
        "largest_difference": difference(results["fast"], results["plain"]),
    }


def once(run: Callable[..., Any], args: tuple[Any, ...]) -> float:
    begun = time.perf_counter()
    jax.block_until_ready(run(*args))
    return time.perf_counter() - begun


def difference(got: Any, wanted: Any) -> float:
    """The largest, as a share of the largest number in each array."""
    wide = lambda x: np.asarray(x, np.float32)
    pairs = zip(map(wide, got), map(wide, wanted), strict=True)
    return max(float(np.abs(g - w).max() / np.abs(w).max()) for g, w in pairs)


def table(figures: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| net | plain | fast | speed-up (lowest to highest) | plain against itself "
        "| temp bytes, fast to plain | gradients differ by |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, f in figures.items():
        up, control = f["speed_ups"], f["controls"]
        lines.append(
            f"| {name} | {f['plain_ms']:.1f} ms | {f['fast_ms']:.1f} ms "
            f"| {statistics.median(up):.1f} ({up[0]:.1f} to {up[-1]:.1f}) "
            f"| {control[0]:.2f} to {control[-1]:.2f} "
            f"| {f['fast_temp_bytes'] / f['plain_temp_bytes']:.3f} "
            f"| {f['largest_difference']:.0e} |"
        )
    return "\n".join(lines)


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--rounds", type=int, default=7)
    ask.add_argument("--only", default="", help="nets with this in their name")
    ask.add_argument("--out", type=Path, default=RESULTS)
    given = ask.parse_args()
    figures = {
        name: compare(net, given.rounds)
        for name, net in NETS.items()
        if given.only in name
    }
    print(table(figures))
    record = {
        "environment": made_with(),
        "rounds": given.rounds,
        "layers": LAYERS,
        "noise": "`controls` are plain JAX against itself in the same rounds: a "
        "speed-up within their range is none.",
        "nets": {
            name: dataclasses.asdict(NETS[name]) | f for name, f in figures.items()
        },
    }
    given.out.parent.mkdir(exist_ok=True)
    write_whole(given.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
