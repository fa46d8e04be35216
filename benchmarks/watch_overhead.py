"""Race watched training steps against the same steps unwatched, as a loop calls them.

    python -m benchmarks.watch_overhead [--seconds 60] [--steps "250 us,1.5 ms"]

Steps of a net with Adam, of about 10 us to 10 ms, run in turns of half a second in an
order drawn anew for each round. A turn is measured in processor time of all threads, so
that other programs on the machine matter little, and ends with collecting its records.
"the same again" is the unwatched step compiled once more: as far as it is from 0,
nothing can be told. Beside the truth stands the share that `watch.price` predicts.
Results go to `benchmarks/results/watch_overhead.json`.
"""

import argparse
import contextlib
import dataclasses
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from benchmarks.machine import made_with

from frugax import OverheadBudget, watch
from frugax.budget import table, to_json
from frugax.fileio import write_whole
from frugax.watch.overhead import confidence_interval

RESULTS = Path(__file__).parent / "results" / "watch_overhead.json"
TURN_S = 0.5
_SETTLING_TURNS = 6
# Width of the net and rows of the batch, by about the time that a step takes.
SIZES = {"10 us": (8, 4), "250 us": (64, 64), "1.5 ms": (128, 512), "10 ms": (512, 512)}
PLAIN, AGAIN = "unwatched", "the same again"
PROGRAM, BY_HAND = "watch.jit", "Watcher.record"


@dataclasses.dataclass
class Racer:
    """A step with its own state; `end` collects what a turn has recorded."""

    step: Callable[[Any], tuple[Any, Any]]
    state: Any
    record: Callable[[Any], None] | None = None
    end: Callable[[], None] = lambda: None

    def turn(self, calls: int) -> float:
        """Return the processor seconds of one call."""
        started = time.process_time()
        for _ in range(calls):
            self.state, loss = self.step(self.state)
            if self.record is not None:
                self.record(loss)
        jax.block_until_ready(self.state)
        self.end()
        return (time.process_time() - started) / calls


def make_step(width: int, rows: int, *, is_probed: bool) -> tuple[Any, Any]:
    """A training step of a net with two layers, and its first state."""
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "in": jax.random.normal(keys[0], (width, width)) / width**0.5,
        "out": jax.random.normal(keys[1], (width, 10)) / width**0.5,
    }
    x = jax.random.normal(keys[2], (rows, width))
    y = jax.random.randint(keys[3], (rows,), 0, 10)
    optimizer = optax.adam(1e-3)

    def loss_of(params: Any) -> Any:
        logits = jnp.tanh(x @ params["in"]) @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(state: Any) -> tuple[Any, Any]:
        params, opt_state = state
        loss, grads = jax.value_and_grad(loss_of)(params)
        if is_probed:
            watch.record("loss", loss)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return step, (params, optimizer.init(params))


def race(width: int, rows: int, seconds: float) -> dict[str, Any]:
    """The share that watching adds, with its interval, for one size of step."""
    step, state = make_step(width, rows, is_probed=False)
    probed, _ = make_step(width, rows, is_probed=True)
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))

        def watcher(name: str) -> watch.Watcher:
            journal = opened.enter_context(watch.Journal.create(folder / name, {}))
            return watch.Watcher(journal, OverheadBudget("1%"))

        program, by_hand = watcher("program"), watcher("by hand")
        calls = iter(range(1 << 62))
        racers = {
            PLAIN: Racer(jax.jit(step), state),
            AGAIN: Racer(jax.jit(lambda s: step(s)), state),
            PROGRAM: Racer(
                watch.jit(probed, watcher=program), state, None, program.collect
            ),
            BY_HAND: Racer(
                jax.jit(lambda s: step(s)),
                state,
                lambda loss: by_hand.record(next(calls), {"loss": loss}),
                by_hand.collect,
            ),
        }
        for racer in racers.values():
            racer.turn(20)
        call_s = min(racers[PLAIN].turn(50) for _ in range(3))
        size = max(10, round(TURN_S / call_s))
        # The first seconds decide how much is thinned, and are not measured.
        for _ in range(_SETTLING_TURNS):
            for name in (PROGRAM, BY_HAND):
                racers[name].turn(size)
        rounds, started = [], time.process_time()
        while len(rounds) < 6 or time.process_time() - started < seconds:
            order = random.sample(list(racers), len(racers))
            rounds.append({name: racers[name].turn(size) for name in order})
        found: dict[str, Any] = {
            "us": 1e6 * median(rounds, PLAIN),
            "rounds": len(rounds),
        }
        for name in (AGAIN, PROGRAM, BY_HAND):
            ratios = np.log([r[name] / r[PLAIN] for r in rounds])
            found[name] = np.expm1(confidence_interval(ratios)).tolist()
        # Not the receipts: their clocks run on during the turns of the others.
        for name, one in ((PROGRAM, program), (BY_HAND, by_hand)):
            found[f"stride of {name}"] = one.pace.factor
            one.finish()
    prices = watch.price(probed, state, seconds=min(seconds, 5.0), callbacks=False)
    added_s = sum(p.seconds for p in prices.probes)
    found["price"] = added_s / prices.step_seconds
    return found


def median(rounds: list[dict[str, float]], name: str) -> float:
    """The median time of a racer's calls."""
    return float(np.median([r[name] for r in rounds]))


def main() -> None:
    """Race the steps and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each size")
    parser.add_argument("--steps", default=",".join(SIZES), help="sizes to race")
    given = parser.parse_args()
    results, rows = {}, []
    show = lambda v: f"{v[1]:+.1%} ({v[0]:+.1%} to {v[2]:+.1%})"
    for name in given.steps.split(","):
        found = results[name] = race(*SIZES[name], given.seconds)
        shown = [show(found[who]) for who in (AGAIN, PROGRAM, BY_HAND)]
        rows.append([f"{found['us']:.0f} us", *shown, f"{found['price']:.1%}"])
        print(rows[-1], found, flush=True)
    print(table(["step", AGAIN, PROGRAM, BY_HAND, "watch.price"], rows))
    facts = {"made with": made_with(), "steps": results}
    write_whole(RESULTS, to_json(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
