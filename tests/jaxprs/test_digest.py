"""A program's digest names its computation; its constants are all found."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frugax.jaxprs import constants, digest

X = jax.ShapeDtypeStruct((3, 3), jnp.float32)


def digest_of(fn):
    return digest(jax.make_jaxpr(fn)(X))


def test_parameters_are_distinguished():
    assert digest_of(lambda x: x.sum(0)) != digest_of(lambda x: x.sum(1))
    assert digest_of(lambda x: x * 2) != digest_of(lambda x: x * 3)
    assert digest_of(lambda x: x - x.T) != digest_of(lambda x: x.T - x)
    assert digest_of(lambda x: jnp.cumsum(x, 0)) != digest_of(
        lambda x: lax.cumsum(x, 0, reverse=True)
    )


def test_addresses_do_not_count():
    own = jax.custom_jvp(lambda x: jnp.sin(x))
    own.defjvp(lambda p, t: (jnp.sin(p[0]), t[0]))

    def never():
        return functools.partial(lambda *_, **__: False)

    policies = [never(), never()]  # two objects, at two addresses
    one, other = (digest_of(jax.checkpoint(own, policy=p)) for p in policies)
    assert one == other
    assert one != digest_of(jax.checkpoint(own))


def test_the_digest_does_not_depend_on_names_and_lines_of_the_source():
    def here(x):
        return jnp.sin(x)

    def there(x):
        y = x

        return jnp.sin(y)

    assert digest_of(here) == digest_of(there)


def test_values_that_are_closed_over_count():
    ones = np.ones((3, 3), "float32")
    add = lambda value: digest_of(lambda x: x + value)
    assert add(ones) == add(ones.copy())
    assert add(ones) != add(2 * ones)
    inside = lambda value: digest_of(jax.jit(lambda x: x + value))
    assert inside(ones) != inside(2 * ones)


def test_loops_branches_and_own_rules_count():
    def loop(step):
        return digest_of(lambda x: lax.scan(step, x, None, length=2)[0])

    assert loop(lambda x, _: (x + 1, None)) != loop(lambda x, _: (x + 2, None))
    choose = lambda *branches: digest_of(lambda x: lax.switch(1, branches, x))
    assert choose(jnp.sin, jnp.cos) != choose(jnp.cos, jnp.sin)
    conv = lambda layout: digest_of(
        lambda x: lax.conv_general_dilated(
            x[None, None], x[None, None], (1, 1), "SAME", dimension_numbers=layout
        )
    )
    assert conv(("NCHW", "OIHW", "NCHW")) != conv(("NCHW", "OIHW", "NHWC"))


SCRIPT = """
import sys, jax, jax.numpy as jnp
from pathlib import Path
from frugax.jaxprs import digest

def loss(w, key):
    w = jax.checkpoint(lambda w: jnp.tanh(w @ w))(w)
    noise = jax.random.normal(key, w.shape)
    return jax.lax.scan(lambda x, _: (x + noise, None), w, None, length=3)[0].sum()

both = jax.value_and_grad(loss)
program = jax.make_jaxpr(both)(jnp.ones((4, 4)), jax.random.key(0))
Path(sys.argv[1]).write_text(digest(program))
"""


def test_another_process_and_a_terminal_change_nothing(tmp_path, monkeypatch):
    """JAX colours the text of a program on a terminal."""
    here, there = tmp_path / "here", tmp_path / "there"
    monkeypatch.setattr(sys, "argv", ["", str(here)])
    exec(SCRIPT, {})
    terminal, its_end = os.openpty()
    command = [sys.executable, "-c", SCRIPT, str(there)]
    environment = {**os.environ, "COLUMNS": "40", "PYTHONHASHSEED": "1"}
    subprocess.run(command, stdout=its_end, env=environment, check=True)
    os.close(terminal)
    os.close(its_end)
    assert here.read_text() == there.read_text()


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
