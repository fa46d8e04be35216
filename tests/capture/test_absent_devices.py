"""A script that is planned for absent devices finds them where it asks."""

import jax
import jax.numpy as jnp
import pytest

from frugax.capture import devices_of, planned
from frugax.targets import Target


@pytest.mark.parametrize(("name", "other"), [("h100", "tpu"), ("tpu-v5e:1x1", "gpu")])
def test_devices_say_that_they_are_those_of_the_target(name, other):
    target = Target(name)
    with devices_of(target):
        device = jax.devices(target.platform)[0]
        assert device == jax.local_devices(backend=target.platform)[0]
        assert device.platform == jax.default_backend() == target.platform
        assert device.device_kind == target.kind
        assert device.memory_stats()["bytes_limit"] == target.memory_bytes
        jax.distributed.initialize()  # joins nobody
        jax.config.update("jax_platforms", "cuda")
        assert jnp.sum(jax.device_put(jnp.ones(2), device)) == 2
        with pytest.raises(RuntimeError, match=other):
            jax.devices(other)
    assert device.platform == jax.default_backend() == "cpu"
    assert device.memory_stats() is None


@pytest.mark.filterwarnings("ignore:backend")  # an old option of jax.jit
@pytest.mark.parametrize("wrap", ["jit", "pmap"])
def test_a_function_may_be_jitted_for_the_backend_of_the_target(wrap):
    x = jnp.ones((len(jax.devices()), 2))
    with devices_of(Target("h100")), planned("60%"):
        assert jnp.all(getattr(jax, wrap)(jnp.sin, backend="gpu")(x) == jnp.sin(x))
        with pytest.raises(RuntimeError, match="tpu"):
            getattr(jax, wrap)(jnp.sin, backend="tpu")(x)


def test_devices_that_are_here_are_as_they_are():
    with devices_of(Target.here()):
        assert jax.devices()[0].platform == jax.default_backend() == "cpu"
