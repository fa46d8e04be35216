"""Estimate the seconds that a plan adds to a step, to compare two plans that fit.

Flops alone would always choose chunks of the batch: they compute next to nothing twice.
But each chunk starts every product again, with fewer rows, and adds up all gradients
once more. A recurrent net of 1,000 short steps, in 4 chunks on a CPU, took twice as
long as with its steps recomputed.
"""

import dataclasses
from collections.abc import Sequence

from frugax.jaxprs import JaxprEqn, bytes_of, is_heavy, jaxprs_in_params

from .rewrite import RematGraph


@dataclasses.dataclass(frozen=True)
class Speeds:
    """The speed of a platform, to an order of magnitude.

    Attributes:
        flops: of large matrix products, for each second.
        bandwidth: bytes of memory read or written in each second.
        start: seconds to start one product and the operations around it.
    """

    flops: float
    bandwidth: float
    start: float


# CPU: two cores, fitted to step times of four nets (docs/maintainers.md). GPU and TPU:
# about half of the peaks that NVIDIA's data sheet of the H100 states with TF32, and
# Google's of the TPU v5e with bfloat16; a product is taken to launch two kernels of 5
# µs. No GPU or TPU has been timed.
_SPEEDS = {
    "cpu": Speeds(1e11, 1e10, 4e-6),
    "gpu": Speeds(2e14, 2e12, 1e-5),
    "tpu": Speeds(1e14, 4e11, 2e-6),
}


def guess_added_seconds(
    loss: RematGraph, platform: str, extra_flops: int, chunks: int
) -> float:
    """Seconds that a plan of this loss adds to a step, by the model above.

    Args:
        loss: the loss that is planned.
        platform: `"cpu"`, `"gpu"` or `"tpu"`; others count as GPUs.
        extra_flops: that the plan computes beside those of the plain program.
        chunks: into which it divides the batch; 1 for none.
    """
    speeds = _SPEEDS.get(platform, _SPEEDS["gpu"])
    # Each product has two in the backward pass.
    starts = 3 * _count_products(loss.eqns) * speeds.start
    # A sum is read and written, and its addend is read.
    moved = 3 * sum(map(bytes_of, loss.wrt)) / speeds.bandwidth
    return extra_flops / speeds.flops + (chunks - 1) * (starts + moved)


def _count_products(eqns: Sequence[JaxprEqn]) -> int:
    """Matrix products and convolutions that run; in a `scan`, once an iteration."""
    count = 0
    for e in eqns:
        inside = sum(_count_products(j.eqns) for j in jaxprs_in_params(e.params))
        times = e.params["length"] if e.primitive.name == "scan" else 1
        count += times * inside or is_heavy(e)
    return count
