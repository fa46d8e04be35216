"""Random campaigns with random prices, failures and missing outcomes: none overdraws.

    python benchmarks/causal_campaigns.py --count 1000

Each draws its own model, prices, limits, policy, sets, constraints and edges. Answers
are rows, numbers, NaN, partly missing tables or failures, some charged and some not;
questions overlap; the campaign is saved and loaded in between. A campaign that raises
ends the run.
"""

import argparse
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import numpy as np

from frugax import ExperimentBudget, causal
from frugax.causal.campaign import Campaign
from frugax.causal.policy import POLICIES


def one(seed: int, path: Path) -> tuple[int, float]:
    """Experiments asked for, and the share of the limit that was spent.

    Raises:
        AssertionError: the budget was overdrawn, or an answer was lost.
    """
    rng = np.random.default_rng([seed, 77])
    d = int(rng.integers(2, 6))
    scm = causal.generate("erdos_renyi", d, seed=rng)
    names = list(scm.variables)
    target = scm.target or names[-1]
    free = [n for n in names if n != target]
    prices = {n: float(rng.choice([0.1, 0.3, 0.7, 1.0, 2.5])) for n in free}
    limit = float(rng.choice([0.3, 0.9, 1.7, 3.0]))
    n = int(rng.integers(1, 8)) if rng.random() < 0.5 else None
    campaign = Campaign(
        variables=dict.fromkeys(free, (-2.0, 2.0)),
        target=target,
        minimize=bool(rng.integers(2)),
        budget=ExperimentBudget(cost=limit, n=n, costs=prices),
        together=int(rng.integers(1, 3)),
        never=[free[:2]] if len(free) > 2 and rng.random() < 0.3 else [],
        policy=str(rng.choice(list(POLICIES))),
        worlds=8,
        max_parents=2,
        rows=int(rng.integers(1, 4)),
        seed=seed,
    )
    if rng.random() < 0.7:
        campaign.tell_observations(causal.sample(scm, int(rng.integers(1, 40)), seed=1))
    paid, told = Fraction(), 0
    waiting: list[causal.Ask] = []
    while True:
        ask = campaign.ask()
        if ask is not None:
            waiting.append(ask)
            if rng.random() < 0.3:
                continue
        if not waiting:
            break
        ask = waiting.pop(int(rng.integers(len(waiting))))
        price = sum(Fraction(prices[v]) for v in ask.intervention.values)
        data = causal.sample(scm, 2, seed=ask.id, intervention=ask.intervention)
        kind = rng.integers(7)
        if kind == 0:
            campaign.tell_failed(ask, "broken")
        elif kind == 1 and told < 20:
            campaign.tell_failed(ask, "never done", charged=False)
            price = Fraction()
        elif kind == 2:
            campaign.tell(ask, float("nan"))
        elif kind == 3:
            campaign.tell(ask, {target: [float("nan"), 0.3]})
        elif kind == 4:
            campaign.tell(ask, float(data[target][0]))
        else:
            campaign.tell(ask, data)
        told += 1
        paid += price
        if rng.random() < 0.3:
            campaign.save(path)
            campaign = Campaign.load(path)
        assert campaign.spent == float(paid), (campaign.spent, float(paid))
        assert Fraction(campaign.spent) + Fraction(campaign.reserved) <= Fraction(
            limit
        ) * (1 + Fraction(1, 10**12)), "overdrawn"
        assert paid <= Fraction(limit), "overdrawn"
    if campaign.samples is not None:
        best = campaign.recommend()
        assert best.low <= best.expected <= best.high
    campaign.advise()
    return len(campaign.asks), float(paid) / limit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    path = Path(tempfile.mkdtemp()) / "campaign"
    begun, total, shares = time.process_time(), 0, []
    for i in range(asked.first, asked.first + asked.count):
        experiments, share = one(i, path)
        total += experiments
        shares.append(share)
        if (i + 1) % 25 == 0:
            print(
                f"{i + 1 - asked.first} campaigns, {total} experiments, none "
                "overdrawn, "
                f"mean share spent {np.mean(shares):.2f}, "
                f"{time.process_time() - begun:.0f} CPU-s",
                flush=True,
            )


if __name__ == "__main__":
    main()
