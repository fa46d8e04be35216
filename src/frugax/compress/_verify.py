"""`verify`: read an `.fxz` file back, and check its checksums and its stated errors."""

import dataclasses
import os

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
        # Some header fields are covered by no check of decoding, only by the file's
        # SHA-256, and that a forger recomputes.
        file.verify_header()
        if originals is not None:
            _check_same_tensors(file, originals)
        checks: list[TensorCheck] = []
        total = max(1, sum(record.nbytes for record in file.header.tensors))
        done = 0
        for record in file.header.tensors:
            report(done / total, f"decoding {record.name or 'the array'}")
            original = None if originals is None else originals[record.name]
            max_abs, rel_error = _measure(file, record.name, original)
            done += record.nbytes
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


def _measure(
    file: CompressedFile, name: str, original: np.ndarray | None
) -> tuple[float, float] | tuple[None, None]:
    """Measure the errors of a tensor; infinite if an exact one differs at all."""
    source = None if original is None else Tensor(name, original)
    same, error = True, Distortion()
    for start, part in file.parts(name):
        if source is None:
            continue  # decoding alone compares the digest
        expected = source.array.reshape(-1)[start : start + part.size]
        # Bytes, not values: NaN and -0 must come back too.
        if part.tobytes() != expected.tobytes():
            same = False
            if source.energy:
                error += Distortion.between(part, expected)
        release(expected)
    if source is None:
        return None, None
    if same:
        return 0.0, 0.0
    # Integers and tensors with NaN have no size of error: they come back or they do
    # not.
    if not source.energy:
        return np.inf, np.inf
    return error.max_abs, relative_error(error.energy, source.energy)
