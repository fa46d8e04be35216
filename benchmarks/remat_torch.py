"""PyTorch's `activation_memory_budget` at the same shares, on two of the same nets.

The same shapes and operations, compiled by `torch.compile` (inductor) on CPU. Peak and
held bytes are summed up from the allocator's own events, as the profiler records them;
flops are those of the matrix products that ran.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch  # noqa: TID253
import torch._functorch.config as functorch_config  # noqa: PLC2701, TID253
from benchmarks.remat_cases import SHARES, limit_of, markdown, net, plain, planned, said
from torch.nn import functional  # noqa: TID253
from torch.profiler import ProfilerActivity, profile, record_function  # noqa: TID253

CAVEAT = (
    "The two are not the same promise. PyTorch's budget is a share of what the forward "
    "pass holds for the backward pass, chosen by estimates; it promises nothing about "
    "the peak, and nothing is checked after compiling. Its peak here is what its "
    "allocator held beyond the arguments, gradients included; ours has XLA's temporary "
    "bytes and outputs, so gradients too. Shares are of each one's own program without "
    "a plan; PyTorch's own, at budget 1, already recomputes what costs next to nothing."
)
_BACKWARD = "backward of the benchmark"
# The profiler also knows some elementwise flops, when not fused: left out.
_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}


def mlp(params: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    for w in params:
        x = x + functional.gelu(x @ w, approximate="tanh")
    return (x**2).mean()


def _norm(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred**2).mean(-1, keepdim=True) + 1e-5)


def transformer(
    params: list[dict[str, torch.Tensor]], x: torch.Tensor, heads: int = 4
) -> torch.Tensor:
    for p in params:
        batch, length, width = x.shape
        qkv = (_norm(x) @ p["qkv"]).split(width, -1)
        q, k, v = (y.view(batch, length, heads, -1).transpose(1, 2) for y in qkv)
        scores = q @ k.transpose(2, 3) / (width / heads) ** 0.5
        causal = torch.tril(torch.ones(1, 1, length, length, dtype=torch.bool))
        mixed = torch.softmax(torch.where(causal, scores, -1e9), -1) @ v
        x = x + mixed.transpose(1, 2).reshape(x.shape) @ p["out"]
        x = x + functional.gelu(_norm(x) @ p["up"], approximate="tanh") @ p["down"]
    return (x**2).mean()


NETS: dict[str, Callable[..., torch.Tensor]] = {
    "mlp24": mlp,
    "transformer12": transformer,
}


@dataclasses.dataclass(frozen=True)
class Ran:
    """One step: most bytes held, bytes held between forward and backward, flops."""

    peak_bytes: int
    held_bytes: int
    flops: int


def measured(name: str) -> dict[str, Any]:
    """The figures of one net, ours at the same shares beside them."""
    base, difference = run(name, 1.0)
    found: dict[str, Any] = {}
    was = plain(name)
    for share in SHARES:
        ran, _ = run(name, share)
        plan = planned(name, limit_of(name, share)).plan
        found[f"{share:g}"] = {
            **dataclasses.asdict(ran),
            "peak_share": ran.peak_bytes / base.peak_bytes,
            "held_share": ran.held_bytes / base.held_bytes,
            "extra_flops_share": ran.flops / base.flops - 1,
            "ours": plan
            and {
                "peak_share": (plan.predicted + was.output_bytes)
                / (was.temp_bytes + was.output_bytes),
                "temp_share": plan.predicted / was.temp_bytes,
                "extra_flops_share": plan.extra_share,
            },
        }
        said(f"{name}: torch at {share:g}: {ran}")
    return {
        "torch": torch.__version__,
        "backend": "inductor",
        "unplanned": dataclasses.asdict(base),
        "our_unplanned_bytes": was.temp_bytes + was.output_bytes,
        "loss_difference": difference,
        "budgets": found,
    }


def run(name: str, budget: float) -> tuple[Ran, float]:
    """One step with this budget; how far its loss is from that of JAX, as a share."""
    params, x = _arguments(name)
    leaves = list(_leaves(params))
    torch.compiler.reset()
    # Compiled at the first call, so that has to be in here.
    with functorch_config.patch(activation_memory_budget=budget):
        compiled = torch.compile(NETS[name])
        loss = compiled(params, x)
        torch.autograd.grad(loss, leaves)
    _profiled(compiled, params, x)  # the profiler's own set-up is in the first
    step, loss = _profiled(compiled, params, x)
    ours = float(net(name).loss(*net(name).arrays()))
    return _followed(step), abs(float(loss.detach()) - ours) / abs(ours)


def _arguments(name: str) -> tuple[Any, torch.Tensor]:
    """The same numbers as JAX has."""
    params, x = net(name).arrays()
    tensor = lambda a: torch.tensor(a.__array__())
    turned = [
        {k: tensor(v).requires_grad_() for k, v in p.items()}
        if isinstance(p, dict)
        else tensor(p).requires_grad_()
        for p in params
    ]
    return turned, tensor(x)


def _leaves(params: Any) -> list[torch.Tensor]:
    return [t for p in params for t in (p.values() if isinstance(p, dict) else [p])]


def _profiled(
    compiled: Callable[..., torch.Tensor], params: Any, x: torch.Tensor
) -> tuple[profile, torch.Tensor]:
    """One step, with its events in the profiler."""
    with profile(
        activities=[ProfilerActivity.CPU],
        profile_memory=True,
        with_flops=True,
        record_shapes=True,  # flops follow from them
    ) as step:
        loss = compiled(params, x)
        with record_function(_BACKWARD):
            torch.autograd.grad(loss, list(_leaves(params)))
    return step, loss


def _followed(step: profile) -> Ran:
    """Sum the allocator's allocations and frees, in order."""
    # It has run. PyTorch has no types for its events.
    events: list[Any] = step.profiler.kineto_results.events()  # pyright: ignore
    (turn,) = (e.start_ns() for e in events if e.name() == _BACKWARD)
    now = peak = held = 0
    for change in sorted(events, key=lambda e: e.start_ns()):
        if change.name() != "[memory]":
            continue
        now += change.nbytes()
        peak = max(peak, now)
        held = now if change.start_ns() < turn else held
    flops = sum(e.flops or 0 for e in step.key_averages() if e.key in _PRODUCTS)
    return Ran(peak, held, flops)


def table(nets: dict[str, Any]) -> str:
    """A line for each net and share."""
    rows = []
    for name, found in nets.items():
        for share, c in found["budgets"].items():
            ours = c["ours"]
            rows.append(
                [
                    f"{name}, {share}",
                    f"{c['held_share']:.2f}",
                    f"{c['peak_share']:.2f}",
                    f"{c['extra_flops_share']:+.1%}",
                    f"{ours['peak_share']:.2f}" if ours else "no plan",
                    f"{ours['extra_flops_share']:+.1%}" if ours else "-",
                ]
            )
    head = ["net, budget", "PyTorch: held for backward", "its peak", "its more flops"]
    return markdown([*head, "ours: peak", "our more flops"], rows)
