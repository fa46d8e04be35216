"""Keep the fingerprints of a run's inputs; on resume, refuse inputs that changed."""

from typing import Any

from frugax import train
from frugax.errors import ConfigError

from ._config_keys import config_fingerprint
from ._fingerprint import (
    code_fingerprint,
    compare,
    data_fingerprint,
    program_fingerprint,
    version_fingerprint,
)
from ._folder import RunFolder
from ._prepare import Checked

_FACT = "fingerprints"


def compute_fingerprints(checked: Checked) -> dict[str, Any]:
    """Fingerprint config, code, data, optimiser and versions of a run."""
    config = checked.run.config
    bound, state = checked.bound, checked.state
    batches = {"first batch": checked.batch}
    if not isinstance(checked.batch_of, train.ResumableIterator):
        # Data that grew or was sorted anew mostly shows at the end.
        batches["last batch"] = checked.batch_of(config.train.steps - 1)
    length = None
    if hasattr(checked.task.batches, "__len__"):
        length = len(checked.task.batches)

    return {
        "config": config_fingerprint(config),
        "code": code_fingerprint(checked.run.config_folder),
        "data": data_fingerprint(batches, length),
        "versions": version_fingerprint(),
        "loss": program_fingerprint(
            bound.loss_of(state), state.params, checked.batch, bound.carried
        ),
        "optimizer": checked.optimizer_program,
    }


def check_origin(
    folder: RunFolder, checked: Checked, *, accept_changes: bool
) -> list[str]:
    """Store the fingerprints of a new run; compare those of a resumed one.

    Returns:
        A note for the receipt if changes were accepted.

    Raises:
        ConfigError: something that the numbers depend on has changed.
    """
    now = compute_fingerprints(checked)
    before = folder.read_origin(_FACT) if checked.run.resume else None
    if before is None:
        folder.write_origin(**{_FACT: now})
        return []
    changes = compare(before, now)
    # A host that is lost is not replaced at once: the others go on without it.
    notes = [
        f"This run went on with another {change.text}; sums round anew."
        for change in changes
        if change.is_device_count
    ]
    changes = [change for change in changes if not change.is_device_count]
    if not changes:
        return notes
    text = "; ".join(change.text for change in changes)
    if not accept_changes:
        raise ConfigError(
            f"{folder.path}: the numbers would not be those of an uninterrupted run: "
            f"{text}. Undo it, start a new run, or continue with --accept-changes."
        )
    # The next resume compares with the run as it is now.
    folder.write_origin(**{_FACT: now})
    return [*notes, f"This run was resumed although something had changed: {text}."]
