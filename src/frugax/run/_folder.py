"""The folder of a run: where each file lies, and how a new one is claimed."""

import contextlib
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import filelock
import yaml

from frugax.budget import to_plain
from frugax.errors import ConfigError, OutputError
from frugax.fileio import make_folder, write_error_reason, write_whole

from ._config import RunConfig, load_config


@dataclasses.dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one run.

    Attributes:
        path: the folder, `runs/NAME`.
    """

    path: Path

    @property
    def config(self) -> Path:
        """The config as it was read, overrides applied."""
        return self.path / "config.yaml"

    @property
    def origin(self) -> Path:
        """Where the run came from: folder of the config, fingerprint of the loss."""
        return self.path / "origin.json"

    @property
    def checkpoints(self) -> Path:
        """The checkpoints' folder."""
        return self.path / "checkpoints"

    @property
    def journal(self) -> Path:
        """The metrics of every training step."""
        return self.path / "journal"

    @property
    def model(self) -> Path:
        """The compressed model."""
        return self.path / "model.fxz"

    @property
    def receipt(self) -> Path:
        """What was spent, as JSON; written last but one."""
        return self.path / "receipt.json"

    @property
    def lock(self) -> Path:
        """There while a process works in the folder."""
        return self.path / ".lock"

    @property
    def report(self) -> Path:
        """The same to look at."""
        return self.path / "report.html"

    def model_is_whole(self) -> bool:
        """Whether the model file is the one that the receipt is about."""
        try:
            wanted = json.loads(self.receipt.read_text())["model"]["file_sha256"]
            return file_sha256(self.model) == wanted
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def remember(self, **facts: str) -> None:
        """Add facts about where this run came from."""
        known = json.loads(self.origin.read_text()) if self.origin.exists() else {}
        write_whole(self.origin, json.dumps(known | facts, indent=1) + "\n")

    def remembered(self, fact: str) -> str | None:
        """A fact about where this run came from; None if it is not known.

        Raises:
            ConfigError: the file of facts is damaged.
        """
        try:
            return json.loads(self.origin.read_text()).get(fact)
        except (OSError, ValueError, AttributeError) as e:
            raise ConfigError(f"{self.origin}: cannot be read: {e}.") from e

    def config_folder(self) -> Path:
        """The folder of the config file that started this run."""
        return Path(self.remembered("config_folder") or ".")


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free_folder(runs: Path, name: str) -> RunFolder:
    """The folder for a new run: `runs/NAME`, or `runs/NAME-2` and so on if taken."""
    path, count = runs / name, 1
    while path.exists():
        count += 1
        path = runs / f"{name}-{count}"
    return RunFolder(path)


@contextlib.contextmanager
def alone_in(folder: RunFolder) -> Iterator[None]:
    """Keep every other process out of a run's folder: two would mix their records.

    Raises:
        ConfigError: another run is working there.
        OutputError: the folder cannot be written to.
    """
    lock = filelock.FileLock(folder.lock)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as e:
        raise ConfigError(
            f"{folder.path}: another frugax run is working in this folder; wait for "
            "it, or stop it."
        ) from e
    except OSError as e:
        raise OutputError(write_error_reason(folder.lock, e)) from e
    try:
        yield
    finally:
        folder.lock.unlink(missing_ok=True)  # while it is still ours
        lock.release()


@contextlib.contextmanager
def claim(folder: RunFolder, config: RunConfig, config_folder: Path) -> Iterator[None]:
    """Make a new run's folder now, so that a missing permission is met at once.

    If the block raises, the folder is removed again: a run that never started
    training leaves nothing behind.

    Raises:
        OutputError: the folder cannot be made or written to.
    """
    make_folder(folder.path.parent)
    try:
        folder.path.mkdir()  # not exist_ok: another run may have been quicker
    except OSError as e:
        raise OutputError(write_error_reason(folder.path, e)) from e
    try:
        _write_config(folder, config)
        folder.remember(config_folder=str(config_folder.resolve()))
        yield
    except BaseException:  # Ctrl-C while planning, too, leaves nothing behind
        shutil.rmtree(folder.path, ignore_errors=True)
        raise


# What may change when a run goes on: the trained numbers do not depend on these.
_CHANGEABLE = (
    "budgets.time",
    "budgets.overhead",
    "budgets.size",
    "budgets.accuracy_drop",
)


def reopen(path: Path, *, overrides: Sequence[str] = ()) -> tuple[RunFolder, RunConfig]:
    """The folder and config of a run that is to go on.

    Args:
        path: the run's folder.
        overrides: `key=value` texts; only budgets that do not touch the numbers.

    Raises:
        ConfigError: there is no run in that folder, or an override would make its
            numbers others than those of an uninterrupted run.
    """
    for override in overrides:
        key = override.partition("=")[0].strip()
        if not any(f"{key}.".startswith(f"{name}.") for name in _CHANGEABLE):
            raise ConfigError(
                f"--set {override!r}: a run that goes on keeps its numbers, so only "
                f"{', '.join(_CHANGEABLE)} may change. Start a new run for the rest."
            )
    folder = RunFolder(path)
    if not folder.config.is_file():
        raise ConfigError(
            f"{path}: there is no run here (no config.yaml): give --resume the folder "
            "that `frugax run` printed, such as runs/digits."
        )
    config = load_config(folder.config, overrides=overrides)
    if overrides:
        _write_config(folder, config)
    return folder, config


def _write_config(folder: RunFolder, config: RunConfig) -> None:
    text = yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True)
    write_whole(folder.config, text)
