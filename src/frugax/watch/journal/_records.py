"""Reading a journal: what is sound comes back, what is damaged is declared."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped

from frugax.errors import CorruptFileError

from ._blocks import Block
from ._columns import Column
from ._gather import Gathered
from ._walk import Lost, Walk, open_journal


class Records:
    """The records of one stream of a journal, by name.

    Attributes:
        steps: the step of each record, increasing, `(records,)`.
        meta: what `Journal.create` was given.
        lost: the stretches of the file that could not be read; empty if it is sound.
        closed: whether `Journal.close` ended it. If not, the run still goes on or died,
            and a file cut off between two blocks shows no other sign of it.
        streams: the other streams by name; empty for a stream itself. A name that is
            not there is a KeyError that says which are.
        missing: how many records of this stream are known to be lost, by the counts
            that the blocks behind them carry.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        meta: dict[str, Any],
        lost: tuple[Lost, ...],
        *,
        closed: bool,
        missing: int = 0,
        streams: Mapping[str, "Records"] = MappingProxyType({}),
    ) -> None:
        none = np.empty(0, np.int64)
        self.steps: Int64[np.ndarray, " records"] = np.concatenate(
            [none, *[block.steps for block in blocks]]
        )
        self.meta = meta
        self.lost = lost
        self.closed = closed
        self.missing = missing
        self.streams = MappingProxyType(_Streams(streams))
        self._blocks = tuple(blocks)
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
        """The names, as a mapping gives them."""
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Shaped[np.ndarray, "n ..."]:
        """The values of one name, `(n, ...)`, at the steps `steps_with(name)`.

        Those are all `steps` if every record has it. Nothing is made up for a record
        without it. Arrays are unpacked each time: keep them in a variable, or ask
        for one by `value_at`.
        """
        return np.concatenate([column.values for column in self.columns(name)])

    def steps_with(self, name: str) -> Int64[np.ndarray, " n"]:
        """The steps of the records that have this name.

        Raises:
            KeyError: no record has it.
        """
        return np.concatenate([s[c.present] for s, c in self._column(name)])

    def value_at(self, name: str, step: int) -> Shaped[np.ndarray, "..."]:
        """The value of one name at one step; unpacks only the block that holds it.

        Raises:
            KeyError: no record has that name, or none of that step has it.
        """
        for steps, column in self._column(name):
            if steps[0] <= step <= steps[-1]:
                at = int(np.searchsorted(steps, step))
                if steps[at] == step and column.present[at]:
                    return np.asarray(column.values[int(column.present[:at].sum())])
        raise KeyError(f"no record of step {step} has {name!r}.")

    def columns(self, name: str) -> tuple[Column, ...]:
        """The same as `[name]`, block by block and still packed; never empty.

        Raises:
            CorruptFileError: the arrays are not all alike, as only a forged file has
                them.
            KeyError: no record has it.
        """
        columns = tuple(column for _, column in self._column(name))
        if len({column.shape for column in columns}) > 1 or (
            columns[0].shape and len({column.dtype for column in columns}) > 1
        ):
            raise CorruptFileError(f"{name!r} changes its shape or dtype.")
        return columns

    def blocks(self) -> Iterator[tuple[np.ndarray, Mapping[str, Column]]]:
        """Steps and columns, block by block and still packed."""
        for block in self._blocks:
            yield block.steps, block.columns

    def _column(self, name: str) -> list[tuple[np.ndarray, Column]]:
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
    """Read the records of a journal, also while it is being written.

    Args:
        path: the journal.
        strict: raise unless every block is sound and the journal was closed.
        streams: only these are kept in memory; None for all.

    Returns:
        Those of the training steps, and in `.streams` those of the other streams: every
        record of every sound block that no rewind has made void. What could not be
        read is listed in `.lost`.

    Raises:
        CorruptFileError: this is no journal or its header is damaged; with
            `strict`, any damage or a missing end.
        FileNotFoundError: there is no journal.
        IsADirectoryError: a folder stands there.
        UnsupportedFileError: a newer version wrote it.
    """
    with open_journal(path) as file:
        size = os.fstat(file.fileno()).st_size
        walk = Walk(path, file)
        gathered = Gathered()
        lost: list[Lost] = []
        while found := walk.more(file, size):
            for item in found:
                if isinstance(item, Lost):
                    lost.append(item)
                elif streams is None or item.stream in streams or not len(item.steps):
                    gathered.take(item)
        if rest := walk.rest(file, size):
            lost.append(rest)
    if strict and lost:
        worst = lost[0]
        raise CorruptFileError(
            f"{os.fspath(path)}: {worst.bytes} bytes at byte {worst.at} cannot be read "
            f"({worst.why}). Read without strict to get the other records."
        )
    closed = walk.closed and not rest
    if strict and not closed:
        raise CorruptFileError(
            f"{os.fspath(path)}: the end is missing: its run still goes on, or died. "
            "Read without strict to get the records that are there."
        )
    others = {
        name: Records(
            gathered.blocks(name),
            walk.meta,
            tuple(lost),
            closed=closed,
            missing=walk.missing.get(name, 0),
        )
        for name in walk.counts
        if name and (streams is None or name in streams)
    }
    return Records(
        gathered.blocks(""),
        walk.meta,
        tuple(lost),
        closed=closed,
        missing=walk.missing.get("", 0),
        streams=others,
    )
