"""All plans on paper, from the plain program down: drafts for each choice of scans."""

import dataclasses

from ._body import Body
from ._plan import ScanChoice
from ._scans import scan_flops, scan_levels, with_scans
from ._solve import Draft, drafts


@dataclasses.dataclass(frozen=True, eq=False)
class Rung:
    """One plan on paper.

    Attributes:
        scans: how scans are chunked.
        body: the loss, with its scans so.
        draft: its segments.
    """

    scans: tuple[ScanChoice, ...]
    body: Body
    draft: Draft


def ladder(body: Body, block_size: int | None = None) -> list[Rung]:
    """Plans of ever smaller peak, the plain one first, by the model.

    A plan is left out if another needs neither more bytes nor more flops. The list
    does not depend on any budget: searching it in an order that does not either is
    what makes `InfeasibleBudgetError.needed` true.
    """
    found: list[tuple[int, int, Rung]] = []
    for scans in scan_levels(body):
        here, again = with_scans(body, scans), scan_flops(body, scans)
        found += [
            (d.peak_bytes, d.flops + again, Rung(scans, here, d))
            for d in drafts(here, block_size)
        ]
    (most, _, plain), *rest = found
    rungs = [plain]
    least = float("inf")
    kept: list[tuple[int, Rung]] = []
    for peak, again, rung in sorted(rest, key=lambda f: (f[0], f[1])):
        if again < least and peak < most:
            least = again
            kept.append((peak, rung))
    return rungs + [rung for _, rung in reversed(kept)]
