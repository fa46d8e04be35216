"""Streams as CSV files: a row per record."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from frugax import fileio

from ._columns import Column
from ._dtypes import is_narrow
from ._records import Records

MOST_COLUMNS = 10_000


def write_csv(
    streams: Mapping[Path, Records], progress: Callable[[int, int], None]
) -> None:
    """Write each stream into its file.

    Raises:
        OutputError: one cannot be written.
        ValueError: one would have over 10,000 columns.
    """
    wide = {path: _titles(records) for path, records in streams.items()}
    for path, titles in wide.items():
        if len(titles) > MOST_COLUMNS:
            raise ValueError(
                f"{path} would have {len(titles):,} columns; at most {MOST_COLUMNS:,}: "
                "export to npz or zarr."
            )
    total = sum(len(records) * len(wide[path]) for path, records in streams.items())
    done = 0
    for path, records in streams.items():
        with fileio.atomic_write(path) as file:
            out = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
            rows = csv.writer(out)
            rows.writerow(["step", *wide[path]])
            for row in _rows(records):
                rows.writerow(row)
                done += len(wide[path])
                if done % 1000 < len(wide[path]) or done == total:
                    progress(8 * done, 8 * total)
            out.detach()


def _titles(records: Records) -> list[str]:
    return [
        name + (f"[{' '.join(map(str, place))}]" if place else "")
        for name in records.names
        for place in np.ndindex(records.columns(name)[0].shape)
    ]


def _rows(records: Records) -> Iterator[list[object]]:
    widths = {
        name: int(np.prod(records.columns(name)[0].shape, dtype=np.int64))
        for name in records.names
    }
    for steps, columns in records.blocks():
        values = {name: iter(_flat(column)) for name, column in columns.items()}
        for i, step in enumerate(steps.tolist()):
            row: list[object] = [step]
            for name, width in widths.items():
                if name in columns and columns[name].present[i]:
                    row += next(values[name])
                else:
                    row += [""] * width
            yield row


def _flat(column: Column) -> Sequence[Sequence[object]]:
    values = column.values
    if is_narrow(values.dtype):
        values = values.astype(np.float32)
    if values.dtype.kind == "f" and values.dtype.itemsize < 8:
        # As text the shortest digits that are this number, not those of its double.
        return [[str(v) for v in row] for row in values.reshape(len(values), -1)]
    return values.reshape(len(values), -1).tolist()
