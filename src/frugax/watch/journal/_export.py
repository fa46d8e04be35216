"""A journal in formats that other programs read: npz, zarr, CSV.

npz     one file. Each stream gives `steps` and one array per column, `loss`; those of
        a named stream are called `stream/steps`, `stream/loss`. A column that some
        records lack has its own steps, `loss@steps`. `journal.json` holds `meta` and
        what was lost.
zarr    a folder; the same names, in groups.
csv     a file per stream, `out.csv` and `out.STREAM.csv`: a row per record, a cell that
        a record lacks is empty, arrays lie flat: `grid[0 0]`, `grid[0 1]`, ...

Numbers are those of the journal, bit for bit; only dtypes that nothing but ml_dtypes
knows, such as bfloat16, become float32, which holds them exactly.
"""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias, get_args
from urllib.parse import quote

from frugax.errors import OutputError

from ._records import read
from ._tables import tables_of
from ._to_csv import write_csv
from ._to_npz import write_npz
from ._to_zarr import need_zarr, write_zarr
from ._walk import Lost

Format: TypeAlias = Literal["npz", "zarr", "csv"]
# Bytes done, and bytes in all.
Progress: TypeAlias = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote.

    Attributes:
        paths: the files, or the folder of zarr.
        records: how many of each stream.
        lost: what could not be read of the journal, and is therefore not in there.
        closed: whether the journal was complete.
    """

    paths: tuple[Path, ...]
    records: dict[str, int]
    lost: tuple[Lost, ...]
    closed: bool


def export(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    format: Format | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write a journal in another format, whole or not at all.

    Args:
        path: the journal; it may still be written to.
        target: the file, or the folder of zarr.
        format: which; None: the one that `target` ends in.
        overwrite: replace what stands there, if it is of that kind; never the journal.
        progress: called now and then with how many bytes are done, and of how many.

    Raises:
        CorruptFileError: this is no journal or its header is damaged.
        FileNotFoundError: there is no journal.
        IsADirectoryError: a folder stands there.
        MissingExtraError: zarr is not installed.
        OutputError: something stands there already, or it cannot be written.
        UnsupportedFileError: a newer version wrote it.
        ValueError: the format is none of these, or neither named nor the ending; two
            columns would have the same name, or a CSV would have over 10,000 columns.
    """
    place = Path(target)
    if format is None:
        format = _format_of(place)
    if format not in ("npz", "zarr", "csv"):
        raise ValueError(f'format must be "npz", "zarr" or "csv", got {format!r}.')
    if format == "zarr":
        need_zarr()
    records = read(path)
    streams = {"": records, **records.streams}
    told = progress or (lambda done, total: None)
    if format == "csv":
        paths = _csv_paths(place, [name for name, one in streams.items() if len(one)])
        for one in paths.values():
            _refuse_existing(one, Path(path), overwrite=overwrite)
        write_csv({paths[name]: streams[name] for name in paths}, told)
        written = tuple(paths.values())
    else:
        _refuse_existing(
            place, Path(path), overwrite=overwrite, folder=format == "zarr"
        )
        tables = [t for name, one in streams.items() for t in tables_of(name, one)]
        labels = [table.label for table in tables]
        if twice := {label for label in labels if labels.count(label) > 1}:
            raise ValueError(f"two columns would be called {min(twice)!r}; use csv.")
        about = {
            "meta": records.meta,
            "closed": records.closed,
            "lost": [dataclasses.asdict(one) for one in records.lost],
        }
        if format == "npz":
            write_npz(place, tables, json.dumps(about), told)
        else:
            write_zarr(place, tables, about, told)
        written = (place,)
    counts = {name: len(one) for name, one in streams.items()}
    return Exported(written, counts, records.lost, records.closed)


def _format_of(target: Path) -> Format:
    """The format that a name ends in.

    Raises:
        ValueError: it ends in none of them.
    """
    for format in get_args(Format):
        if target.suffix == f".{format}":
            return format
    raise ValueError(
        f'{target} ends in no format: use .npz, .zarr or .csv, or say format="npz".'
    )


def _csv_paths(target: Path, streams: list[str]) -> dict[str, Path]:
    """A file for each stream; a stream's name cannot lead out of the folder."""
    stem = target.name.removesuffix(".csv")
    beside = lambda name: target.with_name(f"{stem}.{quote(name, safe=' ')}.csv")
    return {name: beside(name) if name else target for name in streams or [""]}


def _refuse_existing(
    path: Path, source: Path, *, overwrite: bool, folder: bool = False
) -> None:
    if not os.path.lexists(path):
        return
    # Also by another name, and inside of the folder that would be replaced.
    same = path.exists() and path.samefile(source)
    if same or source.resolve().is_relative_to(path.resolve()):
        raise OutputError(
            f"cannot write {path}: that is where the journal itself is; choose another "
            "place."
        )
    if not overwrite:
        raise OutputError(
            f"cannot write {path}: it exists; choose another name, or overwrite it "
            "(overwrite=True, --force)."
        )
    # A folder that zarr has not made is somebody's data.
    if path.is_dir() and not (folder and (path / "zarr.json").is_file()):
        raise OutputError(f"cannot write {path}: a folder stands there; move it away.")
