"""`read`: return every intact record of a journal, and declare every damaged range."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped

from frugax.errors import CorruptFileError

from ._changes import NOT_CLOSED, Appended, LostRange, Rewound
from ._follower import Follower
from ._lock_state import is_held
from .packing import Column


class Records:
    """The records of one stream of a journal, by name.

    Attributes:
        steps: the step of each record, strictly increasing.
        meta: the `meta` of `Journal.create`.
        lost: the ranges of the file that could not be read; empty if it is intact.
        closed: whether `Journal.close` ended the file. If not, the run still goes on
            or died, and a file cut off between two blocks shows no other sign of it.
        streams: the other streams by name; empty for a stream itself. An unknown name
            raises a KeyError that lists the known ones.
        missing: how many records of this stream are known to be lost, by the counts
            in the blocks after them.
    """

    def __init__(
        self,
        blocks: Sequence[Appended],
        meta: dict[str, Any],
        lost: tuple[LostRange, ...],
        *,
        closed: bool,
        missing: int = 0,
        streams: Mapping[str, "Records"] = MappingProxyType({}),
    ) -> None:
        no_steps = np.empty(0, np.int64)
        self.steps: Int64[np.ndarray, " records"] = np.concatenate(
            [no_steps, *[block.steps for block in blocks]]
        )
        self.meta = meta
        self.lost = lost
        self.closed = closed
        self.missing = missing
        self.streams = MappingProxyType(_Streams(streams))
        self._blocks = tuple(blocks)
        # A dict, unlike a set, keeps the order of appearance.
        names = dict.fromkeys(name for block in blocks for name in block.columns)
        self._columns = {
            name: [(b.steps, b.columns[name]) for b in blocks if name in b.columns]
            for name in names
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that some record has, in order of appearance."""
        return tuple(self._columns)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, as a mapping does."""
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Shaped[np.ndarray, "n ..."]:
        """The values of one name, at the steps `steps_with(name)`.

        These are all `steps` if every record has the name; no value is made up for
        the others. Arrays are unpacked at each access: keep them in a variable, or
        read one of them with `value_at`.
        """
        return np.concatenate([column.values for column in self.columns(name)])

    def steps_with(self, name: str) -> Int64[np.ndarray, " n"]:
        """The steps of the records that have this name.

        Raises:
            KeyError: no record has the name.
        """
        return np.concatenate([s[c.present] for s, c in self._parts(name)])

    def value_at(self, name: str, step: int) -> Shaped[np.ndarray, "..."]:
        """The value of one name at one step; unpacks only the block that holds it.

        Raises:
            KeyError: no record of that step has the name.
        """
        for steps, column in self._parts(name):
            if steps[0] <= step <= steps[-1]:
                at = int(np.searchsorted(steps, step))
                if steps[at] == step and column.present[at]:
                    return np.asarray(column.values[int(column.present[:at].sum())])
        raise KeyError(f"no record of step {step} has {name!r}.")

    def columns(self, name: str) -> tuple[Column, ...]:
        """The values of one name, block by block and still packed; never empty.

        Raises:
            CorruptFileError: the arrays differ in shape or dtype, which happens in
                forged files only.
            KeyError: no record has the name.
        """
        columns = tuple(column for _, column in self._parts(name))
        if len({column.shape for column in columns}) > 1 or (
            columns[0].shape and len({column.dtype for column in columns}) > 1
        ):
            raise CorruptFileError(f"{name!r} changes its shape or dtype.")
        return columns

    def blocks(
        self,
    ) -> Iterator[tuple[Int64[np.ndarray, " n"], Mapping[str, Column]]]:
        """Steps and columns, block by block and still packed."""
        for block in self._blocks:
            yield block.steps, block.columns

    def _parts(self, name: str) -> list[tuple[np.ndarray, Column]]:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(
                f"no record has {name!r}; there are {', '.join(self.names) or 'none'}."
            ) from None


class _Streams(dict[str, Records]):
    def __missing__(self, name: str) -> Records:
        raise KeyError(
            f"there is no stream {name!r}; there are {', '.join(self) or 'none'}."
        )


def read(
    path: str | os.PathLike[str],
    *,
    strict: bool = False,
    streams: Collection[str] | None = None,
) -> Records:
    """Read the records of a journal, even while it is being written.

    Args:
        path: the journal.
        strict: raise unless every block is intact and the journal was closed.
        streams: the streams to keep in memory; None for all.

    Returns:
        The records of the training steps, with those of the other streams in
        `.streams`: every record of every intact block that no rewind has made void.
        `.lost` lists the ranges that could not be read.

    Raises:
        CorruptFileError: the file is not a journal, or its header is damaged; with
            `strict`, also any damage or a missing end.
        FileNotFoundError: `path` does not exist.
        IsADirectoryError: `path` is a folder.
        UnsupportedFileError: a newer version wrote the file.
    """
    follower = Follower(path)
    blocks: dict[str, list[Appended]] = {}
    for change in follower.poll_all():
        if isinstance(change, LostRange):
            continue
        if streams is not None and change.stream not in streams:
            continue
        if isinstance(change, Rewound):
            _drop_after(blocks[change.stream], change.step)
        else:
            blocks.setdefault(change.stream, []).append(change)
    lost = [*follower.lost]
    if tail := follower.check_tail():
        lost.append(tail)
    if strict and lost:
        worst = lost[0]
        raise CorruptFileError(
            f"{os.fspath(path)}: {worst.size_bytes} bytes at byte {worst.offset} "
            f"cannot be read ({worst.reason}). Read without strict to get the other "
            "records."
        )
    # Bytes after the closing mark mean that a later writer went on and did not finish.
    closed = follower.closed and not tail
    if not closed and not tail and is_held(path) is False:
        # Records in the memory of a process that was killed leave no trace in the file.
        lost.append(LostRange(follower.offset, 0, None, NOT_CLOSED))
    if strict and not closed:
        raise CorruptFileError(
            f"{os.fspath(path)}: the end is missing: its run still goes on, or died. "
            "Read without strict to get the records that are there."
        )
    build = lambda name, **more: Records(
        blocks.get(name, []),
        follower.meta,
        tuple(lost),
        closed=closed,
        missing=follower.missing.get(name, 0),
        **more,
    )
    others = {
        name: build(name)
        for name in follower.counts
        if name and (streams is None or name in streams)
    }
    return build("", streams=others)


def _drop_after(blocks: list[Appended], step: int) -> None:
    """Drop the records after a step."""
    while blocks and blocks[-1].steps[-1] > step:
        last = blocks.pop()
        if last.steps[0] <= step:
            blocks.append(last.until(step))
