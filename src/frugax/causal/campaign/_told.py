"""What a campaign is told: observations, and the answers of its experiments."""

from typing import Any

from frugax.causal.data import Samples

from . import _ledger
from ._answers import check_answer, check_digits, rows_of
from ._ledger import Entry
from ._record import Record
from ._results import Ask


class Told(Record):
    """A campaign's books, and what may be entered in them."""

    def tell_observations(self, samples: Any) -> None:
        """Tell rows in which nobody set anything; of an earlier experiment too.

        Args:
            samples: `Samples`, whose marks of intervention count, or a frame or mapping
                of columns.

        Raises:
            TypeError: it is no table.
            ValueError: there are no rows, values that are no numbers, no column for the
                target, or none for a variable of an edge or a constraint.
        """
        settings, table = self.settings, self._state.table
        if not isinstance(samples, Samples):
            samples = rows_of(samples, {}, settings.target)
        if not len(samples):
            raise ValueError("there are no rows in these samples.")
        if settings.target not in samples.variables:
            raise ValueError(
                f"these samples have no column for the target {settings.target!r}, "
                f"only {', '.join(samples.variables):.200}."
            )
        before = () if table is None else table.variables
        settings.check_named({*samples.variables, *before})
        check_digits(settings.target, table, samples)
        self._add(samples, -1, self._state.entries)

    def tell(self, ask: Ask | Entry | int, data: Any) -> None:
        """Tell what an experiment gave.

        Args:
            ask: the question, or its number.
            data: a table of rows (`Samples`, a frame, a mapping of columns) or one
                number for the target; NaN is missing.

        Raises:
            TypeError: the data are none of these, or `ask` is no question.
            ValueError: there is no such question, it has been answered, or the answer
                has too many rows, an unknown variable or no column for the target.
        """
        entry = _ledger.waiting(self._state.entries, ask)
        rows = self.read_answer(entry, data)
        entries = _ledger.changed(self._state.entries, entry, status="answered")
        self._add(rows, entry.id, entries)

    def read_answer(self, ask: Ask | Entry | int, data: Any) -> Samples:
        """The rows of an answer as `tell` would take them; nothing is told yet.

        Args:
            ask: the question, or its number.
            data: as for `tell`.

        Raises:
            TypeError: the data are no answer, or `ask` is no question.
            ValueError: there is no such question, it has been answered, or the answer
                has too many rows, an unknown variable or no column for the target.
        """
        entry, settings = _ledger.waiting(self._state.entries, ask), self.settings
        rows = rows_of(data, entry.values, settings.target)
        table = self._state.table
        check_answer(
            rows,
            most=settings.rows,
            needed=(settings.target,),
            known=None if table is None else {*table.variables, *settings.named},
        )
        check_digits(settings.target, table, rows)
        return rows

    def tell_failed(
        self, ask: Ask | Entry | int, why: str = "", *, charged: bool = True
    ) -> None:
        """Tell that an experiment gave nothing.

        Args:
            ask: the question, or its number.
            why: in words, for the report.
            charged: whether it cost its price nevertheless.

        Raises:
            TypeError: `ask` is no question.
            ValueError: there is no such question, or it has been answered.
        """
        entries = self._state.entries
        entry = _ledger.waiting(entries, ask)
        status = "failed" if charged else "refunded"
        self._change(entries=_ledger.changed(entries, entry, status=status, why=why))
