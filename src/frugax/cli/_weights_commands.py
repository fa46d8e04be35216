"""The commands about files of weights: compress, decompress, verify, inspect."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.markup import escape

from frugax.budget import SizeBudget, Verdict, format_bytes
from frugax.errors import ConfigError

from ._consoles import console, errors
from ._show import print_receipt

File = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
Output = Annotated[Path | None, tyro.conf.arg(metavar="FILE", aliases=["-o"])]
Size = Annotated[str | None, tyro.conf.arg(metavar="SIZE", aliases=["--bytes"])]
Flag = tyro.conf.FlagCreatePairsOff[bool]
# Text: what is no number is then said in one line, as all that is wrong.
Number = Annotated[str | None, tyro.conf.arg(metavar="NUMBER")]
Target = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]


def compress(
    file: File,
    /,
    *,
    to: Output = None,
    size: Size = None,
    ratio: Number = None,
    rel_error: Number = None,
    max_abs: Number = None,
    progressive: Flag = False,
    force: Flag = False,
) -> int:
    """Compress the weights in a .safetensors or .npz file into a size or an error.

    For example:

    frugax compress model.safetensors --ratio 8

    frugax compress model.safetensors --size 2MiB -o small.fxz

    frugax compress model.npz --rel-error 0.01

    frugax compress model.safetensors --max-abs 0 --progressive

    Args:
        file: the weights.
        to: the compressed file; by default the same name with .fxz.
        size: length of the file: 2MiB, or bytes as 2000000, or 4bpw for bits per
            weight, or 8x for a ratio.
        ratio: how many times smaller the file must be.
        rel_error: largest relative error over all weights; 0 is exact.
        max_abs: largest error of any one weight; 0 is exact.
        progressive: in layers, so that decompress can read as much as is wanted.
        force: replace the compressed file if it is there already.

    Raises:
        ConfigError: no limit, limits that do not go together, or no weights.
    """
    from frugax import compress as room

    budget = _budget("compress", size, ratio, rel_error, max_abs)
    if budget is None:
        raise ConfigError(_LIMITS.format("compress"))
    _must_exist(file)
    if to is None and file.suffix == ".fxz":
        raise ConfigError(
            f"{file}: these weights are compressed already; name a new file with --to."
        )
    target = to or file.with_suffix(".fxz")
    if target.suffix != ".fxz" or (target.exists() and target.samefile(file)):
        raise ConfigError(
            f"--to {target}: compressed weights go into a file of their own that ends "
            "in .fxz; the original is never replaced."
        )
    _must_be_free(target, force=force)
    weights = room.load_weights(file)
    if not weights:
        raise ConfigError(f"{file}: there are no weights in this file.")
    with _bar(f"compressing to {budget}") as progress:
        saved = room.save(
            target,
            weights,
            budget,
            progressive=progressive,
            metadata=room.load_metadata(file),
            progress=progress,
        )
    console.print(str(saved), highlight=False, markup=False, soft_wrap=True)
    _say_written(target)
    return 0 if saved.receipt.verdict is Verdict.KEPT else 1


def decompress(
    file: File,
    /,
    *,
    to: Output = None,
    size: Size = None,
    ratio: Number = None,
    rel_error: Number = None,
    max_abs: Number = None,
    force: Flag = False,
) -> int:
    """Write the weights of a .fxz file back as .safetensors or .npz.

    For example:

    frugax decompress model.fxz

    frugax decompress model.fxz -o restored.safetensors

    frugax decompress model.fxz -o restored.npz

    frugax decompress progressive.fxz --size 2MiB

    Args:
        file: the compressed weights.
        to: the file to write, .safetensors or .npz; by default the same name with
            .safetensors, which holds no complex128, as .npz holds no bfloat16.
        size: of a progressive file read only so much, the best of it: 2MiB, 2000000,
            4bpw or 8x.
        ratio: read so many times less than the weights take.
        rel_error: read no more than this relative error over all weights needs.
        max_abs: read no more than this error of any one weight needs.
        force: replace it if it is there already.

    Raises:
        ConfigError: there is no such file, or the target is neither of these files,
            or limits do not go together.
    """
    from frugax import compress as room

    budget = _budget("decompress", size, ratio, rel_error, max_abs)
    _must_exist(file)
    target = to or file.with_suffix(".safetensors")
    if target.suffix not in (".safetensors", ".npz"):
        raise ConfigError(f"--to {target}: the file must end in .safetensors or .npz.")
    _must_be_free(target, force=force)
    npz = target.suffix == ".npz"
    export = room.export_npz if npz else room.export_safetensors
    with _bar(f"decompressing {file.name}") as progress:
        try:
            export(file, target, budget=budget, progress=progress)
        except ValueError as e:  # over the file itself
            raise ConfigError(f"frugax decompress: {e}") from e
    if budget is not None:
        with room.open(file, budget=budget) as read:
            assert read.prefix is not None  # there is a budget
            assert read.receipt is not None
            console.print(
                f"Read {read.prefix.bytes:,} of {read.nbytes:,} bytes: relative error "
                f"{read.prefix.rel_error:.4g}, largest {read.prefix.max_abs:.4g}",
                highlight=False,
                soft_wrap=True,
            )
            print_receipt(console, read.receipt)
    _say_written(target)
    return 0


def verify(file: File, /, *, against: Target = None) -> int:
    """Check every byte of a .fxz file, and what it claims about the original.

    For example:

    frugax verify runs/digits/model.fxz

    frugax verify model.fxz --against model.safetensors

    Args:
        file: the compressed weights.
        against: the original weights: errors are measured anew and compared.

    Raises:
        ConfigError: there is no such file, or the originals are other weights.
    """
    from frugax import compress as room

    _must_exist(file)
    if against is not None:
        _must_exist(against)
    original = None if against is None else room.load_weights(against)
    with _bar(f"verifying {file.name}") as progress:
        try:
            report = room.verify(file, against=original, progress=progress)
        except ValueError as e:
            raise ConfigError(f"{against}: {e}") from e
    console.print(str(report), highlight=False, markup=False, soft_wrap=True)
    return 0 if report.ok else 1


def inspect(file: File, /, *, plot: Output = None, force: Flag = False) -> int:
    """Show what a .fxz file says of each tensor: codec, bytes, error, way to the bound.

    For example:

    frugax inspect model.fxz

    frugax inspect model.fxz --plot model.svg

    Nothing is decoded: frugax verify does that.

    Args:
        file: the compressed weights.
        plot: draw bits against error, beside the bound, into this .svg file.
        force: replace the picture if it is there already.

    Raises:
        ConfigError: there is no such file, or the picture is no .svg file.
    """
    from frugax import compress as room
    from frugax.fileio import write_whole

    _must_exist(file)
    if plot is not None:
        if plot.suffix != ".svg":
            raise ConfigError(f"--plot {plot}: the file must end in .svg.")
        _must_be_free(plot, force=force, option="--plot")
    found = room.inspect(file)
    console.print(str(found), highlight=False, markup=False, soft_wrap=True)
    if plot is not None:
        write_whole(plot, found.svg())
        _say_written(plot)
    return 0


_LIMITS = (
    "frugax {}: give one size (--ratio 8, --size 2MiB or --size 4bpw) or one error "
    "(--rel-error 0.01 or --max-abs 0.001), or one of each."
)


def _budget(
    command: str,
    size: str | None,
    ratio: str | None,
    rel_error: str | None,
    max_abs: str | None,
) -> SizeBudget | None:
    """The limits that were stated; None if none was.

    Raises:
        ConfigError: they do not go together, or one is out of its range.
    """
    given = {"size": size, "ratio": ratio, "rel_error": rel_error, "max_abs": max_abs}
    stated = {name: text for name, text in given.items() if text is not None}
    if not stated:
        return None
    if {"size", "ratio"} <= stated.keys() or {"rel_error", "max_abs"} <= stated.keys():
        raise ConfigError(_LIMITS.format(command))
    limits: dict[str, Any] = {}
    for name, text in stated.items():
        option = "size (or --bytes)" if name == "size" else name.replace("_", "-")
        try:
            part = dataclasses.asdict(_limit(name, text))
        except ValueError as e:
            raise ConfigError(f"frugax {command}: --{option} {text}: {e}") from e
        limits |= {field: value for field, value in part.items() if value is not None}
    return SizeBudget(**limits)


def _limit(name: str, text: str) -> SizeBudget:
    """What one option states.

    Raises:
        ValueError: it is no number, or out of its range.
    """
    try:
        number = float(text)
    except ValueError as e:
        if name == "size":
            return SizeBudget(text)
        raise ValueError("this must be a number, such as 8 or 0.01.") from e
    if name != "size":
        limit: dict[str, Any] = {name: number}
        return SizeBudget(**limit)
    if not number.is_integer():
        raise ValueError("bytes are whole; other units are written as in 2MiB.")
    return SizeBudget(bytes=int(number))


def _must_be_free(target: Path, *, force: bool, option: str = "--to") -> None:
    """Never replace a file that nobody said to replace.

    Raises:
        ConfigError: it is there already.
    """
    if target.exists() and not force:
        raise ConfigError(
            f"{target}: this file is there already; choose another with {option}, "
            "or replace it with --force."
        )


def _say_written(path: Path) -> None:
    size = path.stat().st_size
    console.print(
        f"{path}: {size:,} bytes ({format_bytes(size)})",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


@contextlib.contextmanager
def _bar(task: str) -> Iterator[Callable[[float, str], None]]:
    """A bar of what is done, with what is being done; nothing if not in a terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeElapsedColumn

    columns = ("{task.description}", BarColumn(), TaskProgressColumn())
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=errors,
        disable=not errors.is_terminal,
        transient=True,
    ) as bar:
        row = bar.add_task(escape(task), total=1.0)

        def show(done: float, what: str) -> None:
            bar.update(row, completed=done, description=escape(f"{task}: {what}"))

        yield show


def _must_exist(file: Path) -> None:
    """Meet a mistyped name at the edge.

    Raises:
        ConfigError: there is no such file.
    """
    if not file.is_file():
        what = "this is a folder" if file.is_dir() else "there is no such file"
        if file == Path():
            what = "this folder, or no name at all: name a file"
        raise ConfigError(f"{file}: {what}.")


# Each command by its name.
COMMANDS = {
    "compress": compress,
    "decompress": decompress,
    "verify": verify,
    "inspect": inspect,
}
