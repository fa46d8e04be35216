"""`watch.apply`: compile a function that records as often as a `WatchPlan` says."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from frugax.budget import Receipt

from ._event import Sink
from ._jit import WatchedFunction
from ._program_variants import ProgramVariants
from ._watch_plan import WatchPlan
from ._watcher import Watcher
from .delivery import SinkWorker
from .journal import Journal


class WatchedProgram(WatchedFunction, AbstractContextManager["WatchedProgram"]):
    """A function that records and is collected as a plan says; from `watch.apply`.

    Call it like the function. Leave its `with` block, or call `close`, to collect the
    last records.

    Attributes:
        plan: the plan.
        watcher: the watcher that collects its records.
    """

    def __init__(
        self, fn: Callable[..., Any], plan: WatchPlan, watcher: Watcher, **options: Any
    ) -> None:
        variants = ProgramVariants(fn, options, level_of=plan.level_of)
        super().__init__(fn, variants, watcher, ahead=True)
        self.plan = plan

    def report(self) -> Receipt:
        """Report the cost of watching up to the last call, beside the prediction."""
        return self.watcher.report()

    def close(self) -> None:
        """Collect the last records, flush the journal and close the sinks.

        Raises:
            OutputError: the journal cannot be written.
            ValueError: the journal is closed and records wait for it.
        """
        self.watcher.close()

    def __enter__(self) -> "WatchedProgram":
        self.watcher.__enter__()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.watcher.__exit__(*exc_info)


def apply(
    fn: Callable[..., Any],
    plan: WatchPlan,
    *,
    journal: Journal | None = None,
    sinks: Sequence[Sink | SinkWorker] = (),
    **jit_options: Any,
) -> WatchedProgram:
    """Compile a function that records as a plan says.

    Args:
        fn: the function that was planned, not yet jitted.
        plan: from `watch.plan`. Probes that it leaves out are not compiled.
        journal: where the records go; None for the sinks only.
        sinks: further consumers.
        jit_options: as for `jax.jit`: `static_argnums`, `donate_argnums` and so on.

    Returns:
        The watched function; `report()` gives its receipt.

    Raises:
        TypeError: `fn` is not callable, or `plan` is not a WatchPlan.
    """
    if not callable(fn):
        raise TypeError(f"watch.apply needs a function, got {fn!r}.")
    if not isinstance(plan, WatchPlan):
        raise TypeError(
            f"plan must be a WatchPlan, such as watch.plan(fn, budget, ...), got "
            f"{plan!r:.99}."
        )
    # The plan has chosen the rates already, so the level leaves nothing out.
    watcher = Watcher(journal, plan.budget, plan=plan, level="full", sinks=sinks)
    return WatchedProgram(fn, plan, watcher, **jit_options)
