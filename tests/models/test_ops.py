"""Every op of the table (but the neural-network ones) on both libraries.

Each sample of `op_samples.py` is run on JAX and on torch, compared with NumPy where
NumPy or SciPy's definition can be written down, and differentiated on both. A float
sample is run in float32 and float64, an elementwise one also in bfloat16 and float16.
Tolerances are the dtype's epsilon times the number of roundings that the op may make.

What happens at kinks, at infinities and with integers: `test_op_corners.py`.
"""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from frugax.models import ops
from frugax.models.ops import OPS, as_dtype
from frugax.models.to_jax import JaxNamespace

torch = pytest.importorskip("torch")

from frugax.models.to_torch import TorchNamespace  # noqa: E402

from .op_samples import SAMPLES, Sample, numbers  # noqa: E402

HALVES = ("bfloat16", "float16")

ELSEWHERE = {  # ops that are tested by a function below
    *("random_uniform", "random_normal", "random_integers", "bernoulli", "dropout"),
    "fold_in",
}
MODULES = (
    *("_activations", "_elementwise", "_indexing", "_linalg"),
    *("_random", "_reductions", "_shapes"),
)


def is_mine(name: str) -> bool:
    return OPS[name].body.__module__.rpartition(".")[2] in MODULES


def test_every_op_has_a_sample():
    mine = {name for name in OPS if is_mine(name)}
    assert mine == set(SAMPLES) | ELSEWHERE


def typed(args: tuple[Any, ...], dtype: str) -> list[Any]:
    """Arrays of float64 in that dtype, all else as it is."""
    return [
        a.astype(as_dtype(dtype))
        if isinstance(a, np.ndarray) and a.dtype == np.float64
        else a
        for a in args
    ]


def is_tensor(a: Any) -> bool:
    return isinstance(a, np.ndarray)


def to_numpy(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        x = x.detach()
        return (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    return np.asarray(x)


def differentiable(sample: Sample) -> list[int]:
    if not sample.gradient:
        return []
    return [
        i for i, a in enumerate(sample.args) if is_tensor(a) and a.dtype == np.float64
    ]


def on_torch(op: Any, sample: Sample, dtype: str) -> tuple[list[Any], list[Any], Any]:
    """Results, gradients and the cotangent of the first result."""
    xp = TorchNamespace(as_dtype(dtype) if dtype not in HALVES else np.dtype("float32"))
    args = [xp.asarray(a) if is_tensor(a) else a for a in typed(sample.args, dtype)]
    wrt = differentiable(sample)
    for i in wrt:
        args[i].requires_grad_(True)
    outs = op(xp, *args, **sample.attrs)
    outs = list(outs) if isinstance(outs, tuple) else [outs]
    weights = numbers(*outs[0].shape, low=0.5, high=1.5, seed=7)
    if not wrt or not outs[0].requires_grad:
        return outs, [np.zeros(args[i].shape) for i in wrt], weights
    cotangent = torch.as_tensor(weights).to(outs[0].dtype)
    grads = torch.autograd.grad(
        outs[0], [args[i] for i in wrt], cotangent, allow_unused=True
    )
    return (
        outs,
        [
            np.zeros(args[i].shape) if g is None else g
            for i, g in zip(wrt, grads, strict=True)
        ],
        weights,
    )


def jax_program(op: Any, sample: Sample, dtype: str, weights: Any) -> Any:
    """A function of nothing that gives results and gradients, to be jitted."""
    xp = JaxNamespace(as_dtype(dtype) if dtype not in HALVES else np.dtype("float32"))
    args = typed(sample.args, dtype)
    wrt = differentiable(sample)

    def run(given: list[Any]) -> Any:
        filled = list(args)
        for i, a in zip([i for i, a in enumerate(args) if is_tensor(a)], given,
                        strict=True):  # fmt: skip
            filled[i] = a

        def f(*floats: Any) -> Any:
            inner = list(filled)
            for i, x in zip(wrt, floats, strict=True):
                inner[i] = x
            outs = op(xp, *inner, **sample.attrs)
            return outs if isinstance(outs, tuple) else (outs,)

        floats = [filled[i] for i in wrt]
        outs = f(*floats)
        if not wrt or not jnp.issubdtype(outs[0].dtype, jnp.floating):
            return outs, [jnp.zeros(x.shape) for x in floats]
        _, pull = jax.vjp(lambda *x: f(*x)[0], *floats)
        return outs, list(pull(jnp.asarray(weights, outs[0].dtype)))

    return run, [a for a in args if is_tensor(a)]


def close(got: Any, want: Any, dtype: Any, roundings: float, say: str) -> None:
    got, want = to_numpy(got), to_numpy(want)
    assert got.shape == want.shape, say
    if got.dtype == bool or np.issubdtype(got.dtype, np.integer):
        np.testing.assert_array_equal(got, want, say)
        return
    eps = float(ml_dtypes.finfo(dtype).eps)
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.abs(want[np.isfinite(want)])
    scale = max(1.0, finite.max(initial=0.0))
    np.testing.assert_allclose(
        got, want, rtol=roundings * eps, atol=roundings * eps * scale, err_msg=say
    )


@pytest.mark.parametrize(
    "wide",
    [
        pytest.param(False, id="float32"),
        pytest.param(True, id="float64", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("name", SAMPLES)
def test_both_libraries_agree_with_numpy_and_in_gradients(name, wide):
    op = OPS[name]
    if wide:  # what can go wrong here is a float32 on the way: one sample does
        runs = [(s, "float64") for s in SAMPLES[name][:1]]
    else:
        runs = [(s, "float32") for s in SAMPLES[name]]
        runs += [(s, h) for s in SAMPLES[name][:1] if s.halves for h in HALVES]
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
        torch_side = [on_torch(op, s, dtype) for s, dtype in runs]
        programs = [
            jax_program(op, s, dtype, weights)
            for (s, dtype), (_, _, weights) in zip(runs, torch_side, strict=True)
        ]
        # One program for all samples of an op, and little effort of LLVM for it:
        # compiling is what takes the time.
        given = [[jnp.asarray(a) for a in arrays] for _, arrays in programs]
        jax_side = (
            jax.jit(lambda g: [p(a) for (p, _), a in zip(programs, g, strict=True)])
            .lower(given)
            .compile(compiler_options={"xla_backend_optimization_level": "0"})(given)
        )
    for (s, dtype), (outs_t, grads_t, _), (outs_j, grads_j) in zip(
        runs, torch_side, jax_side, strict=True
    ):
        say = f"{name} {s.attrs} in {dtype}"
        assert len(outs_j) == len(outs_t) == len(op.outputs), say
        for j, t in zip(outs_j, outs_t, strict=True):
            assert TorchNamespace().dtype_of(t) == j.dtype, say
            close(j, t, dtype, s.roundings, say + ": JAX and torch")
        if s.want is not None:
            exact = [
                a.astype(np.float64)
                if is_tensor(a) and a.dtype == as_dtype(dtype)
                else a
                for a in typed(s.args, dtype)
            ]
            with np.errstate(all="ignore"):
                want = s.want(*exact, **s.attrs)
            close(outs_j[0], want, dtype, s.roundings, say + ": JAX and NumPy")
        for i, (j, t) in enumerate(zip(grads_j, grads_t, strict=True)):
            # A gradient is a product of two derivatives, each rounded.
            close(j, t, dtype, 2 * s.roundings, f"{say}: gradient {i}")


def test_scatter_add_and_sorting_equal_numpy():
    for sample in SAMPLES["scatter_add"]:
        x, indices, updates = sample.args
        axis = sample.attrs.get("axis", 0)
        there = indices < x.shape[axis]
        want = np.moveaxis(x.copy(), axis, 0)
        np.add.at(want, indices[there], np.moveaxis(updates, axis, 0)[there])
        got, _, _ = on_torch(OPS["scatter_add"], sample, "float64")
        np.testing.assert_allclose(got[0].detach(), np.moveaxis(want, 0, axis))
    for sample in SAMPLES["argsort"]:
        axis = sample.attrs.get("axis", -1)
        by = -sample.args[0] if "descending" in sample.attrs else sample.args[0]
        (got,), _, _ = on_torch(OPS["argsort"], sample, "float64")
        np.testing.assert_array_equal(got, np.argsort(by, axis, kind="stable"))
    (values, indices), _, _ = on_torch(OPS["top_k"], SAMPLES["top_k"][1], "float64")
    np.testing.assert_array_equal(values, [[9, 9, 9]])
    np.testing.assert_array_equal(indices, [[1, 2, 4]])  # equal ones in order


@pytest.mark.parametrize("name", SAMPLES)
def test_shapes_are_known_when_the_first_length_is_not(name):
    free = [s for s in SAMPLES[name] if s.free and any(map(is_tensor, s.args))]
    assert free or name in NEVER_FREE, name
    (b,) = jax.export.symbolic_shape("b")
    for s in free:
        if not all(map(is_tensor, s.args)):
            continue  # a Python number has no shape to be asked for
        args = typed(s.args, "float32")
        n = args[0].shape[0]
        run = lambda *tensors, s=s: OPS[name](JaxNamespace(), *tensors, **s.attrs)
        avals = lambda length, args=args: [
            jax.ShapeDtypeStruct((length, *a.shape[1:]), a.dtype) for a in args
        ]
        known = jax.eval_shape(run, *avals(n))
        got = jax.eval_shape(run, *avals(b))
        for one, other in zip(
            jax.tree.leaves(got), jax.tree.leaves(known), strict=True
        ):
            sizes = tuple(
                d if isinstance(d, int) else d._evaluate({"b": n}) for d in one.shape
            )
            assert sizes == other.shape
            assert one.dtype == other.dtype


# Their results' shapes are attributes, or hold sums over all axes of unknown length.
NEVER_FREE = {
    *("zeros", "ones", "full", "arange", "eye", "prelu", "take", "scatter_add"),
    *("tile", "repeat", "dot", "tensordot"),
}


def test_precision_reaches_the_products():
    xp = JaxNamespace(precision="highest")
    x = jnp.ones((4, 4))
    for run in (
        lambda x: OPS["matmul"](xp, x, x),
        lambda x: OPS["einsum"](xp, x, x, equation="ij,jk->ik"),
        lambda x: OPS["tensordot"](xp, x, x, axes=1),
        lambda x: OPS["dot"](xp, x, x),
    ):
        assert "HIGHEST" in str(jax.make_jaxpr(run)(x))


def test_the_table_documents_its_names():
    for name in filter(is_mine, OPS):
        line = (OPS[name].body.__doc__ or "").split("\n")[0]
        assert line.endswith("."), name
        assert ops.find(name) is OPS[name]
