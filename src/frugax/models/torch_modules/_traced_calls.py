"""Supply what torch.export does not trace: values, equal masks, branches on data.

torch traces no values. Here those are computed that no input reaches, such as of
buffers, so that Python gets them where it asks, as in `if self.is_ready:`. A question
about data is answered as the caller says, and noted.
"""

import dataclasses
import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree  # noqa: PLC2701 - it has no public name
from torch.utils._python_dispatch import _disable_current_modes  # noqa: PLC2701 - too

from frugax.errors import UnsupportedModuleError

from ._traced_nodes import place_of_frames

# Operations that a mask is an index or an argument of.
_SELECTIONS = {
    torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.masked_select,
    torch.Tensor.masked_select, torch.nonzero, torch.Tensor.nonzero, torch.where,
}  # fmt: skip
_INDEXING = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}
# Functions whose results are as long as data say.
_DATA_LENGTHS = {
    torch.masked_select, torch.Tensor.masked_select, torch.nonzero, torch.where,
    torch.Tensor.nonzero, torch.argwhere, torch.Tensor.argwhere, torch.unique,
    torch.Tensor.unique,
}  # fmt: skip
_COMPARISONS = {torch.equal, torch.Tensor.equal}
_YES_OR_NO = {torch.Tensor.__bool__, torch.is_nonzero, torch.Tensor.is_nonzero}
# What gives Python a value.
_QUESTIONS = _COMPARISONS | _YES_OR_NO | {
    torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__,
    torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__contains__,
}  # fmt: skip
# What torch.func's gradients call, too.
_DERIVATIVES = {torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward}
# More ways through a module than questions of so many kinds would take too long.
_MOST_QUESTIONS = 6


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about data that Python asked, to choose what to compute.

    Attributes:
        condition: the tensor of one number that it is about.
        answer: the answer that it was given.
        place: the source line.
    """

    condition: torch.Tensor
    answer: bool
    place: str


class TracedCalls(TorchFunctionMode):
    """Follows the calls of a module while torch traces it.

    A module selects by one mask wherever it computes the same one anew: torch counts
    the entries of each mask on its own, so that the numbers of rows of
    `logits[labels >= 0]` and `labels[labels >= 0]` are two unknowns to it.

    Args:
        module: the module.
        answers: to the first questions about data; the answer to others is yes.
    """

    def __init__(self, module: torch.nn.Module, answers: Sequence[bool] = ()) -> None:
        super().__init__()
        self.questions: dict[Any, Question] = {}
        self._module, self._answers = module, answers
        self._buffers = dict(module.named_buffers())  # which torch replaces meanwhile
        # By the id of a tensor: a number for the call that computed it, its version
        # then, and its value with the difference of their versions.
        self._calls: dict[int, Any] = {}
        self._versions: dict[int, int] = {}
        self._values: dict[int, tuple[torch.Tensor, int] | None] = {}
        self._tensors: list[torch.Tensor] = []  # which stay alive for their ids
        self._numbers: dict[Any, int] = {}
        self._masks: dict[Any, torch.Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # What Python calls to loop over a tensor.
        if func is torch.Tensor.unbind and free_unbacked_symbols(args[0]):
            raise UnsupportedModuleError(
                "forward loops over rows that data select"
                f"{place_of_frames(traceback.extract_stack())}: loop over all of them, "
                "as in range(n)."
            )
        if func in _DERIVATIVES:
            raise UnsupportedModuleError(
                "forward takes a derivative"
                f"{place_of_frames(traceback.extract_stack())}, which torch.export "
                "does not trace: import a module that returns what is differentiated, "
                "and differentiate the model by JAX, as in jax.grad."
            )
        known = self._known((args, kwargs))
        if func in _QUESTIONS:
            if known is not None:
                with torch._C.DisableTorchFunction(), _disable_current_modes():
                    return func(*known[0], **known[1])
            answer = self._ask(func, args)
            if answer is not None:
                return answer
        chooses = func is torch.where and len(args) + len(kwargs) > 1
        if func in _DATA_LENGTHS and known is not None and not chooses:
            return self._compute(func, known)
        if func in _SELECTIONS:
            if func is torch.where and args and args[0].dtype == torch.uint8:
                args = args[0].bool(), *args[1:]  # which torch does not trace
            if func in _INDEXING:
                args = args[0], self._index_by_places(args[1]), *args[2:]
            args, kwargs = pytree.tree_map(self._first_equal, (args, kwargs))
        if _takes_lengths(func):
            # torch would take a length from a tensor as one that depends on data.
            args, kwargs = pytree.tree_map(self._length, (args, kwargs))
        text = func, *map(self._describe, pytree.tree_leaves((args, kwargs)))
        call = self._numbers.setdefault(text, len(self._numbers))
        result = func(*args, **kwargs)
        results = result if isinstance(result, (tuple, list)) else (result,)
        values: Any = (None,) * len(results)
        is_write = func is torch.Tensor.__setitem__
        if known is not None and (is_write or any(map(torch.is_tensor, results))):
            values = _evaluate(func, *known) or values
        for place, (tensor, value) in enumerate(zip(results, values, strict=False)):
            if isinstance(tensor, torch.Tensor):
                # In-place operations give a tensor that has a call already.
                self._calls.setdefault(id(tensor), (call, place))
                self._versions.setdefault(id(tensor), tensor._version)
                self._tensors.append(tensor)
                self._note_value(tensor, value)
        return result

    # --- equal calls ----------------------------------------------------------------

    def _describe(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return repr(value)
        self._versions.setdefault(id(value), value._version)
        self._tensors.append(value)
        return self._calls.get(id(value), id(value)), value._version

    def _first_equal(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype != torch.bool:
            return value
        call = self._describe(value)
        first = self._masks.setdefault(call, value)
        return first if self._describe(first) == call else value

    def _index_by_places(self, index: Any) -> Any:
        """An index with places for masks that have a value, as of a diagonal."""
        places: list[Any] = []
        for item in index if isinstance(index, tuple) else (index,):
            is_mask = isinstance(item, torch.Tensor) and item.dtype == torch.bool
            value = self._value(item) if is_mask else None
            if value is None or not value.ndim:
                places.append(item)
                continue
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                found = [p.tolist() for p in value.nonzero(as_tuple=True)]
            places += [torch.tensor(p, dtype=torch.int64) for p in found]
        return tuple(places)

    # --- values ---------------------------------------------------------------------

    def _compute(self, func: Any, known: Any) -> Any:
        """The results of a call on values as constants, with the lengths they have."""
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            values, structure = pytree.tree_flatten(func(*known[0], **known[1]))
        constants = [torch.tensor(v.tolist(), dtype=v.dtype) for v in values]
        for constant, value in zip(constants, values, strict=True):
            self._tensors.append(constant)
            self._note_value(constant, value)
        return pytree.tree_unflatten(constants, structure)

    def _known(self, values: Any) -> Any:
        """Some arguments with the values of their tensors; None if one has none."""
        leaves, structure = pytree.tree_flatten(values)
        found: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                return None
            if isinstance(leaf, torch.Tensor):
                leaf = self._value(leaf)
                if leaf is None:
                    return None
            found.append(leaf)
        return pytree.tree_unflatten(found, structure)

    def _value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if id(tensor) not in self._values:
            constant = self._constant(tensor)
            if constant is None:  # as yet: torch replaces buffers while it begins
                return None
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                constant = constant.detach().clone()
            self._tensors.append(tensor)
            self._note_value(tensor, constant)
        known = self._values[id(tensor)]
        # Otherwise an operand without a value changed it in place.
        if known is not None and tensor._version - known[0]._version == known[1]:
            return known[0]
        return None

    def _note_value(self, tensor: torch.Tensor, value: Any) -> None:
        has_value = isinstance(value, torch.Tensor)
        gap = tensor._version - value._version if has_value else 0
        self._values[id(tensor)] = (value, gap) if has_value else None

    def _length(self, value: Any) -> Any:
        """An integer in place of a tensor that has it as value."""
        if not isinstance(value, torch.Tensor) or value.dtype != torch.int64:
            return value
        known = None if value.ndim else self._value(value)
        if known is None:
            return value
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return int(known)

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The value of a buffer, or of a tensor that the module holds otherwise."""
        if isinstance(tensor, torch.nn.Parameter):
            return None
        for name, buffer in self._module.named_buffers():
            if buffer is tensor:
                return self._buffers.get(name)
        is_traced = type(tensor) is not torch.Tensor or torch._is_functional_tensor(
            tensor
        )
        return None if is_traced else tensor

    # --- questions ------------------------------------------------------------------

    def _ask(self, func: Any, args: Any) -> Any:
        """The answer to a question about data; None if it is not yes or no."""
        condition = args[0]
        if func in _COMPARISONS:
            if args[0].shape != args[1].shape:
                return False
            condition = torch.eq(*args).all()
        elif func is torch.Tensor.__contains__:
            condition = torch.eq(*args).any()
        elif func not in _YES_OR_NO and condition.dtype != torch.bool:
            # A float stays a float, since Python can compare it, too.
            is_float = func is torch.Tensor.item and condition.is_floating_point()
            return condition.detach().reshape(()) if is_float else None
        elif condition.numel() != 1:
            return None
        key = self._describe(condition)
        if key not in self.questions:
            place, number = (
                place_of_frames(traceback.extract_stack()),
                len(self.questions),
            )
            if number == _MOST_QUESTIONS:
                raise UnsupportedModuleError(
                    f"forward asks for more than {number} numbers that depend on data, "
                    f"the last of them{place}: use torch.where."
                )
            answer = self._answers[number] if number < len(self._answers) else True
            if condition.dtype != torch.bool:
                condition = torch.ne(condition, 0)
            condition = condition.detach().reshape(())
            self.questions[key] = Question(condition, answer, place)
        return self.questions[key].answer


def _takes_lengths(func: Any) -> bool:
    """Whether a function takes lengths, and no list of tensors."""
    packet = getattr(torch.ops.aten, getattr(func, "__name__", ""), None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):  # as of "__eq__"
        return False
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    kinds = {str(a.type) for schema in schemas for a in schema.arguments}
    return "List[int]" in kinds and "List[Tensor]" not in kinds


def _evaluate(func: Any, args: Any, kwargs: Any) -> Sequence[Any] | None:
    """The results of a call on values; None if it draws random numbers or has none."""
    if torch._C._meta_in_tls_dispatch_include():  # where torch makes no values at all
        return None
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        state = torch.get_rng_state()
        result = func(*args, **kwargs)
        if not torch.equal(state, torch.get_rng_state()):
            torch.set_rng_state(state)
            return None
    return result if isinstance(result, (tuple, list)) else (result,)
