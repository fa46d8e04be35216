"""Bytes and errors of eight public nets at six budgets, and bytes of every export.

The nets, and the task of each, are those of `benchmarks.compress_unseen`; their
packages, of the versions below, go into the folder of `benchmarks.harness` without what
they depend on. Where they cannot be installed, these cases are not run. A row has
the bytes of the file, the relative error of all weights, the change of the outputs in
dB below their size, and the score of the net's task; more is better. Inputs are drawn,
or texts and files of the Python that runs.

Three more cases need no package: drawn tensors of every kind, a classifier of digits
that is trained here and calibrated, and the exports of that classifier.
"""

import functools
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from frugax import SizeBudget, compress
from frugax.errors import FrugaxError

from .table import Case, Cell

_PACKAGES = (
    *("magika==1.0.3", "g2p-en==2.1.0", "rapidocr-onnxruntime==1.4.4"),
    *("pythainlp==5.4.0", "attacut==1.0.6", "basic-pitch==0.4.0"),
    *("onnx==1.23.2", "onnxruntime==1.32.0"),
)
_NETS = ("magika", "g2p", "orientation", "deepcut", "attacut", "thai2rom", "notes")
_NETS += ("detector",)
_BUDGETS = {
    "4x": SizeBudget("4x"),
    "6x": SizeBudget("6x"),
    "10x": SizeBudget("10x"),
    "3 bits": SizeBudget("3bpw"),
    "5% error": SizeBudget(rel_error=0.05),
    "exact": SizeBudget(max_abs=0),
}
# Sums of other processors round otherwise, and a choice may fall on its neighbour.
_BYTES, _ERROR, _DECIBELS, _SCORE = 1e-3, 0.01, 0.02, 0.02


def cases() -> Iterator[Case]:
    """One case for each net, then those without packages."""
    tolerance = {
        f"{budget} {figure}": each
        for budget in _BUDGETS
        for figure, each in {
            "bytes": _BYTES,
            "error": _ERROR,
            "outputs": _DECIBELS,
            "score": _SCORE,
        }.items()
    }
    for name in _NETS:
        yield Case(f"net {name}", lambda n=name: _judge(n), tolerance=tolerance)
    yield Case("drawn tensors", _drawn, quick=True, tolerance=tolerance)
    yield Case("lossless dtypes", _lossless, quick=True)
    yield Case("calibrated classifier", _calibrated, tolerance=tolerance)
    yield Case("exports", _export, tolerance=dict.fromkeys(_EXPORTED, _ERROR))


def _judge(name: str) -> dict[str, Cell]:
    """One public net at every budget."""
    _find_packages()
    from benchmarks import compress_unseen
    from benchmarks.harness import DOWNLOADS

    net = getattr(compress_unseen, name)(DOWNLOADS)
    before = net.run(net.weights)
    cells: dict[str, Cell] = {
        "weights": sum(w.size for w in net.weights.values()),
        "tensors": len(net.weights),
    }
    for budget, limit in _BUDGETS.items():
        try:
            data = compress.compress(net.weights, limit)
        except FrugaxError as e:
            cells[f"{budget} error"] = type(e).__name__
            continue
        decibels, score = compress_unseen.judge(net, compress.decompress(data), before)
        cells |= _row(budget, data)
        cells[f"{budget} outputs"] = round(decibels, 4)
        cells[f"{budget} score"] = round(score, 6)
    return cells


@functools.cache
def _find_packages() -> None:
    """Install the packages unless they are there.

    Raises:
        ModuleNotFoundError: they cannot be installed here.
    """
    from benchmarks.harness import DOWNLOADS, install

    try:
        install(*_PACKAGES)
    except (OSError, subprocess.SubprocessError) as e:
        raise ModuleNotFoundError(f"cannot install: {e}", name="magika") from e
    sys.path.append(str(DOWNLOADS))


def _row(budget: str, data: compress.CompressedBytes) -> dict[str, Cell]:
    return {
        f"{budget} bytes": len(data),
        f"{budget} error": float(f"{data.report.rel_error:.6g}"),
    }


def _drawn() -> dict[str, Cell]:
    """A tree of tensors of different distributions."""
    rng = np.random.default_rng(34)
    rows = np.exp(rng.normal(size=(96, 1)))
    tree = {
        "normal": rng.normal(size=(128, 96)),
        "rows": rows * rng.normal(size=(96, 64)),
        "columns": rng.normal(size=(64, 96)) * rows.T,
        "heavy": rng.standard_t(3, size=(100, 80)),
        "sparse": rng.normal(size=(90, 70)) * (rng.random((90, 70)) < 0.1),
        "repeated": rng.integers(-3, 4, size=(60, 60)) / 4,
        "conv": rng.normal(size=(3, 3, 16, 24)),
        "bias": rng.normal(size=64),
    }
    weights: dict[str, Any] = {k: w.astype(np.float32) for k, w in tree.items()}
    weights["half"] = rng.normal(size=(64, 64)).astype(ml_dtypes.bfloat16)
    cells: dict[str, Cell] = {}
    for budget, limit in _BUDGETS.items():
        data = compress.compress(weights, limit)
        back = compress.decompress(data)
        cells |= _row(budget, data)
        cells[f"{budget} kept"] = sum(
            bool(np.array_equal(back[name], w)) for name, w in weights.items()
        )
    for what, limit in {
        "too small": SizeBudget(bytes=1000),
        "both": SizeBudget(ratio=8, rel_error=1e-3),
    }.items():
        try:
            cells[what] = len(compress.compress(weights, limit))
        except FrugaxError as e:
            cells[what] = type(e).__name__
    return cells


def _lossless() -> dict[str, Cell]:
    """Bytes of an exact file of each dtype; the decoded bits are those given."""
    rng = np.random.default_rng(34)
    cells: dict[str, Cell] = {}
    wide = rng.normal(size=(64, 64))
    for dtype in ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn"):
        array = wide.astype(getattr(ml_dtypes, dtype, dtype))
        cells |= _exact(dtype, array)
    for dtype in ("int64", "int32", "int8", "uint8", "bool"):
        cells |= _exact(dtype, rng.integers(0, 100, size=(64, 64)).astype(dtype))
    cells |= _exact("zeros", np.zeros((64, 64), np.float32))
    with warnings.catch_warnings():  # of the NaN
        warnings.simplefilter("ignore")
        special = np.array([np.nan, np.inf, -0.0], np.float32)
        return cells | _exact("not finite", special)


def _exact(name: str, array: np.ndarray) -> dict[str, Cell]:
    data = compress.compress({"w": array}, SizeBudget(max_abs=0))
    back = compress.decompress(data)["w"]
    is_same = back.dtype == array.dtype and back.tobytes() == array.tobytes()
    return {name: len(data), f"{name} decoded": is_same}


@functools.cache
def _trained_classifier() -> tuple[Any, dict[str, np.ndarray]]:
    from benchmarks import compress_tasks

    task = compress_tasks.classifier(np.random.default_rng(0))
    return task, task.trained()


def _calibrated() -> dict[str, Cell]:
    """Digits: the default rule and calibration on 64 images, at each budget."""
    from benchmarks import compress_tasks

    task, weights = _trained_classifier()
    batches = [jnp.asarray(task.train[0][i : i + 64]) for i in range(0, 256, 64)]
    calibration = compress.calibrate(task.apply, weights, batches)
    cells: dict[str, Cell] = {}
    for budget, limit in {**_BUDGETS, "16x": SizeBudget("16x")}.items():
        for rule, sensitivity in {"": None, "calibrated": calibration}.items():
            data = compress.compress(weights, limit, sensitivity=sensitivity)
            back = compress.decompress(data)
            decibels, score = compress_tasks.judge("classifier", task, weights, back)
            cells |= {f"{rule} {k}".strip(): v for k, v in _row(budget, data).items()}
            cells[f"{rule} {budget} outputs".strip()] = round(decibels, 4)
            cells[f"{rule} {budget} score".strip()] = round(score, 6)
    data = compress.compress(
        weights, SizeBudget(output_error=0.05), sensitivity=calibration
    )
    return cells | _row("output error", data)


_EXPORTED = (
    *("gguf 4 error", "gguf 8 error", "folder 4 error"),
    *("folder 8 error", "packed 4x error", "packed 7x error"),
)


def _export() -> dict[str, Cell]:
    """Bytes and errors of every format, of drawn matrices of a classifier's shapes."""
    rng = np.random.default_rng(34)
    shapes = {"a": (256, 64), "b": (256, 256), "c": (32, 256)}
    weights = {
        f"{name}.weight": rng.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    } | {f"{name}.bias": np.zeros(n, np.float32) for name, (n, _) in shapes.items()}
    cells: dict[str, Cell] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        file = folder / "small.fxz"
        report = compress.save(file, weights, SizeBudget("5bpw"))
        cells["file"] = report.file_bytes
        cells["verified"] = compress.verify(file, weights).ok
        compress.export_safetensors(file, folder / "a.safetensors")
        compress.export_npz(file, folder / "a.npz")
        for name in ("a.safetensors", "a.npz"):
            cells[name] = (folder / name).stat().st_size
        for what, to, bits in (
            ("gguf 4", "four.gguf", 4),
            ("gguf 8", "eight.gguf", 8),
            ("folder 4", "four", 4),
            ("folder 8", "eight", 8),
        ):
            done = compress.export_quantised(file, folder / to, bits=bits)
            cells[what] = done.file_bytes
            cells[f"{what} error"] = float(f"{done.rel_error:.6g}")
    for budget in ("4x", "7x"):
        packed = compress.pack(weights, SizeBudget(budget))
        leaves = jax.tree.leaves(packed.tree)
        cells[f"packed {budget}"] = sum(x.nbytes for x in leaves)
        back = compress.unpack(packed.tree)
        gap = [back[k] - w for k, w in weights.items()]
        energy = sum(float((w.astype(np.float64) ** 2).sum()) for w in weights.values())
        total = sum(float((np.asarray(g, np.float64) ** 2).sum()) for g in gap)
        cells[f"packed {budget} error"] = float(f"{(total / energy) ** 0.5:.6g}")
    return cells
