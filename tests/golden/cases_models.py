"""Outputs and gradients of every op and layer on both libraries, names and files.

The calls of ops are those of `tests/models/op_samples.py` and `nn_op_cases.py`, the
layers and their inputs those of `tests/models/test_layers.py`; all through what users
call: `backend.<op>` and `compile`. Numbers go in as float32, weights are drawn by
NumPy from the shape, and cotangents are cosines of the place.

An array of more than five numbers is stored as five figures: its norm, its sum with
weights cos(2 i), and its first, middle and last number; integers as a digest. Torch's
figures are stored where they differ from JAX's by more than 1e-3. Random ops and the
layer `Dropout` use `jax.random.key(0)` on JAX, and the seed 0 on torch; in other layers
dropout is left out by `inference=True`.
"""

import dataclasses
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
import torch

import frugax as ml
from frugax.models import Dropout, Layer, TransformerLM, compile, load
from frugax.models.ops import OPS
from models.both_libraries import call_jax, call_torch, cosines, read
from models.nn_op_cases import CASES
from models.op_samples import SAMPLES
from models.test_layers import BLOCK, ROWS

from .table import Case, Cell

Arrays = dict[str, np.ndarray]
# Tolerances beside the rounding of float32, 6e-8: matrix decompositions and deep
# layers lose two to three digits.
_OF_OPS, _OF_LINEAR_ALGEBRA, _OF_LAYERS = 1e-5, 1e-4, 1e-4
_LINEAR_ALGEBRA = {"cholesky", "solve", "inverse", "determinant"}
# Ops with a state or a key: these are seen through layers, or below.
_THROUGH_LAYERS = {"cached_attention", "grouped_linear", "sparse_experts"}
_THROUGH_LAYERS |= {"precision", "recall", "f1"}
_QUICK_OPS = {"softmax", "gelu", "conv2d", "sum"}
_QUICK_LAYERS = {"MLP", "LSTM", "TransformerBlock"}
_RANDOM: dict[str, dict[str, Any]] = {
    "random_uniform": {"shape": (4, 5), "low": -1.0, "high": 3.0},
    "random_normal": {"shape": (4, 5), "mean": 1.0, "std": 2.0},
    "random_integers": {"shape": (4, 5), "low": -3, "high": 9},
    "bernoulli": {"shape": (4, 5), "p": 0.3},
}


def cases() -> Iterator[Case]:
    """One case for each op, each layer, and some models with files."""
    calls: dict[str, list[tuple[list[Any], dict[str, Any], bool]]] = {}
    for name, samples in SAMPLES.items():
        calls[name] = [(_to_float32(s.args), s.attrs, s.gradient) for s in samples]
    for case in CASES:
        arrays = case.arrays(np.float32)
        calls.setdefault(case.op, []).append((arrays, case.attributes, True))
    for name, of_op in sorted(calls.items()):
        tolerance = _OF_LINEAR_ALGEBRA if name in _LINEAR_ALGEBRA else _OF_OPS
        yield Case(
            f"op {name}",
            lambda n=name, c=of_op: _run_op(n, c),
            quick=name in _QUICK_OPS,
            tolerance=tolerance,
        )
    for name, attributes in _RANDOM.items():
        yield Case(
            f"op {name}",
            lambda n=name, a=attributes: _run_random_op(n, a),
            tolerance=_OF_OPS,
        )
    yield Case("op names", _list_ops, quick=True)
    numbered: dict[str, int] = {}
    for row in ROWS:
        kind = type(row.layer).__name__
        numbered[kind] = number = numbered.get(kind, 0) + 1
        yield Case(
            f"layer {kind} {number}",
            lambda r=row: _run_layer(r.layer, r.inputs),
            quick=kind in _QUICK_LAYERS and number == 1,
            tolerance=_OF_LAYERS,
        )
    yield Case("decoding with a cache", _decode, tolerance=_OF_LAYERS)
    yield Case("initial weights", _initialise, tolerance=_OF_OPS)


# --- ops ------------------------------------------------------------------------------


def _to_float32(args: tuple[Any, ...]) -> list[Any]:
    is_wide = lambda a: isinstance(a, np.ndarray) and a.dtype == np.float64
    return [a.astype(np.float32) if is_wide(a) else a for a in args]


def _run_op(
    name: str, calls: list[tuple[list[Any], dict[str, Any], bool]]
) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    on_jax = getattr(ml.JaxBackend(), name)
    on_torch = getattr(ml.TorchBackend(), name)
    for number, (args, attributes, has_gradient) in enumerate(calls):
        places = [
            i
            for i, a in enumerate(args)
            if has_gradient and isinstance(a, np.ndarray) and a.dtype == np.float32
        ]
        by_jax = call_jax(lambda *a: on_jax(*a, **attributes), args, places)  # noqa: B023
        by_torch = call_torch(lambda *a: on_torch(*a, **attributes), args, places)  # noqa: B023
        for what, ours, theirs in zip(
            ("outputs", "gradients"), by_jax, by_torch, strict=True
        ):
            more = range(len(ours)) if len(ours) > 1 else [""]
            keys = [f"{number} {what} {i}".rstrip() for i in more]
            cells |= _compare(
                dict(zip(keys, ours, strict=bool(ours))),
                dict(zip(keys, theirs, strict=bool(ours))),
            )
    return cells


def _run_random_op(name: str, attributes: dict[str, Any]) -> dict[str, Cell]:
    jax_backend, torch_backend = ml.JaxBackend(), ml.TorchBackend()
    on_jax = getattr(jax_backend, name)(jax.random.key(0), **attributes)
    on_torch = getattr(torch_backend, name)(torch.tensor(0), **attributes)
    return {
        "jax": _describe(np.asarray(on_jax)),
        "torch": _describe(on_torch.numpy()),
    }


def _list_ops() -> dict[str, Cell]:
    """The names of all ops; each is a case of this table."""
    return {"names": sorted(OPS), "count": len(OPS)}


# --- layers ---------------------------------------------------------------------------


@dataclasses.dataclass
class _Compiled:
    """A model compiled on one library, with how its arrays are made and read."""

    model: Any
    make: Callable[[Any], Any]
    key: Any

    def run(self, params: Arrays, data: Arrays) -> tuple[Arrays, Arrays]:
        """Outputs, and gradients of parameters for cosines at the first output."""
        model, make = self.model, self.make
        of_data: dict[str, Any] = {k: make(v) for k, v in data.items()}
        of_data |= model.initial_state() | {"key": self.key}
        of_data = {k: v for k, v in of_data.items() if k in model.data_keys}
        name = model.output_keys[0]
        weights = {k: make(v) for k, v in params.items()}
        plain = model.evaluate(weights, of_data)
        cotangent = make(cosines(plain[name].shape).astype(np.float32))
        outputs, gradients = model.evaluate(
            weights, of_data, output_gradients={name: cotangent}
        )
        return _to_host(outputs), _to_host(gradients)


def _to_host(arrays: Mapping[str, Any]) -> Arrays:
    return {k: read(v) for k, v in arrays.items()}


def _compile_both(
    layer: Layer, inputs: Arrays, trainable: list[str], *, inference: bool = False
) -> tuple[_Compiled, _Compiled]:
    how: dict[str, Any] = {
        "shapes": {k: x.shape for k, x in inputs.items()},
        "trainable_keys": trainable,
        "inference": inference,
    }
    return (
        _Compiled(
            compile(layer, ml.JaxBackend(), **how), jnp.asarray, jax.random.key(0)
        ),
        _Compiled(
            compile(layer, ml.TorchBackend(), **how), torch.tensor, torch.tensor(0)
        ),
    )


def _run_layer(layer: Layer, inputs: Arrays) -> dict[str, Cell]:
    floats = [k for k, x in inputs.items() if x.dtype.kind == "f"]
    on_jax, on_torch = _compile_both(layer, inputs, floats)
    if "key" in on_jax.model.data_keys and not isinstance(layer, Dropout):
        on_jax, on_torch = _compile_both(layer, inputs, floats, inference=True)
    shapes = on_jax.model.shapes
    keys = sorted(on_jax.model.param_keys)
    params = {k: inputs[k] if k in floats else _draw(*shapes[k]) for k in keys}
    data = {k: x for k, x in inputs.items() if k not in floats}
    cells: dict[str, Cell] = {
        "weights": [f"{k} {shapes[k]}" for k in keys if k not in floats],
        "same names on torch": sorted(on_torch.model.param_keys) == keys,
    }
    for what, ours, theirs in zip(
        ("output", "gradient"),
        on_jax.run(params, data),
        on_torch.run(params, data),
        strict=True,
    ):
        # A model's outputs beside the first are its new state.
        cells |= _compare(_prefix(what, ours), _prefix(what, theirs))
    weights = {k: v for k, v in params.items() if k not in floats}
    return cells | (_save_and_load(layer, inputs, weights) if weights else {})


def _draw(*shape: int) -> np.ndarray:
    return np.random.default_rng([34, *shape]).normal(size=shape).astype(np.float32)


def _save_and_load(layer: Layer, inputs: Arrays, params: Arrays) -> dict[str, Cell]:
    """What another program reads in the file, and whether both libraries read it."""
    cells: dict[str, Cell] = {}
    for one in _compile_both(layer, inputs, []):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.safetensors")
            state = one.model.initial_state()
            weights = {k: one.make(v) for k, v in params.items()}
            one.model.save(path, weights, state or None)
            held = safetensors.numpy.load_file(path)
            library = one.model.backend.name
            found = _digest({k: v for k, v in held.items() if v.dtype.kind == "f"})
            if library == "jax":
                cells["file"] = found
            cells[f"file of {library} is read"] = all(
                _digest(_to_host(load(path, backend).params)) == _digest(params)
                for backend in (ml.JaxBackend(), ml.TorchBackend())
            )
            if library != "jax":
                cells["same file"] = found == cells["file"]
    return cells


def _decode() -> dict[str, Cell]:
    """Two calls of a decoder whose attentions keep keys and values as state."""
    block = dataclasses.replace(BLOCK, dropout=0.0, causal=True, window=4)
    layer = TransformerLM(7, block, 2, positions="rotary", cache_length=6)
    tokens = np.arange(12, dtype=np.int32).reshape(2, 6) % 7
    cells: dict[str, Cell] = {}
    found: list[list[Arrays]] = []
    for one in _compile_both(layer, {"input": tokens[:, :3]}, []):
        shapes = one.model.shapes
        weights = {k: one.make(_draw(*shapes[k])) for k in one.model.param_keys}
        state = one.model.initial_state()
        cells[f"{one.model.backend.name} state"] = sorted(
            f"{k} {tuple(v.shape)}" for k, v in state.items()
        )
        found.append([])
        for begin, end in ((0, 3), (3, 6)):
            data = {"input": tokens[:, begin:end], "position": np.int32(begin)}
            model = one.model
            outputs = model.evaluate(
                weights, {k: one.make(v) for k, v in data.items()} | state
            )
            state = {k: outputs[k] for k in state}
            found[-1].append(_to_host(outputs))
    for number, (ours, theirs) in enumerate(zip(*found, strict=True)):
        call = f"call {number}"
        cells |= _compare(_prefix(call, ours), _prefix(call, theirs))
    return cells


def _initialise() -> dict[str, Cell]:
    """Weights that `randomize_params(0)` draws for a transformer with convolutions."""
    cells: dict[str, Cell] = {}
    for row in ROWS:
        kind = type(row.layer).__name__
        if kind not in ("TransformerLM", "ConvNet", "RecurrentStack", "SparseExperts"):
            continue
        for one in _compile_both(row.layer, row.inputs, []):
            library = one.model.backend.name
            for key, value in _to_host(one.model.randomize_params(0)).items():
                cells[f"{library} {kind} {key}"] = _describe(value)
    return cells


# --- figures --------------------------------------------------------------------------


def _prefix(what: str, arrays: Arrays) -> Arrays:
    return {f"{what} {key}": array for key, array in sorted(arrays.items())}


def _compare(ours: Arrays, theirs: Arrays) -> dict[str, Cell]:
    """The figures of JAX's arrays; torch's, too, where they are not the same.

    An array that is zero but for rounding beside the others, such as the gradient of a
    bias of keys, is stored as zeros.
    """
    cells: dict[str, Cell] = {}
    floats = [x for x in ours.values() if jnp.issubdtype(x.dtype, jnp.floating)]
    scale = max(map(_largest, floats), default=0.0)
    for key, one in ours.items():
        other = theirs[key]
        if one.dtype == np.float32 and _largest(one) < 1e-5 * scale:
            one = np.zeros_like(one)
        cells[key] = _describe(one)
        same = one.shape == other.shape and one.dtype == other.dtype
        if not same or not np.allclose(
            one.astype(np.float64),
            other.astype(np.float64),
            rtol=0,
            atol=max(1e-3 * _largest(one), 1e-5 * scale),
            equal_nan=True,
        ):
            cells[f"{key} on torch"] = _describe(other)
    return cells


def _largest(array: np.ndarray) -> float:
    wide = np.abs(array.astype(np.float64))
    return float(wide[np.isfinite(wide)].max(initial=0))


def _describe(array: np.ndarray) -> Cell:
    """Figures of an array of floats, after a dtype that is not float32; or a digest."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return f"{array.dtype} {_digest({'': array})}"
    flat = array.astype(np.float64).ravel()
    figures = [*flat]
    if flat.size > 5:
        finite = np.where(np.isfinite(flat), flat, 0.0)
        projection = finite @ np.cos(2 * np.arange(flat.size))
        samples = flat[[0, flat.size // 2, -1]]
        figures = [np.linalg.norm(finite), projection, *samples]
    rounded = [float(f"{x:.7g}") if np.isfinite(x) else str(x) for x in figures]
    return rounded if array.dtype == np.float32 else [str(array.dtype), *rounded]


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    state = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        state.update(f"{name} {array.dtype} {array.shape}".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()[:12]
