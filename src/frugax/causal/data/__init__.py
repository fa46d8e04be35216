"""Tables of observations and experiments, from files, data frames and packages.

Start at `Samples`; `load_sachs` loads a published data set. Guide: docs/causal_scm.md.
"""

from ._checks import complete_rows, describe_oddities, find_wild
from ._datasets import load_sachs, read_package_file
from ._samples import Samples
from ._tables import (
    FLOAT32_STEPS,
    is_missing,
    parse_number,
    read_csv_columns,
    suggest_number,
)

__all__ = [
    "FLOAT32_STEPS",
    "Samples",
    "complete_rows",
    "describe_oddities",
    "find_wild",
    "is_missing",
    "load_sachs",
    "parse_number",
    "read_csv_columns",
    "read_package_file",
    "suggest_number",
]
