"""`export`: a journal as npz or CSV, which other programs read.

npz     one file. Each stream gives `steps` and one array per column, such as `loss`;
        those of a named stream are called `stream/steps`, `stream/loss`. A column that
        some records lack has steps of its own, `loss@steps`. `journal.json` holds
        `meta` and the lost ranges.
csv     a file per stream, `out.csv` and `out.STREAM.csv`, with a row per record. The
        cell of a missing value is empty; arrays are flat: `grid[0 0]`, `grid[0 1]`, ...
        A text is one cell. The first column is `step`; a title that is taken gets a
        number, `step.1`.

Numbers equal those of the journal, bit for bit. Only the dtypes that ml_dtypes adds,
such as bfloat16, become float32, which holds them exactly.
"""

import csv
import dataclasses
import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import quote

import numpy as np

from frugax import fileio
from frugax.errors import OutputError

from ._changes import LostRange
from ._reader import Records, read
from ._text import TEXT_COLUMN, decode_text
from ._validation import number_name
from .packing import Column, is_ml_dtype

Format: TypeAlias = Literal["npz", "csv"]
# Called with the bytes that are done, and the bytes in all.
Progress: TypeAlias = Callable[[int, int], None]
# Spreadsheets stop at 16,384 columns, and readers slow down long before.
_MAX_CSV_COLUMNS = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class ExportResult:
    """The outcome of an export.

    Attributes:
        paths: the files that were written.
        records: the number of records of each stream.
        lost: the ranges of the journal that could not be read, and are not exported.
        closed: whether the journal was complete.
    """

    paths: tuple[Path, ...]
    records: dict[str, int]
    lost: tuple[LostRange, ...]
    closed: bool


def export(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    format: Format | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Write a journal in another format, atomically.

    Args:
        path: the journal; it may still be written to.
        target: the file.
        format: the format; by default the suffix of `target`.
        overwrite: replace an existing target of that format; never the journal.
        progress: called now and then with the bytes done and the bytes in all.

    Raises:
        CorruptFileError: the file is not a journal, or its header is damaged.
        FileNotFoundError: `path` does not exist.
        IsADirectoryError: `path` is a folder.
        OutputError: the target exists, or cannot be written.
        UnsupportedFileError: a newer version wrote the file.
        ValueError: the format is unknown, or neither given nor the suffix; two columns
            would have the same name; or a CSV file would have over 10,000 columns.
    """
    place = Path(target)
    if format is None:
        format = _format_of(place)
    if format not in get_args(Format):
        raise ValueError(f'format must be "npz" or "csv", got {format!r}.')
    records = read(path)
    streams = {"": records, **records.streams}
    report = progress or (lambda done, total: None)
    if format == "csv":
        paths = _csv_paths(place, [name for name, one in streams.items() if len(one)])
        for one in paths.values():
            _refuse_existing(one, Path(path), overwrite=overwrite)
        _write_csv({paths[name]: streams[name] for name in paths}, report)
        written = tuple(paths.values())
    else:
        _refuse_existing(place, Path(path), overwrite=overwrite)
        about = {
            "meta": records.meta,
            "closed": records.closed,
            # The keys are those of earlier versions, which other programs may read.
            "lost": [
                {
                    "at": lost.offset,
                    "bytes": lost.size_bytes,
                    "records": lost.records,
                    "why": lost.reason,
                }
                for lost in records.lost
            ],
        }
        _write_npz(place, streams, json.dumps(about), report)
        written = (place,)
    counts = {name: len(one) for name, one in streams.items()}
    return ExportResult(written, counts, records.lost, records.closed)


def _format_of(target: Path) -> Format:
    for format in get_args(Format):
        if target.suffix == f".{format}":
            return format
    raise ValueError(
        f'{target} has no known suffix: use .npz or .csv, or give format="npz".'
    )


def _refuse_existing(path: Path, source: Path, *, overwrite: bool) -> None:
    if not os.path.lexists(path):
        return
    # The journal may be reached by another name, or lie in the folder to replace.
    is_source = path.exists() and path.samefile(source)
    if is_source or source.resolve().is_relative_to(path.resolve()):
        raise OutputError(
            f"cannot write {path}: that is where the journal itself is; choose another "
            "place."
        )
    if not overwrite:
        raise OutputError(
            f"cannot write {path}: it exists; choose another name, or overwrite it "
            "(overwrite=True, --force)."
        )
    # A folder is a user's data, even with overwrite=True.
    if path.is_dir():
        raise OutputError(f"cannot write {path}: a folder stands there; move it away.")


def _write_npz(
    path: Path, streams: Mapping[str, Records], about: str, progress: Progress
) -> None:
    sizes = {
        (stream, name): sum(column.nbytes for column in records.columns(name))
        for stream, records in streams.items()
        for name in records.names
    }
    written: set[str] = set()
    done = 0
    with (
        fileio.atomic_write(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=4) as archive,
    ):
        archive.writestr("journal.json", about)

        def write(stream: str, name: str, parts: Sequence[Column]) -> None:
            label = f"{stream}/{name}" if stream else name
            # A stream "a" with a column "b/c" and a stream "a/b" with a column "c"
            # would collide.
            if label in written:
                raise ValueError(f"two columns would be called {label!r}; use csv.")
            written.add(label)
            # Blocks of numbers may differ in width: a column may have begun as float32
            # and gone on as float64.
            dtype = np.result_type(*{part.dtype for part in parts})
            if is_ml_dtype(dtype):
                dtype = np.dtype(np.float32)
            head: dict[str, Any] = {
                "descr": np.lib.format.dtype_to_descr(dtype),
                "fortran_order": False,
                "shape": (sum(map(len, parts)), *parts[0].shape),
            }
            # np.savez would need each array in memory; the format is simple enough.
            with archive.open(f"{label}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_2_0(member, head)
                for part in parts:
                    member.write(part.values.astype(dtype).tobytes())

        def write_steps(stream: str, name: str, steps: np.ndarray) -> None:
            write(stream, name, [Column(np.ones(len(steps), bool), steps)])

        for stream, records in streams.items():
            if len(records):
                write_steps(stream, "steps", records.steps)
            for name in records.names:
                write(stream, name, records.columns(name))
                steps = records.steps_with(name)
                if len(steps) < len(records):
                    write_steps(stream, f"{name}@steps", steps)
                done += sizes[stream, name]
                progress(done, sum(sizes.values()))


def _csv_paths(target: Path, streams: list[str]) -> dict[str, Path]:
    stem = target.name.removesuffix(".csv")
    # Quoted, so that the name of a stream cannot lead out of the folder.
    paths = {
        name: target.with_name(f"{stem}.{quote(name, safe=' ')}.csv")
        for name in streams
    }
    if not streams or "" in paths:
        paths[""] = target
    return paths


def _write_csv(streams: Mapping[Path, Records], progress: Progress) -> None:
    titles = {path: _csv_titles(records) for path, records in streams.items()}
    for path, columns in titles.items():
        if len(columns) > _MAX_CSV_COLUMNS:
            raise ValueError(
                f"{path} would have {len(columns):,} columns; at most "
                f"{_MAX_CSV_COLUMNS:,}: export to npz."
            )
    total = sum(len(records) * len(titles[path]) for path, records in streams.items())
    done = 0
    for path, records in streams.items():
        width = len(titles[path])
        with fileio.atomic_write(path) as file:
            out = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
            rows = csv.writer(out)
            unique = {"step": None}
            for title in titles[path]:
                unique[number_name(title, unique)] = None
            rows.writerow(unique)
            for row in _csv_rows(records):
                rows.writerow(row)
                done += width
                if done % 1000 < width or done == total:
                    progress(8 * done, 8 * total)
            out.detach()  # or closing `out` would close the file before its fsync


def _csv_titles(records: Records) -> list[str]:
    titles: list[str] = []
    for name in records.names:
        for index in np.ndindex(_cells(name, records)):
            suffix = f"[{' '.join(map(str, index))}]" if index else ""
            titles.append(name + suffix)
    return titles


def _csv_rows(records: Records) -> Iterator[list[object]]:
    widths = {name: math.prod(_cells(name, records)) for name in records.names}
    for steps, columns in records.blocks():
        values = {
            name: iter(_flatten(name, column)) for name, column in columns.items()
        }
        for i, step in enumerate(steps.tolist()):
            row: list[object] = [step]
            for name, width in widths.items():
                if name in columns and columns[name].present[i]:
                    row += next(values[name])
                else:
                    row += [""] * width
            yield row


def _cells(name: str, records: Records) -> tuple[int, ...]:
    """The shape of the cells of a record; a text is one."""
    return () if name == TEXT_COLUMN else records.columns(name)[0].shape


def _flatten(name: str, column: Column) -> Sequence[Sequence[object]]:
    values = column.values
    if name == TEXT_COLUMN:
        return [[decode_text(row)] for row in values]
    if is_ml_dtype(values.dtype):
        values = values.astype(np.float32)
    if values.dtype.kind == "f" and values.dtype.itemsize < 8:
        # The shortest digits that give this number, not those of its double.
        return [[str(v) for v in row] for row in values.reshape(len(values), -1)]
    return values.reshape(len(values), -1).tolist()
