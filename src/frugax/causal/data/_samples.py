"""`Samples`: a table of observations and experiments, with a mask of interventions."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from ..names import count_and_names
from ._csv_files import read_csv_columns
from ._tables import arrays_from_frame, as_float32


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """A table of values, with a mask of those that an intervention changed.

    Attributes:
        variables: names of the columns.
        values: float32 `(n, d)`; NaN for missing values.
        intervened: bool `(n, d)`; all False for observations.
    """

    variables: tuple[str, ...]
    values: Float[np.ndarray, "n d"]
    intervened: Bool[np.ndarray, "n d"]

    def __post_init__(self) -> None:
        d = len(self.variables)
        if len(set(self.variables)) < d or not d:
            raise ValueError(
                f"variables must be given, each once; got {self.variables!r:.200}."
            )
        for what, dtype in (("values", np.float32), ("intervened", np.bool_)):
            array = np.asarray(getattr(self, what))
            if array.ndim != 2 or array.shape[1] != d:
                raise ValueError(
                    f"{what} has shape {array.shape}, but {d} variables need (n, {d})."
                )
            # float32 halves the memory, and the surrogate computes in it. Columns whose
            # differences it would lose are refused.
            if array.dtype == np.float64:
                array = as_float32(array, self.variables)
            object.__setattr__(self, what, np.asarray(array, dtype))
        if len(self.values) != len(self.intervened):
            raise ValueError(
                f"values has {len(self.values)} rows and intervened "
                f"{len(self.intervened)}: give both for every row."
            )
        # NaN marks a missing value. An infinity would be a second mark, or an error.
        if np.isinf(self.values).any():
            row, column = np.argwhere(np.isinf(self.values))[0]
            raise ValueError(
                f"{self.variables[column]!r} is infinite in row {row}: mark missing "
                "values with NaN, and remove impossible ones."
            )

    def __repr__(self) -> str:
        parts = {
            "with an intervention": int(self.intervened.any(1).sum()),
            "with a missing value": int(np.isnan(self.values).any(1).sum()),
        }
        some = "".join(f"; {count} {what}" for what, count in parts.items() if count)
        plural = "s" if len(self) != 1 else ""
        rows = f"{len(self)} row{plural}"
        return f"Samples({rows} of {count_and_names(self.variables)}{some})"

    @classmethod
    def observed(cls, variables: Sequence[str], values: Any) -> "Samples":
        """Build a table of observations, without interventions.

        Args:
            variables: names of the columns.
            values: `(n, d)`.

        Raises:
            ValueError: the shapes do not fit, or float32 would lose the differences
                between the values of a column.
        """
        values = np.asarray(values)
        # Integers and lists become float64 first, so that the check of their
        # differences sees all digits.
        if values.dtype != np.float32:
            values = values.astype(np.float64)
        return cls(tuple(variables), values, np.zeros(values.shape, bool))

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        intervened: Any = None,
        variables: Sequence[str] | None = None,
        levels: Mapping[str, Sequence[str]] | None = None,
    ) -> "Samples":
        """Convert a dict, or a frame of pandas, polars, narwhals or pyarrow.

        Args:
            frame: named columns of numbers; missing values become NaN.
            intervened: the intervened variables of each row. Either the name of a text
                column that lists them, separated by commas and empty for none; or for
                each variable the name of a column of booleans; or bool `(n, d)`. None
                for observations.
            variables: the columns to take; by default all but those that `intervened`
                names.
            levels: the names in columns of text, in their order: they become 0, 1, ...

        Raises:
            TypeError: the frame has no named columns, or is lazy.
            ValueError: a column is missing, is not numeric, or has another length; or
                an intervened variable is unknown.

        Example:
            >>> table = {"x": [1.0, 2.0], "y": [3.0, None], "changed": ["", "x"]}
            >>> Samples.from_frame(table, intervened="changed").intervened.tolist()
            [[False, False], [True, False]]
        """
        return cls(*arrays_from_frame(frame, intervened, variables, levels))

    @classmethod
    def from_csv(
        cls,
        path: str | os.PathLike[str],
        *,
        intervened: Any = None,
        variables: Sequence[str] | None = None,
        levels: Mapping[str, Sequence[str]] | None = None,
        delimiter: str | None = None,
    ) -> "Samples":
        """Read a text file whose first line names the columns.

        It is UTF-8, UTF-16 or Windows-1252. Units, decimal commas and codes such as
        -999 are understood where a whole column has them, with a warning that says so.

        Args:
            path: the file. Empty cells, `NA` and `NaN` are missing values.
            intervened: see `from_frame`.
            variables: the columns to take; by default all but those that `intervened`
                names.
            levels: see `from_frame`.
            delimiter: between the cells; None to find it.

        Raises:
            ValueError: the file is not such a table; the message names the line.
        """
        columns = read_csv_columns(path, delimiter, are_natural=intervened is None)
        try:
            return cls.from_frame(
                columns, intervened=intervened, variables=variables, levels=levels
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, name: str) -> Float[np.ndarray, " n"]:
        return self.values[:, self.index(name)]

    def index(self, name: str) -> int:
        """Return the column of a variable.

        Args:
            name: the variable.

        Raises:
            ValueError: there is no such variable.
        """
        if name not in self.variables:
            raise ValueError(
                f"there is no variable {name!r}, only {', '.join(self.variables):.200}."
            )
        return self.variables.index(name)

    def select(self, variables: Sequence[str]) -> "Samples":
        """Return the same rows with these columns, in this order.

        Args:
            variables: their names.

        Raises:
            ValueError: there is no such variable.
        """
        columns = [self.index(name) for name in variables]
        return type(self)(
            tuple(variables), self.values[:, columns], self.intervened[:, columns]
        )

    def rows(self, which: Any) -> "Samples":
        """Return the same columns with some of the rows.

        Args:
            which: a slice, a mask or row numbers.
        """
        return type(self)(self.variables, self.values[which], self.intervened[which])

    def concat(self, other: "Samples") -> "Samples":
        """Return the rows of this table, then those of another.

        Args:
            other: a table of the same variables, in any order.

        Raises:
            ValueError: the variables differ.
        """
        if set(other.variables) != set(self.variables):
            only_one = sorted(set(other.variables) ^ set(self.variables))
            raise ValueError(
                f"only one of the two tables has {', '.join(only_one):.200}: "
                "`select` the common ones."
            )
        other = other.select(self.variables)
        return type(self)(
            self.variables,
            np.concatenate([self.values, other.values]),
            np.concatenate([self.intervened, other.intervened]),
        )
