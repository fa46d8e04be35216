"""Measure the processor time of training data: random models and their samples.

Data sets of 128 rows (64 observations, 64 single interventions) of 10 variables, made
64 at a time by `frugax.causal.generate_batch`; and, for scale, as many rows of one
model by `sample`. Processor time, not the clock's: the machine is shared. The median of
the rounds, with the quickest and the slowest:

    OMP_NUM_THREADS=1 python -m benchmarks.causal_data
"""

import statistics
import time
from collections.abc import Callable

import numpy as np

from frugax import causal
from frugax.budget import table

SETS, ROWS, VARIABLES, ROUNDS = 64, 128, 10, 15


def milliseconds(work: Callable[[], object]) -> list[float]:
    """Processor time of each of some calls, sorted; the first call is not counted."""
    work()
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append((time.process_time() - start) * 1e3)
    return sorted(times)


def main() -> None:
    """Measure and print."""
    rng, rows = np.random.default_rng(0), []
    for family in ("linear", "mlp", "rff", "mixed"):
        times = milliseconds(
            lambda family=family: causal.generate_batch(
                SETS, d=VARIABLES, rows=ROWS, family=family, seed=rng
            )
        )
        rows.append([f"generate_batch, {family}", *_each(times, SETS)])
        scm = causal.generate_scm("erdos_renyi", VARIABLES, family=family, seed=0)
        times = milliseconds(lambda scm=scm: causal.sample(scm, ROWS, seed=0))
        rows.append([f"sample, {family}", *_each(times, 1)])
    head = [f"CPU-ms for {ROWS} x {VARIABLES}", "median", "least", "most"]
    print(table(head, rows))


def _each(times: list[float], sets: int) -> list[str]:
    """Median, least and most time of one data set."""
    chosen = (statistics.median(times), times[0], times[-1])
    return [f"{value / sets:.3f}" for value in chosen]


if __name__ == "__main__":
    main()
