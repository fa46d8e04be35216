"""Our plans beside the least recomputation possible, on random chains and DAGs.

    python -m benchmarks.remat_oracle [nets]

Each net of 4 to 10 blocks is planned within shares of the memory that keeping
everything takes, on the abstract machine of `tests/remat/oracle.py`; the optimum is
proved by HiGHS. Prints a table, and writes all to `results/remat_oracle.json`.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
from tests.remat.oracle import least_recompute, planned
from tests.remat.random_programs import random_net

SHARES = (0.85, 0.75, 0.65, 0.55)
RESULTS = Path(__file__).parent / "results" / "remat_oracle.json"


def instances(seed: int) -> list[dict[str, Any]]:
    """One net at all shares; flops as shares of a forward and a backward pass."""
    loss, args = random_net(seed)
    machine, plans = planned(loss, args)
    total = 3 * machine.flops  # the backward pass does twice the forward's
    block = max(o.flops for o in machine.operations)
    found = []
    for share in SHARES:
        limit = int(share * plans[0][0])
        best = min((f for peak, f in plans if peak <= limit), default=None)
        start = time.perf_counter()
        try:
            least, proved = least_recompute(machine, limit), True
        except TimeoutError:
            least, proved = None, False
        gap = None if best is None or least is None else best - least
        found.append(
            {
                "seed": seed,
                "kind": "DAG" if seed % 2 else "chain",
                "blocks": len(args[0]),
                "operations": len(machine.operations),
                "share": share,
                "limit_bytes": limit,
                "proved": proved,
                "solver_seconds": round(time.perf_counter() - start, 2),
                "optimum": None if least is None else least / total,
                "planned": None if best is None else best / total,
                "gap": None if gap is None else gap / total,
                "gap_blocks": None if gap is None else gap / block,
                "within": gap is not None and gap <= max(0.05 * total, block),
            }
        )
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each kind and share, over instances in which some plan fits."""
    lines = [
        "| nets | share | possible | within | no plan | optimum | gap, mean | worst |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kind in ("chain", "DAG"):
        for share in SHARES:
            some = [
                r
                for r in rows
                if (r["kind"], r["share"]) == (kind, share) and r["optimum"] is not None
            ]
            gaps = [r["gap"] for r in some if r["gap"] is not None]
            cells = [
                kind,
                share,
                len(some),
                sum(r["within"] for r in some),
                sum(r["planned"] is None for r in some),
                f"{sum(r['optimum'] for r in some) / max(len(some), 1):.1%}",
                f"{sum(gaps) / max(len(gaps), 1):.1%}",
                f"{max(gaps, default=0):.1%}",
            ]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main(count: int) -> None:
    """Run, print and write."""
    rows = [row for seed in range(count) for row in instances(seed)]
    said = {"jax": jax.__version__, "nets": count, "instances": rows}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(said, indent=1) + "\n")
    print(table(rows))
    unproved = sum(not r["proved"] for r in rows)
    print(f"\n{len(rows)} instances, {unproved} without a proof within 60 s.")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
