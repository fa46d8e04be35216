"""Reading a journal: what is sound comes back, what is damaged is declared."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped

from frugax.errors import CorruptFileError, UnsupportedFileError

from ._blocks import FORMAT, MARK, Block, decode_block, decode_header


@dataclasses.dataclass(frozen=True, slots=True)
class Lost:
    """A stretch of a journal that could not be read.

    Attributes:
        at: offset of its first byte in the file.
        bytes: how long it is, or was before `Journal.append_to` cut it off.
        records: how many records it held, known by the count that the next sound
            block carries; None at the end of a file, where nothing follows. A
            block holds at most 64.
        why: what is wrong with it.
    """

    at: int
    bytes: int
    records: int | None
    why: str


class Records:
    """The records of a journal, by name.

    Attributes:
        steps: the step of each record, increasing, `(records,)`.
        meta: what `Journal.create` was given.
        lost: the stretches that could not be read; empty for a sound file.
        closed: whether `Journal.close` ended it. If not, the run still goes on or died,
            and a file cut off between two blocks shows no other sign of it.
    """

    def __init__(
        self,
        steps: Int64[np.ndarray, " records"],
        columns: Mapping[str, tuple[Int64[np.ndarray, " n"], np.ndarray]],
        meta: dict[str, Any],
        lost: tuple[Lost, ...],
        *,
        closed: bool,
    ) -> None:
        self.steps = steps
        self.meta = meta
        self.lost = lost
        self.closed = closed
        self._columns = dict(columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that some record has, in order of appearance."""
        return tuple(self._columns)

    def __len__(self) -> int:
        return len(self.steps)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Shaped[np.ndarray, " n"]:
        """The values of one name, at the steps `steps_with(name)`.

        Those are all `steps` if every record has it. Nothing is made up for a
        record without it.
        """
        return self._column(name)[1]

    def steps_with(self, name: str) -> Int64[np.ndarray, " n"]:
        """The steps of the records that have this name.

        Raises:
            KeyError: no record has it.
        """
        return self._column(name)[0]

    def _column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(
                f"no record has {name!r}; there are {', '.join(self.names) or 'none'}."
            ) from None


@dataclasses.dataclass(frozen=True, slots=True)
class Scan:
    """What a walk over all blocks found.

    Attributes:
        meta: what `Journal.create` was given.
        blocks: the sound blocks, in order.
        lost: what lies between them.
        end: offset behind the last sound block.
        written: how many records were ever written up to there.
    """

    meta: dict[str, Any]
    blocks: tuple[Block, ...]
    lost: tuple[Lost, ...]
    end: int
    written: int


def read(path: str | os.PathLike[str], *, strict: bool = False) -> Records:
    """Read the records of a journal, also while it is being written.

    Args:
        path: the journal.
        strict: raise unless every block is sound and the journal was closed.

    Returns:
        Every record of every sound block that no rewind has made void. What could
        not be read is listed in `.lost`.

    Raises:
        CorruptFileError: this is no journal or its header is damaged; with
            `strict`, any damage or a missing end.
        UnsupportedFileError: a newer version wrote it.
    """
    found = scan(path)
    if strict and found.lost:
        worst = found.lost[0]
        raise CorruptFileError(
            f"{os.fspath(path)}: {worst.bytes} bytes at byte {worst.at} cannot be read "
            f"({worst.why}). Read without strict to get the other records."
        )
    records = _gather(found)
    if strict and not records.closed:
        raise CorruptFileError(
            f"{os.fspath(path)}: the end is missing: its run still goes on, or died. "
            "Read without strict to get the records that are there."
        )
    return records


def scan(path: str | os.PathLike[str]) -> Scan:
    """Find every sound block of a journal.

    Raises:
        CorruptFileError: this is no journal or its header is damaged.
        UnsupportedFileError: a newer version wrote it.
    """
    data = Path(path).read_bytes()
    try:
        header, at = decode_header(data)
    except CorruptFileError as e:
        raise CorruptFileError(f"{os.fspath(path)}: {e.args[0]}") from e
    if header["format"] != FORMAT:
        raise UnsupportedFileError(
            f"{os.fspath(path)} is a journal of format {header['format']}; this "
            f"version reads format {FORMAT}. Install a newer frugax."
        )
    blocks: list[Block] = []
    lost: list[Lost] = []
    written, end, damage = 0, at, ""
    while at < len(data):
        try:
            block = decode_block(data, at)
        except CorruptFileError as e:
            damage = damage or str(e.args[0])
            at = data.find(MARK, at + 1)
            if at < 0:
                break
            continue
        missing = block.head["first"] - written
        if at > end or missing:
            why = damage or "records are missing"
            lost.append(Lost(end, at - end, missing if missing >= 0 else None, why))
        if block.head["kind"] == "dropped":
            lost.append(Lost(at, block.head["bytes"], None, "cut off after a crash"))
        blocks.append(block)
        written = block.head["first"] + len(block.steps)
        end = at = block.end
        damage = ""
    if end < len(data):
        lost.append(Lost(end, len(data) - end, None, damage))
    return Scan(header["meta"], tuple(blocks), tuple(lost), end, written)


def _gather(found: Scan) -> Records:
    kept: list[Block] = []
    for block in found.blocks:
        if block.head["kind"] == "rewind":
            kept = _until(kept, block.head["step"])
        elif block.head["kind"] == "records":
            # A run writes rising steps. If these are not behind what is there, the
            # rewind before them was lost to damage.
            kept = [*_until(kept, int(block.steps[0]) - 1), block]
    none = np.empty(0, np.int64)
    names = dict.fromkeys(name for block in kept for name in block.columns)
    columns: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in names:
        having = [(b.steps, *b.columns[name]) for b in kept if name in b.columns]
        columns[name] = (
            np.concatenate([steps[present] for steps, present, _ in having]),
            np.concatenate([values for _, _, values in having]),
        )
    steps = np.concatenate([none, *[block.steps for block in kept]])
    closed = bool(found.blocks) and found.blocks[-1].head["kind"] == "closed"
    return Records(steps, columns, found.meta, found.lost, closed=closed)


def _until(blocks: list[Block], step: int) -> list[Block]:
    """The blocks without the records after `step`."""
    kept = list(blocks)
    while kept and kept[-1].steps[-1] > step:
        last = kept.pop()
        n = int(np.searchsorted(last.steps, step, side="right"))
        if n:
            columns = {
                name: (present[:n], values[: present[:n].sum()])
                for name, (present, values) in last.columns.items()
                if present[:n].any()
            }
            steps = last.steps[:n]
            kept.append(dataclasses.replace(last, steps=steps, columns=columns))
    return kept
