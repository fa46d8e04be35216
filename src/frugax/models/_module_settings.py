"""Compare the settings of a flax or equinox module with those of a model's layers.

Weights fit a layer with another epsilon, stride or number of heads as well, and then
give other numbers.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .graph import ModelGraph, OpNode
from .ops import OPS

# Settings by our name, each with the names that the libraries have for it.
_NAMES = {
    "epsilon": ("eps", "epsilon"),
    "groups": ("groups", "num_groups", "feature_group_count"),
    "stride": ("stride", "strides"),
    "dilation": ("dilation", "kernel_dilation"),
    "padding": ("padding",),
    "output_padding": ("output_padding",),
    "momentum": ("momentum",),
}
# Settings that a layer of a model lacks, and the only value that each may have.
_ABSENT = {
    "padding_mode": "ZEROS",
    "input_dilation": 1,
    "normalize_qk": False,
    "transpose_kernel": False,
    "reduction_axes": -1,
    "feature_axes": -1,
    "mask": None,
}
# flax's own, where nothing but the weights is at hand.
_FLAX_EPSILON = {"batch_norm": 1e-5}
_FLAX_NORMS = ("layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm")


def read_settings(module: Any) -> dict[str, Any]:
    """The settings of one module: its attributes, and its heads and activation."""
    if dataclasses.is_dataclass(module):
        names = [f.name for f in dataclasses.fields(module)]
    else:
        names = list(getattr(module, "__dict__", ()))
    return {name: getattr(module, name, None) for name in names}


def modules_of(root: Any, path: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The modules on the way to a leaf, outermost first, each with its path."""
    module = root
    for i, part in enumerate(path):
        yield tuple(path[:i]), module
        if isinstance(module, Mapping):
            module = module.get(part)
        elif isinstance(module, (list, tuple)) or part.isdigit():
            module = module[int(part)]
        else:
            module = getattr(module, part, None)
        if module is None:
            return


def compare_settings(
    theirs: Mapping[str, Any], node: OpNode, dtype: np.dtype, kernel: Sequence[int] = ()
) -> list[str]:
    """How the settings of a module differ from those of the op that has its weights.

    Args:
        theirs: the settings of the module.
        node: the op.
        dtype: in which the model computes.
        kernel: the lengths of its window, if it is a convolution.
    """
    ours, problems = dict(node.attrs), []
    for name, others in _NAMES.items():
        if name not in ours or (name == "momentum" and ours.get("inference")):
            continue
        for other in others:
            if other not in theirs or (theirs[other] is None and other != "strides"):
                continue
            value, own = theirs[other], ours[name]
            if name == "momentum":  # the share that is kept, and ours that is new
                value = 1 - value
            same = _is_same(name, value, own, theirs, ours, kernel)
            if not same:
                problems.append(f"{name} {own!r} where the module has {value!r}")
    stated = theirs.get("dtype")
    if stated is not None and np.dtype(stated) != dtype:
        problems.append(f"dtype {dtype} where the module computes in {stated}")
    for name, only in _ABSENT.items():
        value = theirs.get(name, only)
        if value is not None and not _equal(value, only):
            shown = " ".join(repr(value).split())
            problems.append(f"no {name}, which is {shown:.60} in the module")
    return problems


def _is_same(
    name: str,
    value: Any,
    own: Any,
    theirs: Mapping[str, Any],
    ours: Mapping[str, Any],
    kernel: Sequence[int],
) -> bool:
    if name in ("epsilon", "momentum"):
        return bool(np.isclose(value, own, rtol=1e-6, atol=0))
    if name == "padding":
        stride = np.atleast_1d(ours.get("stride", 1))
        is_text = (isinstance(value, str), isinstance(own, str))
        if all(is_text):
            return value.lower() == own.lower()
        if isinstance(value, str) and value.lower() not in ("same", "valid"):
            return False  # such as circular, which ours are not
        is_same = "same" in (str(value).lower(), str(own).lower())
        if is_same and (stride != 1).any():
            return False  # it depends on the length of the input
        spread = np.broadcast_to(ours.get("dilation", 1), len(kernel))
        reach = [int(d * (k - 1)) for d, k in zip(spread, kernel, strict=True)]
        return _pairs(value, reach) == _pairs(own, reach)
    if value is None:
        value = 1
    return _equal(value, own)


def _pairs(padding: Any, reach: Sequence[int]) -> list[tuple[int, int]]:
    """Return the padding before and after each axis, for windows of this reach."""
    if isinstance(padding, str):
        if padding.lower() == "valid":
            return [(0, 0)] * len(reach)
        return [(r // 2, r - r // 2) for r in reach]
    if isinstance(padding, int):
        return [(padding, padding)] * len(reach)
    return [tuple(p) if np.ndim(p) else (int(p), int(p)) for p in padding]


def _equal(left: Any, right: Any) -> bool:
    left, right = np.atleast_1d(left), np.atleast_1d(right)
    if len(left) == 1 or len(right) == 1 or len(left) == len(right):
        return bool((left == right).all())
    return False


def compare_heads(
    graph: ModelGraph, layer: str, theirs: Mapping[str, Any]
) -> list[str]:
    """Whether the attention at a place has the heads of the module."""
    heads = theirs.get("num_heads")
    for node in _within(graph, layer):
        if node.op == "attention" and isinstance(heads, int):
            shape = graph.specs[node.inputs["query"]].shape
            own = shape[2] if len(shape) == 4 else 1
            if own != heads:
                return [f"{own!r} heads where the module has {heads!r}"]
    return []


def compare_activations(
    graph: ModelGraph, layer: str, theirs: Mapping[str, Any]
) -> list[str]:
    """Whether the functions that a module holds are among the ops at a place."""
    nodes = list(_within(graph, layer))
    own: list[Any] = [n for n in nodes if len(n.inputs) == 1]
    made = [_values(functools.partial(_apply, node)) for node in own]
    if any(n.op in _RECURRENT for n in nodes):
        made += [np.tanh(_SAMPLE), 1 / (1 + np.exp(-_SAMPLE))]
    problems: list[str] = []
    for function in _functions(theirs):
        wanted = _values(function)
        if wanted is None or any(_is_close(wanted, v) for v in (_SAMPLE, *made)):
            continue
        name = getattr(function, "__name__", repr(function))
        names = ", ".join(dict.fromkeys(n.op for n in own)) or "none"
        problems.append(f"no {name}, which the module applies; it has: {names}")
    return problems


_SAMPLE = np.linspace(-4, 4, 33, dtype=np.float32)
_RECURRENT = ("rnn", "lstm", "gru", "rnn_cell", "lstm_cell", "gru_cell")


def _functions(settings: Mapping[str, Any]) -> Iterator[Any]:
    """The functions among settings: in sequences, and in modules around one, too."""
    for value in settings.values():
        for item in value if isinstance(value, Sequence) else (value,):
            if type(item).__name__ == "Lambda":  # equinox's
                item = item.fn
            has_name = hasattr(item, "__name__") and not isinstance(item, type)
            if callable(item) and (has_name or isinstance(item, functools.partial)):
                yield item


def _values(function: Any) -> np.ndarray | None:
    """The values of a function of each number; None if it is of another kind."""
    try:
        values = np.asarray(function(_SAMPLE))
    except Exception:  # one that takes other arguments or has weights of its own
        return None
    is_alike = values.shape == _SAMPLE.shape and values.dtype.kind == "f"
    return values if is_alike else None


def _is_close(left: np.ndarray, right: np.ndarray | None) -> bool:
    if right is None:
        return False
    return np.allclose(left, right, rtol=1e-5, atol=1e-5, equal_nan=True)


def _apply(node: OpNode, x: np.ndarray) -> np.ndarray:
    import jax.numpy as jnp  # here, since models run in torch without it

    from .to_jax import JaxNamespace

    return OPS[node.op](JaxNamespace(), jnp.asarray(x), **dict(node.attrs))


def _within(graph: ModelGraph, layer: str) -> Iterator[OpNode]:
    for node in graph.nodes:
        if isinstance(node, OpNode) and (
            not layer or node.path == layer or node.path.startswith(f"{layer}.")
        ):
            yield node


def compare_dropouts(graph: ModelGraph, rates: Collection[float]) -> list[str]:
    """Whether the dropouts of a model have the rates of the module."""
    drops = [n for n in graph.walk() if isinstance(n, OpNode) and n.op == "dropout"]
    own = {float(dict(n.attrs)["rate"]) for n in drops} - {0.0}
    if own and own != set(rates):
        return [f"dropouts of {sorted(own)}, the module's are {sorted(rates)}"]
    return []


def dropout_rates(root: Any) -> set[float]:
    """The rates of the dropouts in a module, without those that let all pass."""
    rates: set[float] = set()
    stack, seen = [root], set[int]()
    while stack:
        value = stack.pop()
        if id(value) in seen or hasattr(value, "shape"):
            continue
        seen.add(id(value))
        if isinstance(value, Sequence) and not isinstance(value, str):
            stack += value
        elif isinstance(value, Mapping):
            stack += value.values()
        else:
            settings = read_settings(value)
            if type(value).__name__ == "Dropout":
                rates.add(float(settings.get("p", settings.get("rate", 0.0)) or 0.0))
            elif not isinstance(value, type):
                stack += settings.values()
    return rates - {0.0}


def flax_epsilon(node: OpNode, stated: float | None) -> dict[str, Any]:
    """The epsilon of a norm of which the weights alone are at hand."""
    if node.op not in _FLAX_NORMS:
        return {}
    return {"epsilon": stated or _FLAX_EPSILON.get(node.op, 1e-6)}
