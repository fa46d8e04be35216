"""Tables in text files, as columns of text: every mistake is named with its line.

What the columns mean is read in `_frames.py`.
"""

import csv
import io
import os
from pathlib import Path


def columns_of_csv(
    path: str | os.PathLike[str], delimiter: str = ","
) -> dict[str, list[str]]:
    """The columns of a file whose first line has their names.

    Args:
        path: of the file, UTF-8.
        delimiter: between the cells.

    Raises:
        OSError: there is no such file (`FileNotFoundError`), or it cannot be read.
        ValueError: the file has no such line, or a row has too few or many cells.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise type(error)(
            f"{path}: {error.strerror or error}. Give the path of a CSV file."
        ) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: byte {error.start} is no UTF-8. Save the file as UTF-8."
        ) from error
    return columns_of_text(text, str(path), delimiter)


def columns_of_text(
    text: str, where: str, delimiter: str = ","
) -> dict[str, list[str]]:
    """The columns of a text whose first line has their names.

    Args:
        text: the table.
        where: what it is called in messages.
        delimiter: between the cells.

    Raises:
        ValueError: there is no such line, or a row has too few or many cells.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    names: list[str] = []
    columns: list[list[str]] = []
    try:
        for row in reader:
            if not row:
                continue  # an empty line, such as the last
            if not names:
                names = [name.strip() for name in row]
                columns = [[] for _ in names]
                if not all(names) or len(set(names)) < len(names):
                    raise ValueError(
                        f"{where}, line 1: every column needs a name of its own, got "
                        f"{names!r:.200}."
                    )
            elif len(row) != len(names):
                raise ValueError(
                    f"{where}, line {reader.line_num}: {len(row)} cells, but the first "
                    f"line names {len(names)} columns.{_hint(names, delimiter)}"
                )
            else:
                for column, cell in zip(columns, row, strict=True):
                    column.append(cell)
    except csv.Error as error:
        raise ValueError(f"{where}, line {reader.line_num}: {error}.") from error
    if not names:
        raise ValueError(f"{where} is empty: its first line must name the columns.")
    if hint := _hint(names, delimiter):
        raise ValueError(f"{where}, line 1: one column, {names[0]!r:.200}.{hint}")
    return dict(zip(names, columns, strict=True))


def _hint(names: list[str], delimiter: str) -> str:
    """What to do if the first line looks as if cells were separated otherwise."""
    other = next((c for c in ";\t" if c in names[0] and c != delimiter), None)
    if len(names) > 1 or other is None:
        return ""
    return (
        f" Its names are separated by {other!r}, not {delimiter!r}: save it with "
        f"{delimiter!r} between cells and decimal points, or read it by "
        f"Samples.from_csv(path, delimiter={other!r})."
    )
