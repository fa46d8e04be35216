"""Begin a campaign from a table alone: each column becomes a variable that is set.

What a column holds says how it is set: between its least and its greatest value, to
whole numbers where it has no others, by orders of magnitude where these are far apart,
on or off, or to one of its names. Dates, notes, constants, identifiers and the numbers
of rows are left out. The result is the text of a config file, so that all of it can be
changed as in one that a person has written.
"""

import collections
import math
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from frugax.causal.data import (
    counts_rows,
    is_missing,
    parse_number,
    read_csv_columns,
    suggest_number,
)
from frugax.errors import ConfigError

from .past_experiments import SWITCHES

# A positive column is set by orders of magnitude if it spans as much.
_WIDE = 1000
_MOST_LEVELS = 12
# Share of a column's cells that may be notes between its numbers.
_NOTES = 0.1
_IDENTIFIER = re.compile(r"(.*[\W_])?id", re.IGNORECASE)


def config_from_table(
    path: str | os.PathLike[str], target: str | None, delimiter: str | None = None
) -> str:
    """Return the YAML of a campaign whose variables are the columns of a CSV file.

    Args:
        path: the file; its first line names the columns.
        target: the column of the target.
        delimiter: between the cells of the file; None to find it.

    Raises:
        ConfigError: the file is not such a table, it has no column of the target, or no
            column that can be set. A warning names the columns that are left out.
    """
    path = Path(path)
    try:
        # Whoever reads the rows warns of how they are written.
        with warnings.catch_warnings(action="ignore"):
            columns = read_csv_columns(path, delimiter)
    except (OSError, ValueError) as e:
        raise ConfigError(str(e)) from e
    if not any(columns.values()):
        raise ConfigError(f"{path} has no rows below the names of its columns.")
    if target not in columns:
        raise ConfigError(
            f"{path}: which column shall become small or large? "
            + (f"There is none named {target!r}" if target else "Name it with --target")
            + f", of {', '.join(columns):.200}."
        )
    variables: dict[str, Any] = {}
    left_out: list[str] = []
    for name, cells in columns.items():
        if name == target:
            continue
        if row := _find_note(cells):
            raise ConfigError(
                f"{path}: {name!r} has numbers, but {cells[row]!r:.40} in row {row}: "
                "delete that row if it is a note or a sum, or leave the cell empty if "
                "its value is missing."
            )
        domain = "an identifier" if _IDENTIFIER.fullmatch(name) else _find_domain(cells)
        if domain is None:  # whoever reads the rows says so
            continue
        if isinstance(domain, str):
            left_out.append(f"{name} ({domain})")
        else:
            variables[name] = domain
    if not variables:
        others = [_find_text(n, c) for n, c in columns.items() if n != target]
        raise ConfigError(
            f"{path}: no column beside {target!r} can be set: give one numbers that "
            "differ, or names that come twice."
            + f" {' '.join(filter(None, others)):.300}".rstrip()
        )
    if left_out:
        warnings.warn(
            f"{path}: these columns are not set: {', '.join(left_out)}.", stacklevel=3
        )
    config = {
        "name": re.sub(r"[^\w.-]+|^[^a-zA-Z0-9]+", "", path.stem) or "campaign",
        "campaign": {"variables": variables, "target": target},
        "observations": str(path.resolve()),
    }
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def _find_note(cells: Sequence[str]) -> int:
    """Return the row of a text below numbers, as of a sum or a note; 0 for none."""
    texts = [i for i, cell in enumerate(cells) if parse_number(cell) is None]
    is_note = texts and texts[0] and len(texts) <= _NOTES * len(cells)
    return texts[0] if is_note and not suggest_number(cells[texts[0]]) else 0


def _find_text(name: str, cells: Sequence[str]) -> str:
    """Return the first cell that is not written as a number, and how it could be."""
    for cell in cells:
        if parse_number(cell) is None and (hint := suggest_number(cell)):
            return f"{name!r} is {cell!r:.40}: {hint[:1].lower()}{hint[1:]}"
    return ""


def _find_domain(cells: Sequence[str]) -> Any:
    """Return how a column is set, as configs say it; or why it is not, as text.

    None is for dates, notes and numbers of rows.
    """
    texts = [cell.strip() for cell in cells]
    cells = [text for text in texts if not is_missing(text)]
    if any(parse_number(c) is None and c.lower() not in SWITCHES for c in cells):
        # Among names "none" is one more: no airbags, no additive.
        cells = [t for t in texts if not is_missing(t) or t.lower() == "none"]
    if not cells:
        return "empty"
    if len(set(cells)) == 1:
        return "constant"
    if all(cell.lower() in SWITCHES for cell in cells):
        return {"binary": True}
    if counts_rows(cells):
        return None
    numbers = map(parse_number, cells)
    found = [x for x in numbers if x is not None and not math.isnan(x)]
    if len(found) == len(cells):
        low, high = min(found), max(found)
        if low > 0 and low * _WIDE <= high:
            return {"log_range": [low, high]}
        if all(number == round(number) for number in found):
            return {"low": round(low), "high": round(high)}
        return [low, high]
    counts = collections.Counter(cells)
    if found or len(counts) > _MOST_LEVELS or min(counts.values()) < 2:
        return None
    return {"levels": list(counts)}
