"""Choose which calls of a function run watched or bare, to measure the overhead."""

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ._program_variants import ProgramVariants
from .overhead import Experiment, Unit
from .probes import PackedRecords
from .sinks import Kind

# A call that no run reaches.
NEVER = 1 << 62
# Records that a function may keep before it asks again, where nothing is compared.
_MAX_REST = 64


class CallSchedule:
    """The units of one function under one watcher.

    Attributes:
        experiment: compares its units.
        gate_s: seconds that every call spends to find its program, watched or bare:
            with warm and with cold caches.
        calls: calls counted so far.
        is_bare: whether the current unit is bare.
        variants: the programs of the function; None for `Watcher.record`.
        fresh: records that the function has kept since the last collection: the number
            of the call, its records, and the classes that were asked for.
    """

    def __init__(
        self,
        owner: Any,
        gate_s: tuple[float, float],
        variants: ProgramVariants | None = None,
    ) -> None:
        self.experiment = Experiment()
        self.gate_s = gate_s
        self.fresh: deque[tuple[int, PackedRecords, frozenset[Kind]]] = deque()
        self.variants = variants
        self.calls = 0
        self.is_bare = False
        self._owner = owner
        self._unit: Unit | None = None
        # Two threads may make the last call of a unit at once.
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """The time that its finished units have taken."""
        return self.experiment.seconds

    def unit_at(self, step: int, *, multiple: int) -> Unit | None:
        """Return the unit of a call, begun if necessary; None if nothing is compared.

        The length of a unit is a multiple of `multiple`.
        """
        self.calls = max(self.calls, step + 1)
        if not self._owner.can_compare():
            self.is_bare, self._unit = False, None
            return None
        with self._lock:
            if self._unit is None:
                self._owner.foresee(self)
                self._unit = self.experiment.begin(
                    step, now=self._owner.clock(), multiple=max(multiple, 1)
                )
                self.is_bare = not self._unit.watched
            return self._unit

    def end(self, unit: Unit, outputs: Any) -> None:
        """Have the time taken at which the last call of a unit ends."""
        with self._lock:
            if self._unit is not unit:
                return
            self._unit = None
            # The next unit is drawn at the next call; until then nothing is bare.
            self.is_bare = False
        token = _end_of(outputs)
        if token is None:
            unit.spoilt = True
        self._owner.collector.add_mark(self.experiment, unit, token)

    def rest(self, step: int, unit: Unit | None) -> tuple[int, int]:
        """Return which call asks next, and what the function does until then.

        Returns:
            The next call that asks; and the stride at which records are kept until
            then, 0 to run bare.
        """
        owner, variants = self._owner, self.variants
        every = owner.record_every
        if owner.flight is not None or variants is None:
            return 0, 0
        if unit is not None and step >= unit.last:
            return 0, 0
        if not every:
            return NEVER, 0
        last = step + _MAX_REST * every if unit is None else unit.last
        if unit is not None and not unit.watched:
            return last, 0
        is_loud = variants.has_frames
        if variants.is_cheap(every) and not (is_loud and owner.level == "full"):
            if is_loud:
                gap = owner.frame_gap_s / max(self.experiment.call_s, 1e-9)
                last = min(last, step + every * max(1, round(gap / every)))
            return last, every
        return min(last, step - step % every + every), 0

    def count(self, number: int, metrics: Mapping[str, Any]) -> int:
        """Count a call of `Watcher.record`, whose metrics end with their step.

        Returns:
            The next call that must be counted: the last one of the unit.
        """
        unit = self.unit_at(number, multiple=self._owner.stride)
        if unit is None:
            return number + self._owner.stride
        if number < unit.last:
            return unit.last
        with self._lock:
            self._unit, self.is_bare = None, False
        arrays = [v for v in metrics.values() if isinstance(v, jax.Array)]
        self._owner.collector.add_mark(self.experiment, unit, arrays)
        return number + 1


def _end_of(outputs: Any) -> Any:
    """Return an array that is ready when the call is, whatever is done to its outputs.

    An output may be donated to the next call before anybody has looked at it. One small
    program for each unit reads a single number of it instead.
    """
    best = None
    for leaf in jax.tree.leaves(outputs):
        if not isinstance(leaf, jax.Array) or leaf.is_deleted() or not leaf.size:
            continue
        if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
            continue
        if best is None or leaf.size < best.size:
            best = leaf
    return None if best is None else _first_number(best)


@jax.jit
def _first_number(array: Any) -> Any:
    return array[(0,) * array.ndim]
