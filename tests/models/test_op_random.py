"""Random ops: the same distributions on both libraries, fixed by the key alone.

Also `xp.scan`, which is not an op.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax.models.ops import OPS, as_dtype
from frugax.models.to_jax import JaxNamespace
from refusals import refuses

torch = pytest.importorskip("torch")

from frugax.models.to_torch import TorchNamespace  # noqa: E402

N = 20_000
KEYS = {
    "typed JAX key": (JaxNamespace(), lambda seed: jax.random.key(seed)),
    "raw JAX key": (JaxNamespace(), lambda seed: jax.random.PRNGKey(seed)),
    "torch": (TorchNamespace(), lambda seed: torch.tensor(seed)),
}
everywhere = pytest.mark.parametrize("library", KEYS)


def draw(library, op, *tensors, seed=0, **attrs):
    xp, key = KEYS[library]
    return OPS[op](xp, key(seed), *tensors, **attrs)


def moments(x, mean, variance):
    """Within five standard errors: by chance one key in 1.7 million is not."""
    x = np.asarray(x, np.float64)
    fourth = ((x - x.mean()) ** 4).mean()
    assert abs(x.mean() - mean) < 5 * np.sqrt(variance / x.size)
    assert abs(x.var() - variance) < 5 * np.sqrt((fourth - variance**2) / x.size)


@everywhere
def test_uniform_and_normal_have_their_moments(library):
    x = draw(library, "random_uniform", shape=(N,), low=-1.0, high=2.0)
    moments(x, 0.5, 9 / 12)
    assert -1 <= float(x.min()) < -0.99
    assert 1.99 < float(x.max()) < 2
    x = draw(library, "random_normal", shape=(N // 2, 2), mean=3.0, std=0.5)
    moments(x, 3.0, 0.25)
    # Symmetric, and not bounded as a sum of uniforms would be.
    assert np.abs(np.asarray(x) - 3).max() > 3.5 * 0.5


@everywhere
def test_integers_and_coins(library):
    x = np.asarray(draw(library, "random_integers", shape=(N,), low=-2, high=3))
    counts = np.bincount(x + 2, minlength=5)
    assert x.dtype == np.int32
    assert counts.size == 5
    assert (np.abs(counts - N / 5) < 5 * np.sqrt(N * 0.2 * 0.8)).all()
    for p in (0.0, 0.3, 1.0):
        x = np.asarray(draw(library, "bernoulli", shape=(N,), p=p))
        assert x.dtype == np.bool_
        assert abs(x.mean() - p) <= 5 * np.sqrt(p * (1 - p) / N)


@everywhere
def test_the_key_alone_decides(library):
    before = torch.get_rng_state().clone()
    for op, attrs in [
        ("random_uniform", {}),
        ("random_normal", {}),
        ("random_integers", {"high": 1000}),
        ("bernoulli", {}),
    ]:
        one, same, other = (
            np.asarray(draw(library, op, shape=(50,), seed=s, **attrs))
            for s in (3, 3, 4)
        )
        np.testing.assert_array_equal(one, same)
        assert (one != other).any(), op
    assert torch.equal(before, torch.get_rng_state())


@everywhere
def test_keys_folded_or_split_are_new_ones(library):
    xp, key = KEYS[library]
    numbers = lambda k: np.asarray(OPS["random_uniform"](xp, k, shape=(8,)))
    folded = lambda i: OPS["fold_in"](xp, key(0), index=i)
    # JAX's third key of a split is the one with 2 folded in, so not both at once.
    for more in (xp.split_key(key(0), 3), [folded(i) for i in range(4)]):
        drawn = [numbers(k) for k in (key(0), key(1), *more)]
        for i, one in enumerate(drawn):
            for other in drawn[:i]:
                assert np.abs(one - other).max() > 0.01
    np.testing.assert_array_equal(numbers(folded(2)), numbers(folded(2)))


@everywhere
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes(library, dtype):
    for op in ("random_uniform", "random_normal"):
        x = draw(library, op, shape=(3,), dtype=dtype)
        assert KEYS[library][0].dtype_of(x) == as_dtype(dtype)
    key = KEYS[library][1](0)
    half = (JaxNamespace if "JAX" in library else TorchNamespace)(as_dtype(dtype))
    x = OPS["random_uniform"](half, key, shape=(3,))
    assert half.dtype_of(x) == as_dtype(dtype)


@everywhere
def test_dropout_keeps_the_mean_and_drops_its_rate(library):
    xp, _ = KEYS[library]
    x = np.asarray(draw(library, "dropout", xp.ones((N,)), rate=0.2))
    assert set(np.unique(x)) == {0, np.float32(1.25)}
    assert abs((x == 0).mean() - 0.2) < 5 * np.sqrt(0.2 * 0.8 / N)
    whole = draw(library, "dropout", xp.ones((4,), "int32"), rate=0.5)
    assert xp.dtype_of(whole) == np.float32
    kept = draw(library, "dropout", xp.ones((4,)), rate=0.0)
    np.testing.assert_array_equal(np.asarray(kept), np.ones(4))


def test_dropout_has_the_gradient_of_the_kept_values():
    x = jnp.linspace(1, 2, 20)
    f = lambda x: OPS["dropout"](JaxNamespace(), jax.random.key(0), x, rate=0.5)
    kept = np.asarray(f(x)) != 0
    np.testing.assert_array_equal(jax.grad(lambda x: f(x).sum())(x), 2.0 * kept)
    x = torch.linspace(1, 2, 20, requires_grad=True)
    y = OPS["dropout"](TorchNamespace(), torch.tensor(0), x, rate=0.5)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, 2.0 * (y.detach().numpy() != 0))


def test_shapes_are_known_without_a_key_of_values():
    # A key on torch's meta device has a shape and no value. (The other draws need
    # arithmetic there, whose first use makes torch import 800 modules.)
    xp, key = TorchNamespace(), torch.empty((), dtype=torch.int64, device="meta")
    key = OPS["fold_in"](xp, key, index=1)
    x = OPS["random_normal"](xp, key, shape=(3, 2))
    assert (tuple(x.shape), x.device.type) == ((3, 2), "meta")
    assert OPS["random_integers"](xp, key, shape=(4,), high=9).device.type == "meta"
    (b,) = jax.export.symbolic_shape("b")
    out = jax.eval_shape(
        lambda k, x: OPS["dropout"](JaxNamespace(), k, x),
        jax.eval_shape(lambda: jax.random.key(0)),
        jax.ShapeDtypeStruct((b, 2), jnp.float32),
    )
    assert out.shape == (b, 2)


def test_an_empty_scan_is_refused_in_torch():
    xp = TorchNamespace()
    with refuses(ValueError, "scan"):
        xp.scan(lambda c, x: (c, x), xp.asarray(0), xp.zeros((0, 2)))
