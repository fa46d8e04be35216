"""A program's text describes its computation; its constants are all found."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frugax.jaxprs import constants, program_text

X = jax.ShapeDtypeStruct((3, 3), jnp.float32)


def text(fn):
    return program_text(jax.make_jaxpr(fn)(X))


def test_parameters_are_distinguished():
    assert text(lambda x: x.sum(0)) != text(lambda x: x.sum(1))
    assert text(lambda x: x * 2) != text(lambda x: x * 3)
    assert text(lambda x: jnp.cumsum(x, 0)) != text(
        lambda x: lax.cumsum(x, 0, reverse=True)
    )


def test_no_address_is_in_it():
    own = jax.custom_jvp(lambda x: jnp.sin(x))
    own.defjvp(lambda p, t: (jnp.sin(p[0]), t[0]))

    def never():
        return functools.partial(lambda *_, **__: False)

    policies = [never(), never()]  # two objects, at two addresses
    one, other = (text(jax.checkpoint(own, policy=p)) for p in policies)
    assert "never.<locals>" in one
    assert one == other


def test_the_text_does_not_depend_on_names_and_lines_of_the_source():
    def here(x):
        return jnp.sin(x)

    def there(x):
        y = x

        return jnp.sin(y)

    assert text(here) == text(there)


def test_constants_are_found_at_any_depth():
    a, b, c = (np.full((3, 3), v, "float32") for v in (1, 2, 3))

    def program(x):
        x, _ = lax.scan(lambda x, _: (x + a, None), x, None, length=2)
        x = lax.cond(x[0, 0] > 0, lambda x: x * b, lambda x: x, x)
        return jax.jit(lambda x: x - c)(x)

    found = constants(jax.make_jaxpr(program)(X))
    assert sorted(float(v[0, 0]) for v in found) == [1.0, 2.0, 3.0]
    with jax.enable_checks(True):
        assert constants(jax.make_jaxpr(lambda x: x + 1)(X)) == ()
