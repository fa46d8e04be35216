"""Six nets in ever less memory: bytes, flops, gates and step times of `remat` plans.

    python -m benchmarks.remat [--nets a,b] [--parts bytes,time,gates,torch]

Each part is merged into `benchmarks/results/remat.json` as soon as it is done, so they
can be run one by one; the printed tables cover all parts in that file. Bytes and flops
are the same each time. Times are ratios within a round (`remat_race.py`), printed with
a control: the plain program against itself.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import remat_bytes, remat_gates, remat_time, remat_torch
from benchmarks.machine import made_with
from benchmarks.nets import NETS
from benchmarks.remat_cases import said

from frugax.fileio import write_whole

RESULTS = Path(__file__).parent / "results" / "remat.json"
ROUNDS = 15
# Gates are many, and their times only have to tell 1.2 from 8.
GATE_ROUNDS = 5
PARTS = ("bytes", "time", "gates", "torch")


def measured(part: str, name: str, rounds: int | None) -> dict[str, Any]:
    """The results of one part on one net."""
    if part == "bytes":
        return remat_bytes.measured(name)
    if part == "time":
        return remat_time.measured(name, rounds or ROUNDS)
    if part == "gates":
        return remat_gates.measured(name, rounds or GATE_ROUNDS)
    return remat_torch.measured(name)


def merged(record: dict[str, Any], part: str, name: str, found: Any) -> dict[str, Any]:
    """The record with this in it, nets in the order of `NETS`."""
    now = made_with()
    found = {"date": now["date"]} | found
    nets = record.get(part, {}).get("nets", {}) | {name: found}
    in_order = {n: nets[n] for n in NETS if n in nets}
    return record | {part: {"environment": now, "nets": in_order}}


def shown(record: dict[str, Any]) -> str:
    """All tables, each with its verdict on the bars."""
    texts: list[str] = []
    for part in PARTS:
        nets = record.get(part, {}).get("nets")
        if not nets:
            continue
        if part == "bytes":
            texts += [remat_bytes.table(nets), *remat_bytes.verdicts(nets)]
        elif part == "time":
            texts += [remat_time.table(nets), *remat_time.verdicts(nets)]
        elif part == "gates":
            texts += [remat_gates.table(nets), remat_gates.comparison(nets)]
            texts += remat_gates.verdicts(nets)
        else:
            texts += [remat_torch.table(nets), remat_torch.CAVEAT]
    return "\n\n".join(texts)


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--nets", default=",".join(NETS))
    ask.add_argument("--parts", default=",".join(PARTS))
    ask.add_argument("--rounds", type=int, help="of times; by default 15, of gates 5")
    ask.add_argument("--out", type=Path, default=RESULTS)
    given = ask.parse_args()
    nets, parts = given.nets.split(","), given.parts.split(",")
    unknown = [*(set(nets) - set(NETS)), *(set(parts) - set(PARTS))]
    if unknown:
        ask.error(f"no such net or part: {', '.join(unknown)}.")
    record = json.loads(given.out.read_text()) if given.out.exists() else {}
    # Net by net, so that a plan made for one part serves the others.
    for name in nets:
        for part in parts:
            if part == "torch" and name not in remat_torch.NETS:
                continue
            said(f"{name}: {part}")
            found = measured(part, name, given.rounds)
            record = merged(record, part, name, found)
            given.out.parent.mkdir(exist_ok=True)
            write_whole(given.out, json.dumps(record, indent=1) + "\n")
    print(shown(record))


if __name__ == "__main__":
    main()
