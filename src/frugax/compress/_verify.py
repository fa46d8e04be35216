"""Is this file whole, and is it these weights?"""

import dataclasses
import os

import numpy as np

from frugax.budget import table
from frugax.trees import PyTree

from ._arguments import check_progress
from .arrays._error import Distortion, relative_error
from .arrays._leaves import named_arrays, unwrap_modules
from .arrays._mapped import release
from .container._file import CompressedFile, open_file
from .search._draft import Progress
from .search._source import Source


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorCheck:
    """One tensor of a file that was read back.

    Attributes:
        name: its name.
        codec: its codec.
        bytes: its bytes in the file.
        stated_max_abs: the largest error that the file states; 0 if exact.
        stated_rel_error: the relative error that the file states; 0 if exact.
        max_abs: the largest error found; None without an original.
        rel_error: the relative error found; None without an original.
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
        """Whether nothing that was found is beyond what is stated."""
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
        """Whether no error was found above the stated one; see `compared`."""
        return all(tensor.true for tensor in self.tensors)

    def __str__(self) -> str:
        rows = [
            [
                t.name or "(the array)",
                t.codec,
                str(t.bytes),
                f"{t.stated_rel_error:.4g}",
                "-" if t.rel_error is None else f"{t.rel_error:.4g}",
                ("yes" if t.true else "NO") if self.compared else "not compared",
            ]
            for t in self.tensors
        ]
        head = ["tensor", "codec", "bytes", "stated error", "found", "true"]
        return table(head, rows) + f"\n{self._summary()}"

    def _summary(self) -> str:
        n, wrong = len(self.tensors), sum(not t.true for t in self.tensors)
        said = f"Every checksum of {n} tensor{'s' * (n != 1)} is right; "
        if not self.compared:
            return said + "the stated errors were not compared with an original."
        said += "compared with the original, "
        if not wrong:
            return said + "every stated error is true."
        return said + f"{wrong} stated error{'s are' if wrong > 1 else ' is'} NOT true."


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
        progress: called with the share that is done, in [0, 1], and what is being done.

    Returns:
        The report; `report.ok` says whether the stated errors hold for `against`.

    Raises:
        CorruptFileError: the file is damaged.
        FileNotFoundError: there is no such file.
        TypeError: a leaf of `against` is no array, or the progress no function.
        UnsupportedFileError: it is no `.fxz` file, or of a newer version.
        ValueError: `against` has other names, dtypes or shapes, or is the decoded
            weights of this very file.
    """
    check_progress(progress)
    originals = None if against is None else named_arrays(unwrap_modules(against))
    told = progress or (lambda done, what: None)
    with open_file(path) as file:
        told(0.0, "every byte")
        file.check()
        file.verify_header()
        if originals is not None:
            have = {n: (a.dtype.name, a.shape) for n, a in originals.items()}
            kept = {r.name: (r.dtype, r.shape) for r in file.header.tensors}
            if have != kept:
                name = next(n for n in have | kept if have.get(n) != kept.get(n))
                raise ValueError(
                    f"these are other weights: {name!r} is {_said(kept.get(name))} in "
                    f"the file and {_said(have.get(name))} in the original."
                )
        checks: list[TensorCheck] = []
        total = max(1, sum(record.nbytes for record in file.header.tensors))
        done = 0
        for record in file.header.tensors:
            told(done / total, f"decoding {record.name or 'the array'}")
            original = None if originals is None else originals[record.name]
            found = _read(file, record.name, original)
            done += record.nbytes
            if record.max_abs and found == (0, 0):
                raise ValueError(
                    f"these are not the original weights: {record.name!r} is stored "
                    f"with an error of up to {record.max_abs:g}, and has none against "
                    "these, which are the file's own. Give the weights from before."
                )
            checks.append(
                TensorCheck(
                    name=record.name,
                    codec=record.codec,
                    bytes=record.stored_bytes,
                    stated_max_abs=record.max_abs,
                    stated_rel_error=record.rel_error,
                    max_abs=found[0],
                    rel_error=found[1],
                )
            )
        told(1.0, "done")
        return VerifyReport(
            file_bytes=file.nbytes,
            tensors=tuple(checks),
            compared=originals is not None,
        )


def _said(found: tuple[str, tuple[int, ...]] | None) -> str:
    return "missing" if found is None else f"{found[0]} of shape {found[1]}"


def _read(
    file: CompressedFile, name: str, original: np.ndarray | None
) -> tuple[float, float] | tuple[None, None]:
    """Largest and relative error; infinite where a tensor kept exact differs at all."""
    source = None if original is None else Source(name, original)
    same, error = True, Distortion()
    for at, part in file.parts(name):
        if source is None:
            continue
        was = source.array.reshape(-1)[at : at + part.size]
        if part.tobytes() != was.tobytes():
            same = False
            if source.energy:
                error += Distortion.between(part, was)
        release(was)
    if source is None:
        return None, None
    if same or not source.energy:
        return (0.0, 0.0) if same else (np.inf, np.inf)
    return error.max_abs, relative_error(error.energy, source.energy)
