"""A torch module on its way to a model, and the numbers that it computes."""

import contextlib
import copy
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree  # noqa: PLC2701 - it has no public name

from frugax.errors import UnsupportedModuleError
from frugax.models.to_torch import TO_NUMPY

from ._traced_nodes import first_line, place_of_error


@dataclasses.dataclass(frozen=True)
class TracedModule:
    """A module on its way to a model: its copy, and what its forward was given.

    Attributes:
        module: a copy, in float32 if it has 16 bits.
        args: the positional arguments of its forward.
        kwargs: the others.
        signature: of its forward.
        float_dtype: the dtype of its numbers.
        half: the dtype that it had, if that has 16 bits.
        trained: its outputs for the example in training mode, if it was given so.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    signature: inspect.Signature
    float_dtype: np.dtype
    half: torch.dtype | None = None
    trained: list[np.ndarray] | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments, in the order of torch.export's inputs."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [v for v in leaves if isinstance(v, torch.Tensor)]

    @functools.cached_property
    def arrays(self) -> list[np.ndarray]:
        """The values of these tensors."""
        return [to_numpy(t) for t in self.tensors]

    def run(self, values: Sequence[np.ndarray], calls: int = 1) -> list[np.ndarray]:
        """The outputs of the last of some calls for other values of these tensors."""
        # A forward may change its buffers in place.
        buffers = {name: b.clone() for name, b in self.module.named_buffers()}
        # The fast path of torch's attention gives NaN where all keys are masked, and
        # that which torch.export follows gives 0.
        fast = torch.backends.mha.get_fastpath_enabled()
        outputs: list[Any] = []
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with torch.no_grad():
                for _ in range(calls):
                    args, kwargs = self.fill(values)
                    outputs, _ = split_outputs(self.module(*args, **kwargs))
            return list(map(to_numpy, outputs))
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            with torch.no_grad():
                for name, buffer in self.module.named_buffers():
                    buffer.copy_(buffers[name])

    def run_example(self, calls: int = 1) -> list[np.ndarray]:
        """The outputs of the last of some calls for the example.

        Raises:
            UnsupportedModuleError: the module raises.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the module, about its own use
                return self.run(self.arrays, calls)
        except Exception as e:  # whatever the user's module raises
            cast = ""
            if self.half is not None:
                cast = f" in float32, which takes the place of {self.half}"
            raise UnsupportedModuleError(
                f"the module does not run on the example inputs{cast}"
                f"{place_of_error(e)}: {first_line(e)}"
            ) from e

    def find_omissions(self) -> tuple[list[str], list[str]]:
        """Find parts that no model has: outputs other than tensors, own backwards.

        Returns:
            The types of such outputs, and the names of the `torch.autograd.Function`s
            that outputs are computed by.
        """
        outputs: list[torch.Tensor] = []
        others: list[str] = []
        # Some modules have no gradient, and raise whatever they do.
        for mode in (torch.no_grad, torch.enable_grad):
            args, kwargs = self.fill(self.arrays)
            with (
                mode(), warnings.catch_warnings(), contextlib.suppress(Exception),
            ):  # fmt: skip
                warnings.simplefilter("ignore")  # of the module, about its own use
                outputs, others = split_outputs(self.module(*args, **kwargs))
        stack: list[Any] = [v.grad_fn for v in outputs]
        seen: set[Any] = {None}
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack += [before for before, _ in node.next_functions]
        functions = {type(node) for node in seen}
        own = torch.autograd.function.BackwardCFunction
        functions = {f.__name__ for f in functions if issubclass(f, own)}
        return others, sorted(n.removesuffix("Backward") for n in functions)

    def fill(self, values: Sequence[np.ndarray]) -> tuple[Any, Any]:
        """The arguments with other values, as tensors of their own.

        A forward may change them in place, and torch.export notes on them which of
        their lengths are free.
        """
        rest = iter(zip(values, self.tensors, strict=True))

        def replace(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            value, old = next(rest)
            return torch.tensor(value, dtype=old.dtype)

        return pytree.tree_map(replace, (self.args, self.kwargs))


def prepare(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TracedModule:
    """Copy a module and its arguments; numbers of 16 bits become float32."""
    numbers = [*module.parameters(), *module.buffers()]
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    numbers += [v for v in leaves if isinstance(v, torch.Tensor)]
    dtypes = [t.dtype for t in numbers if t.is_floating_point()]
    dtype = dtypes[0] if dtypes else torch.float32
    if torch.float64 in dtypes and dtype.itemsize > 2:
        dtype = torch.float64  # whose numbers float32 could not hold
    module = _copy(module)
    if dtype.itemsize == 2:
        module, half, dtype = module.float(), dtype, torch.float32
    else:
        half = None

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        # Each a tensor of its own: torch.export takes equal ones for one input.
        leaf = leaf.detach().clone()
        return leaf.float() if leaf.dtype == half else leaf

    own_args: tuple[Any, ...]
    own_args, kwargs = pytree.tree_map(own, (tuple(args), dict(kwargs)))
    signature = _sign(module, kwargs)
    # torch.export lists inputs in the order of the signature.
    order = list(signature.parameters)
    place = lambda item: order.index(item[0]) if item[0] in order else len(order)
    kwargs = dict(sorted(kwargs.items(), key=place))
    traced = TracedModule(module, own_args, kwargs, signature, TO_NUMPY[dtype], half)
    if module.training:
        # Whatever it raises, such as of a batch of one, is not what is imported.
        with (
            contextlib.suppress(Exception),
            torch.random.fork_rng(devices=[]),
            attributes_stay(module),
        ):
            traced = dataclasses.replace(traced, trained=traced.run(traced.arrays))
    module.eval()  # whose own result some modules, such as loralib's, forget to return
    return traced


def split_outputs(outputs: Any) -> tuple[list[torch.Tensor], list[str]]:
    """The tensors among the results of a forward, and the types of the others."""
    tensors: list[torch.Tensor] = []
    others: list[str] = []
    for leaf in pytree.tree_leaves(outputs):
        parts: Any = ()
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            parts = [getattr(leaf, f.name) for f in dataclasses.fields(leaf)]
        elif isinstance(leaf, Mapping):  # of a class that torch does not know
            parts = list(leaf.values())
        elif leaf is not None:
            others.append(type(leaf).__name__)
        more = split_outputs(parts) if parts else ([], [])
        tensors, others = tensors + more[0], others + more[1]
    return tensors, others


def _sign(module: torch.nn.Module, kwargs: Mapping[str, Any]) -> inspect.Signature:
    """The signature of a forward, with names for arguments of `**kwargs`.

    torch.export leaves no length open of a forward with `**kwargs`.

    Raises:
        UnsupportedModuleError: it is not Python code.
    """
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise UnsupportedModuleError(
                f"{name or 'the module'} is of torch.jit, and has no Python code, "
                "which torch.export traces: put the module there that it was made "
                "from."
            )
    signature = inspect.signature(module.forward)
    known = dict(signature.parameters)
    kinds = {p.kind: name for name, p in known.items()}
    by_name = inspect.Parameter.KEYWORD_ONLY
    if rest := kinds.get(inspect.Parameter.VAR_KEYWORD):
        del known[rest]
        more = {k: inspect.Parameter(k, by_name) for k in kwargs if k not in known}
        known |= more
    return signature.replace(parameters=list(known.values()))


@contextlib.contextmanager
def attributes_stay(module: torch.nn.Module) -> Iterator[None]:
    """Undo changes that a forward makes to its module."""
    before = [(part, dict(vars(part))) for part in module.modules()]
    try:
        yield
    finally:
        for part, attributes in before:
            vars(part).clear()
            vars(part).update(attributes)


def ignore_own_casts(module: torch.nn.Module) -> None:
    """Let a forward cast parts of the module to what they are, as routers do.

    torch.export cannot change parameters, nor put others like them in their place.
    """

    def keep(part: torch.nn.Module, function: Any, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002 - torch's own
        tensors = [*part.parameters(recurse), *part.buffers(recurse)]
        likes = lambda t: (t.dtype, t.device, t.shape)
        if all(likes(function(t)) == likes(t) for t in tensors):
            return part
        return type(part)._apply(part, function, recurse)

    for part in module.modules():
        part._apply = functools.partial(keep, part)  # type: ignore[method-assign]


def _copy(module: torch.nn.Module) -> torch.nn.Module:
    """Copy a module; attributes that have no copy, such as locks, are shared.

    Raises:
        UnsupportedModuleError: it has no copy even so.
    """
    shared: dict[int, Any] = {}
    try:
        return copy.deepcopy(module)
    except Exception:  # whatever an attribute of the user's raises
        members = ("_modules", "_parameters", "_buffers")
        for part in module.modules():
            for name, value in vars(part).items():
                if name not in members and not _has_copy(value):
                    shared[id(value)] = value
    try:
        return copy.deepcopy(module, shared)
    except Exception as e:
        raise UnsupportedModuleError(
            f"the module cannot be copied, and from_torch leaves your own as it is: "
            f"{first_line(e)}."
        ) from e


def _has_copy(value: Any) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:  # the same
        return False
    return True


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as an array; of integers with 64 bits the array has 32."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    array = np.array(tensor.resolve_conj().resolve_neg().numpy())
    if array.dtype != np.int64:
        return array
    # The largest numbers are bounds that nothing reaches.
    least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    ends = np.iinfo(np.int64)
    array = np.where(array == ends.max, most, np.where(array == ends.min, least, array))
    if array.size and not (array.min() >= least and array.max() <= most):
        raise OverflowError(f"the integer {np.abs(array).max()} needs 64 bits.")
    return array.astype(np.int32)
