import jax
import jax.numpy as jnp

from frugax import measure
from refusals import refuses


def compiled(fn, *args, **options):
    return jax.jit(fn, **options).lower(*args).compile()


def test_temp_counts_bytes_that_are_neither_arguments_nor_results():
    x = jnp.ones((256, 256))
    costs = measure.program(compiled(lambda x: (x @ x) @ (x @ x), x))
    assert costs.argument_bytes == costs.output_bytes == x.nbytes
    assert costs.temp_bytes >= x.nbytes  # the product that is squared
    assert costs.flops is not None
    assert costs.flops >= 2 * 2 * 256**3


def test_donated_bytes_count_once_in_the_total():
    x = jnp.ones((256, 256))
    kept = measure.program(compiled(lambda x: x + 1, x))
    given = measure.program(compiled(lambda x: x + 1, x, donate_argnums=0))
    assert kept.total_bytes == 2 * x.nbytes
    assert given.total_bytes == x.nbytes
    assert given.bytes_of("total") == given.total_bytes
    assert given.bytes_of("temp") == given.temp_bytes


def test_a_backend_without_memory_analysis_is_refused():
    class Silent:
        def memory_analysis(self):
            return None

        def cost_analysis(self):
            return None

    with refuses(ValueError, "analysis"):
        measure.program(Silent())


def test_operations_count_as_often_as_their_loop_runs():
    def run(x, length):
        return jax.lax.scan(lambda x, _: (jnp.sort(x), None), x, length=length)

    short, long = (
        measure.count_operations(compiled(lambda x, n=n: run(x, n), jnp.ones(8)))
        for n in (10, 30)
    )
    assert short[0] == long[0] < 10
    assert 10 <= short[1] == long[1] // 3
    # A loop in the branch of a conditional is one, too.
    either = lambda x: jax.lax.cond(x[0] > 0, lambda x: run(x, 30)[0], jnp.sin, x)
    outside, inside = measure.count_operations(compiled(either, jnp.ones(8)))
    assert (outside < 10, inside) == (True, long[1])


def test_the_longer_branch_of_a_conditional_counts():
    def run(x):
        return jax.lax.cond(x[0] > 0, lambda x: jnp.sort(jnp.sort(x)[::-1]), jnp.sin, x)

    outside, inside = measure.count_operations(compiled(run, jnp.ones(8)))
    assert (outside >= 2, inside) == (True, 0)
