"""All plans on paper, from the plain program down: drafts for each choice of scans."""

import dataclasses

from frugax.jaxprs import flops_of

from ._body import Body
from ._costs import Costs
from ._plan import ScanChoice
from ._scans import scan_flops, scan_levels, with_scans
from ._solve import Draft, drafts

# Plans that do more than this many forward passes again are left out.
_MOST_AGAIN = 2.0


@dataclasses.dataclass(frozen=True, eq=False)
class Rung:
    """One plan on paper.

    Attributes:
        scans: how scans are chunked.
        body: the loss, with its scans so.
        costs: of its segments.
        draft: which of them are done again.
    """

    scans: tuple[ScanChoice, ...]
    body: Body
    costs: Costs
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
        costs, made = drafts(here, block_size)
        found += [
            (d.peak_bytes, d.flops + again, Rung(scans, here, costs, d)) for d in made
        ]
    (most, _, plain), *rest = found
    rungs = [plain]
    least = _MOST_AGAIN * sum(map(flops_of, body.eqns))
    kept: list[tuple[int, Rung]] = []
    for peak, again, rung in sorted(rest, key=lambda f: (f[0], f[1])):
        if again < least and peak < most:
            least = again
            kept.append((peak, rung))
    return rungs + [rung for _, rung in reversed(kept)]
