"""Where the seconds of a run went; the parts add up to the whole."""

import dataclasses
import time

from frugax.budget import format_seconds, format_share, table


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimeLedger:
    """Wall seconds of a run, each counted once.

    Attributes:
        compile_s: planning and compiling the step.
        run_s: taking steps: dispatch, and waiting for the device.
        host_s: making batches, and `on_step`.
        io_s: writing checkpoints.
        eval_s: evaluating.
    """

    compile_s: float = 0.0
    run_s: float = 0.0
    host_s: float = 0.0
    io_s: float = 0.0
    eval_s: float = 0.0

    @property
    def wall_s(self) -> float:
        """All of them together."""
        return sum(seconds for _, seconds in self._parts())

    def _parts(self) -> list[tuple[str, float]]:
        names = [f.name for f in dataclasses.fields(self)]
        return [(name.removesuffix("_s"), getattr(self, name)) for name in names]

    def __str__(self) -> str:
        wall = self.wall_s or 1.0
        rows = [
            [name, format_seconds(seconds), format_share(seconds / wall)]
            for name, seconds in [*self._parts(), ("wall", self.wall_s)]
        ]
        return table(["part", "time", "share"], rows)


class LapClock:
    """A stopwatch whose every moment belongs to exactly one part of the run."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.seconds = {f.name: 0.0 for f in dataclasses.fields(TimeLedger)}

    def lap(self, part: str, *, of_which: tuple[str, float] = ("run_s", 0.0)) -> float:
        """Put the time since the last lap down to `part`, and give it back.

        Args:
            part: a field of `TimeLedger`.
            of_which: another part, and how much of the lap belongs to it instead.
        """
        now = time.perf_counter()
        lap, self._last = now - self._last, now
        other, share = of_which
        self.seconds[part] += lap - share
        self.seconds[other] += share
        return lap

    @property
    def elapsed(self) -> float:
        """Seconds up to the last lap."""
        return sum(self.seconds.values())

    def ledger(self) -> TimeLedger:
        """What was counted up to the last lap."""
        return TimeLedger(**self.seconds)
