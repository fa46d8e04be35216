"""The folder of a run: the path of each file, a lock, and creating or reopening it."""

import contextlib
import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import yaml

from frugax.budget import to_json, to_plain
from frugax.errors import ConfigError, OutputError
from frugax.fileio import make_folder, write_error_reason, write_whole

from ._config import RunConfig, load_config
from ._config_keys import CHANGEABLE


class RunFolder:
    """The files of one run.

    Attributes:
        path: the folder, `runs/NAME`.
        config: the config as it was read, overrides applied.
        origin: where the run comes from: folder of its config, fingerprints.
        checkpoints: the checkpoints' folder.
        best: the checkpoint of the best evaluated state.
        journal: the metrics of every training step.
        model: the compressed model.
        report: the receipt as a page, with charts.
        receipt: the receipt as JSON; written last.
        lock: exists while a process works in the folder.
    """

    def __init__(self, path: Path) -> None:
        """Refuse an address such as `gs://bucket/runs`, which `Path` shortens.

        Raises:
            ConfigError: the folder is not on a disk.
        """
        if re.match(r"[a-z][a-z0-9+.-]+:/", str(path)):
            raise ConfigError(
                f"{path}: the folder of a run must be on a disk, because its "
                "journal is appended to and locked: mount the bucket, or copy the "
                "folder there afterwards. Checkpoints of train.fit can go to one."
            )
        self.path = path
        self.config = path / "config.yaml"
        self.origin = path / "origin.json"
        self.checkpoints = path / "checkpoints"
        self.best = path / "best"
        self.journal = path / "journal"
        self.model = path / "model.fxz"
        self.report = path / "report.html"
        self.receipt = path / "receipt.json"
        self.lock = path / ".lock"

    def journal_of(self, process: int) -> Path:
        """The metrics as one process of a run saw them; the first's are the run's."""
        if process == 0:
            return self.journal
        return self.path / f"process{process}" / "journal"

    def model_is_whole(self) -> bool:
        """Whether the model file is the one that the receipt describes."""
        try:
            wanted = json.loads(self.receipt.read_text())["model"]["file_sha256"]
            return file_sha256(self.model) == wanted
        except (OSError, ValueError, KeyError, TypeError):
            # Missing or damaged: in both cases the file has to be made again.
            return False

    def write_origin(self, **facts: Any) -> None:
        """Add facts about the origin of this run."""
        # Merged, as the facts come one by one: the folder before the loss is traced.
        if self.origin.exists():
            facts = json.loads(self.origin.read_text()) | facts
        write_whole(self.origin, to_json(facts, indent=1) + "\n")

    def read_origin(self, fact: str, kind: type = dict) -> Any:
        """Read a fact of this kind about the run's origin; None if it is not known.

        Raises:
            ConfigError: the file of facts is damaged.
        """
        try:
            found = json.loads(self.origin.read_text()).get(fact)
        except (OSError, ValueError, AttributeError) as e:
            raise ConfigError(f"{self.origin}: cannot be read: {e}.") from e
        if found is not None and not isinstance(found, kind):
            raise ConfigError(f"{self.origin}: is damaged at {fact}: {found!r:.60}.")
        return found

    def config_folder(self) -> Path:
        """Return the folder of the config file that started this run."""
        return Path(self.read_origin("config_folder", str) or ".")


def file_sha256(path: Path) -> str:
    """Hash a file with SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free_folder(runs: Path, name: str) -> RunFolder:
    """Choose a folder for a new run: `runs/NAME`, or `runs/NAME-2` if that exists."""
    # Another run may take the folder meanwhile; `claim` creates it and would notice.
    return next(folder for folder in _folders(runs, name) if not folder.path.exists())


def unfinished_folder(runs: Path, config: RunConfig) -> RunFolder | None:
    """Return the newest unfinished run of a config that nobody is working on."""
    started = itertools.takewhile(
        lambda folder: folder.path.exists(), _folders(runs, config.name)
    )
    for folder in reversed([*started]):
        if folder.receipt.is_file() or not folder.config.is_file():
            continue
        with contextlib.suppress(ConfigError):
            if load_config(folder.config) == config and not _is_locked(folder):
                return folder
    return None


def _folders(runs: Path, name: str) -> Iterator[RunFolder]:
    yield RunFolder(runs / name)
    for count in itertools.count(2):
        yield RunFolder(runs / f"{name}-{count}")


def _is_locked(folder: RunFolder) -> bool:
    try:
        with filelock.FileLock(folder.lock, timeout=0):
            return False
    except filelock.Timeout:
        return True


@contextlib.contextmanager
def exclusive_access(folder: RunFolder) -> Iterator[None]:
    """Keep other processes out of a run's folder: two would mix their records."""
    lock = filelock.FileLock(folder.lock)
    try:
        # Without waiting: the other run may train for hours.
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
        folder.lock.unlink(missing_ok=True)  # before another process can own it
        lock.release()


@contextlib.contextmanager
def claim(
    folder: RunFolder, config: RunConfig, config_folder: Path
) -> Iterator[Callable[[], None]]:
    """Create a new run's folder now, so that a missing permission is found at once.

    If the block raises, the folder is removed again: a run that never started
    training leaves nothing behind. The block gets the function that removes it.

    Raises:
        OutputError: the folder cannot be created or written to.
    """
    parents = [p for p in folder.path.parents if not p.exists()]

    def discard() -> None:
        shutil.rmtree(folder.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # another run may have begun there
            for parent in parents:
                parent.rmdir()

    make_folder(folder.path.parent)
    try:
        folder.path.mkdir()  # not exist_ok: another run may have claimed it
    except OSError as e:
        discard()
        raise OutputError(write_error_reason(folder.path, e)) from e
    try:
        _write_config(folder, config)
        folder.write_origin(config_folder=str(config_folder.resolve()))
        yield discard
    except BaseException:  # Ctrl-C while planning also leaves nothing behind
        discard()
        raise


def reopen(path: Path, *, overrides: Sequence[str] = ()) -> tuple[RunFolder, RunConfig]:
    """Open the folder and config of a run that is to be resumed.

    Args:
        path: the run's folder.
        overrides: `key=value` texts; only budgets that do not touch the numbers.

    Raises:
        ConfigError: the folder has no run, or an override would change its numbers
            compared with an uninterrupted run.
    """
    for override in overrides:
        key = override.partition("=")[0].strip()
        # The dots keep whole keys apart: budgets.time.seconds may change, and a key
        # that merely starts with the same letters may not.
        if not any(f"{key}.".startswith(f"{name}.") for name in CHANGEABLE):
            raise ConfigError(
                f"--set {override!r}: a resumed run keeps its numbers, so only "
                f"{', '.join(CHANGEABLE)} may change. Start a new run for the rest."
            )
    folder = RunFolder(path)
    if not folder.config.is_file():
        raise ConfigError(
            f"{path}: this folder has no run (no config.yaml): give --resume the "
            "folder that `frugax run` printed, such as runs/digits."
        )
    config = load_config(folder.config, overrides=overrides)
    # Stored, so that a later --resume keeps the new budgets.
    if overrides:
        _write_config(folder, config)
    return folder, config


def _write_config(folder: RunFolder, config: RunConfig) -> None:
    # Unescaped, so that names in other alphabets stay readable in an editor.
    text = yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True)
    write_whole(folder.config, text)
