"""A table of what was seen: values by variable, and which of them somebody had set.

Reads: arrays. Gives: one frozen table, NaN where a value is missing. From files and
frames: `_frames.py`, `_csv.py`.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from .._shown import count_and_names
from ._csv import columns_of_csv
from ._frames import arrays_of, as_float32


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """Rows of values; each says which variables an intervention had changed.

    Attributes:
        variables: names of the columns.
        values: float32 `(n, d)`; NaN where one is missing.
        intervened: bool `(n, d)`; nowhere true for observations.
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
            if array.dtype == np.float64:
                array = as_float32(array, self.variables)
            object.__setattr__(self, what, np.asarray(array, dtype))
        if len(self.values) != len(self.intervened):
            raise ValueError(
                f"values has {len(self.values)} rows and intervened "
                f"{len(self.intervened)}: give both for every row."
            )
        if np.isinf(self.values).any():
            row, column = np.argwhere(np.isinf(self.values))[0]
            raise ValueError(
                f"{self.variables[column]!r} is infinite in row {row}: mark what is "
                "missing with NaN, and take out what cannot be."
            )

    def __repr__(self) -> str:
        parts = {
            "with an intervention": int(self.intervened.any(1).sum()),
            "with a missing value": int(np.isnan(self.values).any(1).sum()),
        }
        some = "".join(f"; {count} {what}" for what, count in parts.items() if count)
        rows = f"{len(self)} row{'s' if len(self) != 1 else ''}"
        return f"Samples({rows} of {count_and_names(self.variables)}{some})"

    @classmethod
    def observed(cls, variables: Sequence[str], values: Any) -> "Samples":
        """Rows in which nobody changed anything.

        Args:
            variables: names of the columns.
            values: `(n, d)`.

        Raises:
            ValueError: the shapes do not fit, or float32 would lose what the values
                of a column differ by.
        """
        values = np.asarray(values)
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
    ) -> "Samples":
        """The rows of a frame of pandas, polars, narwhals or pyarrow, or of a dict.

        Args:
            frame: named columns of numbers; what is missing becomes NaN.
            intervened: what was changed in which row. The name of a column of text that
                names the variables, several with a comma, none where it is empty; or
                for each variable the name of a column of booleans; or bool `(n, d)`;
                or nothing, for observations.
            variables: the columns to take; by default all that `intervened` does not
                name.

        Raises:
            TypeError: the frame has no named columns, or is lazy.
            ValueError: a column is missing, is no numbers, or is longer than another;
                or what was changed is no variable.

        Example:
            >>> table = {"x": [1.0, 2.0], "y": [3.0, None], "changed": ["", "x"]}
            >>> Samples.from_frame(table, intervened="changed").intervened.tolist()
            [[False, False], [True, False]]
        """
        return cls(*arrays_of(frame, intervened, variables))

    @classmethod
    def from_csv(
        cls,
        path: str | os.PathLike[str],
        *,
        intervened: Any = None,
        variables: Sequence[str] | None = None,
        delimiter: str = ",",
    ) -> "Samples":
        """The rows of a text file whose first line names the columns.

        Args:
            path: of the file, UTF-8. Empty cells, `NA` and `NaN` are missing values.
            intervened: as for `from_frame`.
            variables: the columns to take; by default all that `intervened` does not
                name.
            delimiter: between the cells.

        Raises:
            ValueError: the file is no such table; the message has the line.
        """
        columns = columns_of_csv(path, delimiter)
        try:
            return cls.from_frame(columns, intervened=intervened, variables=variables)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, name: str) -> Float[np.ndarray, " n"]:
        return self.values[:, self.index(name)]

    def index(self, name: str) -> int:
        """The column of a variable.

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
        """The same rows with these columns, in this order.

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
        """The same columns with some of the rows.

        Args:
            which: a slice, a mask or row numbers.
        """
        return type(self)(self.variables, self.values[which], self.intervened[which])

    def concat(self, other: "Samples") -> "Samples":
        """The rows of this table, then those of another.

        Args:
            other: a table of the same variables, in any order.

        Raises:
            ValueError: it has other variables.
        """
        if set(other.variables) != set(self.variables):
            apart = sorted(set(other.variables) ^ set(self.variables))
            raise ValueError(
                f"only one of the two tables has {', '.join(apart):.200}: "
                "`select` what both have."
            )
        other = other.select(self.variables)
        return type(self)(
            self.variables,
            np.concatenate([self.values, other.values]),
            np.concatenate([self.intervened, other.intervened]),
        )
