"""Let torch.export know that equal masks select equally many rows."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree  # noqa: PLC2701 - it has no public name

# What a mask is an index or an argument of.
_SELECTIONS = {
    torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.masked_select,
    torch.Tensor.masked_select, torch.nonzero, torch.Tensor.nonzero, torch.where,
}  # fmt: skip


class EqualMasks(TorchFunctionMode):
    """Selects by one mask wherever a module computes the same one anew.

    torch counts the entries of each mask on its own. The numbers of rows of
    `logits[labels >= 0]` and `labels[labels >= 0]`, whose masks are two tensors, are
    two unknowns to it, and a loss of these cannot be traced.
    """

    def __init__(self) -> None:
        super().__init__()
        # The calls that computed a tensor, by its id; the tensors are kept alive.
        self._calls: dict[int, Any] = {}
        self._tensors: list[torch.Tensor] = []
        self._masks: dict[Any, torch.Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _SELECTIONS:
            args, kwargs = pytree.tree_map(self._first_equal, (args, kwargs))
        call = func, *(self._describe(v) for v in pytree.tree_leaves((args, kwargs)))
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            # In-place operations give a tensor that has a call already.
            self._calls.setdefault(id(result), call)
            self._tensors.append(result)
        return result

    def _describe(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return repr(value)
        return self._calls.get(id(value), id(value)), value._version

    def _first_equal(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype != torch.bool:
            return value
        call = self._describe(value)
        first = self._masks.setdefault(call, value)
        return first if self._describe(first) == call else value
