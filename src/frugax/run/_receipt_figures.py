"""List the figures of a run's receipt by key, and state which nobody can derive."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from frugax.budget import SpendName

MEASURED_ONCE = "it was measured once, in that run."
WRITTEN_ONCE = "it was written down in that run, and nothing derives it."

# Figures that no file of a run determines. A key stands for all keys below it.
# docs/receipts.md has the same list.
NOT_DERIVABLE = {
    "seconds": MEASURED_ONCE,
    # The prediction rests on the rates of a processor, which are measured.
    "step_time": MEASURED_ONCE,
    f"spends.{SpendName.TIME}.measured": MEASURED_ONCE,
    f"spends.{SpendName.TIME}.predicted": MEASURED_ONCE,
    f"spends.{SpendName.WATCHING}.measured": MEASURED_ONCE,
    f"spends.{SpendName.WATCHING}.noise": MEASURED_ONCE,
    f"spends.{SpendName.WATCHING}.source": MEASURED_ONCE,
    f"spends.{SpendName.WATCHING}.problems": MEASURED_ONCE,
    # Where the config allows both of the end of the time and early stopping.
    "stopped_because": WRITTEN_ONCE,
    "notes": WRITTEN_ONCE,
    "environment.numpy": WRITTEN_ONCE,
    "environment.optax": WRITTEN_ONCE,
    "environment.date": WRITTEN_ONCE,
    "environment.command": WRITTEN_ONCE,
    "environment.git commit": WRITTEN_ONCE,
    "environment.python": WRITTEN_ONCE,
    "environment.system": WRITTEN_ONCE,
    "environment.orbax-checkpoint": WRITTEN_ONCE,
}
# Figures that follow from the trained weights and the model file.
OF_THE_WEIGHTS = (
    "model.after",
    "model.before",
    "model.noise",
    "model.rel_error",
    "model.tensors",
    f"spends.{SpendName.ACCURACY}",
    f"spends.{SpendName.FILE}",
    f"spends.{SpendName.REL_ERROR}",
    f"spends.{SpendName.MAX_ABS}",
)
# Of these every receipt has its own.
REQUIRED = (
    "seconds.total",
    "step_time.predicted.low",
    "stopped_because",
    *(key for key in NOT_DERIVABLE if key.startswith("environment.")),
)


def list_figures(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """List every leaf of a receipt by its dotted key, such as `memory.flops`.

    Rows of budgets go by their name, as in `spends.file.measured`; evaluations and
    learning rates by their step, as in `evaluations.20.loss`. Of two entries of one
    name the second is called `name (2)`, so that none hides another.
    """
    named = dict(receipt)
    if isinstance(spends := named.get("spends"), list):
        rows = cast("list[dict[str, Any]]", spends)
        named["spends"] = _index(
            (row["name"], {k: v for k, v in row.items() if k != "name"}) for row in rows
        )
    for key in ("evaluations", "learning_rates"):
        rows = named.get(key)
        if isinstance(rows, list) and all(map(_is_pair, cast("list[Any]", rows))):
            named[key] = _index((at, x) for at, x in cast("list[Any]", rows))
    return dict(_flatten(named, ""))


def is_below(key: str, prefix: str) -> bool:
    """Whether a figure is the one of this key, or below it."""
    return key == prefix or key.startswith(f"{prefix}.") or not prefix


def _is_pair(row: object) -> bool:
    return isinstance(row, list) and len(cast("list[Any]", row)) == 2


def _index(rows: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in rows:
        key, count = str(name), 1
        while key in found:
            count += 1
            key = f"{name} ({count})"
        found[key] = value
    return found


def _flatten(value: Any, at: str) -> Iterable[tuple[str, Any]]:
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        inner = cast("Mapping[Any, Any]", value).items()
    elif isinstance(value, list | tuple):
        inner = enumerate(cast("list[Any]", value))
    if not value or not isinstance(value, Mapping | list | tuple):
        yield at, value  # an empty list is a figure, too: it says that there are none
        return
    for key, part in inner:
        yield from _flatten(part, f"{at}.{key}".removeprefix("."))
