"""Tell torch.export which masks are equal, and the values that no input reaches."""

import dataclasses
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree  # noqa: PLC2701 - it has no public name
from torch.utils._python_dispatch import _disable_current_modes  # noqa: PLC2701 - too

# What a mask is an index or an argument of.
_SELECTIONS = {
    torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.masked_select,
    torch.Tensor.masked_select, torch.nonzero, torch.Tensor.nonzero, torch.where,
}  # fmt: skip
# What gives Python a value.
_QUESTIONS = {
    torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__,
    torch.Tensor.__index__, torch.Tensor.item, torch.Tensor.tolist, torch.equal,
    torch.Tensor.equal, torch.is_nonzero,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call that computed a tensor: its place in the result, and its description."""

    func: Any
    args: Any
    kwargs: Any
    place: int
    text: Any


class TracedCalls(TorchFunctionMode):
    """Remembers by which call each tensor was computed while a module is traced.

    By that a module selects by one mask wherever it computes the same one anew: torch
    counts the entries of each mask on its own, so that the numbers of rows of
    `logits[labels >= 0]` and `labels[labels >= 0]` are two unknowns to it.

    And Python learns what buffers and constants give, as in `if self.is_ready:`, of
    which torch does not trace the values. In a model they are constants.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._module = module
        self._buffers = dict(module.named_buffers())  # which torch replaces meanwhile
        self._calls: dict[int, _Call] = {}
        self._versions: dict[int, int] = {}  # of tensors when they were met
        self._tensors: list[torch.Tensor] = []  # which stay alive for their ids
        self._masks: dict[Any, torch.Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _QUESTIONS:
            known = self._evaluate((args, kwargs))
            if known is not None:
                with torch._C.DisableTorchFunction(), _disable_current_modes():
                    return func(*known[0], **known[1])
        if func in _SELECTIONS:
            args, kwargs = pytree.tree_map(self._first_equal, (args, kwargs))
        text = func, *(self._describe(v) for v in pytree.tree_leaves((args, kwargs)))
        result = func(*args, **kwargs)
        results = result if isinstance(result, (tuple, list)) else (result,)
        for place, tensor in enumerate(results):
            if isinstance(tensor, torch.Tensor):
                # In-place operations give a tensor that has a call already.
                call = _Call(func, args, kwargs, place, (text, place))
                self._calls.setdefault(id(tensor), call)
                self._versions.setdefault(id(tensor), tensor._version)
                self._tensors.append(tensor)
        return result

    def _describe(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return repr(value)
        self._versions.setdefault(id(value), value._version)
        self._tensors.append(value)
        call = self._calls.get(id(value))
        return id(value) if call is None else call.text, value._version

    def _first_equal(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype != torch.bool:
            return value
        call = self._describe(value)
        first = self._masks.setdefault(call, value)
        return first if self._describe(first) == call else value

    def _evaluate(self, values: Any) -> Any:
        """Some arguments with the values of their tensors; None if one has none."""
        leaves, structure = pytree.tree_flatten(values)
        found: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                leaf = self._value(leaf)
                if leaf is None:
                    return None
            found.append(leaf)
        return pytree.tree_unflatten(found, structure)

    def _value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        # In-place operations may have changed it.
        if self._versions.get(id(tensor), tensor._version) != tensor._version:
            return None
        call = self._calls.get(id(tensor))
        if call is None:
            return self._constant(tensor)
        known = self._evaluate((call.args, call.kwargs))
        if known is None or torch.Tag.nondeterministic_seeded in getattr(
            call.func, "tags", ()
        ):
            return None
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            result = call.func(*known[0], **known[1])
        return result[call.place] if isinstance(result, (tuple, list)) else result

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The value of a buffer, or of a tensor that the module holds otherwise."""
        for name, buffer in self._module.named_buffers():
            if buffer is tensor:
                return self._buffers.get(name)
        is_traced = type(tensor) is not torch.Tensor or torch._is_functional_tensor(
            tensor
        )
        return None if is_traced else tensor
