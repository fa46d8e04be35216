"""The state of a campaign, immutable: its settings, its experiments and all rows."""

import dataclasses
from typing import Any

import numpy as np

from frugax.causal.data import Samples

from ._experiments import ExperimentRecord
from ._settings import CampaignSettings
from .actions import Logarithmic, scale_for_models
from .regret_forecast import ExpectedRegret

OBSERVED = -1  # instead of an experiment's id, for rows in which nothing was set


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CampaignState:
    """Everything that a campaign knows; each change makes another state.

    Attributes:
        settings: settings of the campaign.
        began_s: time of the start, in seconds since 1970.
        experiments: all experiments that were asked for.
        table: all rows; None before there are any.
        experiment_ids: id of the experiment of each row; -1 for observations, and
            -2 - id for rows that a correction has replaced.
        planned: the regret that was forecast before the first experiment.
    """

    settings: CampaignSettings
    began_s: float
    experiments: tuple[ExperimentRecord, ...] = ()
    table: Samples | None = None
    experiment_ids: np.ndarray = dataclasses.field(
        default_factory=lambda: np.empty(0, np.int64)
    )
    planned: tuple[ExpectedRegret, ...] = ()

    @property
    def current(self) -> "CampaignState":
        """The state without the rows that corrections have replaced."""
        current = self.experiment_ids >= OBSERVED
        if self.table is None or current.all():
            return self
        table = self.table.rows(current)
        # A misspelt column of a replaced answer must not count as measured.
        names = [
            n
            for n in table.variables
            if n in self.settings.named or np.isfinite(table[n]).any()
        ]
        return dataclasses.replace(
            self,
            table=table.select(names) if len(table) else None,
            experiment_ids=self.experiment_ids[current],
        )

    def on_model_scale(self) -> "CampaignState":
        """The state as the models have it: logarithms of some variables."""
        variables, table = self.settings.variables, self.table
        logarithmic = [n for n, a in variables.items() if isinstance(a, Logarithmic)]
        if table is not None:
            values = table.values.copy()
            for name in {*logarithmic} & {*table.variables}:
                column = values[:, table.index(name)]
                column[:] = np.log10(column)
            table = Samples(table.variables, values, table.intervened)
        records = tuple(
            dataclasses.replace(
                record,
                values=scale_for_models(record.values, variables),
                actual=scale_for_models(record.actual, variables),
            )
            for record in self.experiments
        )
        return dataclasses.replace(
            self,
            settings=self.settings.on_model_scale(),
            table=table,
            experiments=records,
        )

    def has_target(self, rows: np.ndarray) -> bool:
        """Return whether any of these rows has a value of the target."""
        table, target = self.table, self.settings.target
        if table is None or target not in table.variables:
            return False
        return bool(np.isfinite(table[target][rows]).any())

    def add_rows(self, rows: Samples, experiment_id: int) -> "CampaignState":
        """Return the state with some more rows of one experiment."""
        ids = np.full(len(rows), experiment_id, np.int64)
        return dataclasses.replace(
            self,
            table=join_tables(self.table, rows),
            experiment_ids=np.concatenate([self.experiment_ids, ids]),
        )

    def settle(
        self, record: ExperimentRecord, rows: Samples | None, **changes: Any
    ) -> "CampaignState":
        """Return the state after an experiment's answer, or after its correction."""
        state = self
        # Replaced rows stay in the table as a record. `current` drops them by their
        # sign, and -2 - id still tells whose they were.
        if record.status != "pending":
            changes["corrections"] = (*record.corrections, self._describe(record))
            ids = self.experiment_ids
            state = dataclasses.replace(
                self, experiment_ids=np.where(ids == record.id, -2 - record.id, ids)
            )
        if rows is not None:
            state = state.add_rows(rows, record.id)
        experiments = list(state.experiments)
        experiments[record.id] = dataclasses.replace(record, **changes)
        return dataclasses.replace(state, experiments=tuple(experiments))

    def _describe(self, record: ExperimentRecord) -> str:
        """Describe an experiment's answer before it is replaced."""
        if record.status != "answered" or self.table is None:
            return ": ".join(part for part in (record.status, record.reason) if part)
        values = self.table.rows(self.experiment_ids == record.id)
        target = values[self.settings.target].astype(float)
        target = target[np.isfinite(target)]
        return f"{target.mean():.6g}" if len(target) else "nothing measured"

    def is_continued_by(self, later: "CampaignState") -> bool:
        """Return whether replacing this state by another one loses nothing."""
        pairs = list(zip(self.experiments, later.experiments, strict=False))
        corrected = {new.id for old, new in pairs if _is_correction(old, new)}
        if len(self.experiments) > len(later.experiments) or not all(
            old.values == new.values
            and (old.status in ("pending", new.status) or new.id in corrected)
            for old, new in pairs
        ):
            return False
        # Rows are only ever appended, or marked as replaced by a correction. So the
        # earlier rows must stand at the start of the later state, with these marks.
        replaced = np.isin(self.experiment_ids, list(corrected))
        ids = np.where(replaced, -2 - self.experiment_ids, self.experiment_ids)
        if ids.tolist() != later.experiment_ids[: len(ids)].tolist():
            return False
        if self.table is None or later.table is None:
            return self.table is None
        # Later answers may add columns but never remove one.
        if not {*self.table.variables} <= {*later.table.variables}:
            return False
        # Equal counts do not suffice: two processes that went on from one file may have
        # told different answers.
        values = later.table.select(self.table.variables).values[: len(ids)]
        return np.array_equal(values, self.table.values, equal_nan=True)


def _is_correction(old: ExperimentRecord, new: ExperimentRecord) -> bool:
    known = len(old.corrections)
    return len(new.corrections) > known and new.corrections[:known] == old.corrections


def join_tables(one: Samples | None, other: Samples) -> Samples:
    """Return the rows of both tables; NaN where one of them lacks a column."""
    if one is None:
        return other
    names = tuple(dict.fromkeys((*one.variables, *other.variables)))

    def widen(samples: Samples) -> Samples:
        values = np.full((len(samples), len(names)), np.nan, np.float32)
        intervened = np.zeros(values.shape, bool)
        for i, name in enumerate(samples.variables):
            j = names.index(name)
            values[:, j] = samples.values[:, i]
            intervened[:, j] = samples.intervened[:, i]
        return Samples(names, values, intervened)

    return widen(one).concat(widen(other))
