"""Which blocks of each stream count, rewinds obeyed."""

import dataclasses

import numpy as np

from ._blocks import Block


class Gathered:
    """The blocks that count so far; `take` each in the order of the file."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Block]] = {}

    def blocks(self, stream: str) -> list[Block]:
        """Those of one stream, in order of their steps."""
        return self._kept.get(stream, [])

    def take(self, block: Block) -> dict[str, int]:
        """Take the next block.

        Returns:
            By stream, the step after which its earlier records have become void; only
            for streams of which that made some so.
        """
        void: dict[str, int] = {}
        if block.kind == "rewind":
            for stream in self._kept:
                step = block.head.get("others", {}).get(stream, block.head["step"])
                if self._cut(stream, step):
                    void[stream] = step
        elif block.kind == "records":
            # A stream's steps rise. If these are not behind what is there, the
            # rewind before them was lost to damage.
            kept = self._kept.setdefault(block.stream, [])
            step = int(block.steps[0]) - 1
            if self._cut(block.stream, step):
                void[block.stream] = step
            kept.append(block)
        return void

    def _cut(self, stream: str, step: int) -> bool:
        kept = self._kept[stream]
        cut = False
        while kept and kept[-1].steps[-1] > step:
            cut = True
            last = kept.pop()
            n = int(np.searchsorted(last.steps, step, side="right"))
            if n:
                columns = {
                    name: column.first(n)
                    for name, column in last.columns.items()
                    if column.present[:n].any()
                }
                steps = last.steps[:n]
                kept.append(dataclasses.replace(last, steps=steps, columns=columns))
        return cut
