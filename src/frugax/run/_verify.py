"""`frugax verify-receipt`: derive every deterministic figure of a run's receipt again.

Bytes, flops, compiles, file lengths and checksums follow from the config, the versions
and the files of the run. They are derived as a receipt of their own, and the two are
compared key by key. Times do not follow from anything, so they stay unconfirmed.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax import compress, train, trees, watch
from frugax.budget import (
    Receipt,
    SizeBudget,
    Spend,
    SpendName,
    Verdict,
    from_plain,
    to_plain,
)
from frugax.errors import ConfigError, FrugaxError
from frugax.trees import PyTree

from ._config import RunConfig, load_config
from ._context import RunContext
from ._environment import describe_environment
from ._finish import (
    TIME_SOURCE,
    accuracy_spend,
    compare_figures,
    memory_facts,
    sample_rates,
    size_receipt,
)
from ._folder import RunFolder, file_sha256
from ._ledger import Ledger
from ._observer import Observer
from ._outcome import Outcome
from ._page import report_page
from ._prepare import Prepared, check_task, prepare
from ._receipt_check import FigureCheck, ReceiptCheck, cannot_tell, compare
from ._receipt_figures import (
    NOT_DERIVABLE,
    OF_THE_WEIGHTS,
    REQUIRED,
    is_below,
    list_figures,
)
from ._task_checks import evaluate_model
from ._trained import read_weights

# Steps that are repeated to count compiles: the second one shows whether the state that
# a step returns has the types that it accepts.
_STEPS = 3

# Another version of these, or another device, compiles another program.
_SAME_PROGRAM = ("frugax", "jax", "jaxlib", "device")
_NO_CONFIG = "no config.yaml is in the folder to compare it with."
_NO_WEIGHTS = "no intact checkpoint with the trained weights is in the folder."


@dataclasses.dataclass
class Derivation:
    """The figures of a receipt that follow from the files of its run.

    Attributes:
        values: the derived figures, by key.
        choices: the values that a figure can have, by key, where a few are possible.
        gaps: why the figures below a key are not derived here, by that key; the first
            one that fits holds, and the empty key stands for all.
        problems: faults of files of the run, by their names.
        required: keys of figures that nobody can derive and every receipt has.
    """

    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    choices: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    gaps: dict[str, str] = dataclasses.field(default_factory=dict)
    problems: dict[str, str] = dataclasses.field(default_factory=dict)
    required: tuple[str, ...] = ()

    def add(self, at: str, value: Any) -> None:
        """Add a figure, or those of a mapping or dataclass below `at`."""
        self.values |= list_figures({at: to_plain(value)})

    def add_spend(self, spend: Spend) -> None:
        """Add a row of the receipt, except for its verdict."""
        row = to_plain(spend)
        self.add(f"spends.{row.pop('name')}", row)


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
    data: Any = None
    try:
        text = path.read_text()
        data = _read_strictly(text)
        receipt = Receipt.from_json(text)
    except (OSError, ValueError, RecursionError) as e:
        cause = str(e)
        if isinstance(data, dict) and "functions" in data:
            cause = (
                "it is one of frugax exec, which measured a script as it ran: to "
                "compare, run the script again"
            )
        raise ConfigError(f"{path}: cannot be read as a receipt: {cause}") from e
    if isinstance(data.get("config"), dict) and not (
        isinstance(data.get("model"), dict) and isinstance(data.get("memory"), dict)
    ):
        raise ConfigError(f"{path}: a run's receipt has the keys model and memory.")
    folder = RunFolder(path.parent)
    derived = derive(
        folder, data, trust_code=trust_code, observer=observer or Observer()
    )
    return compare_receipt(folder, text, data, receipt, derived)


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


def compare_receipt(
    folder: RunFolder,
    text: str,
    data: Mapping[str, Any],
    receipt: Receipt,
    derived: Derivation,
) -> ReceiptCheck:
    """Compare every figure of a receipt with a derivation."""
    checks = [*_check_figures(list_figures(data), derived)]
    underived = [c for c in checks if c.finding == "cannot tell"]
    checks = [*_check_verdicts(data, receipt, underived), *checks]
    if "" not in derived.gaps and not any(c.finding == "differs" for c in checks):
        checks += _check_form(text)
    checks += _check_report(folder, text, derived.gaps.get("", ""))
    return ReceiptCheck(tuple(checks))


def _check_figures(
    figures: Mapping[str, Any], derived: Derivation
) -> Iterator[FigureCheck]:
    """Compare every figure but the verdicts, and those that are missing."""
    for name, problem in derived.problems.items():
        yield compare(name, problem, "whole")
    expected = {**derived.values, **dict.fromkeys(derived.required)}
    lonely: list[str] = []  # in the receipt only, or derived only
    for key in dict.fromkeys([*figures, *expected]):
        if _is_verdict(key):
            continue
        stated = figures.get(key)
        gap = _find_reason(derived.gaps, key)
        once = _find_reason(NOT_DERIVABLE, key)
        if key not in figures:
            lonely.append(_shorten_key(key, figures))
        elif key in derived.values:
            yield compare(key, stated, derived.values[key])
        elif key in derived.choices and stated not in derived.choices[key]:
            yield compare(key, stated, " or ".join(derived.choices[key]))
        elif once is not None:
            yield cannot_tell(key, stated, once, is_deterministic=False)
        elif gap is not None:
            yield cannot_tell(key, stated, gap)
        else:
            lonely.append(_shorten_key(key, expected))
    for key in dict.fromkeys(lonely):
        if any(is_below(k, key) for k in figures):
            yield compare(key, "present", "no such figure")
        else:
            yield compare(key, "missing", "a figure of this run")


def _shorten_key(key: str, others: Mapping[str, Any]) -> str:
    """Return the start of a key that nothing in `others` has."""
    parts = key.split(".")
    starts = (".".join(parts[:n]) for n in range(1, len(parts)))
    return next((s for s in starts if not any(is_below(k, s) for k in others)), key)


def _find_reason(reasons: Mapping[str, str], key: str) -> str | None:
    return next((why for at, why in reasons.items() if is_below(key, at)), None)


def _is_verdict(key: str) -> bool:
    return key == "verdict" or (key.startswith("spends.") and key.endswith(".verdict"))


def _check_verdicts(
    data: Mapping[str, Any], receipt: Receipt, underived: list[FigureCheck]
) -> Iterator[FigureCheck]:
    """Compare verdicts with the numbers; those of underived numbers are not derived."""
    open_rows: list[Spend] = []
    claims = [str(row.get("verdict", "missing")) for row in data["spends"]]
    for claim, spend in zip(claims, receipt.spends, strict=True):
        at = f"spends.{spend.name}"
        needed = [f"{at}.{part}" for part in ("limit", "measured", "noise")]
        needs = [c for c in underived if c.figure in needed]
        if claim != spend.verdict or not needs:
            yield compare(f"{at}.verdict", claim, str(spend.verdict))
            continue
        open_rows.append(spend)
        why = "it rests on figures of the receipt that were not derived."
        is_once = not any(check.is_deterministic for check in needs)
        yield cannot_tell(f"{at}.verdict", claim, why, is_deterministic=not is_once)
    claim = str(data.get("verdict", "missing"))
    known = Receipt(tuple(s for s in receipt.spends if s not in open_rows))
    # One budget that is known to be broken decides, whatever the others are.
    is_known = not open_rows or known.verdict is Verdict.BROKEN
    if claim != receipt.verdict or is_known:
        yield compare("verdict", claim, str(receipt.verdict))
    else:
        why = "a budget's verdict was not derived."
        yield cannot_tell("verdict", claim, why, is_deterministic=False)


def _check_form(text: str) -> Iterator[FigureCheck]:
    """Find figures of another type, which a derivation would not miss."""
    try:
        Outcome.from_json(text)
    except (ValueError, KeyError, TypeError) as e:
        yield compare("receipt.json", str(e), "figures of their types")


def _check_report(folder: RunFolder, text: str, why: str) -> Iterator[FigureCheck]:
    """Draw the report again: figures in a page are read by more people than JSON."""
    name = folder.report.name
    if why or not folder.config.is_file():
        if folder.report.is_file():
            yield cannot_tell(name, "-", why or _NO_CONFIG)
        return
    if not folder.report.is_file():
        yield cannot_tell(name, "-", f"no {name} is in the folder.")
        return
    try:
        page = report_page(Outcome.from_json(text), watch.read(folder.journal))
    except (FrugaxError, OSError, ValueError, KeyError, TypeError) as e:
        why = f"it cannot be drawn from the receipt and the journal: {e}"
        yield cannot_tell(name, "-", why)
        return
    stated = "as drawn"
    if page != folder.report.read_text("utf-8"):
        stated = "another page than this receipt gives"
    yield compare(name, stated, "as drawn")


def derive(
    folder: RunFolder,
    data: Mapping[str, Any],
    *,
    trust_code: bool,
    observer: Observer,
) -> Derivation:
    """Derive the figures of a run's receipt from the other files of its folder.

    Args:
        folder: of the run.
        data: the receipt, for its versions, and for its config where no file has it.
        trust_code: whether to import the function that the config names.
        observer: receives progress.

    Raises:
        ConfigError: there is no config.yaml, and the receipt has no config either.
    """
    found = Derivation()
    if not isinstance(data.get("config"), dict):
        found.gaps[""] = (
            "the receipt has no config, from which its program could be built again."
        )
        return found
    found.required = REQUIRED
    why = _explain_other_program(data.get("environment"))
    config = _derive_config(found, folder, data["config"], why)
    _derive_file(found, folder)
    if config is None:
        found.gaps[""] = why or _NO_CONFIG
        return found
    rows = _derive_limits(found, config)
    if SpendName.FILE in rows and (length := found.values.get("model.file_bytes")):
        found.add(f"spends.{SpendName.FILE}.measured", length)
    _derive_history(found, folder, config)
    if why:
        found.gaps[""] = why
        return found
    ours = describe_environment()
    found.add("environment", {name: ours[name] for name in _SAME_PROGRAM})
    ready, why = _build(config, folder, trust_code, observer)
    if ready is None:
        parts = ("memory", "model", "evaluations", "learning_rates")
        found.gaps |= dict.fromkeys(parts, why)
        found.gaps |= {f"spends.{row}": why for row in rows}
        return found
    _derive_weights(found, folder, config, ready)
    _derive_program(found, ready)
    return found


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


def _derive_config(
    found: Derivation, folder: RunFolder, stated: object, why: str
) -> RunConfig | None:
    """Read the config of the run; None if it cannot be read here.

    Raises:
        ConfigError: the receipt's own config, in the place of a file, is not one.
    """
    if folder.config.is_file():
        try:
            config = load_config(folder.config)
        except ConfigError as e:
            if not why:
                found.problems[folder.config.name] = str(e)
            return None
        found.add("config", config)
        return config
    found.gaps["config"] = _NO_CONFIG
    try:
        return from_plain(RunConfig, stated, at="config")
    except ValueError as e:
        if why:
            return None  # another version wrote keys that are unknown here
        raise ConfigError(f"{folder.receipt}: {e}") from e


def _derive_file(found: Derivation, folder: RunFolder) -> None:
    """Derive length and SHA-256 of the model file, and check the sums inside of it."""
    if not folder.model.is_file():
        for name in ("file_name", "file_bytes", "file_sha256"):
            found.gaps[f"model.{name}"] = f"{folder.model} is missing."
        return
    # The folder's own name for the file: a receipt must not name any file to be read.
    found.add("model.file_name", folder.model.name)
    found.add("model.file_bytes", folder.model.stat().st_size)
    found.add("model.file_sha256", file_sha256(folder.model))
    try:
        compress.verify(folder.model)
    except FrugaxError as e:
        found.problems[folder.model.name] = f"damaged: {e}"


def _derive_limits(found: Derivation, config: RunConfig) -> list[str]:
    """Derive the limits that a config states itself; name the rows it leads to."""
    budgets = config.budgets
    rows: dict[str, Any] = {}
    if budgets.time is not None:
        rows[SpendName.TIME] = budgets.time.seconds
        rows[SpendName.COMPILES] = budgets.time.compiles
    if budgets.overhead is not None:
        rows[SpendName.WATCHING] = budgets.overhead.share
    rows[SpendName.ACCURACY] = budgets.accuracy_drop
    size = budgets.size
    if size is not None:
        rows[SpendName.REL_ERROR] = size.rel_error
        rows[SpendName.MAX_ABS] = size.max_abs
    rows = {name: limit for name, limit in rows.items() if limit is not None}
    for name, limit in rows.items():
        found.add(f"spends.{name}.limit", limit)
    # Of rows that are measured once, all but the figures themselves.
    known: dict[str, dict[str, Any]] = {
        SpendName.TIME: {
            "noise": 0.0, "unit": "seconds", "problems": "", "source": TIME_SOURCE,
        },
        SpendName.WATCHING: {"predicted": None, "unit": "share"},
    }  # fmt: skip
    for name in known.keys() & rows.keys():
        found.add(f"spends.{name}", known[name])
    names = [*rows]
    if size and not (size.bytes is size.ratio is size.bits_per_weight is None):
        names.append(SpendName.FILE)
    if budgets.memory is not None:
        kind = budgets.memory.kind
        # On each device with a layout.
        names += [SpendName.step_memory(kind, each_device=n) for n in (False, True)]
    return names


def _derive_history(found: Derivation, folder: RunFolder, config: RunConfig) -> None:
    """Derive steps, evaluations and versions from the records of the run."""
    try:
        fingerprints = folder.read_origin("fingerprints") or {}
    except ConfigError as e:
        found.problems[folder.origin.name] = str(e)
    else:
        found.add("environment", fingerprints.get("versions", {}))
    kept = _find_checkpoint(folder)
    checkpoints = train.Checkpoints(folder.checkpoints)
    done = checkpoints.latest_step()
    if kept is None:
        found.gaps["steps"] = "no checkpoint is in the folder."
    else:
        found.add("steps", kept[1])
    if done is None:
        for key in ("stopped_because", "evaluations"):
            found.gaps[key] = "no checkpoint is in the folder."
        return
    for plain in checkpoints.read_extra(done).get("evaluations", ()):
        evaluation = train.Evaluation.from_plain(plain)
        found.add(f"evaluations.{evaluation.step}", evaluation.values)
    settings, limit = config.train, config.budgets.time
    reasons = []
    if done == settings.steps:
        reasons.append("steps")
    elif limit is not None and limit.seconds is not None:
        reasons.append("time")
    if settings.early_stop is not None:
        reasons.append("early")
    if len(reasons) == 1:
        found.add("stopped_because", reasons[0])
    else:
        found.choices["stopped_because"] = reasons


def _find_checkpoint(folder: RunFolder) -> tuple[Path, int] | None:
    """Return folder and step of the state that was compressed; None if it is gone."""
    # Of a run that keeps the best state, that one is compressed, otherwise the last.
    for path in (folder.best, folder.checkpoints):
        if steps := train.Checkpoints(path).steps():
            return path, steps[-1]
    return None


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
    run = RunContext(
        config=config,
        config_folder=config_folder,
        ledger=Ledger(),
        observer=observer,
    )
    try:
        return prepare(check_task(run)), ""
    except FrugaxError as e:
        return None, f"the step cannot be built here: {e}"


def _derive_program(found: Derivation, ready: Prepared) -> None:
    """Derive bytes, flops, compiles and learning rates from the compiled step."""
    steps = found.values.get("steps", _STEPS)
    for spend in _repeat_steps(ready, steps).spends:
        found.add_spend(spend)
    found.add("memory", memory_facts(ready))
    rates = sample_rates(ready.checked)
    found.add("learning_rates", {str(step): rate for step, rate in rates})


def _repeat_steps(ready: Prepared, steps: int) -> Receipt:
    """Take a few steps, and compile for the shapes of all other batches."""
    checked = ready.checked
    # A copy is stepped: the step donates its state, and the weights are needed again.
    state = jax.tree.map(
        lambda x: x.copy() if isinstance(x, jax.Array) else x, checked.state
    )
    for i in range(_STEPS):
        state, _ = ready.step(state, checked.batch_of(i))
    if checked.run.config.task:  # the batches of built-in data all have one shape
        for i in range(_STEPS, steps):
            ready.step.prepare(state, checked.batch_of(i))
    return ready.step.report()


def _derive_weights(
    found: Derivation, folder: RunFolder, config: RunConfig, ready: Prepared
) -> None:
    """Derive the model's figures, all of them if its weights are in a checkpoint."""
    bound, state = ready.checked.bound, ready.checked.state
    tree = bound.file_tree(state)
    weights = sum(leaf.size for leaf in jax.tree.leaves(tree))
    found.add("model.summary", ready.checked.task.summary)
    found.add("model.weights", weights)
    found.add("model.original_bytes", trees.nbytes(tree))
    if ready.checked.task.evaluate is None:
        found.add("evaluations", [])
    else:
        found.add("evaluations.0", ready.checked.evaluator(state).values)
    try:
        _derive_trained(found, folder, config, ready)
    except (FrugaxError, ValueError, OSError):
        pass  # damaged, or of another model: its own figure says so
    else:
        return
    for key in OF_THE_WEIGHTS:
        found.gaps.setdefault(key, _NO_WEIGHTS)


def _derive_trained(
    found: Derivation, folder: RunFolder, config: RunConfig, ready: Prepared
) -> None:
    """Derive the figures of the trained weights, and of those in the model file.

    Raises:
        ConfigError: one of the two is missing, or of another model.
        CorruptFileError: one of the two is damaged.
    """
    bound, state = ready.checked.bound, ready.checked.state
    decoded = read_weights(bound.file_tree(state), folder)
    after = evaluate_model(bound, bound.with_file_tree(state, decoded))
    found.add("model.after", after.values)
    kept = _find_checkpoint(folder)
    if kept is None:
        raise ConfigError(_NO_WEIGHTS)
    trained = _restore(kept[0], ready)
    before = evaluate_model(bound, bound.whole(trained))
    tree = bound.file_tree(trained)
    report = _measure_file(folder, config, tree, decoded)
    noises = {name: d.noise for name, d in compare_figures(before, after).items()}
    found.add("model.rel_error", report.rel_error)
    found.add("model.tensors", report.tensor_summary)
    found.add("model.before", before.values)
    found.add("model.noise", noises)
    if ready.checked.task.evaluate is not None:
        found.add(f"evaluations.{kept[1]}", before.values)
    if kept[0] != folder.checkpoints:  # the best state is one of an earlier step
        last = _restore(folder.checkpoints, ready)
        values = evaluate_model(bound, bound.whole(last)).values
        found.add(f"evaluations.{int(last.step)}", values)
    if ready.size is not None:
        for spend in size_receipt(report, ready.size).spends:
            found.add_spend(spend)
    limit = config.budgets.accuracy_drop
    if limit is not None:
        found.add_spend(accuracy_spend(limit, before, after, tree, decoded))


def _restore(path: Path, ready: Prepared) -> train.TrainState:
    """Restore the last state of a folder, with the weights that would be compressed.

    Raises:
        ConfigError: it is a state of another step than its folder says.
        CheckpointError: it is damaged.
    """
    checkpoints = train.Checkpoints(path)
    step = checkpoints.steps()[-1]
    state = checkpoints.restore(ready.checked.state, step=step)[0]
    if int(state.step) != step:
        raise ConfigError(_NO_WEIGHTS)
    # An average of the weights takes their place, as before compressing.
    return ready.checked.bound.gather_weights(state)


def _measure_file(
    folder: RunFolder, config: RunConfig, tree: PyTree, decoded: PyTree
) -> compress.CompressReport:
    """Measure a model file against the trained weights."""
    errors = compress.verify(folder.model, against=tree).tensors
    with compress.open(folder.model) as file:
        records = file.header.tensors
    rows = tuple(
        compress.TensorReport.of(
            record, rel_error=found.rel_error or 0.0, max_abs=found.max_abs or 0.0
        )
        for record, found in zip(records, errors, strict=True)
    )
    return compress.CompressReport(
        budget=config.budgets.size or SizeBudget(rel_error=0.0),
        receipt=Receipt(()),
        tensors=rows,
        file_bytes=folder.model.stat().st_size,
        original_bytes=sum(r.nbytes for r in records if not r.tied),
        rel_error=_relative_error(tree, decoded, {r.name for r in records if r.tied}),
        max_abs=max((row.max_abs for row in rows), default=0.0),
    )


def _relative_error(original: PyTree, decoded: PyTree, tied: set[str]) -> float:
    """Return ||decoded - original|| / ||original|| over all finite float arrays.

    Those that the file ties to others count once, as there.
    """
    error = energy = 0.0
    named = trees.named_leaves(original)
    for (name, leaf), other in zip(named, jax.tree.leaves(decoded), strict=True):
        if name in tied or not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        a, b = np.asarray(leaf, np.float64), np.asarray(other, np.float64)
        if np.isfinite(a).all():
            error, energy = error + ((a - b) ** 2).sum(), energy + (a**2).sum()
    return math.sqrt(error / energy) if error else 0.0
