"""The programs of `benchmarks.watch`: one step, watched in every way, and unwatched.

Two steps. "matrix" is tanh(w @ x), five operations of XLA in a loop's round; "SGD" is a
gradient step of a small net, some thirty. Two numbers are watched in two ways: "held"
ones exist anyway (an element of the state), those "worked out" do not (a norm).
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import io_callback

from frugax import OverheadBudget, watch
from frugax.watch import probes

Tell = Callable[[jax.Array, jax.Array], Any]


def unwatched(a: jax.Array, b: jax.Array) -> None:
    pass


def recorded(a: jax.Array, b: jax.Array) -> None:
    probes.record("a", a)
    probes.record("b", b)


def debugged(a: jax.Array, b: jax.Array) -> None:
    jax.debug.callback(_nothing, a, b)


def called(a: jax.Array, b: jax.Array) -> None:
    io_callback(_nothing, None, a, b)


def gated(a: jax.Array, b: jax.Array) -> None:
    """As `jax_tqdm` does it; here the gate never opens."""
    jax.lax.cond(a > 1e30, lambda: debugged(a, b), lambda: None)


def outputs(a: jax.Array, b: jax.Array) -> jax.Array:
    """By hand: the two numbers as one more output."""
    return jnp.stack([a, b])


def _nothing(*_: Any) -> None:
    pass


def matrix_step(size: int) -> tuple[Callable[..., Any], Any]:
    """Return a step (state, report, reported names) -> state, and a first state."""
    w = jax.random.normal(jax.random.key(0), (size, size)) / size**0.5

    def step(x: Any, tell: Tell, numbers: str) -> Any:
        y = jnp.tanh(w @ x)
        if numbers == "held":
            return y, tell(y[0], x[1])
        return y, tell(jnp.linalg.norm(y), jnp.linalg.norm(x))

    return step, jnp.ones(size)


def sgd_step(size: int) -> tuple[Callable[..., Any], Any]:
    """The same of a net of two layers that learns; its loss and its gradient's norm."""
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "in": jax.random.normal(keys[0], (8, size)) / 8**0.5,
        "out": jax.random.normal(keys[1], (size, 1)) / size**0.5,
    }
    x = jax.random.normal(keys[2], (128, 8))
    y = x.sum(1, keepdims=True)

    def loss(p: Any) -> jax.Array:
        return ((jnp.tanh(x @ p["in"]) @ p["out"] - y) ** 2).mean()

    def step(p: Any, tell: Tell, numbers: str) -> Any:
        value, slope = jax.value_and_grad(loss)(p)
        new = jax.tree.map(lambda p, g: p - 0.01 * g, p, slope)
        if numbers == "held":
            return new, tell(p["out"][0, 0], slope["out"][0, 0])
        return new, tell(value, jnp.linalg.norm(slope["out"]))

    return step, params


def looped(
    step: Callable[..., Any],
    numbers: str,
    length: int,
    tell: Tell,
    *,
    every: int | None = None,
) -> Callable[[Any], Any]:
    """A scan over the step, not yet compiled; with `every`, frames of its state."""

    def one(state: Any, _: Any) -> Any:
        new, told = step(state, tell, numbers)
        if every:
            probes.frame("state", jax.tree.leaves(new)[0])
        return new, told

    if every:
        return lambda state: probes.scan(one, state, length=length, every=every)[0]
    return lambda state: jax.lax.scan(one, state, None, length=length)


def single(step: Callable[..., Any], tell: Tell) -> Callable[[Any], Any]:
    """One step alone."""
    return lambda state: step(state, tell, "held")[0]


def lanes(
    size: int, tell: Callable[[jax.Array], Any], numbers: str, length: int
) -> tuple[Callable[[Any], Any], Any]:
    """A scan over 64 lanes of the matrix step, `tell` inside of a lane; and a state."""
    w = jax.random.normal(jax.random.key(0), (size, size)) / size**0.5

    def step(x: jax.Array, _: Any) -> Any:
        y = jnp.tanh(w @ x)
        return y, tell(y[0] if numbers == "held" else jnp.linalg.norm(y))

    def run(x: jax.Array) -> Any:
        return jax.lax.scan(step, x, None, length=length)

    xs = jax.random.normal(jax.random.key(1), (64, size))
    return jax.vmap(run), xs


def four_recorded(a: jax.Array) -> None:
    probes.record("a", a, lanes=4)


class Asks:
    """A watcher that wants the same of every call, and drops it."""

    def __init__(self, level: int) -> None:
        self._level = level

    def due(self, step: int) -> int:
        return self._level

    def wants_frames(self) -> bool:
        return self._level == 2

    def ingest(self, step: int, probes: Any, records: Any) -> None:
        pass


class Paced(Asks):
    """One that wants frames 30 times a second and nothing else besides."""

    def __init__(self) -> None:
        super().__init__(1)
        self._next = 0.0

    def due(self, step: int) -> int:
        now = time.perf_counter()
        if now < self._next:
            return 1
        self._next = now + 1 / 30
        return 2


def watched(run: Callable[[Any], Any], level: int) -> Any:
    """Compiled by `watch.jit` and always run at this level: 0, 1 or 2."""
    return watch.jit(run, watcher=Asks(level))


def paced(run: Callable[[Any], Any]) -> Any:
    """Compiled by `watch.jit`: numbers of each call, frames 30 times a second."""
    return watch.jit(run, watcher=Paced())


def idle(run: Callable[[Any], Any]) -> Any:
    """Compiled by `watch.jit`, with a watcher to which nothing in it is due."""
    watcher = watch.Watcher(None, OverheadBudget("1%"), level="minimal")
    return watch.jit(run, watcher=watcher)


def passed_on(run: Callable[[Any], Any]) -> Any:
    """`jax.jit` behind one Python function that adds no work: the wrapper's cost."""
    jitted = jax.jit(run)

    @functools.wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        return jitted(*args, **kwargs)

    return call
