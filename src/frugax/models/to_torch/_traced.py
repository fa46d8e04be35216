"""Compile an execution plan by `torch.compile`; run it eagerly where that fails."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._dynamo.exc import (  # noqa: PLC2701 - it has no public name
    TorchDynamoException,
)
from torch.fx.experimental.proxy_tensor import make_fx

from ._execution_plan import Plan

Tensors = dict[str, torch.Tensor]


def traced(
    plan: Plan,
    values: Mapping[str, torch.Tensor],
    failed: Callable[[Exception], None],
) -> Callable[..., Tensors]:
    """The plan compiled by `torch.compile`, for tensors such as these.

    It is traced to torch's own operations first: `torch.compile` keeps a few programs
    for each piece of Python only, and all plans are the same Python.
    """
    names = tuple(values)
    results = tuple(plan.outputs)

    def flat(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = plan(dict(zip(names, tensors, strict=True)))
        return tuple(made[name] for name in results)

    try:
        graph = make_fx(flat, tracing_mode="fake", pre_dispatch=True)(
            *(v.detach() for v in values.values())
        )
    except Exception as e:  # whatever an op raises when tensors have no values
        failed(e)
        return plan
    # dynamic=False: each set of shapes has a plan of its own, so guards for other
    # shapes would never help.
    compiled: Callable[..., Any] | None = torch.compile(graph, dynamic=False)

    def run(values: Mapping[str, torch.Tensor]) -> Tensors:
        nonlocal compiled
        if compiled is not None:
            try:
                made = compiled(*[values[name] for name in names])
                return dict(zip(results, made, strict=True))
            except TorchDynamoException as e:
                failed(e)
                # One failure is final: the compiler would fail again, after as long a
                # time.
                compiled = None
        return plan(values)

    return run
