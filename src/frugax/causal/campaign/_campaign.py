"""Ask which experiment is next, do it, tell what came; never more than the budget."""

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from frugax.budget import ExperimentBudget
from frugax.causal.data import Samples
from frugax.causal.policy import OWN, POLICIES, Outlook, Policy, value_of
from frugax.causal.scm import intervene
from frugax.errors import FrugaxError

from . import _file, _ledger
from ._advice import advice, interval, recommendation
from ._answers import joined
from ._file import State
from ._known import Known, look
from ._ledger import Entry, Forecast
from ._ranges import pairs_of
from ._results import Advice, Ask, Recommendation
from ._settings import Settings
from ._told import Told


class Campaign(Told):
    """Experiments on a system, within a budget, to make one variable small or large.

    Example:
        >>> from frugax import ExperimentBudget
        >>> campaign = Campaign(
        ...     variables={"dose": (0.0, 10.0)},
        ...     target="pain",
        ...     budget=ExperimentBudget(n=3),
        ... )
        >>> ask = campaign.ask()
        >>> campaign.tell(ask, 4.2)
        >>> campaign.spent, len(campaign.asks)
        (1.0, 1)
    """

    def __init__(
        self,
        *,
        variables: Mapping[str, tuple[float, float]],
        target: str,
        budget: ExperimentBudget,
        minimize: bool = True,
        together: int = 1,
        sets: Sequence[Sequence[str]] = (),
        never: Sequence[Sequence[str]] = (),
        constraints: Mapping[str, tuple[float | None, float | None]] | None = None,
        required: Sequence[tuple[str, str]] = (),
        forbidden: Sequence[tuple[str, str]] = (),
        rows: int = 1,
        tolerance: float | None = None,
        worth: float = 0.0,
        sure: float = 0.95,
        policy: str | Policy = "improvement",
        worlds: int = 32,
        max_parents: int = 3,
        seed: int = 0,
    ) -> None:
        """Begin a campaign; see `Settings` for the arguments.

        A `policy` may also be a function that takes an `Outlook` and a NumPy generator
        and gives the position of an affordable point. `save` does not keep it: give it
        to `load` again.

        Raises:
            InfeasibleBudgetError: not even the cheapest experiment can be paid.
            TypeError: the budget is none, `variables` no mapping, or `policy` neither
                a name nor a function.
            ValueError: an argument is out of its range or names something unknown.
        """
        super().__init__(
            State(
                settings=Settings(
                    variables=pairs_of("variables", variables),
                    target=target,
                    budget=budget,
                    minimize=minimize,
                    together=together,
                    sets=_groups(sets),
                    never=_groups(never),
                    constraints=pairs_of(
                        "constraints", constraints or {}, half_open=True
                    ),
                    required=_groups(required),
                    forbidden=_groups(forbidden),
                    rows=rows,
                    tolerance=tolerance,
                    worth=worth,
                    sure=sure,
                    policy=policy if isinstance(policy, str) else OWN,
                    worlds=worlds,
                    max_parents=max_parents,
                    seed=seed,
                ),
                began_s=time.time(),
            )
        )
        self._own_policy = None if isinstance(policy, str) else policy
        _check_policy(policy)
        self._looked: tuple[State, Known] | None = None

    @classmethod
    def begin(cls, settings: Settings, *, policy: Policy | None = None) -> "Campaign":
        """Begin a campaign with settings that were read from a file.

        Args:
            settings: what it is told.
            policy: the function, where the settings name none of those there are.

        Raises:
            TypeError: `policy` is no function.
        """
        return cls._of(State(settings=settings, began_s=time.time()), policy)

    @classmethod
    def _of(cls, state: State, policy: Policy | None) -> "Campaign":
        campaign = cls.__new__(cls)
        Told.__init__(campaign, state)
        campaign._own_policy = policy
        if policy is not None:
            _check_policy(policy)
        campaign._looked = None
        return campaign

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, policy: Policy | None = None
    ) -> "Campaign":
        """Go on with a campaign that was saved.

        Args:
            path: its file.
            policy: the function that it was begun with, if it was one.

        Raises:
            CorruptFileError: the file is damaged, or no campaign.
            FileNotFoundError: there is none.
            TypeError: `policy` is no function.
            UnsupportedFileError: it is of a newer version.
        """
        return cls._of(_file.read(path), policy)

    @property
    def policy(self) -> Policy:
        """How the next experiment is chosen.

        Raises:
            FrugaxError: by a function that was not given to `load`.
        """
        if self._own_policy is not None:
            return self._own_policy
        if self.settings.policy == OWN:
            raise FrugaxError(
                "this campaign was begun with a policy of its own, which is not in its "
                "file: give it as policy= to Campaign.load or Campaign.begin."
            )
        return POLICIES[self.settings.policy]

    def ask(self) -> Ask | None:
        """The experiment to do next; None if the budget pays for no more.

        Its cost is set aside until it is told. Several may be under way.

        Raises:
            FrugaxError: the policy is a function that was not given to `load`.
            TypeError: the policy gave no whole number.
            ValueError: an edge names a variable that no row has; or the policy chose
                what is not affordable.
        """
        entries, budget = self._state.entries, self.settings.budget
        policy = self.policy
        sets = self.settings.allowed_sets()
        if self._late or not any(_ledger.fits(budget, entries, s) for s in sets):
            return None
        known = self.look()
        outlook = self._affordable(known)
        if not outlook.affordable.any():
            return None
        rng = np.random.default_rng([self.settings.seed, len(entries), 1])
        point = policy(outlook, rng)
        if isinstance(point, bool) or not isinstance(point, Integral):
            raise TypeError(
                f"the policy gave {point!r:.80}, but must give the position of a point "
                "of outlook.points, a whole number."
            )
        point = int(point)
        if not (0 <= point < len(outlook.points) and outlook.affordable[point]):
            raise ValueError(
                f"the policy chose point {point} of {len(outlook.points)}, which is "
                "none or not affordable: it must give one where outlook.affordable."
            )
        where, values = outlook.points.at(point)
        chosen = {known.names[v]: float(x) for v, x in zip(where, values, strict=True)}
        value = value_of(outlook, point)
        expected, low, high = interval(outlook, point, self.settings)
        best = recommendation(known, self.settings)
        entry = Entry(
            id=len(entries),
            values=chosen,
            forecast=Forecast(
                expected=expected,
                low=low,
                high=high,
                learn=value.learn,
                exploit=value.exploit,
                best=best.value,
                best_expected=best.expected,
                best_low=best.low,
                best_high=best.high,
                right=best.right,
                spread=float(outlook.loss[:, point].std()),
            ),
        )
        self._change(entries=(*entries, entry))
        return Ask(
            id=entry.id,
            intervention=intervene(**chosen),
            cost=float(_ledger.price(budget, chosen)),
            expected=expected,
            low=low,
            high=high,
            value=value,
        )

    def recommend(self) -> Recommendation:
        """The intervention that is best on average over what may be true.

        Raises:
            FrugaxError: no value of the target was told yet.
            ValueError: an edge names a variable that no row has.
        """
        if not self.measured:
            raise FrugaxError(
                f"nothing is known of {self.settings.target} yet: tell observations, "
                "or the answer of an experiment, in which it was measured, before you "
                "ask for a recommendation."
            )
        return recommendation(self.look(), self.settings)

    def advise(self) -> Advice:
        """Whether another experiment is worth its price.

        Raises:
            ValueError: an edge names a variable that no row has.
        """
        known = self.look()
        return advice(
            known,
            self._affordable(known),
            self.settings,
            answered=self._has_target(self._state.of_entry >= 0),
            late=self._late,
        )

    def look(self, *, whole: bool = False) -> Known:
        """What is known: worlds, edges, and what they say of every experiment.

        Args:
            whole: whether the worlds must have functions for all variables, to sample
                from; else only for what causes the target.

        Raises:
            ValueError: an edge names a variable that no row has.
        """
        state, settings = self._state, self.settings
        if not whole and self._looked is not None and self._looked[0] is state:
            return self._looked[1]
        silent = self.unmeasured
        limits = {
            n: ends for n, ends in settings.constraints.items() if n not in silent
        }
        settings = dataclasses.replace(settings, constraints=limits)
        names = {*settings.variables, *limits, settings.target}
        none = Samples.observed(sorted(names), np.empty((0, len(names))))
        standing = dataclasses.replace(state.standing, settings=settings)
        known = look(standing, joined(standing.table, none), whole=whole)
        if not whole:
            self._state = dataclasses.replace(
                state, shapes=known.belief.hyperparameters, shaped=known.names
            )
            self._looked = self._state, known
        return known

    def _affordable(self, known: Known) -> Outlook:
        budget, entries = self.settings.budget, self._state.entries
        fits = [
            _ledger.fits(budget, entries, [known.names[v] for v in where])
            for where in known.outlook.points.targets
        ]
        first = np.unique(known.outlook.points.group, return_index=True)[1]
        usual = float(known.outlook.price[first].mean())
        limits = _ledger.left(budget, entries)
        each = {"cost": usual, "n": 1.0}
        return dataclasses.replace(
            known.outlook,
            affordable=np.array(fits)[known.outlook.points.group],
            left=min((limit / each[n] for n, limit in limits.items()), default=np.inf),
        )


def _check_policy(policy: object) -> None:
    """Refuse what is neither a name nor a function.

    Raises:
        TypeError: it is neither.
    """
    if not isinstance(policy, str) and not callable(policy):
        raise TypeError(
            f"policy must be one of {', '.join(POLICIES)}, or a function of an outlook "
            f"and a generator, got {policy!r:.80}."
        )


def _groups(told: Sequence[Sequence[str]]) -> Any:
    # A text stays one, so that the settings refuse it: its letters are no names.
    return tuple(each if isinstance(each, str) else tuple(each) for each in told)
