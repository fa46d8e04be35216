"""Tables of observations and experiments, from files and data frames.

Start at `Samples`. Guide: docs/causal_scm.md.
"""

from ._checks import complete_rows, describe_oddities, find_wild
from ._csv_files import read_csv_columns
from ._samples import Samples
from ._tables import (
    FLOAT32_STEPS,
    as_float32,
    counts_rows,
    is_missing,
    parse_number,
    suggest_number,
)

__all__ = [
    "FLOAT32_STEPS",
    "Samples",
    "as_float32",
    "complete_rows",
    "counts_rows",
    "describe_oddities",
    "find_wild",
    "is_missing",
    "parse_number",
    "read_csv_columns",
    "suggest_number",
]
