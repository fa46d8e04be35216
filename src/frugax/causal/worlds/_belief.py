"""What is known about the system: worlds that agree with the data, equally likely."""

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from ._basis import Basis
from ._drawn import Drawn
from ._mechanism import Mechanism, fit_mechanism
from ._orders import draw_graphs, edges, sum_over_orders
from ._scores import parent_scores
from ._shapes import Shapes
from ._world import World

# No graph's likelihood is quite right, and worlds agree too soon on a wrong one. To the
# power 1/2 it makes campaigns on linear models as sure as they should be (Gruenwald &
# van Ommen 2017, Bayesian Analysis 12:1069-1103; docs/causal_campaign.md).
_TRUST = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Belief:
    """Worlds drawn from the posterior given the data.

    Attributes:
        worlds: equally likely.
        graphs: the graph of each; parents of every variable, as bit masks.
        edges: share of worlds with each edge, `[parent, child]`.
        shapes: what was found about mechanisms, for the next belief.
    """

    worlds: tuple[World, ...]
    graphs: Int[np.ndarray, "worlds d"]
    edges: Float[np.ndarray, "d d"]
    shapes: Mapping[tuple[int, int], Shapes]


def believe(
    values: Float[np.ndarray, "n d"],
    intervened: Bool[np.ndarray, "n d"],
    basis: Basis,
    *,
    count: int,
    rng: np.random.Generator,
    max_parents: int = 3,
    required: Collection[tuple[int, int]] = (),
    forbidden: Collection[tuple[int, int]] = (),
    shapes: Mapping[tuple[int, int], Shapes] | None = None,
    curved: bool = True,
    wanted: Collection[int] | None = None,
    weights: Float[np.ndarray, " n"] | None = None,
) -> Belief:
    """Draw worlds: a graph each, then a function for every variable.

    Args:
        values: the data; NaN is missing.
        intervened: where a value was set by an intervention.
        basis: ranges of the variables.
        count: how many worlds.
        rng: where the draws come from.
        max_parents: most causes of one variable.
        required: edges (parent, child) that there are.
        forbidden: edges (parent, child) that there are not.
        shapes: of an earlier belief, which save the search for them.
        curved: whether effects may bend when graphs are compared.
        wanted: the variables that will be asked for: only what causes them gets a
            function; None for all variables.
        weights: as how much of a row each counts when graphs are compared; None for
            whole ones.
    """
    scores = parent_scores(
        values,
        intervened,
        basis,
        max_parents=max_parents,
        curved=curved,
        required=required,
        forbidden=forbidden,
        trust=_TRUST,
        weights=weights,
        hidden=True,
    )
    before = draw_graphs(sum_over_orders(scores), count, rng)
    cases = [
        [scores.cases[v].draw(mask, rng) for v, mask in enumerate(masks)]
        for masks in before.tolist()
    ]
    graphs = np.array([[causes for causes, _ in each] for each in cases], np.int64)
    found: dict[tuple[int, int], Shapes] = {}
    mechanisms: dict[tuple[int, int], tuple[Mechanism, ...]] = {}
    worlds: list[World] = []
    d = values.shape[1]
    for graph, order, case in zip(graphs, before, cases, strict=True):
        drawn: list[Drawn | None] = []
        needed = range(len(graph)) if wanted is None else _causes(graph, wanted)
        for v, (parents, companions) in enumerate(case):
            if v not in needed:
                drawn.append(None)
                continue
            # One number for both: the bits of companions are above all parents'.
            key = v, parents | companions << d
            if key not in mechanisms:
                found[key], mechanisms[key] = _mechanism(
                    values, intervened, basis, key, (shapes or {}).get(key)
                )
            which = rng.choice(len(mechanisms[key]), p=found[key].odds)
            drawn.append(mechanisms[key][which].draw(rng))
        worlds.append(World(basis, tuple(drawn), _order(order)))
    return Belief(
        worlds=tuple(worlds),
        graphs=graphs,
        edges=edges(graphs).mean(0),
        shapes=found,
    )


def _mechanism(
    values: Float[np.ndarray, "n d"],
    intervened: Bool[np.ndarray, "n d"],
    basis: Basis,
    key: tuple[int, int],
    known: Shapes | None,
) -> tuple[Shapes, tuple[Mechanism, ...]]:
    v, mask = key
    d = values.shape[1]
    parents = tuple(u for u in range(d) if mask >> u & 1)
    companions = [u for u in range(d) if mask >> d + u & 1]
    whole = np.isfinite(values[:, [v, *parents, *companions]]).all(1)
    whole &= ~intervened[:, v]
    aside = [
        np.where(intervened[whole, u], np.nan, basis.scaled(values[whole, u], u))
        for u in companions
    ]
    return fit_mechanism(
        values[whole, v],
        values[whole][:, list(parents)],
        parents,
        basis,
        known=known,
        aside=np.stack(aside, axis=1) if aside else None,
    )


def _causes(graph: Int[np.ndarray, " d"], wanted: Collection[int]) -> set[int]:
    found, left = set[int](), list(wanted)
    while left:
        v = left.pop()
        if v not in found:
            found.add(v)
            left += [u for u in range(len(graph)) if int(graph[v]) >> u & 1]
    return found


def _order(graph: Int[np.ndarray, " d"]) -> tuple[int, ...]:
    order: list[int] = []
    done = 0
    while len(order) < len(graph):
        for v, parents in enumerate(graph.tolist()):
            if not done >> v & 1 and not parents & ~done:
                order.append(v)
                done |= 1 << v
    return tuple(order)
