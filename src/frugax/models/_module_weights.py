"""`from_flax`, `from_equinox`: load a module's weights into a compiled model."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from frugax.errors import MissingExtraError, UnsupportedModuleError

from ._compiled_model import CompiledModel
from ._module_settings import (
    compare_activations,
    compare_dropouts,
    compare_heads,
    compare_settings,
    dropout_rates,
    flax_epsilon,
    modules_of,
    read_settings,
)
from ._state_dict import Matches, Names, Rule, Weights
from .dtypes import to_numpy
from .graph import OpNode
from .serialization import (
    expected_weights,
    weights_by_block,
)

# The arrays whose module is compared: of one that has several, the first.
_WEIGHTS = ("weight", "kernel", "scale")

Leaves = dict[tuple[str, ...], np.ndarray]

_FLAX_LEAVES = {
    "kernel": "weight",
    "scale": "weight",
    "embedding": "weight",
    "mean": "running_mean",
    "var": "running_var",
    "negative_slope": "weight",
}
# flax numbers the modules of a class, as frugax numbers the layers of a kind.
_FLAX_KINDS = {
    "Dense": "linear",
    "Embed": "embedding",
    "LayerNorm": "layer_norm",
    "RMSNorm": "rms_norm",
    "GroupNorm": "group_norm",
    "InstanceNorm": "instance_norm",
    "BatchNorm": "batch_norm",
    "PReLU": "p_relu",
}
_EQUINOX_LEAVES = {
    "weight_ih": "weight",
    "weight_hh": "hidden_weight",
    "bias_n": "hidden_bias",
    "negative_slope": "weight",
}
# The attention of both libraries names its layers differently.
_ATTENTION = {
    "out": "output",
    "query_proj": "query",
    "key_proj": "key",
    "value_proj": "value",
    "output_proj": "output",
}
# flax has a layer for each gate; ours are stacked in torch's order.
_GATES = {"lstm": ("i", "f", "g", "o"), "gru": ("r", "z", "n")}


def from_flax(
    compiled: CompiledModel,
    variables: Any,
    names: Names | None = None,
    *,
    epsilon: float | None = None,
) -> Weights:
    """Load the weights of a flax module into a compiled model.

    Kernels are brought into frugax's layout, `kernel`, `scale` and `embedding` become
    `weight`, running statistics become state, and the gates of recurrent cells are
    stacked. Without `names`, modules must have the same paths; those that flax numbers
    are found by themselves: `Dense_0` is `linear_0`, `Conv_1` is `conv2d_1`.

    Args:
        compiled: the model.
        variables: what `module.init` returns, or its `"params"`; or an `nnx.Module`.
        names: maps paths of modules or of arrays, as in `load_state_dict`, such as
            `{"encoder.layer{i}": "block_{i}"}`.
        epsilon: of the module's normalisations, where weights alone are given, which
            do not tell it; flax's own defaults if not given.

    Returns:
        The parameters, and the weights that go in with the data.

    Raises:
        ShapeError: names are missing, unknown or matched twice, or shapes do not fit;
            all are named at once.
        UnsupportedModuleError: a layer has another setting than the module, such as its
            epsilon, stride or number of heads; all are named at once.
        TypeError: `variables` are not weights.
        MissingExtraError: it is an `nnx.Module`, and flax is not installed.

    Example:
        >>> import numpy as np, frugax as ml
        >>> layer, backend = ml.models.Linear(3), ml.JaxBackend()
        >>> compiled = ml.compile(layer, backend, shapes={"input": [2, 4]})
        >>> dense = {"kernel": np.ones((4, 3), "f4"), "bias": np.zeros(3, "f4")}
        >>> params, state = ml.models.from_flax(compiled, {"fc": dense}, {"fc": ""})
        >>> params["weight"].shape
        (3, 4)
    """
    root = None
    if not isinstance(variables, Mapping):
        root, variables = variables, _read_nnx(variables)
    leaves: Leaves = {}
    collections = [k for k in ("params", "batch_stats") if k in variables]
    for tree in [variables[k] for k in collections] or [variables]:
        leaves |= dict(_flatten(tree))
    leaves = _stack_gates(leaves)
    weights, pairs = _load(compiled, leaves, names, _FLAX_LEAVES, _flax_layout, "flax")
    _check_settings(compiled, root, pairs, "flax", epsilon)
    return weights


def from_equinox(
    compiled: CompiledModel, module: Any, names: Names | None = None
) -> Weights:
    """Load the weights of an equinox module into a compiled model.

    Convolution kernels are brought into frugax's layout, and the names of weights that
    differ are known: `weight_ih` is `weight`, `query_proj` is `query`. Without `names`,
    modules must have the same paths.

    Args:
        compiled: the model.
        module: an `equinox.Module`, or any pytree of its arrays.
        names: maps paths of modules or of arrays, as in `load_state_dict`, such as
            `{"layers.{i}": "linear_{i}"}`.

    Returns:
        The parameters, and the weights that go in with the data.

    Raises:
        ShapeError: names are missing, unknown or matched twice, or shapes do not fit;
            all are named at once.
        UnsupportedModuleError: a layer has another setting than the module, such as its
            epsilon, stride or number of heads; all are named at once.
        TypeError: the module holds no arrays.
    """
    import jax  # here, since models run in torch without it

    leaves: Leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(module):
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            key = jax.tree_util.keystr(path, simple=True, separator=".")
            leaves[tuple(key.split("."))] = to_numpy(leaf)
    # Only the last gate of a GRU has a second bias; ours has one for each.
    for path in [p for p in leaves if p[-1] == "bias_n"]:
        last = leaves[path]
        leaves[path] = np.concatenate([np.zeros(2 * len(last), last.dtype), last])
    weights, pairs = _load(
        compiled, leaves, names, _EQUINOX_LEAVES, _equinox_layout, "equinox"
    )
    _check_settings(compiled, module, pairs, "equinox")
    return weights


def _load(
    compiled: CompiledModel,
    leaves: Leaves,
    names: Names | None,
    renamed: Mapping[str, str],
    layout: Callable[..., np.ndarray],
    library: str,
) -> tuple[Weights, list[tuple[tuple[str, ...], str]]]:
    """The weights, and pairs of the path of an array and the key that it became."""
    pairs: list[tuple[tuple[str, ...], str]] = []
    if not leaves:
        raise TypeError(f"from_{library}: there are no arrays in what was given.")
    needed = cast("dict[str, Any]", expected_weights(compiled.program))
    shapes = {k: getattr(v, "weight", v).shape for k, v in needed.items()}
    owners = {k: getattr(v, "owner", "") for k, v in needed.items()}
    rules = [Rule(pattern, targets) for pattern, targets in (names or {}).items()]
    matches = Matches(set(needed))
    used: set[str] = set()
    for path, array in leaves.items():
        key = ".".join(path)
        ours = [_ATTENTION.get(p, p) for p in path]
        if library == "flax":
            # The bias alone does not tell the axes of its convolution.
            kernel = leaves.get((*path[:-1], "kernel"), array)
            ours = [_kind_of(p, kernel.ndim - 2) for p in ours]
        ours[-1] = renamed.get(path[-1], path[-1])
        targets: list[Any] = [(".".join(ours), None)]
        # The array's own name before that of its module, and an inner one before an
        # outer one.
        for stop in range(len(path), -1, -1):
            found = matches.find(".".join(path[:stop]), rules, key, array)
            if found is not None:
                rule, parts = found
                used.add(rule.pattern)
                targets = [
                    (".".join(p for p in (target, *ours[stop:]) if p), change)
                    for target, change in rule.targets(parts)
                ]
                break
        for target, change in targets:
            fitted = array
            if change is None and target in shapes:
                fitted = layout(
                    array,
                    path,
                    shapes[target],
                    transposed="Transpose" in owners[target],
                )
            matches.take(key, fitted, target, change)
            pairs.append((path, target))
    matches.report_unused(rules, used)
    return matches.assign(compiled, f"the {library} module"), pairs


def _check_settings(
    compiled: CompiledModel,
    root: Any,
    pairs: Iterable[tuple[tuple[str, ...], str]],
    library: str,
    epsilon: float | None = None,
) -> None:
    """Refuse a module whose settings are at hand and differ from the model's."""
    graph, dtype = compiled.graph, compiled.backend.dtype
    weights = weights_by_block(graph)
    problems: dict[str, None] = {}
    seen: set[Any] = set()
    for path, key in pairs:
        layer = key.rpartition(".")[0]
        owner = f"layer {layer!r}" if layer else "the layer"
        readers = weights[key].readers if key in weights else ()
        for node in (n for n in readers if isinstance(n, OpNode)):
            kernel = graph.weights[key].shape[:-2] if key in graph.weights else ()
            if root is None:
                theirs = flax_epsilon(node, epsilon)
            else:
                *_, (_, module) = modules_of(root, path)
                theirs = read_settings(module)
            if path[-1] in _WEIGHTS:
                for problem in compare_settings(theirs, node, dtype, kernel):
                    problems[f"{owner} has {problem}"] = None
        if root is None:
            continue
        # The modules around it: an attention's heads, an MLP's activation.
        parts = key.split(".")
        for place, module in modules_of(root, path):
            outer = ".".join(parts[: max(len(parts) - len(path) + len(place), 0)])
            if (place, outer) in seen:
                continue
            seen.add((place, outer))
            theirs = read_settings(module)
            found = compare_heads(graph, outer, theirs)
            found += compare_activations(graph, outer, theirs)
            for problem in found:
                at = f" at {'.'.join(place)!r}" if place else ""
                problems[f"the model has {problem}{at}"] = None
    if root is not None:
        for problem in compare_dropouts(graph, dropout_rates(root)):
            problems[f"the model has {problem}"] = None
    if problems:
        raise UnsupportedModuleError(
            f"the {library} module has other settings than the model: "
            f"{'; '.join(problems)}."
        )


def _kind_of(part: str, axes: int) -> str:
    """`Dense_0` as `linear_0`; other parts of paths as they are."""
    found = re.fullmatch(r"([A-Z]\w*?)_(\d+)", part)
    if found is None:
        return part
    kinds = {
        **_FLAX_KINDS,
        "Conv": f"conv{axes}d",
        "ConvTranspose": f"conv_transpose{axes}d",
    }
    return f"{kinds.get(found[1], found[1])}_{found[2]}"


def _flax_layout(
    array: np.ndarray, path: tuple[str, ...], shape: Any, *, transposed: bool
) -> np.ndarray:
    if path[-1] == "bias":
        return array.reshape(-1) if array.size == np.prod(shape) else array
    if path[-1] != "kernel":
        return array
    if transposed:  # ours is that of the convolution whose gradient it is
        space = tuple(range(array.ndim - 2))
        return np.flip(array, space).swapaxes(-1, -2)
    if array.ndim == 3 and len(shape) == 2:  # heads are axes in flax
        if path[-2] == "out":
            return array.reshape(-1, array.shape[-1]).T
        return array.reshape(len(array), -1).T
    return array.T if array.ndim == 2 else array


def _equinox_layout(
    array: np.ndarray, path: tuple[str, ...], shape: Any, *, transposed: bool
) -> np.ndarray:
    if path[-1] == "bias" and array.size == np.prod(shape):
        return array.reshape(shape)
    if path[-1] != "weight" or array.ndim != len(shape) or array.ndim < 3:
        return array
    space = tuple(range(2, array.ndim))
    if transposed:
        return np.flip(array, space).transpose(*space, 0, 1)
    return array.transpose(*space, 1, 0)


def _flatten(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[Any, np.ndarray]]:
    if isinstance(tree, Mapping):
        for name, inner in tree.items():
            yield from _flatten(inner, (*path, str(name)))
    elif hasattr(tree, "shape") and np.dtype(tree.dtype).kind in "fV":
        yield path, to_numpy(tree)
    elif not hasattr(tree, "shape"):
        raise TypeError(
            f"from_flax: {'.'.join(path) or 'the weights'!r} must be a dict or an "
            f"array, got {type(tree).__name__}."
        )


def _read_nnx(module: Any) -> Mapping[str, Any]:
    try:
        from flax import nnx
    except ImportError as e:
        raise MissingExtraError(
            f"from_flax takes a dict of weights or an nnx.Module, got {module!r:.60}; "
            "flax is not installed."
        ) from e
    if isinstance(module, nnx.Module):
        # Random keys and counters are not weights.
        module = nnx.state(module, nnx.Any(nnx.Param, nnx.BatchStat))
    if not isinstance(module, nnx.State):
        raise TypeError(
            f"from_flax takes a dict of weights or an nnx.Module, got {module!r:.60}."
        )
    return nnx.to_pure_dict(module)


def _stack_gates(leaves: Leaves) -> Leaves:
    """The layers of gates, such as `ii` and `hf`, as the arrays of one cell."""
    # `if` is not a name in Python, so nnx writes `if_`.
    leaves = {tuple("if" if p == "if_" else p for p in k): v for k, v in leaves.items()}
    found = dict(leaves)
    cells = {path[:-2] for path in leaves if len(path) > 1 and path[-2][:1] == "h"}
    for cell in cells:
        for gates in _GATES.values():
            parts: dict[str, list[Any]] = {
                side: [leaves.get((*cell, side + g, "kernel")) for g in gates]
                for side in "ih"
            }
            if any(p is None for side in parts.values() for p in side):
                continue
            for side, name in (("i", "weight"), ("h", "hidden_weight")):
                found[*cell, name] = np.concatenate([k.T for k in parts[side]])
            size = len(parts["h"][0])
            for side, name in (("i", "bias"), ("h", "hidden_bias")):
                biases = [leaves.get((*cell, side + g, "bias")) for g in gates]
                if any(b is not None for b in biases):
                    zero = np.zeros(size, parts["h"][0].dtype)
                    whole = [zero if b is None else b for b in biases]
                    found[*cell, name] = np.concatenate(whole)
            for side in "ih":
                for gate in gates:
                    for leaf in ("kernel", "bias"):
                        found.pop((*cell, side + gate, leaf), None)
            # An LSTM's biases are those of the state; ours are one.
            if len(gates) == 4 and (*cell, "hidden_bias") in found:
                bias = found.pop((*cell, "hidden_bias"))
                found[*cell, "bias"] = bias + found.get((*cell, "bias"), 0)
    return found
