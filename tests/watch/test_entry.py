"""Mistakes of a new user are reported where they are written.

Where the run-time type checker would be first, code runs without it in a fork.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forked import python
from frugax import OverheadBudget, watch
from frugax.capture import LostUpdateWarning
from refusals import warns


def watched():
    def size(x):
        watch.record("size", x.sum())
        return x.sum() ** 2

    return watch.jit(size)


INSIDE = {
    "watch.jit of grad": lambda wg: watch.jit(jax.grad(wg)),
    "watch.jit of vmap": lambda wg: watch.jit(jax.vmap(lambda row: wg(row[None]))),
    "watch.jit": lambda wg: watch.jit(lambda x: wg(x)),
    "grad": jax.grad,
    "jit of grad": lambda wg: jax.jit(jax.grad(wg)),
    "vmap": lambda wg: jax.vmap(lambda row: wg(row[None])),
    "jit": lambda wg: jax.jit(lambda x: wg(x)),
}


@pytest.mark.parametrize("around", INSIDE)
def test_a_watched_function_inside_of_another_program_is_recorded(journal, around):
    program = INSIDE[around](watched())
    with watch.Watcher(journal, OverheadBudget("100%"), level="full") as watcher:
        for n in (3, 4):
            jax.block_until_ready(program(jnp.ones(n)))
        jax.effects_barrier()
    assert watcher.losses.tally("scalar").kept == 2
    called_back = "called back" in watcher.report().spends[0].source
    assert called_back is not around.startswith("watch.jit")


def test_a_watched_function_whose_records_may_reach_nobody_warns_once():
    own = watched()
    own.watcher = watch.Watcher(None, OverheadBudget("1%"))
    with warns(UserWarning, "watch.jit", "(size)") as said:
        [jax.grad(own)(jnp.ones(n)) for n in (3, 4)]
    assert len(said) == 1
    watch.collect(own)(jnp.ones(3))  # a warning would be an error


def test_changes_of_an_nnx_module_that_are_dropped_are_named():
    nnx = pytest.importorskip("flax.nnx")
    net = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

    @watch.jit
    def step(net, x):
        watch.record("size", x.sum())
        net.kernel[...] -= 1.0
        return net(x)

    with warns(LostUpdateWarning, "'net'", "step"):
        step(net, jnp.ones((2, 4)))


def test_arguments_of_a_wrong_type_are_named():
    wrong = {
        "'/a/run'": 'watch.Watcher("/a/run", budget)',
        "print": "watch.Watcher(None, budget, sinks=[print])",
        "Terminal": "watch.Watcher(None, budget, sinks=watch.Terminal())",
        "budget": 'watch.Watcher(None, "1%")',
        "metrics": "watch.Watcher(None, budget).record(4, None)",
        "7.5": "watch.Watcher(None, budget).record(7.5, {})",
    }
    code = f"""
from frugax import OverheadBudget, watch
budget = OverheadBudget("1%")
for line in {[*wrong.values()]}:
    try:
        eval(line)
    except TypeError as e:
        print(e)
"""
    lines = python(code).stdout.splitlines()
    for line, named in zip(lines, wrong, strict=True):
        assert named in line


def test_a_module_with_leaves_that_are_not_arrays_is_named():
    step = watch.jit(lambda model, x: model(x))
    with pytest.raises(TypeError) as caught:
        step(eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0)), jnp.ones(2))
    assert any("MLP" in n and "filter_jit" in n for n in caught.value.__notes__)
    with pytest.raises(TypeError) as caught:
        watch.jit(lambda n, x: x.reshape(n))(2, jnp.ones(2))
    assert "filter_jit" not in "".join(caught.value.__notes__)


def test_large_numbers_are_printed_in_wider_cells(capsys):
    watch.drawing.log_grid_to_console([[100, -7], [3, 12345]], show_numbers=True)
    assert capsys.readouterr().out.splitlines()[:2] == ["  100    -7", "    3 12345"]
    watch.drawing.log_grid_to_console(np.full((2, 2, 2), 50), show_numbers=True)
    assert "only a single grid without colours" in capsys.readouterr().out
