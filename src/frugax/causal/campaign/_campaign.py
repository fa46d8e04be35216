"""`Campaign`: ask for the next experiment, be told its outcome, within a budget."""

import dataclasses
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np

from frugax.budget import ExperimentBudget, Receipt
from frugax.causal.data import Samples
from frugax.causal.policy import DEFAULT, OWN, Outlook, Policy, improvement, value_of
from frugax.causal.scm import intervene
from frugax.errors import FrugaxError
from frugax.options import check_function, check_integer

from . import _file
from ._advice import (
    Recommendation,
    StopAdvice,
    estimate_regret,
    give_advice,
    make_recommendation,
    prediction_interval,
)
from ._answers import (
    check_answer,
    check_digits,
    check_positive,
    describe_missing,
    describe_wild,
    encode_settings,
    find_outliers,
    read_rows,
)
from ._experiments import (
    Experiment,
    ExperimentRecord,
    Forecast,
    add_costs,
    add_prices,
    find_experiment,
    is_affordable,
    remaining_budget,
)
from ._inference import Inference, infer
from ._plan import make_receipt
from ._settings import CampaignSettings, read_pairs, read_variables
from ._state import OBSERVED, CampaignState, join_tables
from .actions import (
    Action,
    JointLimit,
    Setting,
    scale_back,
    scale_for_models,
    to_code,
    to_settings,
)
from .past_experiments import read_past_experiments
from .regret_forecast import ExpectedRegret, simulate_regret

# So many equal values of the target are not luck.
_MIN_CONSTANT = 5
_AnyExperiment: TypeAlias = Experiment | ExperimentRecord | int
_Self = TypeVar("_Self", bound="Campaign")


class Campaign:
    """Experiments on a system, within a budget, to make one variable small or large.

    Example:
        >>> from frugax import ExperimentBudget
        >>> campaign = Campaign(
        ...     variables={"dose": (0.0, 10.0)},
        ...     target="pain",
        ...     budget=ExperimentBudget(n=3),
        ... )
        >>> experiment = campaign.ask()
        >>> campaign.tell(experiment, 4.2)
        >>> campaign.spent, len(campaign.experiments)
        (1.0, 1)
    """

    def __init__(
        self,
        *,
        variables: Mapping[str, Action],
        target: str,
        budget: ExperimentBudget,
        minimize: bool = True,
        max_targets: int = 1,
        sets: Sequence[Sequence[str]] = (),
        forbidden_sets: Sequence[Sequence[str]] = (),
        joint_limits: Sequence[JointLimit] = (),
        constraints: Mapping[str, tuple[float | None, float | None]] | None = None,
        required: Sequence[tuple[str, str]] = (),
        forbidden: Sequence[tuple[str, str]] = (),
        rows_per_experiment: int = 1,
        tolerance: float | None = None,
        min_gain_per_cost: float = 0.0,
        confidence: float = 0.95,
        policy: Policy | None = None,
        num_posterior_samples: int = 32,
        seed: int = 0,
    ) -> None:
        """Begin a campaign; see `CampaignSettings` for the arguments.

        `policy` is a function of an `Outlook` and a NumPy generator that returns the
        position of an affordable point; without one, experiments maximize the expected
        improvement per cost. `save` does not keep the function: pass it to `load`
        again.

        Raises:
            InfeasibleBudgetError: the budget does not pay for the cheapest experiment.
            TypeError: `budget` is not an ExperimentBudget, `variables` not a mapping,
                or `policy` not a function.
            ValueError: an argument is out of its range, or names an unknown variable.
        """
        settings = CampaignSettings(
            variables=read_variables(variables),
            target=target,
            budget=budget,
            minimize=minimize,
            max_targets=max_targets,
            sets=_freeze(sets),
            forbidden_sets=_freeze(forbidden_sets),
            joint_limits=tuple(joint_limits),
            constraints=read_pairs("constraints", constraints or {}, half_open=True),
            required=_freeze(required),
            forbidden=_freeze(forbidden),
            rows_per_experiment=rows_per_experiment,
            tolerance=tolerance,
            min_gain_per_cost=min_gain_per_cost,
            confidence=confidence,
            policy=DEFAULT if policy is None else OWN,
            num_posterior_samples=num_posterior_samples,
            seed=seed,
        )
        self._start(CampaignState(settings=settings, began_s=time.time()), policy)

    def _start(self, state: CampaignState, policy: Policy | None) -> None:
        if policy is not None:
            check_function("policy", policy, example="policy(outlook, rng)")
        self._state = state
        self.own_policy = policy
        self._inferred: tuple[CampaignState, Inference] | None = None
        self._kept = _file.KeptFile()

    @classmethod
    def begin(
        cls, settings: CampaignSettings, *, policy: Policy | None = None
    ) -> "Campaign":
        """Begin a campaign with settings from a file.

        Args:
            settings: the settings.
            policy: the function, if the settings do not name a policy.

        Raises:
            TypeError: `policy` is not a function.
        """
        campaign = cls.__new__(cls)
        campaign._start(CampaignState(settings=settings, began_s=time.time()), policy)
        return campaign

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, policy: Policy | None = None
    ) -> "Campaign":
        """Read a campaign that was saved.

        Args:
            path: the file.
            policy: the function that the campaign was begun with, if it was one.

        Raises:
            CorruptFileError: the file is damaged, or not a campaign.
            FileNotFoundError: there is no such file.
            IsADirectoryError: it is a folder.
            TypeError: `policy` is not a function.
            UnsupportedFileError: a newer version of frugax wrote it.
        """
        campaign = cls.__new__(cls)
        campaign._start(_file.read_state(path), policy)
        return campaign

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the campaign to one file, whole or not at all.

        Args:
            path: the file; an existing one must belong to this campaign.

        Raises:
            OutputError: it cannot be written, holds something else or a later state, or
                another process keeps it.
        """
        self._kept.save(path, self._state)

    def keep(self, path: str | os.PathLike[str]) -> None:
        """Save now, and from now on before every question and after every answer.

        If the process is killed, at most the question without an answer is lost. No
        other process may write the file until `close`, or the end of this campaign.

        Args:
            path: the file; an existing one must belong to this campaign.

        Raises:
            OutputError: it cannot be written, holds something else or a later state, or
                another process keeps it.
        """
        # The lock ends with this object: a notebook that has lost its variable can
        # still open the file again.
        self._kept.keep(path, self._state, owner=self)

    def close(self) -> None:
        """Let others write the file that `keep` was given, and accept no more answers.

        The campaign stays readable, and `keep` opens it again.
        """
        self._kept.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def settings(self) -> CampaignSettings:
        """The settings with which the campaign began."""
        return self._state.settings

    @property
    def experiments(self) -> tuple[ExperimentRecord, ...]:
        """All experiments that were asked for, in order."""
        return self._state.experiments

    @property
    def pending(self) -> tuple[ExperimentRecord, ...]:
        """The experiments that wait for their answers."""
        return tuple(one for one in self.experiments if one.status == "pending")

    @property
    def samples(self) -> Samples | None:
        """All current rows; None before there are any."""
        return self._state.current.table

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Constrained variables without a value; their limits do not count yet."""
        table, settings = self.samples, self.settings
        # An experiment that sets a variable knows its value.
        measured = {*settings.variables}
        if table is not None:
            measured |= {n for n in table.variables if np.isfinite(table[n]).any()}
        return tuple(n for n in settings.constraints if n not in measured)

    @property
    def measured(self) -> bool:
        """Whether any row has a value of the target."""
        return self._state.has_target(self._state.experiment_ids >= OBSERVED)

    @property
    def spent(self) -> float:
        """Cost of the experiments that took place, including failed ones."""
        return float(
            add_costs(self.settings.budget, self.experiments, "answered", "failed")
        )

    @property
    def reserved(self) -> float:
        """Cost of the experiments that wait for their answers."""
        return float(add_costs(self.settings.budget, self.pending, "pending"))

    @property
    def left(self) -> dict[str, float]:
        """The rest of each limit: `cost`, `n`, `seconds`."""
        budget = self.settings.budget
        found = dict(remaining_budget(budget, self.experiments))
        if budget.seconds is not None:
            # The system's clock, as a monotonic one would not survive the process.
            elapsed = time.time() - self._state.began_s
            found["seconds"] = max(budget.seconds - elapsed, 0.0)
        return found

    @property
    def _is_late(self) -> bool:
        return self.left.get("seconds", 1.0) <= 0

    @property
    def receipt(self) -> Receipt:
        """The limits of the budget beside the spending, with a verdict for each.

        The distance from the best that was forecast before the first experiment stands
        beside that by today's posterior, once `recommend`, `advise` or `ask` has
        computed it: reading a receipt computes nothing. A forecast that goes beyond the
        target's standard deviation says nothing, so its verdict is `cannot tell`.
        """
        planned, regret, scale = self._state.planned, None, 0.0
        known = self._inferred
        if planned and self.measured and known is not None and known[0] is self._state:
            regret, scale = estimate_regret(known[1]), known[1].scale
        return make_receipt(self.settings, self.experiments, planned, regret, scale)

    @property
    def policy(self) -> Policy:
        """The function that chooses the next experiment.

        Raises:
            FrugaxError: it is the user's own, and was not passed to `load`.
        """
        if self.own_policy is not None:
            return self.own_policy
        if self.settings.policy == OWN:
            raise FrugaxError(
                "this campaign was begun with a policy of its own, which its file does "
                "not hold: pass it as policy= to Campaign.load or Campaign.begin."
            )
        return improvement

    def get_rows(self, record: ExperimentRecord) -> Samples:
        """Return the rows of an experiment; none if it has none.

        Args:
            record: one of `experiments`.

        Raises:
            FrugaxError: the campaign has no rows yet.
        """
        if self._state.table is None:
            raise FrugaxError("this campaign has no rows yet: tell an answer first.")
        return self._state.table.rows(self._state.experiment_ids == record.id)

    def find_outliers(self, experiment: _AnyExperiment, data: Any) -> tuple[str, ...]:
        """Describe values that may be slips, each in words; `tell` accepts them.

        A value is an outlier if it is further from its range, from the values in other
        rows and from the forecast than three times the width of the first two.

        Args:
            experiment: the experiment, or its number.
            data: its answer, as for `tell`.

        Raises:
            TypeError: as for `tell`.
            ValueError: as for `tell`.
        """
        record = find_experiment(self.experiments, experiment, replace=True)
        rows = data
        if not isinstance(data, Samples):
            rows = self.read_answer(record, data, replace=True)
        current = self._state.current
        others = current.table
        if others is not None:
            others = others.rows(current.experiment_ids != record.id)
        return find_outliers(self.settings, record, rows, others)

    def tell_observations(self, samples: Any) -> None:
        """Add rows in which no variable was set, or rows of earlier experiments.

        A UserWarning names values that are so far from the others that they may be
        slips.

        Args:
            samples: `Samples`, whose marks of interventions count, or a frame or
                mapping of columns.

        Raises:
            TypeError: `samples` is not a table.
            ValueError: rows or the column of the target are missing, a value is not a
                number, or an edge names a variable that no row has.
        """
        settings, table = self.settings, self.samples
        samples = encode_settings(samples, settings.variables)
        if isinstance(samples, int | float | np.number):
            raise TypeError(
                f"observations must be a table, got {samples!r}: name its column, "
                f"{{{settings.target!r}: [{samples}]}}."
            )
        if not isinstance(samples, Samples):
            samples = read_rows(samples, {}, settings.target)
        if not len(samples):
            raise ValueError("these samples have no rows: tell at least one.")
        if settings.target not in samples.variables:
            raise ValueError(
                "these samples have "
                f"{describe_missing(settings.target, samples.variables)}"
            )
        target = samples[settings.target]
        seen = target[np.isfinite(target)]
        if len(seen) >= _MIN_CONSTANT and not np.ptp(seen):
            raise ValueError(
                f"the target {settings.target!r} is {seen[0]:g} in all {len(seen)} "
                "rows, so no row says what changes it: check the column, or choose "
                "another target."
            )
        check_positive(samples, settings.variables)
        before = () if table is None else table.variables
        # Every check precedes the commit, so a refused table leaves no rows behind.
        settings.check_columns({*samples.variables, *before})
        check_digits(settings.target, table, samples)
        self._commit(self._state.add_rows(samples, OBSERVED))
        if wild := describe_wild(settings, table, samples):
            warnings.warn(
                f"{'; '.join(wild)}. These rows count: if a value is wrong, begin the "
                "campaign again with NaN in its place.",
                stacklevel=2,
            )

    def tell_csv(
        self,
        path: str | os.PathLike[str],
        *,
        intervened: str | Sequence[str] | None = None,
        units: Mapping[str, str] | None = None,
        delimiter: str | None = None,
    ) -> None:
        """Add rows of observations and of past experiments from a CSV file.

        The first line names the columns, with units in brackets (`heat [K]`). Past
        experiments cost nothing and count as outcomes.

        Args:
            path: the file.
            intervened: the column that lists the variables that were set in a row,
                separated by commas; or the variables that were set in every row.
            units: the unit in which this campaign has a variable, such as
                `{"heat": "°C"}`: its column is converted if the file has another. Each
                column that has a unit and that the campaign names must be listed.
            delimiter: between the cells; None to find it.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is not such a table, a unit cannot be converted, or as for
                `tell_observations`.
        """
        rows = read_past_experiments(
            path,
            self.settings,
            units=units,
            intervened=intervened,
            delimiter=delimiter,
        )
        self.tell_observations(rows)

    @overload
    def ask(self) -> Experiment | None: ...

    @overload
    def ask(self, n: int) -> tuple[Experiment, ...]: ...

    def ask(self, n: int | None = None) -> Experiment | tuple[Experiment, ...] | None:
        """Return the next experiment; None if the budget pays for no more.

        Its cost is set aside until its answer is told. Several may be pending.

        Args:
            n: number of experiments to do at the same time. The result is then a tuple
                of as many different ones, or of fewer if there are no more or the
                budget does not pay for them.

        Raises:
            FrugaxError: the policy is a function that was not passed to `load`.
            TypeError: the policy did not return a whole number.
            ValueError: an edge names a variable that no row has, or the policy chose
                a candidate that is not affordable.
        """
        if n is None:
            return self._ask(may_repeat=True)
        check_integer("n", n)
        found: list[Experiment] = []
        while len(found) < n:
            one = self._ask(may_repeat=not found)
            if one is None:
                break
            found.append(one)
        return tuple(found)

    def _ask(self, *, may_repeat: bool) -> Experiment | None:
        """Ask for an experiment that is not pending; for one that is, if need be."""
        records, budget = self.experiments, self.settings.budget
        policy = self.policy
        sets = self.settings.allowed_sets()
        # Inference is by far the slowest part, so a spent budget is noticed before it.
        if self._is_late or not any(is_affordable(budget, records, s) for s in sets):
            return None
        inference = self.infer()
        outlook = self._mark_affordable(inference)
        new = self._without_pending(inference, outlook)
        if new.affordable.any() or not may_repeat:
            outlook = new
        # All affordable sets may hold variables that were not selected for the models.
        if not outlook.affordable.any():
            return None
        # A generator for each question: a campaign that was saved and loaded in between
        # draws the same numbers as one that was not.
        rng = np.random.default_rng([self.settings.seed, len(records), 1])
        point = policy(outlook, rng)
        if isinstance(point, bool) or not isinstance(point, Integral):
            raise TypeError(
                f"the policy returned {point!r:.80}, but must return the position of a "
                "point of outlook.points, a whole number."
            )
        point = int(point)
        if not (0 <= point < len(outlook.points) and outlook.affordable[point]):
            raise ValueError(
                f"the policy chose point {point} of {len(outlook.points)}, which does "
                "not exist or is not affordable: it must choose one where "
                "outlook.affordable is True."
            )
        targets, at = outlook.points.at(point)
        values = scale_back(
            {inference.levers[v]: float(x) for v, x in zip(targets, at, strict=True)},
            self.settings.variables,
        )
        value = value_of(outlook, point)
        expected, low, high = prediction_interval(outlook, point, self.settings)
        # Stored with the question: later answers change the posterior, and the report
        # compares outcomes with the forecasts of their time.
        best = make_recommendation(inference, self.settings)
        record = ExperimentRecord(
            id=len(records),
            values=values,
            forecast=Forecast(
                expected=expected,
                low=low,
                high=high,
                worth=value.total,
                best=best.value,
                best_expected=best.expected,
                best_low=best.low,
                best_high=best.high,
                prob_optimal=best.prob_optimal,
            ),
            asked_s=time.time() - self._state.began_s,
        )
        state = dataclasses.replace(self._state, experiments=(*records, record))
        if not records:
            state = dataclasses.replace(state, planned=self.forecast_regret())
        self._commit(state)
        return Experiment(
            id=record.id,
            intervention=intervene(**values),
            cost=float(add_prices(budget, values)),
            expected=expected,
            low=low,
            high=high,
            value=value,
            actions=to_settings(values, self.settings.variables),
            goal=self.settings.goal,
        )

    def tell(
        self,
        experiment: _AnyExperiment,
        data: Any,
        *,
        actual: Mapping[str, Setting] | None = None,
        replace: bool = False,
    ) -> None:
        """Add the answer of an experiment.

        Args:
            experiment: the experiment, or its number.
            data: a table of rows (`Samples`, a frame, a mapping of columns) or one
                number for the target; NaN is missing.
            actual: values that were really set, where they differ from those asked for.
            replace: whether this corrects an earlier answer, which then no longer
                counts. The file keeps it, and the cost stays spent.

        Raises:
            TypeError: `data` is not an answer, or `experiment` not an experiment.
            ValueError: there is no such experiment, it has been answered, or the answer
                has too many rows, an unknown variable or no column for the target.
        """
        record = find_experiment(self.experiments, experiment, replace=replace)
        rows = self.read_answer(record, data, actual=actual, replace=replace)
        settings = self._read_actual(record, actual)
        for name, value in settings.items():
            low, high = self.settings.ranges[name]
            if not 2 * low - high <= value <= 2 * high - low:
                warnings.warn(
                    f"{name} was set to {value:g}, far from its range {low:g} to "
                    f"{high:g}: if that is wrong, tell it again with replace=True.",
                    stacklevel=2,
                )
        self._commit(
            self._state.settle(
                record, rows, status="answered", reason="", actual=settings
            )
        )

    def _read_actual(
        self, record: ExperimentRecord, actual: Mapping[str, Setting] | None
    ) -> dict[str, float]:
        variables = self.settings.variables
        for name in actual or {}:
            if name not in record.values:
                raise ValueError(
                    f"actual names {name!r}, but experiment {record.id} sets "
                    f"{', '.join(record.values)}: leave it out."
                )
        return {n: to_code(n, x, variables[n]) for n, x in (actual or {}).items()}

    def read_answer(
        self,
        experiment: _AnyExperiment,
        data: Any,
        *,
        actual: Mapping[str, Setting] | None = None,
        replace: bool = False,
    ) -> Samples:
        """Return the rows of an answer as `tell` would add them, without adding them.

        Args:
            experiment: the experiment, or its number.
            data: as for `tell`.
            actual: as for `tell`.
            replace: as for `tell`.

        Raises:
            TypeError: as for `tell`.
            ValueError: as for `tell`.
        """
        record = find_experiment(self.experiments, experiment, replace=replace)
        settings, table = self.settings, self.samples
        values = record.values | self._read_actual(record, actual)
        data = encode_settings(data, settings.variables)
        rows = read_rows(data, values, settings.target)
        check_positive(rows, settings.variables)
        if record.status != "pending":
            table = None  # the correction may be of a column's name
        check_answer(
            rows,
            max_rows=settings.rows_per_experiment,
            target=settings.target,
            known=None if table is None else {*table.variables, *settings.named},
        )
        check_digits(settings.target, table, rows)
        return rows

    def tell_failed(
        self,
        experiment: _AnyExperiment,
        reason: str = "",
        *,
        charged: bool = True,
        replace: bool = False,
    ) -> None:
        """Record that an experiment gave no data.

        Args:
            experiment: the experiment, or its number.
            reason: the reason in words, for the report.
            charged: whether the experiment costs its price nevertheless.
            replace: whether this corrects an answer, as in `tell`.

        Raises:
            TypeError: `experiment` is not an experiment.
            ValueError: there is no such experiment, or it has been answered; or
                `charged` is False for one that has been answered.
        """
        record = find_experiment(self.experiments, experiment, replace=replace)
        # A refund after an answer would make experiments free.
        if record.status != "pending" and not charged:
            raise ValueError(
                f"experiment {record.id} is {record.status}, and its cost stays spent: "
                "leave charged=False out."
            )
        status = "failed" if charged else "refunded"
        self._commit(self._state.settle(record, None, status=status, reason=reason))

    def recommend(self) -> Recommendation:
        """Return the intervention that is best on average over the posterior samples.

        Raises:
            FrugaxError: no row has a value of the target yet.
            ValueError: an edge names a variable that no row has.
        """
        if not self.measured:
            raise FrugaxError(
                f"nothing is known about {self.settings.target} yet: tell observations "
                "or an answer in which it was measured before you ask for a "
                "recommendation."
            )
        return make_recommendation(self.infer(), self.settings)

    def advise(self) -> StopAdvice:
        """Advise whether another experiment is worth its price.

        Raises:
            ValueError: an edge names a variable that no row has.
        """
        inference = self.infer()
        return give_advice(
            inference,
            self._mark_affordable(inference),
            self.settings,
            has_answer=self._state.has_target(self._state.experiment_ids > OBSERVED),
            is_late=self._is_late,
        )

    def forecast_regret(self) -> tuple[ExpectedRegret, ...]:
        """Forecast how far from the best the recommendation will be, by the spending.

        Campaigns are simulated on the posterior samples, with the budget that is left.
        Empty if the target was never measured or only time is limited.

        Raises:
            ValueError: an edge names a variable that no row has.
        """
        limits = remaining_budget(self.settings.budget, self.experiments)
        if not limits or not self.measured:
            return ()
        inference = self.infer()
        return simulate_regret(
            self._mark_affordable(inference),
            float(limits.get("cost", limits.get("n", 0))),
            float(limits.get("n", np.inf)),
            seed=self.settings.seed,
        )

    def infer(self) -> Inference:
        """Draw posterior samples, and predict every candidate experiment.

        The result is cached until the next question or answer.

        Raises:
            ValueError: an edge names a variable that no row has.
        """
        state, settings = self._state, self.settings
        # States are immutable, so identity shows whether anything has changed.
        if self._inferred is not None and self._inferred[0] is state:
            return self._inferred[1]
        # A constraint on a variable without a value would make every candidate
        # infeasible, so its limits count from its first value on.
        limits = {
            n: bounds
            for n, bounds in settings.constraints.items()
            if n not in self.unmeasured
        }
        settings = dataclasses.replace(settings, constraints=limits)
        # Before the first row there are columns without rows, so that even an empty
        # campaign has models, drawn from the prior alone.
        names = {*settings.variables, *limits, settings.target}
        empty = Samples.observed(sorted(names), np.empty((0, len(names))))
        current = dataclasses.replace(state.current, settings=settings)
        current = current.on_model_scale()
        inference = infer(current, join_tables(current.table, empty))
        self._inferred = state, inference
        return inference

    def _without_pending(self, inference: Inference, outlook: Outlook) -> Outlook:
        """Leave out the experiments that wait for their answers."""
        affordable = outlook.affordable.copy()
        points = outlook.points
        for record in self.pending:
            targets = tuple(inference.levers.index(n) for n in record.values)
            if targets not in points.targets:
                continue
            group = points.targets.index(targets)
            asked = scale_for_models(record.values, self.settings.variables)
            asked = np.array([*asked.values()])
            same = np.isclose(points.values[group], asked, rtol=1e-9).all(1)
            affordable[np.flatnonzero(points.group == group)[same]] = False
        return dataclasses.replace(outlook, affordable=affordable)

    def _mark_affordable(self, inference: Inference) -> Outlook:
        budget, records = self.settings.budget, self.experiments
        points = inference.outlook.points
        fits = [
            bool(targets)
            and is_affordable(budget, records, [inference.levers[v] for v in targets])
            for targets in points.targets
        ]
        # Policies that look ahead need the number of experiments that are left; the
        # mean price of all kinds stands for the price of the next ones.
        first = np.unique(points.group, return_index=True)[1]
        prices = [
            float(inference.outlook.price[i])
            for i, targets in zip(first, points.targets, strict=True)
            if targets
        ]
        usual = {"cost": float(np.mean(prices)), "n": 1.0}
        limits = remaining_budget(budget, records)
        return dataclasses.replace(
            inference.outlook,
            affordable=np.array(fits)[points.group],
            left=min((limit / usual[n] for n, limit in limits.items()), default=np.inf),
        )

    def _commit(self, state: CampaignState) -> None:
        # Write first: a change that is not on disk has not happened.
        self._kept.write(state)
        self._state = state


def _freeze(groups: Sequence[Sequence[str]]) -> Any:
    # A text stays a text, so that the settings refuse it: its letters are not names.
    return tuple(each if isinstance(each, str) else tuple(each) for each in groups)
