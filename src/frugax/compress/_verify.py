"""`verify`: read an `.fxz` file back, and check its checksums and its stated errors."""

import dataclasses
import math
import os
from collections.abc import Mapping

import numpy as np

from frugax.budget import table
from frugax.trees import PyTree

from ._arguments import MonotonicProgress, Progress
from .arrays import (
    Distortion,
    Tensor,
    named_arrays,
    relative_error,
    release,
    unwrap_modules,
)
from .container import CompressedFile, open_file


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorCheck:
    """One tensor of a file that was read back.

    Attributes:
        name: its name.
        codec: its codec.
        bytes: its bytes in the file.
        stated_max_abs: the largest error that the file states; 0 if exact.
        stated_rel_error: the relative error that the file states; 0 if exact.
        max_abs: the largest error measured; None without an original.
        rel_error: the relative error measured; None without an original.
    """

    name: str
    codec: str
    bytes: int
    stated_max_abs: float
    stated_rel_error: float
    max_abs: float | None = None
    rel_error: float | None = None

    @property
    def true(self) -> bool:
        """Whether no measured error is above the stated one."""
        if self.max_abs is None or self.rel_error is None:
            return True
        return (
            self.max_abs <= self.stated_max_abs
            and self.rel_error <= self.stated_rel_error
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """A file that was read back whole: every checksum in it is right.

    Attributes:
        file_bytes: its length.
        tensors: one entry for each tensor.
        compared: whether the values were compared with an original.
    """

    file_bytes: int
    tensors: tuple[TensorCheck, ...]
    compared: bool

    @property
    def ok(self) -> bool:
        """Whether no measured error is above the stated one; see `compared`."""
        return all(tensor.true for tensor in self.tensors)

    def __str__(self) -> str:
        verdicts = {True: "yes", False: "NO"}
        rows = [
            [
                t.name or "(the array)",
                t.codec,
                str(t.bytes),
                f"{t.stated_rel_error:.4g}",
                "-" if t.rel_error is None else f"{t.rel_error:.4g}",
                verdicts[t.true] if self.compared else "not compared",
            ]
            for t in self.tensors
        ]
        head = ["tensor", "codec", "bytes", "stated error", "found", "true"]
        return table(head, rows) + f"\n{self._summary()}"

    def _summary(self) -> str:
        n, wrong = len(self.tensors), sum(not t.true for t in self.tensors)
        text = f"Every checksum of {n} tensor{'s' * (n != 1)} is right; "
        if not self.compared:
            return text + "the stated errors were not compared with an original."
        text += "compared with the original, "
        if not wrong:
            return text + "every stated error is true."
        return text + f"{wrong} stated error{'s are' if wrong > 1 else ' is'} NOT true."


def verify(
    path: str | os.PathLike[str],
    against: PyTree | None = None,
    *,
    progress: Progress | None = None,
) -> VerifyReport:
    """Read a file back whole: its checksums, its digests, and its stated errors.

    Args:
        path: an `.fxz` file.
        against: the original weights, not their path, to measure the errors again; by
            default only the file's own checksums and digests are checked.
        progress: called with the share that is done, in [0, 1], and the name of the
            work.

    Returns:
        The report; `report.ok` tells whether the stated errors hold for `against`.

    Raises:
        CorruptFileError: the file is damaged.
        FileNotFoundError: there is no such file.
        TypeError: a leaf of `against` is not an array, or `progress` is not a function.
        UnsupportedFileError: it is not an `.fxz` file, or is of a newer version.
        ValueError: `against` has other names, dtypes or shapes, or is the decoded
            weights of this very file.
    """
    report = MonotonicProgress(progress)
    originals = None
    if against is not None:
        originals = named_arrays(unwrap_modules(against))
    with open_file(path) as file:
        report(0.0, "every byte")
        file.check()
        if originals is not None:
            _check_same_tensors(file, originals)
        tensors = {n: Tensor(n, array) for n, array in (originals or {}).items()}
        errors = measure_errors(file, tensors, report)
        checks: list[TensorCheck] = []
        for record in file.header.tensors:
            max_abs = rel_error = None
            if record.name in errors:
                error = errors[record.name]
                max_abs = rel_error = error.max_abs
                if math.isfinite(max_abs):
                    energy = tensors[record.name].energy
                    rel_error = relative_error(error.energy, energy)
            # Decoded weights compared with themselves would confirm any stated error.
            if record.max_abs and max_abs == 0:
                raise ValueError(
                    f"these are not the original weights: {record.name!r} is stored "
                    f"with an error of up to {record.max_abs:g}, and has none against "
                    "these, which are the file's own. Give the weights from before."
                )
            checks.append(
                TensorCheck(
                    name=record.name,
                    codec="tied" if record.tied else record.codec,
                    bytes=record.stored_bytes,
                    stated_max_abs=record.max_abs,
                    stated_rel_error=record.rel_error,
                    max_abs=max_abs,
                    rel_error=rel_error,
                )
            )
        report.finish()
        return VerifyReport(
            file_bytes=file.nbytes,
            tensors=tuple(checks),
            compared=originals is not None,
        )


def _check_same_tensors(file: CompressedFile, originals: dict[str, np.ndarray]) -> None:
    given = {n: (a.dtype.name, a.shape) for n, a in originals.items()}
    stored = {r.name: (r.dtype, r.shape) for r in file.header.tensors}
    for name in given | stored:
        if given.get(name) != stored.get(name):
            raise ValueError(
                f"these are other weights: {name!r} is {_describe(stored.get(name))} "
                f"in the file and {_describe(given.get(name))} in the original."
            )


def _describe(kind: tuple[str, tuple[int, ...]] | None) -> str:
    return "missing" if kind is None else f"{kind[0]} of shape {kind[1]}"


def measure_errors(
    file: CompressedFile, tensors: Mapping[str, Tensor], progress: Progress
) -> dict[str, Distortion]:
    """Decode a whole file and compare its tensors with their originals, by name.

    Those without an original are decoded, too: that compares their digests. An error
    is infinite where numbers without a size of error, such as integers, do not come
    back.
    """
    alike = lambda a, b: np.array_equal(a.view(np.uint8), b.view(np.uint8))
    found = dict.fromkeys(tensors, Distortion())
    names: dict[str, list[str]] = {}
    for record in file.header.tensors:
        names.setdefault(record.tied or record.name, []).append(record.name)
    total = max(1, sum(file.record(name).nbytes for name in names))
    done = 0
    for first, start, part in file.pieces():
        is_exact = file.record(first).step is None
        progress(done / total, f"decoding {first or 'the array'}")
        done += part.nbytes
        for name in names[first]:
            if name not in tensors:
                continue
            original = tensors[name].array.reshape(-1)[start : start + part.size]
            # Bytes, not values: NaN and -0 must come back too.
            if not (is_exact and alike(part, original)):
                error = Distortion(math.inf, math.inf)
                if tensors[name].energy:
                    error = Distortion.between(part, original)
                found[name] += error
            release(original)
    return found
