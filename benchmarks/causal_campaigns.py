"""Random campaigns with random prices, failures and missing outcomes: none overdraws.

    python benchmarks/causal_campaigns.py --count 1000

Each draws its own model, prices, limits, policy and sets. Answers are rows, numbers,
NaN, partly missing tables or failures, some charged and some not; questions overlap;
the campaign is saved and loaded in between. A campaign that raises ends the run.

Every fifth runs in processes that are killed (kill -9) at random moments, each followed
by one that continues from the file. Every answer that a process reported as told must
be in the file, every proposed experiment must be paid for, and the campaign must end
with the same experiments and recommendation as one that nothing interrupted.
"""

import argparse
import os
import shutil
import signal
import tempfile
import time
import traceback
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from frugax import ExperimentBudget, InfeasibleBudgetError, causal
from frugax.causal.campaign import Campaign
from frugax.causal.policy import POLICIES


def one(seed: int, folder: Path) -> tuple[int, float, int]:
    """Experiments asked for, the share of the limit that was spent, and kills.

    Raises:
        AssertionError: the budget was overdrawn, or an answer was lost.
    """
    rng = np.random.default_rng([seed, 77])
    d = int(rng.integers(2, 6))
    scm = causal.generate_scm("erdos_renyi", d, seed=rng)
    names = list(scm.variables)
    target = scm.target or names[-1]
    free = [n for n in names if n != target]
    prices = {n: float(rng.choice([0.1, 0.3, 0.7, 1.0, 2.5])) for n in free}
    limit = float(rng.choice([0.3, 0.9, 1.7, 3.0]))
    n = int(rng.integers(1, 8)) if rng.random() < 0.5 else None
    rows = int(rng.integers(1, 4))
    others = [v for v in free if rng.random() < 0.15]
    told: dict[str, Any] = {
        "variables": dict.fromkeys(free, (-2.0, 2.0)),
        "target": target,
        "minimize": bool(rng.integers(2)),
        "max_targets": int(rng.integers(1, 3)),
        "forbidden_sets": [free[:2]] if len(free) > 2 and rng.random() < 0.3 else [],
        "constraints": dict.fromkeys(others, (None, float(rng.uniform(-1, 3)))),
        "forbidden": [(target, free[0])] if rng.random() < 0.2 else [],
        "policy": str(rng.choice(list(POLICIES))),
        "num_posterior_samples": 8,
        "max_parents": 2,
        "rows_per_experiment": rows,
        "seed": seed,
    }
    try:
        budget = ExperimentBudget(cost=limit, n=n, costs=prices)
        campaign = Campaign(budget=budget, **told)
    except InfeasibleBudgetError as e:
        if not e.needed == min(prices.values()) > limit:
            raise AssertionError("what is needed is not the least price") from e
        limit = e.needed
        budget = ExperimentBudget(cost=limit, n=n, costs=prices)
        campaign = Campaign(budget=budget, **told)
    if rng.random() < 0.7:
        campaign.tell_observations(causal.sample(scm, int(rng.integers(1, 40)), seed=1))
    path = folder / str(seed)
    if seed % 5 == 0:
        campaign.save(path)
        campaign, kills = killed(path, scm, rng)
    else:
        campaign, kills = answered(campaign, scm, path, rng), 0
    paid = sum(
        sum(Fraction(repr(prices[v])) for v in e.values)
        for e in campaign.experiments
        if e.status != "refunded"
    )
    assert paid <= Fraction(repr(limit)), "overdrawn"
    assert campaign.spent == float(paid), (campaign.spent, float(paid))
    assert not campaign.pending
    if campaign.measured:
        best = campaign.recommend()
        assert best.low <= best.expected <= best.high
    campaign.advise()
    path.unlink(missing_ok=True)
    return len(campaign.experiments), float(paid) / limit, kills


def answered(
    campaign: Campaign, scm: causal.SCM, path: Path, rng: np.random.Generator
) -> Campaign:
    """The campaign at its end, in one process."""
    waiting: list[causal.Experiment] = []
    told = 0
    while True:
        ask = campaign.ask()
        if ask is not None:
            waiting.append(ask)
            if rng.random() < 0.3:
                continue
        if not waiting:
            return campaign
        ask = waiting.pop(int(rng.integers(len(waiting))))
        tell(campaign, ask.id, scm, rng, refunds=told < 20)
        told += 1
        if rng.random() < 0.3:
            campaign.save(path)
            campaign = Campaign.load(path)
        assert_within(campaign)


def killed(
    path: Path, scm: causal.SCM, rng: np.random.Generator
) -> tuple[Campaign, int]:
    """The campaign at its end, and how many processes were killed on the way."""
    kills, copy = 0, path.with_suffix(".copy")
    shutil.copy(path, copy)
    while True:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(read)
                go_on(path, scm, write)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(write)
        heard, most = b"", int(rng.integers(1, 4 + kills))
        while heard.count(b"\n") < most and (more := os.read(read, 1)):
            heard += more
        time.sleep(float(rng.exponential(0.005)))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        with os.fdopen(read, "rb") as lines:
            said = (heard + lines.read()).decode().splitlines()
        campaign = Campaign.load(path)
        kept = {str(e.id): e.status for e in campaign.experiments}
        for line in said:
            word, number = line.split()
            assert number in kept, "what was asked is not paid"
            assert word != "told" or kept[number] != "pending", "an answer is lost"
        assert len(campaign.pending) <= 1
        assert_within(campaign)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0, "a process raised"
            go_on(copy, scm, os.open(os.devnull, os.O_WRONLY))
            assert summary(Campaign.load(copy)) == summary(campaign), "another end"
            copy.unlink()
            return campaign, kills
        kills += 1


def summary(campaign: Campaign) -> tuple[Any, ...]:
    each = [(e.values, e.status, e.forecast) for e in campaign.experiments]
    return each, campaign.recommend() if campaign.measured else None


def go_on(path: Path, scm: causal.SCM, pipe: int) -> None:
    """The process: works until it is killed, and prints each step before and after."""
    campaign = Campaign.load(path)
    with campaign:
        campaign.keep(path)
        while True:
            ask = campaign.pending[0] if campaign.pending else campaign.ask()
            if ask is None:
                return
            os.write(pipe, f"ask {ask.id}\n".encode())
            # The same answer however often the process began anew.
            rng = np.random.default_rng([ask.id, 5])
            tell(campaign, ask.id, scm, rng, refunds=len(campaign.experiments) < 20)
            os.write(pipe, f"told {ask.id}\n".encode())


def tell(
    campaign: Campaign,
    number: int,
    scm: causal.SCM,
    rng: np.random.Generator,
    *,
    refunds: bool,
) -> None:
    """Any kind of answer."""
    values, target = campaign.experiments[number].values, campaign.settings.target
    rows = campaign.settings.rows_per_experiment
    kind = rng.integers(7)
    do = causal.intervene(**values)
    data = causal.sample(scm, rows, seed=number, intervention=do)
    if kind == 0:
        campaign.tell_failed(number, "broken")
    elif kind == 1 and refunds:
        campaign.tell_failed(number, "never done", charged=False)
    elif kind == 2:
        campaign.tell(number, float("nan"))
    elif kind == 3:
        campaign.tell(number, {target: [float("nan"), *[0.3] * (rows - 1)]})
    elif kind == 4:
        campaign.tell(number, float(data[target][0]))
    else:
        campaign.tell(number, data)


def assert_within(campaign: Campaign) -> None:
    budget = campaign.settings.budget
    held = [e for e in campaign.experiments if e.status != "refunded"]
    prices = {k: Fraction(repr(v)) for k, v in budget.costs}
    assert budget.cost is not None
    most = Fraction(repr(budget.cost))
    assert sum(prices[v] for e in held for v in e.values) <= most, "overdrawn"
    assert budget.n is None or len(held) <= budget.n, "overdrawn"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--killed", action="store_true", help="only every fifth")
    asked = parser.parse_args()
    begun, total, shares, kills = time.process_time(), 0, [], 0
    with tempfile.TemporaryDirectory() as folder:
        seeds = range(asked.first, asked.first + asked.count)[
            :: 5 if asked.killed else 1
        ]
        for number, i in enumerate(seeds, start=1):
            experiments, share, killed_ = one(i, Path(folder))
            total += experiments
            kills += killed_
            shares.append(share)
            if number % 25 == 0 or i == seeds[-1]:
                print(
                    f"{number} campaigns, {total} experiments, {kills} "
                    "processes killed, none overdrawn, mean share spent "
                    f"{np.mean(shares):.2f}, {time.process_time() - begun:.0f} CPU-s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
