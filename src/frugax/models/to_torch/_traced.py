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
    compiled = torch.compile(graph, dynamic=False)
    return _Guarded(plan, compiled, names, results, failed)


class _Guarded:
    """A compiled program that falls back to the plan where the compiler fails."""

    def __init__(
        self,
        plan: Plan,
        compiled: Callable[..., Any],
        names: tuple[str, ...],
        results: tuple[str, ...],
        failed: Callable[[Exception], None],
    ) -> None:
        self.plan, self.names, self.results = plan, names, results
        self.failed = failed
        self.compiled: Callable[..., Any] | None = compiled

    def __call__(self, values: Mapping[str, torch.Tensor]) -> Tensors:
        if self.compiled is None:
            return self.plan(values)
        try:
            made = self.compiled(*[values[name] for name in self.names])
        except TorchDynamoException as e:
            self.failed(e)
            # One failure is final: the compiler would fail again, after as long a time.
            self.compiled = None
            return self.plan(values)
        return dict(zip(self.results, made, strict=True))
