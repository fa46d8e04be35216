"""Golden tables: rows of outcomes that users get, stored, and compared when run again.

A part has a file `cases_PART.py`, whose `cases()` yields `Case`s, and a table
`PART.json`. `python -m tests.golden` writes the tables and compares them.
"""

import dataclasses
import importlib
import importlib.metadata
import json
import math
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

FOLDER = Path(__file__).parent
Cell: TypeAlias = "bool | int | float | str | list[Any] | None"
Row: TypeAlias = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of a table.

    Attributes:
        name: unique within its part.
        outcome: computes the cells by key. A raised error becomes the row's only cell,
            with the error's type and, where it has one, its field `needed`; a missing
            package leaves the row as it was.
        quick: whether pytest compares this row.
        tolerance: how much numbers may differ, relative to the larger one, or in a list
            to the largest of the list; by key, or one for all keys. 0 where none is
            given.
        machine: keys whose numbers depend on the processor and the versions of numeric
            libraries; they are compared only where these are those of the table.
    """

    name: str
    outcome: Callable[[], Mapping[str, Cell]]
    quick: bool = False
    tolerance: Mapping[str, float] | float = 0.0
    machine: Sequence[str] = ()

    def tolerance_of(self, key: str) -> float:
        """Return the relative tolerance of one key."""
        if isinstance(self.tolerance, Mapping):
            return self.tolerance.get(key, 0.0)
        return self.tolerance


class MissingPackageError(Exception):
    """A case cannot be run because a package is missing; its text is the name."""


@dataclasses.dataclass
class Table:
    """The stored rows of one part.

    Attributes:
        header: the command, versions and the machine that made the table.
        rows: cells by key, by case.
    """

    header: dict[str, str]
    rows: dict[str, Row]

    @classmethod
    def read(cls, path: Path) -> "Table | None":
        """Read a table; None if there is no file."""
        if not path.exists():
            return None
        stored = json.loads(path.read_text("utf-8"))
        return cls(stored["header"], stored["cases"])

    def write(self, path: Path) -> None:
        """Replace the file at once, one row a line, sorted by name."""
        lines = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(row, allow_nan=False)}"
            for name, row in sorted(self.rows.items())
        )
        header = json.dumps(self.header)
        unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
        unfinished.write_text(
            f'{{\n"header": {header},\n"cases": {{\n{lines}\n}}\n}}\n', "utf-8"
        )
        unfinished.replace(path)


def list_parts() -> list[str]:
    """Return the names of all parts."""
    return sorted(p.stem.removeprefix("cases_") for p in FOLDER.glob("cases_*.py"))


def load_cases(part: str) -> Iterator[Case]:
    """Import a part and yield its cases.

    Raises:
        MissingPackageError: a package that the whole part needs is missing.
    """
    try:
        yield from importlib.import_module(f"tests.golden.cases_{part}").cases()
    except ModuleNotFoundError as e:
        raise _to_missing_package(e) from e


def run_case(case: Case) -> Row:
    """Compute the row of a case.

    Raises:
        MissingPackageError: a package that it needs is missing.
    """
    try:
        cells: Mapping[str, Any] = case.outcome()
    except ModuleNotFoundError as e:
        raise _to_missing_package(e) from e
    except Exception as e:
        # The type and the field, never the sentence, which may be written anew.
        cells = {"error": type(e).__name__}
        if (needed := getattr(e, "needed", None)) is not None:
            cells["needed"] = needed
    return {key: _to_plain(cell) for key, cell in cells.items()}


def _to_missing_package(error: ModuleNotFoundError) -> Exception:
    """Return what to raise: a module of this repository must be there."""
    name = error.name or str(error)
    if name.partition(".")[0] in ("benchmarks", "frugax", "tests", *_TEST_FOLDERS):
        return ImportError(f"a golden table needs {name}, which has moved.")
    return MissingPackageError(name)


# `tests` is on the path, so what it holds can be imported by its own name.
_TEST_FOLDERS = tuple(p.stem for p in FOLDER.parent.iterdir())


def _to_plain(cell: Any) -> Any:
    """Return a cell as JSON gives it back; numbers that JSON lacks become text."""
    if isinstance(cell, list | tuple):
        return [_to_plain(each) for each in cell]
    if hasattr(cell, "item"):  # a scalar of NumPy
        cell = cell.item()
    if isinstance(cell, float) and not math.isfinite(cell):
        return str(cell)
    if not isinstance(cell, bool | int | float | str | None):
        raise TypeError(f"a cell must be a number, text or a list, got {cell!r:.80}.")
    return cell


def compare(
    case: Case, stored: Row, found: Row, *, is_same_machine: bool
) -> tuple[list[str], int]:
    """Return a line for each cell that moved, and how many could not be compared."""
    moved: list[str] = []
    left_out = 0
    for key in sorted(stored.keys() | found.keys()):
        if key in stored and key in found:
            if key in case.machine and not is_same_machine:
                left_out += 1
                continue
            if is_close(stored[key], found[key], case.tolerance_of(key)):
                continue
        before, after = (
            json.dumps(row[key]) if key in row else "nothing" for row in (stored, found)
        )
        moved.append(f"{case.name}: {key}: {before} -> {after}")
    return moved, left_out


def is_close(before: Any, after: Any, tolerance: float) -> bool:
    """Whether two cells are equal up to the tolerance."""
    if isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            return False
        numbers = [abs(x) for x in (*before, *after) if _is_number(x)]
        scale = max(numbers, default=0.0)
        return all(
            abs(x - y) <= tolerance * scale
            if _is_number(x) and _is_number(y)
            else is_close(x, y, tolerance)
            for x, y in zip(before, after, strict=True)
        )
    if _is_number(before) and _is_number(after):
        return abs(before - after) <= tolerance * max(abs(before), abs(after))
    return type(before) is type(after) and before == after


def _is_number(cell: Any) -> TypeGuard[float]:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def make_header(part: str) -> dict[str, str]:
    """Return the header of a table that is made now, here."""
    return {
        "command": f"make golden PART={part}",
        "frugax": importlib.metadata.version("frugax"),
        "jax": importlib.metadata.version("jax"),
        "machine": describe_machine(),
    }


def describe_machine() -> str:
    """Describe what the last bits of numbers depend on, beside the program."""
    flags: set[str] = set()
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        first = re.search(r"^(?:flags|Features)\s*:(.*)$", cpu_info.read_text(), re.M)
        flags = set(first[1].split()) if first else set()
    used = [flag for flag in _FLAGS if flag in flags]
    versions = [f"{n} {importlib.metadata.version(n)}" for n in ("jaxlib", "numpy")]
    python = ".".join(platform.python_version_tuple()[:2])
    return " ".join([platform.machine(), *used, *versions, "python", python])


# Instruction sets for which XLA and OpenBLAS have other kernels.
_FLAGS = ("fma", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd")
