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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax import compress, train, trees, watch
from frugax.budget import Receipt, SizeBudget, Spend, Verdict, amount, from_plain
from frugax.errors import ConfigError, FrugaxError
from frugax.trees import PyTree

from ._config import RunConfig
from ._environment import describe_environment
from ._finish import (
    TIME_SOURCE,
    accuracy_spend,
    compare_figures,
    memory_facts,
    sample_rates,
)
from ._folder import RunFolder, file_sha256
from ._ledger import Ledger
from ._observer import Observer, Silent
from ._outcome import Outcome
from ._page import report_page
from ._prepare import Prepared, check_task, prepare
from ._receipt_check import (
    WHOLE_VERDICT,
    FigureCheck,
    ReceiptCheck,
    cannot_tell,
    compare,
    compare_numbers,
    is_equal,
)
from ._receipt_fields import (
    MEASURED_ONCE,
    SAME_PROGRAM,
    WRITTEN_ONCE,
    as_mapping,
    check_config_file,
    check_evaluations,
    check_keys,
    check_training,
    find_checkpoint,
)
from ._task_checks import evaluate_model
from ._trained import read_weights

# Steps that are repeated to count compiles: the second one shows whether the state that
# a step returns has the types that it accepts.
_STEPS = 3

_NUMBERS = ("limit", "predicted", "measured", "noise")
_TEXTS = ("unit", "source", "problems")
_NO_WEIGHTS = "no intact checkpoint with the trained weights is in the folder."
# Rows whose expense nobody can derive; their limits follow from the config.
_MEASURED_ROWS = ("time of the whole run", "time spent watching")

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
    figures = tuple(
        _check_figures(path, text, data, receipt, trust_code, observer or Silent())
    )
    return ReceiptCheck((*_check_verdicts(receipt, data, figures), *figures))


def _check_figures(
    path: Path,
    text: str,
    data: Mapping[str, Any],
    receipt: Receipt,
    trust_code: bool,  # noqa: FBT001
    observer: Observer,
) -> Iterator[FigureCheck]:
    """Compare every figure of a receipt except for its verdicts."""
    folder = RunFolder(path.parent)
    if not isinstance(data.get("config"), dict):
        why = "the receipt has no config, from which its program could be built again."
        yield cannot_tell("config", "-", why)
        yield from _check_spends(receipt, {}, why)
        return
    model, memory = data.get("model"), data.get("memory")
    if not isinstance(model, dict) or not isinstance(memory, dict):
        raise ConfigError(f"{path}: a run's receipt has the keys model and memory.")
    why = _explain_other_program(data.get("environment"))
    config = _read_config(path, data["config"], why)
    yield from check_keys(data, why)
    yield from _check_file(folder, model)
    yield from _check_report(folder, text, data.get("environment"))
    if config is None:
        yield from _check_spends(receipt, _derive_file(folder), why)
        return
    yield from check_config_file(folder, config)
    yield from _check_rows(receipt, config)
    yield from check_training(folder, config, data)
    derived = _derive_limits(config)
    _update(derived, _derive_file(folder))
    ready = None
    if not why:
        ready, why = _build(config, folder, trust_code, observer)
    if ready is None:
        yield from _check_accuracy(receipt, model)
        yield from _check_spends(receipt, derived, why)
        yield from _check_facts("memory", memory, {}, why)
        yield from _check_facts("model", _list_figures(model), {}, why)
        for name in ("evaluations", "learning_rates"):
            yield cannot_tell(name, "-", why)
        return
    _update(derived, _derive_spends(ready))
    found = _derive_model(ready, folder, config)
    _update(derived, found.rows)
    if not found.rows:
        yield from _check_accuracy(receipt, model)
    yield from _check_spends(receipt, derived, _NO_WEIGHTS)
    yield from _check_facts("memory", memory, _derive_memory(ready), "")
    stated = _list_figures(model)
    # Below the table are lines about the search, which is not repeated.
    lines = str(stated["tensors"]).splitlines()
    height = str(found.facts.get("tensors", stated["tensors"])).count("\n") + 1
    stated["tensors"] = "\n".join(lines[:height])
    yield from _check_facts("model", stated, found.facts, _NO_WEIGHTS)
    if lines[height:]:
        name = "model: tensors, below the table"
        yield cannot_tell(name, "-", WRITTEN_ONCE, is_deterministic=False)
    yield from check_evaluations(data, found.evaluations)
    rates = [list(row) for row in sample_rates(config, ready.checked)]
    yield compare_numbers("learning_rates", data.get("learning_rates"), rates, str)


def _check_verdicts(
    receipt: Receipt, data: Mapping[str, Any], figures: Sequence[FigureCheck]
) -> Iterator[FigureCheck]:
    """Compare verdicts with the numbers; those of underived numbers are not derived."""
    untold = {c.figure: c for c in figures if c.finding == "cannot tell"}
    stated = [(str(s.get("verdict")), s["name"]) for s in data["spends"]]
    open_rows: list[Spend] = []
    for (claim, name), spend in zip(stated, receipt.spends, strict=True):
        figure = f"{name}: verdict"
        names = (f"{name}: {part}" for part in ("limit", "measured", "noise"))
        needs = [untold[n] for n in names if n in untold]
        if claim != spend.verdict or not needs:
            yield compare(figure, claim, str(spend.verdict))
            continue
        why = "it rests on figures of the receipt that were not derived."
        is_once = not any(check.is_deterministic for check in needs)
        open_rows.append(spend)
        yield cannot_tell(figure, claim, why, is_deterministic=not is_once)
    claim, verdict = str(data.get("verdict")), receipt.verdict
    known = Receipt(tuple(s for s in receipt.spends if s not in open_rows))
    # One budget that is known to be broken decides, whatever the others are.
    if claim != verdict or not open_rows or known.verdict is Verdict.BROKEN:
        yield compare(WHOLE_VERDICT, claim, str(verdict))
    else:
        why = "a budget's verdict was not derived."
        yield cannot_tell(WHOLE_VERDICT, claim, why, is_deterministic=False)


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
        yield compare("model: sums in the file", "whole", f"damaged: {e}")
    else:
        yield compare("model: sums in the file", "whole", "whole")


def _check_report(
    folder: RunFolder, text: str, theirs: object
) -> Iterator[FigureCheck]:
    """Draw the report again: figures in a page are read by more people than JSON."""
    if not folder.report.is_file():
        return
    version = as_mapping(theirs).get("frugax")
    if version != describe_environment()["frugax"]:
        why = f"frugax {version} drew it, and this one draws another page."
        yield cannot_tell(folder.report.name, "-", why)
        return
    try:
        page = report_page(Outcome.from_json(text), watch.read(folder.journal))
    except (FrugaxError, OSError, ValueError, KeyError, TypeError) as e:
        why = f"it cannot be drawn from the receipt and the journal: {e}"
        yield cannot_tell(folder.report.name, "-", why)
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
    yield compare(folder.report.name, finding, "as drawn")


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
            yield compare(f"{name}: rows", str(found[name]), str(rows))


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
        rows["file"] = {"unit": "bytes", "problems": ""}
    # Of rows that are measured once, all but the figures themselves.
    more: Parts = {
        "time of the whole run": {"noise": 0.0, "unit": "seconds", "problems": ""},
        "time spent watching": {"predicted": None, "unit": "share"},
        "relative error": {"noise": 0.0, "unit": "", "problems": ""},
        "largest error": {"noise": 0.0, "unit": "", "problems": ""},
    }
    more["time of the whole run"]["source"] = TIME_SOURCE
    for name, parts in more.items():
        if name in rows:
            rows[name] |= parts
    return rows


def _check_accuracy(
    receipt: Receipt, model: Mapping[str, Any]
) -> Iterator[FigureCheck]:
    """Compare the accuracy lost with the two accuracies that it follows from."""
    before, after, noises = (
        as_mapping(model.get(k)) for k in ("before", "after", "noise")
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
            if not is_equal(stated, derived):
                yield compare(f"{spend.name}: {part}", str(stated), str(derived))


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
        spend.name: {part: getattr(spend, part) for part in (*_NUMBERS, *_TEXTS)}
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
        parts = dict(derived.get(spend.name, {}))
        reason, counted = why, parts.get("measured")
        # Later batches can need further programs; a count below that of these few
        # steps is a false claim.
        is_compiles = spend.name == "compiles of the step"
        if is_compiles and counted is not None and (spend.measured or 0) > counted:
            del parts["measured"]
            reason = f"only the first {_STEPS} steps were repeated."
        for part in (*_NUMBERS, *_TEXTS):
            stated, figure = getattr(spend, part), f"{spend.name}: {part}"
            show = functools.partial(amount, unit=spend.unit)
            if part in _TEXTS:
                show = str
            # What agrees is listed if it is a figure of its own.
            is_minor = stated is None or part in (*_TEXTS, "noise")
            if part in parts and is_minor:
                if stated != parts[part]:
                    yield compare_numbers(figure, stated, parts[part], show)
            elif part in parts:
                yield compare_numbers(figure, stated, parts[part], show)
            elif part in _TEXTS:
                if stated and part != "unit":
                    yield cannot_tell(
                        figure, stated, WRITTEN_ONCE, is_deterministic=False
                    )
            elif stated is not None and (part, stated) != ("noise", 0.0):
                once = _is_once(spend.name, part)
                yield cannot_tell(
                    figure,
                    show(stated),
                    MEASURED_ONCE if once else reason,
                    is_deterministic=not once,
                )


def _is_once(row: str, part: str) -> bool:
    """Whether nobody can derive a number of a row."""
    if row in ("relative error", "largest error"):
        return part == "predicted"  # which of two plans predicted it is not known
    return row in _MEASURED_ROWS and part != "limit"


def _check_facts(
    package: str, stated: Mapping[str, Any], derived: Mapping[str, Any], why: str
) -> Iterator[FigureCheck]:
    for name in dict.fromkeys([*derived, *stated]):
        figure, value = f"{package}: {name}", stated.get(name)
        if name in derived:
            yield compare_numbers(figure, value, derived[name], str)
        else:
            yield cannot_tell(figure, str(value), why)


def _list_figures(model: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a run's model that building it again can derive."""
    names = ("summary", "weights", "original_bytes", "rel_error", "tensors")
    found = {name: model.get(name) for name in names}
    for when in ("before", "after", "noise"):
        for name, value in as_mapping(model.get(when)).items():
            found[f"{when}.{name}"] = value
    return found


@dataclasses.dataclass
class _Derived:
    """What building a run's model again derives.

    Attributes:
        facts: figures of the model.
        rows: parts of the receipt's rows.
        evaluations: figures by step.
    """

    facts: dict[str, Any]
    evaluations: dict[int, dict[str, float]]
    rows: Parts = dataclasses.field(default_factory=dict)


def _derive_model(ready: Prepared, folder: RunFolder, config: RunConfig) -> _Derived:
    """Derive the model's figures, all of them if its weights are in a checkpoint."""
    bound, state = ready.checked.bound, ready.checked.state
    tree = bound.file_tree(state)
    facts: dict[str, Any] = {
        "summary": ready.checked.task.summary,
        "weights": sum(leaf.size for leaf in jax.tree.leaves(tree)),
        "original_bytes": trees.nbytes(tree),
    }
    found = _Derived(facts, {0: ready.checked.evaluator(state).values})
    if not folder.model.is_file():
        return found
    try:
        decoded = read_weights(tree, folder)
        after = evaluate_model(bound, bound.with_file_tree(state, decoded))
        facts |= {f"after.{name}": value for name, value in after.values.items()}
        kept = find_checkpoint(folder)
        if kept is None:
            return found
        trained = train.Checkpoints(kept[0]).restore(state, step=kept[1])[0]
        if int(trained.step) != kept[1]:
            return found  # a folder that was renamed
        # An average of the weights takes their place, as before compressing.
        trained = bound.gather_weights(trained)
        before = evaluate_model(bound, bound.whole(trained))
        tree = bound.file_tree(trained)
        table, error, largest = _measure_file(folder, config, tree, decoded)
    except (FrugaxError, ValueError):
        return found  # damaged, or of another model: its own row says so
    noises = {name: d.noise for name, d in compare_figures(before, after).items()}
    facts |= {"rel_error": error, "tensors": table}
    facts |= {f"before.{name}": value for name, value in before.values.items()}
    facts |= {f"noise.{name}": value for name, value in noises.items()}
    found.evaluations[kept[1]] = before.values
    found.rows["relative error"] = {"measured": error}
    found.rows["largest error"] = {"measured": largest}
    limit = config.budgets.accuracy_drop
    if limit is not None:
        spend = accuracy_spend(limit, before, after, tree, decoded)
        found.rows[spend.name] = {
            part: getattr(spend, part) for part in (*_NUMBERS, *_TEXTS)
        }
    return found


def _measure_file(
    folder: RunFolder, config: RunConfig, tree: PyTree, decoded: PyTree
) -> tuple[str, float, float]:
    """Measure a model file against the trained weights.

    Returns:
        The table of tensors with the line about the file, the relative error, and the
        largest error.
    """
    errors = compress.verify(folder.model, against=tree).tensors
    with compress.open(folder.model) as file:
        records = file.header.tensors
    rows = tuple(
        compress.TensorReport.of(
            record, rel_error=found.rel_error or 0.0, max_abs=found.max_abs or 0.0
        )
        for record, found in zip(records, errors, strict=True)
    )
    report = compress.CompressReport(
        budget=config.budgets.size or SizeBudget(rel_error=0.0),
        receipt=Receipt(()),
        tensors=rows,
        file_bytes=folder.model.stat().st_size,
        original_bytes=trees.nbytes(tree),
        rel_error=_relative_error(tree, decoded),
        max_abs=max((row.max_abs for row in rows), default=0.0),
    )
    return report.tensor_summary, report.rel_error, report.max_abs


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
        for name in SAME_PROGRAM
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
