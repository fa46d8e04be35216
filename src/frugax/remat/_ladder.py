"""All plans on paper, from the plain program down: drafts for each choice inside."""

import dataclasses

from frugax.jaxprs import flops_of

from ._body import Body
from ._costs import Costs
from ._insides import Level, levels
from ._plan import Inside
from ._rewrite import with_insides
from ._solve import Draft, drafts

# Plans that do more than this many forward passes again are left out.
_MOST_AGAIN = 2.0


@dataclasses.dataclass(frozen=True, eq=False)
class Rung:
    """One plan on paper.

    Attributes:
        level: what is done again inside scans and conds.
        body: the loss, with its scans and conds so.
        costs: of its segments.
        draft: which of them are done again.
    """

    level: Level
    body: Body
    costs: Costs
    draft: Draft

    @property
    def insides(self) -> tuple[Inside, ...]:
        """What is done again inside scans and conds."""
        return self.level.insides

    @property
    def flops(self) -> int:
        """Done a second time, by the model."""
        return self.level.flops + self.draft.flops


def ladder(body: Body, block_size: int | None = None) -> list[Rung]:
    """Plans of ever smaller peak, the plain one first, by the model.

    A plan is left out if another needs neither more bytes nor more flops. The list
    does not depend on any budget.
    """
    found: list[Rung] = []
    for level in levels(body):
        here = with_insides(body, level.insides, dict(level.scratch))
        costs, made = drafts(here, block_size)
        found += [Rung(level, here, costs, d) for d in made]
    plain, *rest = found
    least = _MOST_AGAIN * sum(map(flops_of, body.eqns))
    kept: list[Rung] = []
    for rung in sorted(rest, key=lambda r: (r.draft.peak_bytes, r.flops)):
        if rung.flops < least and rung.draft.peak_bytes < plain.draft.peak_bytes:
            least = rung.flops
            kept.append(rung)
    return [plain, *reversed(kept)]
