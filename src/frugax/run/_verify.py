"""`frugax verify-receipt`: derive every deterministic figure of a run's receipt again.

Bytes, flops, compiles, file lengths and checksums follow from the config, the versions
and the model file. Times do not, so they stay unconfirmed.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import jax

from frugax import compress, train, trees
from frugax.budget import Receipt, amount, from_plain, table
from frugax.errors import ConfigError, FrugaxError

from ._config import RunConfig
from ._environment import describe_environment
from ._folder import RunFolder, file_sha256
from ._ledger import Ledger
from ._observer import Observer, Silent
from ._prepare import Prepared, check_task, prepare
from ._task_checks import evaluate_model
from ._trained import read_weights

# Steps that are repeated to count compiles: the second one shows whether the state that
# a step returns has the types that it accepts.
_STEPS = 3
# Evaluations add floats in an order that depends on the number of threads.
_REL_TOLERANCE = 1e-6
# Another version of these, or another device, compiles another program.
_SAME_PROGRAM = ("frugax", "jax", "jaxlib", "device")

_PARTS = ("limit", "predicted", "measured")

Finding = Literal["same", "differs", "cannot tell"]
# The parts of each row of a receipt that were derived here, by the row's name.
Parts = dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FigureCheck:
    """One figure of a receipt beside the one derived here.

    Attributes:
        figure: its name, for example `"file: measured"`.
        stated: in the receipt.
        derived: here; `"-"` if it could not be derived.
        finding: whether the two agree.
        reason: why nothing can be told; empty otherwise.
    """

    figure: str
    stated: str
    derived: str
    finding: Finding
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ReceiptCheck:
    """Every figure of a receipt; prints as a table.

    Attributes:
        checks: one for each figure.
    """

    checks: tuple[FigureCheck, ...]

    @property
    def finding(self) -> Finding:
        """`differs` if any figure does; `same` if at least one figure was derived."""
        found = {check.finding for check in self.checks}
        if "differs" in found:
            return "differs"
        if "same" in found:
            return "same"
        return "cannot tell"

    def __str__(self) -> str:
        rows = [[c.figure, c.stated, c.derived, c.finding] for c in self.checks]
        lines = [table(["figure", "receipt", "derived here", "finding"], rows)]
        reasons: dict[str, list[str]] = {}
        for check in self.checks:
            if check.reason:
                reasons.setdefault(check.reason, []).append(check.figure)
        lines += [f"{', '.join(names)}: {why}" for why, names in reasons.items()]
        return "\n".join(lines)


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
        data: Any = json.loads(text)
        receipt = Receipt.from_json(text)
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path}: cannot be read as a receipt: {e}") from e
    folder = RunFolder(path.parent)
    checks = list(_check_verdicts(receipt, data))
    if not isinstance(data.get("config"), dict):
        why = "the receipt has no config, from which its program could be built again."
        checks += _check_spends(receipt, {}, why)
        return ReceiptCheck(tuple(checks))
    model: Any = data.get("model")
    memory: Any = data.get("memory")
    if not isinstance(model, dict) or not isinstance(memory, dict):
        raise ConfigError(f"{path}: a run's receipt has the keys model and memory.")
    checks += _check_file(folder, model)
    config = _read_config(path, data["config"])
    ready, why = _build(config, folder, data, trust_code, observer or Silent())
    if ready is None:
        checks += _check_spends(receipt, _derive_file(folder), why)
        checks += _check_facts("memory", memory, {}, why)
        checks += _check_facts("model", _numbers(model), {}, why)
        return ReceiptCheck(tuple(checks))
    derived = _derive_spends(ready)
    for name, parts in _derive_file(folder).items():
        derived.setdefault(name, {}).update(parts)
    checks += _check_spends(receipt, derived, "it was measured once, in that run.")
    program = ready.step.program
    facts = {f.name: getattr(program, f.name) for f in dataclasses.fields(program)}
    facts["unplanned_bytes"] = ready.unplanned_bytes
    facts["planned_bytes"] = program.bytes_of(ready.memory_kind)
    facts["kind"] = ready.memory_kind
    facts["limit_bytes"] = ready.memory and ready.memory.limit_bytes
    checks += _check_facts("memory", memory, facts, "it is text for the reader.")
    why = "the trained weights are not in the folder, only those of the file."
    facts = _derive_model(ready, folder)
    checks += _check_facts("model", _numbers(model), facts, why)
    return ReceiptCheck(tuple(checks))


def _check_verdicts(receipt: Receipt, data: Mapping[str, Any]) -> Iterator[FigureCheck]:
    stated = [(str(s.get("verdict")), s["name"]) for s in data["spends"]]
    for (claim, name), spend in zip(stated, receipt.spends, strict=True):
        yield _compare(f"{name}: verdict", claim, str(spend.verdict))
    claim = str(data.get("verdict"))
    yield _compare("verdict of the receipt", claim, str(receipt.verdict))


def _check_file(folder: RunFolder, model: Mapping[str, Any]) -> Iterator[FigureCheck]:
    """Compare length and SHA-256, and check the sums inside of the file."""
    stated = {k: model.get(k) for k in ("file_bytes", "file_sha256")}
    # The folder's own name for the file: a receipt must not name any file to be read.
    if not folder.model.is_file():
        yield from _check_facts("model", stated, {}, f"{folder.model} is missing.")
        return
    facts = {
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


def _derive_file(folder: RunFolder) -> Parts:
    """The measured length of the model file."""
    if not folder.model.is_file():
        return {}
    return {"file": {"measured": folder.model.stat().st_size}}


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
            if part not in parts:
                if stated is not None:
                    yield _untold(figure, show(stated), why)
                continue
            counts = stated is not None and (spend.unit, part) == (
                "compiles",
                "measured",
            )
            # Later batches can need further programs; a count below that of these few
            # steps is a false claim.
            if counts and stated > parts[part]:
                why_more = f"only the first {_STEPS} steps were repeated."
                yield _untold(figure, show(stated), why_more)
            else:
                yield _compare_numbers(figure, stated, parts[part], show)


def _check_facts(
    room: str, stated: Mapping[str, Any], derived: Mapping[str, Any], why: str
) -> Iterator[FigureCheck]:
    for name, value in stated.items():
        if name == "plan":  # a table for readers; the bytes and flops are its content
            continue
        figure = f"{room}: {name}"
        if name not in derived:
            yield _untold(figure, str(value), why)
        else:
            yield _compare_numbers(figure, value, derived[name], str)


def _numbers(model: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a run's model that building it again can derive."""
    names = ("weights", "original_bytes", "rel_error")
    found = {name: model.get(name) for name in names}
    for when in ("before", "after"):
        figures = model.get(when)
        if isinstance(figures, dict):
            found |= {f"{when}.{name}": v for name, v in figures.items()}
    return found


def _derive_model(ready: Prepared, folder: RunFolder) -> dict[str, Any]:
    bound, state = ready.checked.bound, ready.checked.state
    tree = bound.file_tree(state)
    facts: dict[str, Any] = {
        "weights": sum(leaf.size for leaf in jax.tree.leaves(tree)),
        "original_bytes": trees.nbytes(tree),
    }
    if folder.model.is_file():
        try:
            whole = bound.with_file_tree(state, read_weights(tree, folder))
            figures = evaluate_model(bound, whole).values
        except FrugaxError:
            return facts  # damaged, or of another model: its own row says so
        facts |= {f"after.{name}": value for name, value in figures.items()}
    return facts


def _read_config(path: Path, data: object) -> RunConfig:
    try:
        return from_plain(RunConfig, data, at="config")
    except ValueError as e:
        raise ConfigError(f"{path}: {e}") from e


def _build(
    config: RunConfig,
    folder: RunFolder,
    data: Mapping[str, Any],
    trust_code: bool,  # noqa: FBT001
    observer: Observer,
) -> tuple[Prepared | None, str]:
    """Build the run's step again, or say why that is not possible."""
    if config.task and not trust_code:
        return None, (
            f"the config names the function {config.task}, which was not executed; "
            "--trust-code imports it."
        )
    theirs, ours = data.get("environment"), describe_environment()
    if not isinstance(theirs, dict):
        return None, "the receipt does not say with which versions it was made."
    differing = [
        f"{name} {theirs.get(name)} there and {ours[name]} here"
        for name in _SAME_PROGRAM
        if theirs.get(name) != ours[name]
    ]
    if differing:
        return None, f"another program is compiled here: {'; '.join(differing)}."
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
    floats = isinstance(stated, int | float) and isinstance(derived, float)
    if floats and not float(derived).is_integer():
        return math.isclose(stated, derived, rel_tol=_REL_TOLERANCE)
    return stated == derived


def _compare(figure: str, stated: str, derived: str) -> FigureCheck:
    finding: Finding = "same"
    if stated != derived:
        finding = "differs"
    return FigureCheck(figure=figure, stated=stated, derived=derived, finding=finding)


def _untold(figure: str, stated: str, why: str) -> FigureCheck:
    return FigureCheck(
        figure=figure, stated=stated, derived="-", finding="cannot tell", reason=why
    )
