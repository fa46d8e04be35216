"""Read the columns of CSV files; errors name the line."""

import codecs
import collections
import csv
import io
import os
import re
import warnings
from pathlib import Path

from ._plain_numbers import plain_numbers
from ._tables import counts_rows, is_missing, parse_number

_INDEX = (
    " A first column without a name may be the index of pandas: write the file with "
    "to_csv(index=False)."
)
# Between cells, the likeliest first.
_DELIMITERS = ",;\t|"
_LONGEST_HEADER = 1_000_000
# The first bytes of files that are not text.
_OTHER_FILES = {
    b"PK\x03\x04": "an Excel workbook or another archive",
    b"\xd0\xcf\x11\xe0": "an Excel workbook",
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "compressed by gzip",
}


def read_csv_columns(
    path: str | os.PathLike[str],
    delimiter: str | None = None,
    *,
    are_natural: bool = True,
) -> dict[str, list[str]]:
    """Read the columns of a text file whose first line names them.

    A warning says how numbers are read that are not written plainly.

    Args:
        path: the file.
        delimiter: between the cells; None to find it.
        are_natural: whether nothing was set in any row; then numbers such as -999,
            beyond all others, are missing values.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not such a table.
    """
    notes: list[str] = []
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise type(error)(
            f"{path}: {error.strerror or error}. Give the path of a CSV file."
        ) from error
    for start, what in _OTHER_FILES.items():
        if data.startswith(start):
            raise ValueError(f"{path} is {what}: save its table as CSV.")
    try:
        # Excel begins UTF-8 files with a byte order mark, which would otherwise become
        # part of the first column's name; its "Unicode text" is UTF-16.
        marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = data.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        # Excel's own in Western Europe and America. Five bytes stand for nothing in it.
        try:
            text = data.decode("cp1252")
        except UnicodeDecodeError:
            raise ValueError(
                f"{path}: byte {error.start} is not {error.encoding.upper()}. Save the "
                "file as UTF-8."
            ) from error
        notes.append("it is not UTF-8, and is taken for Windows-1252")
    columns, found = plain_numbers(
        _parse_columns(text, str(path), delimiter), are_natural=are_natural
    )
    if notes := [*notes, *found]:
        warnings.warn(f"{path}: {'; '.join(notes)}.", stacklevel=3)
    return columns


def _parse_columns(
    text: str, where: str, delimiter: str | None = None
) -> dict[str, list[str]]:
    """Parse columns of text cells; errors begin with `where` and name the line."""
    text, delimiter = _find_delimiter(text, where, delimiter)
    # `newline=""` keeps line breaks inside quotes, and `strict` refuses quotes that are
    # never closed, which would swallow the rest of the file into one cell.
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        strict=True,
        skipinitialspace=True,
    )
    names: list[str] = []
    columns: list[list[str]] = []
    try:
        for row in reader:
            if not "".join(row).strip():
                continue  # an empty line, or cells without text below a sheet's table
            if not names:
                names = [name.strip() for name in row]
                columns = [[] for _ in names]
            elif len(row) != len(names):
                raise ValueError(
                    f"{where}, line {reader.line_num}: {len(row)} cells, but the first "
                    f"line names {len(names)} columns."
                )
            else:
                for column, cell in zip(columns, row, strict=True):
                    column.append(cell)
    except csv.Error as error:
        raise ValueError(f"{where}, line {reader.line_num}: {error}.") from error
    if not names:
        raise ValueError(f"{where} is empty: its first line must name the columns.")
    # Sheets end in columns that once held something.
    while len(names) > 1 and not names[-1] and not "".join(columns[-1]).strip():
        names.pop()
        columns.pop()
    # The index of pandas, or the row names of R.
    if len(names) > 1 and not names[0] and _names_rows(columns[0]):
        names, columns = names[1:], columns[1:]
    # pandas names columns 0, 1, ... that have no name.
    counted = [str(i) for i in range(len(names))]
    are_numbers = all(not is_missing(n) and parse_number(n) is not None for n in names)
    if are_numbers and names != counted:
        raise ValueError(
            f"{where}, line 1: {', '.join(names):.200} are numbers: give the file a "
            "first line that names the columns."
        )
    for name, count in collections.Counter(names).items():
        if name and count > 1:
            raise ValueError(
                f"{where}, line 1: {count} columns are called {name!r}: rename all but "
                "one, or delete them."
            )
    if not all(names):
        hint = "" if names[0] else _INDEX
        raise ValueError(
            f"{where}, line 1: every column needs a name of its own, got "
            f"{names!r:.200}.{hint}"
        )
    return dict(zip(names, columns, strict=True))


def _names_rows(cells: list[str]) -> bool:
    """Whether each cell is a number of its row, or a text that no other row has."""
    if counts_rows(cells, least=1):
        return True
    are_texts = all(parse_number(cell) is None for cell in cells)
    return are_texts and 0 < len(set(cells)) == len(cells)


def _find_delimiter(text: str, where: str, given: str | None) -> tuple[str, str]:
    """Return the rows, and what separates the cells of the first, if not given."""
    # A line by which programs tell Excel.
    if stated := re.match(r"sep=(.)(?=[\r\n])", text, re.IGNORECASE):
        return text[stated.end() :], given or stated[1]
    text = _skip_comments(text)
    bare = re.sub('"[^"]*"', "", text[:_LONGEST_HEADER]).lstrip("\r\n")
    first = re.split(r"[\r\n]", bare)[0]
    found = max(_DELIMITERS, key=first.count)
    if given and given not in first and found in first:
        raise ValueError(
            f"{where}, line 1: its names are separated by {found!r}, not {given!r}: "
            "leave delimiter out."
        )
    return text, given or found


def _skip_comments(text: str) -> str:
    """Leave out the lines before the names that begin with # and have other cells."""
    lines = text.splitlines(keepends=True)
    start = next((i for i, x in enumerate(lines) if not x.startswith("#")), 0)
    cells = lambda line: max(map(line.count, _DELIMITERS))
    while start and cells(lines[start - 1]) == cells(lines[start]) > 0:
        start -= 1  # the names themselves may begin with #
    return "".join(lines[start:])
