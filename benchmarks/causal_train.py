"""Train the surrogate that ships with frugax, and put it into the package.

    python benchmarks/causal_train.py --seed 1 --steps 3000 --cpu-minutes 20

Prints what training cost in CPU-seconds of this process, all threads together.
"""

import argparse
import time
from pathlib import Path

import frugax.causal.surrogate
from frugax.causal import save_surrogate, train_surrogate

_PLACE = Path(frugax.causal.surrogate.__file__).with_name("default.fxz")


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--cpu-minutes", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=_PLACE)
    given = parser.parse_args()

    def tell(index: int, metrics: dict) -> None:
        if index % 100 == 0:
            sets, edges = float(metrics["sets"]), float(metrics["edges"])
            cpu = time.process_time()
            print(f"{index:6d} {cpu:7.1f} CPU-s  sets {sets:.3f}  edges {edges:.3f}")

    trained = train_surrogate(
        seed=given.seed,
        steps=given.steps,
        cpu_seconds=60 * given.cpu_minutes,
        prefetch=2,
        progress=tell,
    )
    save_surrogate(given.out, trained.surrogate)
    print(trained.receipt)
    print(
        f"{trained.steps} steps, {trained.graphs} data sets, "
        f"{trained.cpu_seconds:.0f} CPU-s; temperature "
        f"{trained.surrogate.temperature:.3f}; {given.out.stat().st_size} bytes"
    )


if __name__ == "__main__":
    main()
