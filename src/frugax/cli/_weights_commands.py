"""`frugax` compress, decompress, export, verify and inspect, for files of weights."""

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

from frugax.budget import SizeBudget, Verdict, format_bytes
from frugax.errors import ConfigError
from frugax.fileio import make_folder, move_into_place

from ._arguments import Arg, OutFile
from ._consoles import say, show_progress

Files = Annotated[tuple[Path, ...], Arg("FILE")]
Output = Annotated[Path | None, Arg("FILE", ("-o",))]
Number = Annotated[float | None, Arg("NUMBER")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The options that state a size, an error, or one of each.

    Attributes:
        size: 2MiB, 2000000 (bytes), 4bpw (bits a weight) or 8x; length of the file.
        ratio: how many times smaller than the weights.
        rel_error: largest relative error over all weights; 0 is exact.
        max_abs: largest error of any one weight; 0 is exact.
    """

    size: Annotated[str | None, Arg("SIZE", ("--bytes",))] = None
    ratio: Number = None
    rel_error: Number = None
    max_abs: Number = None


NO_LIMITS = Limits()


def compress(
    files: Files,
    /,
    *,
    to: Annotated[str | None, Arg("FORMAT|FILE", ("-o",))] = None,
    limits: Limits = NO_LIMITS,
    force: bool = False,
) -> int:
    """Compress weights into a size or an error.

    For example:

    frugax compress model.safetensors --ratio 8

    frugax compress model.safetensors --size 2MiB -o small.fxz

    frugax compress model.npz --rel-error 0.01

    frugax compress Qwen3-8B/ --size 4bpw

    frugax compress one.safetensors two.safetensors --ratio 8

    frugax compress model.safetensors --max-abs 0

    frugax compress Qwen3-8B/ --size 4bpw --to gguf

    frugax compress Qwen3-8B/ --size 4bpw --to compressed-tensors

    Args:
        files: .safetensors, .npz, or folders of .safetensors; such as Hugging Face's;
            or checkpoints of Orbax. Each is compressed within the limits by itself.
        to: fxz, gguf, compressed-tensors, or a file's name; its ending says which, and
            a name without one is a folder of compressed-tensors. By default it is the
            same name with .fxz. In the other two, 4bpw are integers of 4 bits, and
            steps and dense tensors come on top.
        limits: the largest size or error.
        force: replace the compressed file if it exists.

    Raises:
        ConfigError: no limit, limits that exclude each other, or no weights.
    """
    budget = _parse_limits("compress", limits)
    if budget is None:
        raise ConfigError(_LIMITS.format("compress"))
    if not files:
        raise ConfigError("frugax compress: name a file or a folder of weights.")
    if to is not None and to not in _FORMATS and len(files) > 1:
        raise ConfigError(
            f"--to {to}: one name cannot be that of {len(files)} files: leave it out."
        )
    # All of them before the first, which may take an hour.
    targets = [_compressed_name(file, to, force=force) for file in files]
    if len(set(targets)) < len(targets):
        raise ConfigError("frugax compress: two of the files have one name for .fxz.")
    make = _compress_one if targets[0].suffix == ".fxz" else _round_one
    kept = [make(*pair, budget) for pair in zip(files, targets, strict=True)]
    return int(not all(kept))


def _compressed_name(file: Path, to: str | None, *, force: bool) -> Path:
    """Return the file to write for some weights, or the folder."""
    if not file.is_dir() or file == Path():
        _must_exist(file)
    # By default the target would be the file itself.
    by_default = to is None or to in _FORMATS
    ending = _FORMATS[to or "fxz"] if by_default else ""
    if ending == ".fxz" and file.suffix == ".fxz":
        raise ConfigError(
            f"{file}: these weights are compressed already; name a new file with --to."
        )
    # Qwen3-0.6B has a dot that is not a suffix.
    whole = file.resolve() if file.is_dir() else file.with_suffix("")
    target = whole.with_name(f"{whole.name}{ending}") if by_default else Path(to or "")
    # `samefile` also notices links and other spellings of the same path.
    suffix = "" if target.is_dir() else target.suffix
    known = ending or suffix in _SUFFIXES
    if not known or (target.exists() and target.samefile(file)):
        raise ConfigError(
            f"--to {target}: compressed weights need a separate file that ends in "
            ".fxz or .gguf, or a folder; the original is never replaced."
        )
    _must_be_free(target, force=force)
    return target


def _round_one(file: Path, target: Path, budget: SizeBudget) -> bool:
    """Write weights as integers: the coarsest within an error, the finest in a size."""
    from frugax import compress as package

    is_folder = target.suffix != ".gguf"
    choices = [4, 8] if is_folder else [4, 6, 8]
    asked, limit = budget.bits_per_weight, budget
    if asked is not None:
        choices = [bits for bits in choices if bits <= asked]
        if not choices:
            raise ConfigError(
                f"--size {asked:g}bpw: these integers have 4 bits at least."
            )
        # The bits of an integer are the choice itself, and no limit of the file.
        limit = None
        if not budget.is_only_size:
            limit = dataclasses.replace(budget, bits_per_weight=None)
    if asked is not None or budget.is_only_size:
        choices.reverse()
    # What stands there is replaced by weights within the limits, or not at all.
    beside = make_folder(target.parent)
    with tempfile.TemporaryDirectory(dir=beside, prefix=".frugax-") as scratch:
        made = Path(scratch) / target.name
        for bits in choices:
            shutil.rmtree(made, ignore_errors=True)
            if is_folder:
                made.mkdir()
            with show_progress(f"rounding to {bits} bits") as progress:
                try:
                    report = package.export_quantised(
                        file, made, bits=bits, budget=limit, progress=progress
                    )
                except ValueError as e:
                    raise ConfigError(f"frugax compress: {e}") from e
            is_kept = limit is None or report.verdict is Verdict.KEPT
            if is_kept or bits == choices[-1]:
                break
        else:
            raise AssertionError("there is a number of bits to choose")
        say(report.summary())
        if not is_kept:
            return False
        move_into_place(made, target)
    _print_size(target)
    return report.quantised > 0


def _compress_one(file: Path, target: Path, budget: SizeBudget) -> bool:
    """Compress one file or folder; say whether the budget was kept."""
    from frugax import compress as package

    weights = package.load_weights(file)
    if not weights:
        raise ConfigError(f"{file}: this file has no weights.")
    with show_progress(f"compressing to {budget}") as progress:
        saved = package.save(
            target,
            weights,
            budget,
            metadata=package.load_metadata(file),
            progress=progress,
        )
    say(saved.summary())
    _print_size(target)
    return saved.receipt.verdict is Verdict.KEPT


def decompress(
    file: Path,
    /,
    *,
    to: Output = None,
    force: bool = False,
) -> int:
    """Write a .fxz file back as .safetensors or .npz.

    For example:

    frugax decompress model.fxz

    frugax decompress model.fxz -o restored.safetensors

    frugax decompress model.fxz -o restored.npz

    frugax decompress Qwen3-8B.fxz -o restored/

    Args:
        file: the compressed weights.
        to: a .safetensors or .npz file, or a folder; which gets files of 5 GB with an
            index. By default the same name with .safetensors, which cannot store
            complex128, as .npz cannot store bfloat16.
        force: replace the target if it exists.

    Raises:
        ConfigError: the file does not exist, or the target is of another kind.
    """
    from frugax import compress as package

    _must_exist(file)
    target = to or file.with_suffix(".safetensors")
    folder = not target.suffix or target.is_dir()
    if not folder and target.suffix not in (".safetensors", ".npz"):
        raise ConfigError(
            f"--to {target}: the file must end in .safetensors or .npz, or be a folder."
        )
    _must_be_free(target, force=force)
    export = package.export_safetensors
    if target.suffix == ".npz":
        export = package.export_npz
    with show_progress(f"decompressing {file.name}") as progress:
        try:
            export(file, target, progress=progress)
        except ValueError as e:  # the target cannot be the file itself
            raise ConfigError(f"frugax decompress: {e}") from e
    _print_size(target)
    return 0


def export(
    file: Path,
    /,
    *,
    to: Annotated[Path, Arg("FILE", ("-o",))],
    bits: Annotated[int, Arg("4|8")] = 8,
    limits: Limits = NO_LIMITS,
    force: bool = False,
) -> int:
    """Write weights as integers of 4 or 8 bits, for other tools.

    For example:

    frugax export model.fxz -o model.gguf --bits 4

    frugax export model.fxz -o model.gguf --rel-error 0.01

    frugax export model.fxz -o folder/ --bits 4

    Args:
        file: the compressed weights.
        to: a .gguf file, or a folder in the layout of compressed-tensors.
        bits: of an integer.
        limits: an error or a size; the exit code is 1 if the file is beyond it, and if
            no tensor is rounded.
        force: replace the target if it exists.

    Raises:
        ConfigError: the file does not exist, or the target is of another kind.
    """
    from frugax import compress as package

    budget = _parse_limits("export", limits)
    _must_exist(file)
    if to.suffix or not to.is_dir():
        _must_be_free(to, force=force)
    try:
        report = package.export_quantised(file, to, bits=bits, budget=budget)
    except ValueError as e:
        raise ConfigError(f"frugax export: {e}") from e
    say(report)
    _print_size(to if to.suffix else to / "model.safetensors")
    broken = budget is not None and report.verdict is not Verdict.KEPT
    return int(broken or not report.quantised)


def verify(file: Path, /, *, against: OutFile = None) -> int:
    """Check every byte and every claim of a .fxz file.

    For example:

    frugax verify runs/digits/model.fxz

    frugax verify model.fxz --against model.safetensors

    Args:
        file: the compressed weights.
        against: the original weights, to measure errors again.

    Raises:
        ConfigError: a file does not exist, or the originals are other weights.
    """
    from frugax import compress as package

    _must_exist(file)
    original = None
    if against is not None:
        if not against.is_dir():
            _must_exist(against)
        original = package.load_weights(against)
    with show_progress(f"verifying {file.name}") as progress:
        try:
            report = package.verify(file, against=original, progress=progress)
        except ValueError as e:
            raise ConfigError(f"{against}: {e}") from e
    say(report)
    return int(not report.ok)


def inspect(file: Path, /, *, plot: Output = None, force: bool = False) -> int:
    """Show the codec, bytes and error of each tensor in a .fxz file.

    For example:

    frugax inspect model.fxz

    frugax inspect model.fxz --plot model.svg

    Nothing is decoded; frugax verify does that.

    Args:
        file: the compressed weights.
        plot: draw bits against error into this .svg file; with the bound.
        force: replace the picture if it exists.

    Raises:
        ConfigError: the file does not exist, or the picture is not an .svg file.
    """
    from frugax import compress as package
    from frugax.fileio import write_whole

    _must_exist(file)
    if plot is not None:
        if plot.suffix != ".svg":
            raise ConfigError(f"--plot {plot}: the file must end in .svg.")
        _must_be_free(plot, force=force, option="--plot")
    found = package.inspect(file)
    say(found)
    if plot is not None:
        write_whole(plot, found.svg())
        _print_size(plot)
    return 0


# The formats of compress, and the endings that they give a name.
_FORMATS = {
    "fxz": ".fxz",
    "gguf": ".gguf",
    "compressed-tensors": "-compressed-tensors",
}
_SUFFIXES = (".fxz", ".gguf", "")
_LIMITS = (
    "frugax {}: give one size (--ratio 8, --size 2MiB or --size 4bpw) or one error "
    "(--rel-error 0.01 or --max-abs 0.001), or one of each."
)


def _parse_limits(command: str, limits: Limits) -> SizeBudget | None:
    """Parse the options into a budget; None without any."""
    stated = {k: v for k, v in dataclasses.asdict(limits).items() if v is not None}
    if not stated:
        return None
    if {"size", "ratio"} <= stated.keys() or {"rel_error", "max_abs"} <= stated.keys():
        raise ConfigError(_LIMITS.format(command))
    fields: dict[str, Any] = {}
    for name, value in stated.items():
        try:
            # Each option is parsed as its own budget, so that its error can name it.
            part = dataclasses.asdict(_parse_limit(name, value))
        except ValueError as e:
            option = {"size": "size (or --bytes)"}.get(name, name.replace("_", "-"))
            written = value if name == "size" else f"{value:g}"
            raise ConfigError(f"frugax {command}: --{option} {written}: {e}") from e
        fields |= {field: value for field, value in part.items() if value is not None}
    return SizeBudget(**fields)


def _parse_limit(name: str, value: Any) -> SizeBudget:
    """Parse one option."""
    if name != "size":
        return SizeBudget(**{name: value})
    try:
        number = float(value)
    except ValueError:
        return SizeBudget(value)
    if not number.is_integer():
        raise ValueError("bytes are whole numbers; write other units as in 2MiB.")
    return SizeBudget(bytes=int(number))


def _must_be_free(target: Path, *, force: bool, option: str = "--to") -> None:
    """Refuse to replace a file without --force; an empty folder is free."""
    is_taken = any(target.iterdir()) if target.is_dir() else target.exists()
    if is_taken and not force:
        raise ConfigError(
            f"{target}: this file exists already; choose another with {option}, "
            "or replace it with --force."
        )


def _print_size(path: Path) -> None:
    size = path.stat().st_size
    if path.is_dir():
        size = sum(file.stat().st_size for file in path.iterdir())
    say(f"{path}: {size:,} bytes ({format_bytes(size)})")


def _must_exist(file: Path) -> None:
    """Refuse a mistyped name before any work is done."""
    if not file.is_file():
        problem = "there is no such file"
        # An empty variable of a shell arrives as an empty name, which Path reads as the
        # current folder.
        if file == Path():
            problem = "this is the current folder, or an empty name: name a file"
        elif file.is_dir():
            problem = "this is a folder"
        raise ConfigError(f"{file}: {problem}.")


# Each command by its name.
COMMANDS = {
    "compress": compress,
    "decompress": decompress,
    "export": export,
    "verify": verify,
    "inspect": inspect,
}
