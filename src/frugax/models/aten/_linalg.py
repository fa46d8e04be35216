"""ATen's linear algebra in JAX. A matrix without a result gives NaN; torch raises."""

# ruff: noqa: FBT001, FBT002 - the signatures are torch's own

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.scipy import linalg

from ._table import Array, aten, aten_table


def _no_errors(matrices: Array) -> Array:
    """The code of success for each of some matrices."""
    return jnp.zeros(matrices.shape[:-2], jnp.int32)


def _mirror(x: Array, upper: bool) -> Array:
    """Swap a lower triangle and an upper one, with conjugate numbers."""
    return jnp.conj(x).swapaxes(-1, -2) if upper else x


def _broadcast(a: Array, b: Array) -> tuple[Array, Array]:
    """Stacks of matrices as stacks of equal lengths, which JAX's solvers ask for."""
    lead = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    stack = lambda x: jnp.broadcast_to(x, lead + x.shape[-2:])
    return stack(a), stack(b)


@aten("linalg_cholesky_ex")
def _cholesky(
    xp: Any, x: Array, *, upper: bool = False, check_errors: Any = False
) -> Any:
    # JAX averages a matrix and its transpose by default; torch reads one triangle.
    lower = jnp.linalg.cholesky(_mirror(x, upper), symmetrize_input=False)
    return _mirror(lower, upper), _no_errors(x)


@aten("linalg_inv_ex")
def _invert(xp: Any, x: Array, *, check_errors: Any = False) -> Any:
    return jnp.linalg.inv(x), _no_errors(x)


@aten("_linalg_solve_ex")
def _solve(
    xp: Any, a: Array, b: Array, *, left: bool = True, check_errors: Any = False
) -> Any:
    is_vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    b = b[..., None] if is_vector else b
    if not left:
        a, b = a.swapaxes(-1, -2), b.swapaxes(-1, -2)
    x = jnp.linalg.solve(*_broadcast(a, b))
    x = x if left else x.swapaxes(-1, -2)
    return x[..., 0] if is_vector else x, None, None, _no_errors(a)


@aten("linalg_solve_triangular")
def _solve_triangular(
    xp: Any,
    a: Array,
    b: Array,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Array:
    if not left:
        a, b, upper = a.swapaxes(-1, -2), b.swapaxes(-1, -2), not upper
    a, b = _broadcast(a, b)
    x = linalg.solve_triangular(a, b, lower=not upper, unit_diagonal=unitriangular)
    return x if left else x.swapaxes(-1, -2)


@aten("triangular_solve")
def _solve_triangular_old(
    xp: Any,
    b: Array,
    a: Array,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> Any:
    a, b = _broadcast(a, b)
    trans, unit = int(transpose), unitriangular
    return (
        linalg.solve_triangular(a, b, trans, lower=not upper, unit_diagonal=unit),
        None,
    )


@aten("cholesky_solve")
def _solve_cholesky(xp: Any, b: Array, factor: Array, upper: bool = False) -> Array:
    factor, b = _broadcast(_mirror(factor, upper), b)
    return linalg.cho_solve((factor, True), b)


@aten("cholesky_inverse")
def _invert_cholesky(xp: Any, factor: Array, upper: bool = False) -> Array:
    eye = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    return _solve_cholesky(xp, eye, factor, upper)


@aten("_linalg_eigh")
def _eigh(xp: Any, x: Array, uplo: str = "L", compute_v: bool = True) -> Any:
    if not compute_v:
        return jnp.linalg.eigvalsh(x, UPLO=uplo, symmetrize_input=False), None
    return tuple(jnp.linalg.eigh(x, UPLO=uplo, symmetrize_input=False))


@aten("_linalg_svd")
def _svd(
    xp: Any,
    x: Array,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: Any = None,
) -> Any:
    if not compute_uv:
        return None, jnp.linalg.svd(x, compute_uv=False), None
    return tuple(jnp.linalg.svd(x, full_matrices=full_matrices))


@aten("linalg_pinv.atol_rtol_tensor")
def _pseudo_invert(
    xp: Any, x: Array, *, atol: Any = None, rtol: Any = None, hermitian: bool = False
) -> Array:
    if rtol is None:
        rtol = 0.0 if atol is not None else max(x.shape[-2:]) * jnp.finfo(x.dtype).eps
    if atol is not None:
        largest = jnp.linalg.svd(lax.stop_gradient(x), compute_uv=False).max(-1)
        rtol = jnp.maximum(rtol, atol / largest)
    return jnp.linalg.pinv(x, rtol=rtol, hermitian=hermitian)


@aten("linalg_householder_product")
def _multiply_reflections(xp: Any, x: Array, scales: Array) -> Array:
    """The first columns of (1 - t v v*) ... for each column v below its diagonal."""
    count = scales.shape[-1]
    eye = jnp.broadcast_to(jnp.eye(*x.shape[-2:], dtype=x.dtype), x.shape)
    vectors = jnp.tril(x, -1) + eye

    def reflect(q: Array, at: Array) -> tuple[Array, None]:
        v = jnp.take(vectors, at, -1)[..., None]
        shadow = jnp.conj(v).swapaxes(-1, -2) @ q
        return q - jnp.take(scales, at, -1)[..., None, None] * (v @ shadow), None

    return lax.scan(reflect, eye, jnp.arange(count), reverse=True)[0]


@aten("linalg_qr")
def _qr(xp: Any, x: Array, mode: str = "reduced") -> Any:
    if mode == "r":
        return None, jnp.linalg.qr(x, mode="r")
    return tuple(jnp.linalg.qr(x, mode=mode))


aten_table(
    {
        "_linalg_det": lambda x: (jnp.linalg.det(x), None, None),
        "_linalg_slogdet": lambda x: (*jnp.linalg.slogdet(x), None, None),
        "linalg_matrix_exp": linalg.expm,
    }
)
