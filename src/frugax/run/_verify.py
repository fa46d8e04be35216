"""`frugax verify-receipt`: derive every deterministic figure of a run's receipt again.

Bytes, flops, compiles, file lengths and checksums follow from the config, the versions
and the model file. Times do not, so they stay unconfirmed.
"""

import collections
import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from frugax import compress, train, trees, watch
from frugax.budget import Receipt, amount, from_plain
from frugax.errors import ConfigError, FrugaxError
from frugax.trees import PyTree

from ._config import RunConfig
from ._environment import describe_environment
from ._finish import accuracy_spend, compare_figures, memory_facts, sample_rates
from ._folder import RunFolder, file_sha256
from ._ledger import Ledger
from ._observer import Observer, Silent
from ._outcome import Outcome
from ._page import report_page
from ._prepare import Prepared, check_task, prepare
from ._receipt_check import FigureCheck, Finding, ReceiptCheck
from ._task_checks import evaluate_model
from ._trained import read_weights

# Steps that are repeated to count compiles: the second one shows whether the state that
# a step returns has the types that it accepts.
_STEPS = 3
# Evaluations add floats in an order that depends on the number of threads.
_REL_TOLERANCE = 1e-6
# Another version of these, or another device, compiles another program.
_SAME_PROGRAM = ("frugax", "jax", "jaxlib", "device")

_PARTS = ("limit", "predicted", "measured", "noise", "unit")
# Rows whose expense nobody can derive; their limits follow from the config.
_MEASURED_ROWS = (
    "time of the whole run",
    "time spent watching",
    "accuracy lost by compression",
    "relative error",
    "largest error",
)
_ONCE = "it was measured once, in that run."
_HISTORY = ("steps", "stopped_because", "seconds", "evaluations", "notes")

# The parts of each row of a receipt that were derived here, by the row's name.
Parts = dict[str, dict[str, Any]]


def _read_strictly(text: str) -> Any:
    """Parse JSON; keys that stand twice mean different things to different readers."""

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError(f"a key stands twice in {sorted(k for k, _ in pairs)}")
        return found

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, object_pairs_hook=build, parse_constant=refuse)


def verify_receipt(
    path: Path, *, trust_code: bool = False, observer: Observer | None = None
) -> ReceiptCheck:
    """Derive every deterministic figure of a receipt again and compare.

    The verdicts follow from the receipt's own numbers; length, checksums and accuracy
    of the model from the file beside it; bytes, flops and compiles from building and
    compiling the step of its config again, which also runs a few steps.

    Args:
        path: a run's `receipt.json` or its folder, or a receipt that `to_json` wrote.
        trust_code: import the Python function that the config names. Without it only
            built-in tasks are built, so nothing that the receipt names is executed.
        observer: receives progress.

    Raises:
        ConfigError: the file cannot be read, or is not a receipt.
    """
    if path.is_dir():
        path /= "receipt.json"
    try:
        text = path.read_text()
        data: Any = _read_strictly(text)
        receipt = Receipt.from_json(text)
    except (OSError, ValueError, RecursionError) as e:
        raise ConfigError(f"{path}: cannot be read as a receipt: {e}") from e
    folder = RunFolder(path.parent)
    checks = list(_check_verdicts(receipt, data))
    if not isinstance(data.get("config"), dict):
        why = "the receipt has no config, from which its program could be built again."
        checks += [_untold("config", "-", why), *_check_spends(receipt, {}, why)]
        return ReceiptCheck(tuple(checks))
    model: Any = data.get("model")
    memory: Any = data.get("memory")
    if not isinstance(model, dict) or not isinstance(memory, dict):
        raise ConfigError(f"{path}: a run's receipt has the keys model and memory.")
    why = _explain_other_program(data.get("environment"))
    config = _read_config(path, data["config"], why)
    checks += _check_file(folder, model)
    checks += _check_report(folder, text, data.get("environment"))
    if config is None:
        checks += _check_spends(receipt, _derive_file(folder), why)
        return ReceiptCheck(tuple(checks))
    checks += _check_rows(receipt, config)
    history = ", ".join(name for name in _HISTORY if name in data)
    checks.append(_untold("training", history, _ONCE, is_deterministic=False))
    derived = _derive_limits(config)
    _update(derived, _derive_file(folder))
    ready = None
    if not why:
        ready, why = _build(config, folder, trust_code, observer or Silent())
    if ready is None:
        checks += _check_accuracy(receipt, model)
        checks += _check_spends(receipt, derived, why)
        checks += _check_facts("memory", memory, {}, why)
        checks += _check_facts("model", _numbers(model), {}, why)
        return ReceiptCheck(tuple(checks))
    _update(derived, _derive_spends(ready))
    facts, lost = _derive_model(ready, folder, data.get("steps"))
    _update(derived, lost)
    if not lost:
        checks += _check_accuracy(receipt, model)
    checks += _check_spends(receipt, derived, "nothing here derives it.")
    checks += _check_facts("memory", memory, _derive_memory(ready), "")
    checks += _check_facts("model", _numbers(model), facts, "")
    rates = [list(row) for row in sample_rates(config, ready.checked)]
    checks.append(
        _compare_numbers("learning_rates", data.get("learning_rates"), rates, str)
    )
    return ReceiptCheck(tuple(checks))


def _check_verdicts(receipt: Receipt, data: Mapping[str, Any]) -> Iterator[FigureCheck]:
    stated = [(str(s.get("verdict")), s["name"]) for s in data["spends"]]
    for (claim, name), spend in zip(stated, receipt.spends, strict=True):
        yield _compare(f"{name}: verdict", claim, str(spend.verdict))
    claim = str(data.get("verdict"))
    yield _compare("verdict of the receipt", claim, str(receipt.verdict))


def _check_file(folder: RunFolder, model: Mapping[str, Any]) -> Iterator[FigureCheck]:
    """Compare length and SHA-256, and check the sums inside of the file."""
    names = ("file_name", "file_bytes", "file_sha256")
    stated = {name: model.get(name) for name in names}
    # The folder's own name for the file: a receipt must not name any file to be read.
    if not folder.model.is_file():
        yield from _check_facts("model", stated, {}, f"{folder.model} is missing.")
        return
    facts = {
        "file_name": folder.model.name,
        "file_bytes": folder.model.stat().st_size,
        "file_sha256": file_sha256(folder.model),
    }
    yield from _check_facts("model", stated, facts, "")
    try:
        compress.verify(folder.model)
    except FrugaxError as e:
        yield _compare("model: sums in the file", "whole", f"damaged: {e}")
    else:
        yield _compare("model: sums in the file", "whole", "whole")


def _check_report(
    folder: RunFolder, text: str, theirs: object
) -> Iterator[FigureCheck]:
    """Draw the report again: figures in a page are read by more people than JSON."""
    if not folder.report.is_file():
        return
    version = _mapping(theirs).get("frugax")
    if version != describe_environment()["frugax"]:
        why = f"frugax {version} drew it, and this one draws another page."
        yield _untold(folder.report.name, "-", why)
        return
    try:
        page = report_page(Outcome.from_json(text), watch.read(folder.journal))
    except (FrugaxError, OSError, ValueError, KeyError, TypeError) as e:
        why = f"it cannot be drawn from the receipt and the journal: {e}"
        yield _untold(folder.report.name, "-", why)
        return
    ours, shown = page.splitlines(), folder.report.read_text("utf-8").splitlines()
    wrong = [
        n
        for n, pair in enumerate(itertools.zip_longest(ours, shown), 1)
        if len(set(pair)) > 1
    ]
    finding = "as drawn"
    if wrong:
        finding = f"another line {wrong[0]}"
    yield _compare(folder.report.name, finding, "as drawn")


def _check_rows(receipt: Receipt, config: RunConfig) -> Iterator[FigureCheck]:
    """Compare the rows of a receipt with the budgets of its config.

    A row that is left out would hide a broken budget.
    """
    memory_rows = [s.name for s in receipt.spends if "memory of one step" in s.name]
    expected = list(_derive_limits(config))
    if config.budgets.memory is not None:
        kind = config.budgets.memory.kind
        row = f"{kind} memory of one step"
        expected += [name for name in memory_rows if name.startswith(row)][:1] or [row]
    found = collections.Counter(spend.name for spend in receipt.spends)
    for name in dict.fromkeys([*expected, *found]):
        rows = expected.count(name)
        if found[name] != rows:
            yield _compare(f"{name}: rows", str(found[name]), str(rows))


def _derive_limits(config: RunConfig) -> Parts:
    """The rows that the budgets of a config lead to, with limits it states itself."""
    budgets = config.budgets
    limits: dict[str, float | None] = {}
    if budgets.time is not None:
        limits["time of the whole run"] = budgets.time.seconds
        limits["compiles of the step"] = budgets.time.compiles
    if budgets.overhead is not None:
        limits["time spent watching"] = budgets.overhead.share
    limits["accuracy lost by compression"] = budgets.accuracy_drop
    if budgets.size is not None:
        limits["relative error"] = budgets.size.rel_error
        limits["largest error"] = budgets.size.max_abs
    rows: Parts = {n: {"limit": v} for n, v in limits.items() if v is not None}
    size = budgets.size
    if size and not (size.bytes is size.ratio is size.bits_per_weight is None):
        rows["file"] = {}
    return rows


def _check_accuracy(
    receipt: Receipt, model: Mapping[str, Any]
) -> Iterator[FigureCheck]:
    """Compare the accuracy lost with the two accuracies that it follows from."""
    before, after, noises = (
        _mapping(model.get(k)) for k in ("before", "after", "noise")
    )
    for spend in receipt.spends:
        if spend.name != "accuracy lost by compression" or spend.measured is None:
            continue
        first, last = before.get("accuracy"), after.get("accuracy")
        lost, noise = None, noises.get("accuracy")
        if isinstance(first, float) and isinstance(last, float):
            lost = max(0.0, first - last)
        if model.get("rel_error") == 0:
            noise = 0.0  # the file holds the same weights
        for part, derived in {"measured": lost, "noise": noise}.items():
            stated = getattr(spend, part)
            if not _equal(stated, derived):
                yield _compare(f"{spend.name}: {part}", str(stated), str(derived))


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _derive_file(folder: RunFolder) -> Parts:
    """The measured length of the model file."""
    if not folder.model.is_file():
        return {}
    return {"file": {"measured": folder.model.stat().st_size, "noise": 0.0}}


def _update(derived: Parts, more: Parts) -> None:
    for name, parts in more.items():
        derived.setdefault(name, {}).update(parts)


def _derive_memory(ready: Prepared) -> dict[str, Any]:
    return dataclasses.asdict(memory_facts(ready))


def _derive_spends(ready: Prepared) -> Parts:
    """Limits, predictions and measurements that the repeated steps give."""
    derived: Parts = {
        spend.name: {part: getattr(spend, part) for part in _PARTS}
        for spend in _repeat_steps(ready).spends
    }
    if ready.size is not None:
        tree = ready.checked.bound.file_tree(ready.checked.state)
        limit = ready.size.budget.limit_bytes(
            original_bytes=trees.nbytes(tree),
            weights=sum(leaf.size for leaf in jax.tree.leaves(tree)),
        )
        derived["file"] = {"limit": limit, "predicted": ready.size.file_bytes}
    return derived


def _check_spends(receipt: Receipt, derived: Parts, why: str) -> Iterator[FigureCheck]:
    for spend in receipt.spends:
        parts = derived.get(spend.name, {})
        show = functools.partial(amount, unit=spend.unit)
        for part in _PARTS:
            stated, figure = getattr(spend, part), f"{spend.name}: {part}"
            if part == "unit":
                if parts.get(part, stated) != stated:
                    yield _compare(figure, stated, parts[part])
            elif part not in parts:
                once = spend.name in _MEASURED_ROWS and part != "limit"
                if stated is not None and (part, stated) != ("noise", 0.0):
                    reason = _ONCE if once else why
                    yield _untold(
                        figure, show(stated), reason, is_deterministic=not once
                    )
            # Later batches can need further programs; a count below that of these few
            # steps is a false claim.
            elif figure == "compiles of the step: measured" and (
                stated is not None and stated > parts[part]
            ):
                why_more = f"only the first {_STEPS} steps were repeated."
                yield _untold(figure, show(stated), why_more)
            elif part != "noise" or stated != parts[part]:
                yield _compare_numbers(figure, stated, parts[part], show)


def _check_facts(
    room: str, stated: Mapping[str, Any], derived: Mapping[str, Any], why: str
) -> Iterator[FigureCheck]:
    for name in dict.fromkeys([*derived, *stated]):
        figure, value = f"{room}: {name}", stated.get(name)
        if name in derived:
            yield _compare_numbers(figure, value, derived[name], str)
        elif name.partition(".")[0] in ("before", "rel_error", "noise"):
            weights = "no intact checkpoint with the trained weights is in the folder."
            yield _untold(figure, str(value), weights, is_deterministic=False)
        else:
            yield _untold(figure, str(value), why or "nothing here derives it.")


def _numbers(model: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a run's model that building it again can derive."""
    names = ("summary", "weights", "original_bytes", "rel_error")
    found = {name: model.get(name) for name in names}
    for when in ("before", "after", "noise"):
        for name, value in _mapping(model.get(when)).items():
            found[f"{when}.{name}"] = value
    return found


def _derive_model(
    ready: Prepared, folder: RunFolder, steps: object
) -> tuple[dict[str, Any], Parts]:
    """The model's figures; and the accuracy lost, if its weights are in a checkpoint.

    Empty parts mean that the accuracy lost could not be derived.
    """
    bound, state = ready.checked.bound, ready.checked.state
    tree = bound.file_tree(state)
    facts: dict[str, Any] = {
        "summary": ready.checked.task.summary,
        "weights": sum(leaf.size for leaf in jax.tree.leaves(tree)),
        "original_bytes": trees.nbytes(tree),
    }
    if not folder.model.is_file():
        return facts, {}
    try:
        decoded = read_weights(tree, folder)
        after = evaluate_model(bound, bound.with_file_tree(state, decoded))
        facts |= {f"after.{name}": value for name, value in after.values.items()}
        trained = _restore_trained(folder, state, steps)
        if trained is None:
            return facts, {}
        # An average of the weights takes their place, as before compressing.
        trained = bound.gather_weights(trained)
        before = evaluate_model(bound, bound.whole(trained))
    except FrugaxError:
        return facts, {}  # damaged, or of another model: its own row says so
    tree = bound.file_tree(trained)
    noises = {name: d.noise for name, d in compare_figures(before, after).items()}
    facts["rel_error"] = _relative_error(tree, decoded)
    facts |= {f"before.{name}": value for name, value in before.values.items()}
    facts |= {f"noise.{name}": value for name, value in noises.items()}
    spend = accuracy_spend(0.0, before, after, tree, decoded)
    return facts, {spend.name: {"measured": spend.measured, "noise": spend.noise}}


def _restore_trained(
    folder: RunFolder, like: train.TrainState, steps: object
) -> train.TrainState | None:
    """Restore the state that was compressed, if a checkpoint still has it."""
    for path in (folder.best, folder.checkpoints):
        saved = train.Checkpoints(path)
        if isinstance(steps, int) and steps in saved.steps():
            return saved.restore(like, step=steps)[0]
    return None


def _relative_error(original: PyTree, decoded: PyTree) -> float:
    """Return ||decoded - original|| / ||original|| over all finite float arrays."""
    error = energy = 0.0
    for pair in zip(jax.tree.leaves(original), jax.tree.leaves(decoded), strict=True):
        if not jnp.issubdtype(pair[0].dtype, jnp.floating):
            continue
        a, b = (np.asarray(x, np.float64) for x in pair)
        if np.isfinite(a).all():
            error, energy = error + ((a - b) ** 2).sum(), energy + (a**2).sum()
    return math.sqrt(error / energy) if error else 0.0


def _read_config(path: Path, data: object, why: str) -> RunConfig | None:
    """The config of a receipt; None if another version wrote keys unknown here."""
    try:
        return from_plain(RunConfig, data, at="config")
    except ValueError as e:
        if why:
            return None
        raise ConfigError(f"{path}: {e}") from e


def _explain_other_program(theirs: object) -> str:
    """Why the same program is not compiled here; empty if it is."""
    if not isinstance(theirs, dict):
        return "the receipt does not say with which versions it was made."
    ours = describe_environment()
    differing = [
        f"{name} {theirs.get(name)} there and {ours[name]} here"
        for name in _SAME_PROGRAM
        if theirs.get(name) != ours[name]
    ]
    if differing:
        return f"another program is compiled here: {'; '.join(differing)}."
    return ""


def _build(
    config: RunConfig,
    folder: RunFolder,
    trust_code: bool,  # noqa: FBT001
    observer: Observer,
) -> tuple[Prepared | None, str]:
    """Build the run's step again, or say why that is not possible."""
    if config.task and not trust_code:
        return None, (
            f"the config names the function {config.task}, which was not executed; "
            "--trust-code imports it."
        )
    config_folder = folder.path
    if folder.origin.is_file():
        config_folder = folder.config_folder()
    train.use_compile_cache()
    ledger = Ledger()
    try:
        checked = check_task(config, config_folder, ledger, observer)
        return prepare(config, checked, ledger, observer), ""
    except FrugaxError as e:
        return None, f"the step cannot be built here: {e}"


def _repeat_steps(ready: Prepared) -> Receipt:
    # A copy is stepped: the step donates its state, and the weights are needed again.
    state = jax.tree.map(
        lambda x: x.copy() if isinstance(x, jax.Array) else x, ready.checked.state
    )
    for i in range(_STEPS):
        state, _ = ready.step(state, ready.checked.batch_of(i))
    return ready.step.report()


def _compare_numbers(
    figure: str, stated: Any, derived: Any, show: Callable[[Any], str]
) -> FigureCheck:
    texts = show(stated), show(derived)
    if _equal(stated, derived):
        return FigureCheck(
            figure=figure, stated=texts[0], derived=texts[1], finding="same"
        )
    # Rounded to four digits, two different counts of bytes can look alike.
    if texts[0] == texts[1]:
        texts = str(stated), str(derived)
    return FigureCheck(
        figure=figure, stated=texts[0], derived=texts[1], finding="differs"
    )


def _equal(stated: Any, derived: Any) -> bool:
    if isinstance(stated, bool) != isinstance(derived, bool):
        return False  # True == 1
    if isinstance(derived, list):
        rows = cast("list[Any]", derived)
        if not isinstance(stated, list) or len(cast("list[Any]", stated)) != len(rows):
            return False
        return all(map(_equal, cast("list[Any]", stated), rows))
    floats = isinstance(stated, int | float) and isinstance(derived, float)
    if floats and not float(derived).is_integer():
        return math.isclose(stated, derived, rel_tol=_REL_TOLERANCE)
    return stated == derived


def _compare(figure: str, stated: str, derived: str) -> FigureCheck:
    finding: Finding = "same"
    if stated != derived:
        finding = "differs"
    return FigureCheck(figure=figure, stated=stated, derived=derived, finding=finding)


def _untold(
    figure: str, stated: str, why: str, *, is_deterministic: bool = True
) -> FigureCheck:
    return FigureCheck(
        figure=figure,
        stated=stated,
        derived="-",
        finding="cannot tell",
        reason=why,
        is_deterministic=is_deterministic,
    )
