"""Race watched programs against the same programs unwatched, as a loop calls them.

    python -m benchmarks.watch_overhead [--seconds 20] [--only "net 250 us"]

Programs of about 10 us to 10 ms a step, watched in four ways. Each runs alone first, as
a user would run it, until its receipt is written. Then it is raced from outside: short
turns in a new random order for each round, in processor time of all threads, so that
other programs matter little. The unwatched program is the one that the watched function
runs between two records. "the same again" is compiled once more: the place of its code
and constants differs, and its distance from 0 is the noise. Records are
collected between two turns; the processor time that collecting took in the run is
added. "price" is what `watch.price` predicts for a record with every call, beside a
race of exactly that, and "prove" is the verdict of `watch.prove`. Results go to
`benchmarks/results/watch_overhead.json`.
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
from benchmarks.watch_programs import looped, matrix_step

from frugax import OverheadBudget, watch
from frugax.budget import table, to_json
from frugax.fileio import write_whole
from frugax.watch.overhead import confidence_interval

RESULTS = Path(__file__).parent / "results" / "watch_overhead.json"
TURN_S = 0.02
LIMIT = 0.01
# Width of the net and rows of the batch, by about the time that a step takes.
SIZES = {
    "net 0.1 ms": (8, 4),
    "net 250 us": (64, 128),
    "net 1.5 ms": (128, 512),
    "net 10 ms": (512, 512),
}
PLAIN, AGAIN, WATCHED, EVERY = "unwatched", "the same again", "watched", "every call"
State = Any
Program = Callable[[State], tuple[State, Any]]


def one(loss: Any, params: Any) -> None:
    watch.record("loss", loss)


def ten(loss: Any, params: Any) -> None:
    for i in range(10):
        watch.record(f"loss {i}", loss * i)


def norms(loss: Any, params: Any) -> None:
    watch.norms("norm", params)


def frames(loss: Any, params: Any) -> None:
    watch.frame("weights", jax.tree.leaves(params)[-1])


WAYS = {"a number": one, "ten": ten, "200 norms": norms, "frames": frames}


def make_net(width: int, rows: int, leaves: int = 1) -> Callable[..., Any]:
    """A training step of a net with two layers, the first in `leaves` arrays."""
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "in": list(jnp.array_split(jax.random.normal(keys[0], (width, width)), leaves)),
        "out": jax.random.normal(keys[1], (width, 10)) / width**0.5,
    }
    x = jax.random.normal(keys[2], (rows, width)) / width**0.5
    y = jax.random.randint(keys[3], (rows,), 0, 10)
    optimizer = optax.adam(1e-3)

    def loss_of(params: Any) -> Any:
        logits = jnp.tanh(x @ jnp.concatenate(params["in"])) @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def make(tell: Callable[[Any, Any], None]) -> tuple[Program, State]:
        def step(state: State) -> tuple[State, Any]:
            params, opt_state = state
            loss, grads = jax.value_and_grad(loss_of)(params)
            tell(loss, grads)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), loss

        return step, (params, optimizer.init(params))

    return make


def make_matrix(tell: Callable[[Any, Any], None]) -> tuple[Program, State]:
    """A step of some 50 us without a gradient."""
    step, state = matrix_step(900)

    def one_step(x: State) -> tuple[State, Any]:
        new = step(x, lambda a, b: tell(a, {"x": x}), "held")[0]
        return new, new[0]

    return one_step, state


def make_scan(tell: Callable[[Any, Any], None]) -> tuple[Program, State]:
    """A scan of 1000 steps of some 10 us."""
    step, state = matrix_step(384)
    run = looped(step, "held", 1000, lambda a, b: tell(a, {"x": a}))
    return lambda x: (run(x)[0], None), state


MAKERS: dict[str, Callable[..., Any]] = {
    "scan of 10 us": make_scan,
    "matrix 50 us": make_matrix,
    **{name: make_net(*size) for name, size in SIZES.items()},
}


def programs() -> dict[str, tuple[Callable[..., Any], Callable[..., Any], bool]]:
    """Every program by name: its factory, its probes, and whether by hand."""
    found = {}
    for name, maker in MAKERS.items():
        for way, tell in WAYS.items():
            if tell is norms:
                if name not in SIZES or SIZES[name][0] < 100:
                    continue
                made = make_net(*SIZES[name], leaves=min(199, SIZES[name][0]))
            else:
                made = maker
            found[f"{name}, {way}"] = (made, tell, False)
        if name in SIZES:
            found[f"{name}, by hand"] = (maker, one, True)
    return found


@dataclasses.dataclass
class Racer:
    """A program with its own state."""

    program: Any
    state: State
    record: Callable[[Any], None] | None = None
    end: Callable[[], None] = lambda: None

    def turn(self, calls: int) -> float:
        """Return the processor seconds of one call."""
        started = time.process_time()
        for _ in range(calls):
            self.state, loss = self.program(self.state)
            if self.record is not None:
                self.record(loss)
        jax.block_until_ready(self.state)
        used = time.process_time() - started
        self.end()
        return used / calls


def race(
    maker: Callable[..., Any],
    tell: Callable[..., Any],
    *,
    by_hand: bool,
    seconds: float,
) -> dict[str, Any]:
    """The share that watching adds to one program, with its interval."""
    bare, state = maker(lambda loss, params: None)
    probed, _ = maker(tell)
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))

        def racer(name: str, level: str) -> tuple[Racer, watch.Watcher]:
            journal = opened.enter_context(watch.Journal.create(folder / name, {}))
            watcher = watch.Watcher(journal, OverheadBudget("1%"), level=level)
            end = watcher.collect
            if not by_hand:
                return Racer(
                    watch.jit(probed, watcher=watcher), state, end=end
                ), watcher
            steps = iter(range(1 << 62))
            record = lambda loss: watcher.record(next(steps), {"loss": loss})
            return Racer(plain, state, record, end), watcher

        plain: Any = jax.jit(bare)
        watched, watcher = racer("watched", "standard")
        every, full = racer("every", "full")
        watched.turn(1)
        if not by_hand:
            plain = watched.program.variants().bare
        racers = {
            PLAIN: Racer(plain, state),
            AGAIN: Racer(jax.jit(lambda s: bare(s)), state),
            WATCHED: watched,
            EVERY: every,
        }
        collecting = {}
        for name, owner, solo_s in ((WATCHED, watcher, seconds), (EVERY, full, 2.0)):
            end, racers[name].end = racers[name].end, lambda: None
            # The first collections fill caches, which is not a cost of each call.
            for part_s in (1.0, solo_s):
                before_s = owner.collector.cpu_s
                started, calls = time.perf_counter(), 0
                while not calls or time.perf_counter() - started < part_s:
                    racers[name].turn(20)
                    calls += 20
                end()
            collecting[name] = (owner.collector.cpu_s - before_s) / calls
            racers[name].end = end
        receipt, estimate = watcher.report().spends[0], watcher.overhead_estimate
        found: dict[str, Any] = {
            "verdict": str(receipt.verdict),
            "receipt": [receipt.measured, receipt.noise],
            "in the run": [estimate.low, estimate.middle, estimate.high],
            "pairs": estimate.pairs,
            "stride": watcher._current_stride,
        }
        call_s = min(racers[PLAIN].turn(20) for _ in range(5))
        size = max(2, round(TURN_S / call_s))
        rounds, started = [], time.perf_counter()
        # No unit runs bare meanwhile: all that is raced as watched is watched.
        with watcher.hold_watched():
            while len(rounds) < 8 or time.perf_counter() - started < seconds:
                order = random.sample(list(racers), len(racers))
                rounds.append({name: racers[name].turn(size) for name in order})
        if not by_hand:
            proof = watch.prove(
                watched.program,
                state,
                seconds=min(seconds, 5.0),
                chunk_s=TURN_S,
                clock=time.process_time,
            ).spends[0]
            found["prove"] = [str(proof.verdict), proof.measured, proof.noise]
        found["us"] = 1e6 * median(rounds, PLAIN)
        found["rounds"] = len(rounds)
        for name in (AGAIN, WATCHED, EVERY):
            ratios = np.log([r[name] / r[PLAIN] for r in rounds])
            collected = 1e6 * collecting.get(name, 0.0) / found["us"]
            ends = np.expm1(confidence_interval(ratios)) + collected
            found[name] = ends.tolist()
        for owner in (watcher, full):
            owner.finish()
    if not by_hand:
        prices = watch.price(
            probed,
            state,
            seconds=min(seconds, 5.0),
            chunk_s=TURN_S,
            callbacks=False,
            clock=time.process_time,
        )
        found["price"] = prices.all_seconds / prices.step_seconds
        found["price noise"] = sum(p.noise for p in prices.probes) / prices.step_seconds
    # Claims that the race excludes.
    claims = {found["verdict"], found.get("prove", ("",))[0]}
    low, _, high = found[WATCHED]
    found["wrong"] = ("kept" in claims and low > LIMIT) or (
        found.get("prove", ("",))[0] == "broken" and high < LIMIT
    )
    return found


def median(rounds: list[dict[str, float]], name: str) -> float:
    """The median time of a racer's calls."""
    return float(np.median([r[name] for r in rounds]))


def main() -> None:
    """Race the programs and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each part")
    parser.add_argument("--only", default="", help="programs whose name has this")
    given = parser.parse_args()
    results, rows = {}, []
    show = lambda v: f"{v[1]:+.1%} ({v[0]:+.1%} to {v[2]:+.1%})"
    for name, (maker, tell, by_hand) in programs().items():
        if given.only not in name:
            continue
        found = results[name] = race(
            maker, tell, by_hand=by_hand, seconds=given.seconds
        )
        shown = [show(found[who]) for who in (AGAIN, WATCHED)]
        inside = show(found["in the run"]) + f" {found['verdict']}"
        price = f"{found['price']:.1%}" if "price" in found else "-"
        rows.append(
            [
                name,
                f"{found['us']:.0f} us",
                *shown,
                f"{found['stride']}",
                inside,
                show(found[EVERY]),
                price,
                found.get("prove", ("-",))[0],
                "WRONG" if found["wrong"] else "",
            ]
        )
        print(" | ".join(rows[-1]), flush=True)
    head = [
        "program",
        "call",
        AGAIN,
        WATCHED,
        "every",
        "receipt",
        EVERY,
        "price",
        "prove",
        "",
    ]
    print(table(head, rows))
    facts = {"made with": made_with(), "programs": results}
    write_whole(RESULTS, to_json(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
