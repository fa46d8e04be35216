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
                target, or none for a variable of an edge.
        """
        settings, table = self.settings, self.samples
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
        self._change(**self._with(samples, -1, self._state.of_entry))

    def tell(self, ask: Ask | Entry | int, data: Any, *, replace: bool = False) -> None:
        """Tell what an experiment gave.

        Args:
            ask: the question, or its number.
            data: a table of rows (`Samples`, a frame, a mapping of columns) or one
                number for the target; NaN is missing.
            replace: whether this corrects what was told of it before, which then counts
                no more; the file keeps it, and its price stays paid.

        Raises:
            TypeError: the data are none of these, or `ask` is no question.
            ValueError: there is no such question, it has been answered, or the answer
                has too many rows, an unknown variable or no column for the target.
        """
        entry = _ledger.waiting(self._state.entries, ask, replace=replace)
        rows = self.read_answer(entry, data, replace=replace)
        self._settle(entry, rows, status="answered", why="")

    def read_answer(
        self, ask: Ask | Entry | int, data: Any, *, replace: bool = False
    ) -> Samples:
        """The rows of an answer as `tell` would take them; nothing is told yet.

        Args:
            ask: the question, or its number.
            data: as for `tell`.
            replace: as for `tell`.

        Raises:
            TypeError: the data are no answer, or `ask` is no question.
            ValueError: there is no such question, it has been answered, or the answer
                has too many rows, an unknown variable or no column for the target.
        """
        entry = _ledger.waiting(self._state.entries, ask, replace=replace)
        settings, table = self.settings, self.samples
        rows = rows_of(data, entry.values, settings.target)
        if entry.status != "pending":
            table = None  # what is corrected may be a name
        check_answer(
            rows,
            most=settings.rows,
            needed=(settings.target,),
            known=None if table is None else {*table.variables, *settings.named},
        )
        check_digits(settings.target, table, rows)
        return rows

    def tell_failed(
        self,
        ask: Ask | Entry | int,
        why: str = "",
        *,
        charged: bool = True,
        replace: bool = False,
    ) -> None:
        """Tell that an experiment gave nothing.

        Args:
            ask: the question, or its number.
            why: in words, for the report.
            charged: whether it cost its price nevertheless.
            replace: whether this corrects an answer, as in `tell`.

        Raises:
            TypeError: `ask` is no question.
            ValueError: there is no such question, or it has been answered; or the price
                of one that has shall go back.
        """
        entry = _ledger.waiting(self._state.entries, ask, replace=replace)
        if entry.status != "pending" and not charged:
            raise ValueError(
                f"experiment {entry.id} is {entry.status}, and its price stays paid: "
                "leave charged=False out."
            )
        status = "failed" if charged else "refunded"
        self._settle(entry, None, status=status, why=why)
