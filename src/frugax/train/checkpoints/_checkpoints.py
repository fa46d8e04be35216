"""`Checkpoints`: saved training states, verified on restore; partial saves are ignored.

Orbax writes the arrays, each process its own shards. The first process writes a
manifest last, with the step, path and type of every leaf, length and checksum of every
file, and the caller's own JSON. A folder without a manifest is an interrupted save and
is ignored. On restore all of it is compared first, so neither a damaged file nor
another model's state reaches Orbax.
"""

import concurrent.futures
import errno
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from frugax.errors import CheckpointError, DivergedError, OutputError
from frugax.fileio import write_error_reason
from frugax.options import check_integer, check_path

from ..compiles import Signature
from ..processes import agree_on_min, run_on_first
from ..step import TrainState, check_is_state, find_nonfinite_weight
from . import _storage
from ._arrays import read_state, start_writing, to_storable
from ._storage import Folder

_MANIFEST = "frugax.json"
_VERSION = 1
_CHUNK_BYTES = 1 << 20
# Unfinished saves are deleted, so their name must be unmistakably ours: Orbax's own
# manager, for example, uses bare numbers.
_OUR_FOLDER = re.compile(r"frugax-(\d+)(\.orbax-checkpoint-tmp.*)?(\.deleted)?")


class Checkpoints:
    """The latest states of one training run, in one folder.

    Attributes:
        folder: the folder, with one sub-folder `frugax-<step>` for each state; in a run
            of several processes all must reach it. `gs://bucket/folder` is one, too.
        keep: number of states kept; >= 1.
        last_write_s: seconds that writing the last one took.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 2) -> None:
        check_path("folder", folder)
        check_integer("keep", keep)
        self.folder = _storage.open_folder(folder)
        self.keep = keep
        self.last_write_s = 0.0
        self._writing: concurrent.futures.Future[None] | None = None

    def steps(self) -> list[int]:
        """Return the steps that have a finished checkpoint, in order."""
        finished = [p for p in self._list_folders() if (p / _MANIFEST).exists()]
        return sorted(int(p.name.removeprefix("frugax-")) for p in finished)

    def latest_step(self) -> int | None:
        """Return the latest of these steps, or None."""
        self.wait()
        return max(self.steps(), default=None)

    def latest_intact_step(self) -> int | None:
        """Return the latest step whose files are intact, or None; reads the files."""
        self.wait()
        sound = (s for s in reversed(self.steps()) if not self._find_damage(s))
        return next(sound, None)

    def find_damaged(self) -> dict[int, str]:
        """Return each step whose files are damaged, with a description.

        It reads every file and deletes none: `save` replaces a damaged step when it
        saves that step or an earlier one.
        """
        found = {step: self._find_damage(step) for step in self.steps()}
        return {step: damage for step, damage in found.items() if damage}

    def save(
        self,
        state: TrainState,
        extra: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
    ) -> None:
        """Write a state, then delete all but the latest `keep`.

        In a run of several processes all must call this: each writes the shards that it
        holds. Any number of processes, on any mesh, can restore them.

        The state is on disk when this returns, or after `wait()`; an interrupted save
        is ignored. Damaged checkpoints of this step or later ones are deleted first,
        because a run that continues from an older one writes them again.

        Args:
            state: the state, saved under the number `state.step`.
            extra: JSON data that `restore` returns.
            wait: False to copy this process's shards and write them in a thread; the
                next save, and `wait`, wait for it and raise its error.

        Raises:
            CheckpointError: the folder has an intact checkpoint of this step or a later
                one.
            DivergedError: a weight is not finite. Such a state must not displace a
                sound one.
            OutputError: the disk is full, permission is missing, or another file is in
                the way.
            RuntimeError: another process failed at this.
            TypeError: `state` is not a TrainState, or `extra` is not JSON data.
        """
        self.wait()
        check_is_state(state)
        _check_finite(state)
        started = time.perf_counter()
        step, leaves = int(state.step), Signature.of_types(state=state).leaves
        plain = json.loads(json.dumps(extra or {}))  # fails before the slow part
        folder = self._folder_of(step)
        with run_on_first("checkpoint") as prepares:
            if prepares:
                self._make_room(step)
        finish_arrays = start_writing(folder, to_storable(state), copy=not wait)

        def finish() -> None:
            finish_arrays()
            if jax.process_index() == 0:
                self._complete(step, leaves, plain)
            self.last_write_s = time.perf_counter() - started

        self._writing = _start_thread(finish)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait for a save in the background, and raise its error.

        In a run of several processes all must call this.
        """
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        # After an error the others are not waited for: they learn of it as this process
        # ends.
        writing.result()
        agree_on_min(0)  # the first process has written the manifest

    def _make_room(self, step: int) -> None:
        """Check that a step may be saved, and delete what an earlier attempt left."""
        try:
            not_earlier = [s for s in self.steps() if s >= step]
            # An OSError ends the save here: files that cannot be read at the moment may
            # be intact, and must not be deleted.
            sound = [s for s in not_earlier if not _find_damage(self._folder_of(s))]
            if sound:
                raise CheckpointError(
                    f"{self.folder} holds step {sound[-1]}, so step {step} cannot "
                    "follow: restore it and continue from there, or use another folder."
                )
            _storage.create(self.folder)
            for damaged in not_earlier:
                self._drop(damaged)
            for unfinished in self._list_folders():
                if not (unfinished / _MANIFEST).exists():
                    _storage.delete(unfinished)
            # Not a folder of ours: `_list_folders` would have found and deleted it.
            folder = self._folder_of(step)
            if folder.exists():
                raise FileExistsError(
                    errno.EEXIST, os.strerror(errno.EEXIST), str(folder)
                )
        except OSError as e:
            raise OutputError(write_error_reason(e.filename or self.folder, e)) from e

    def _complete(
        self, step: int, leaves: Sequence[tuple[str, str]], extra: Mapping[str, Any]
    ) -> None:
        """Make a checkpoint count whose arrays are written, and delete old ones."""
        folder = self._folder_of(step)
        try:
            _write_manifest(folder, step=step, leaves=leaves, extra=extra)
            for old in self.steps()[: -self.keep]:
                self._drop(old)
        except OSError as e:
            raise OutputError(write_error_reason(e.filename or self.folder, e)) from e

    def restore(
        self, like: TrainState, *, step: int | None = None
    ) -> tuple[TrainState, dict[str, Any]]:
        """Read a state, bit for bit.

        Args:
            like: a state of the same run, for its structure, types and devices. Its
                values are not read, so `jax.ShapeDtypeStruct`s will do.
            step: the step to restore; by default the latest, damaged or not.

        Returns:
            The state, and the `extra` saved with it.

        Raises:
            CheckpointError: the checkpoint is missing or damaged, or its state
                has another structure, shape or dtype; the message names the leaf or
                file.
            TypeError: `like` is not a TrainState.
        """
        check_is_state(like)
        if step is None:
            step = self.latest_step()
        if step is None or step not in self.steps():
            which = "no checkpoint" if step is None else f"no checkpoint of step {step}"
            raise CheckpointError(
                f"{self.folder} holds {which}: check the path, or train from the start."
            )
        folder = self._folder_of(step)
        if damage := self._find_damage(step):
            sound = self.latest_intact_step()
            remedy = f"restore the latest intact one with step={sound}."
            if sound is None:
                remedy = "no checkpoint is intact, train from the start."
            raise CheckpointError(f"{folder}: {damage}; {remedy}")
        body = _read_manifest(folder)
        if body["version"] != _VERSION:
            raise CheckpointError(
                f"{folder} is of format {body['version']}, and this frugax reads "
                f"{_VERSION}: update frugax."
            )
        saved = {str(path): str(kind) for path, kind in body["leaves"]}
        expected = dict(Signature.of_types(state=like).leaves)
        # The caller's leaves first: a missing one is named before a surplus one.
        for leaf in [*expected, *saved]:
            there, here = saved.get(leaf, "absent"), expected.get(leaf, "absent")
            if there != here:
                raise CheckpointError(
                    f"{folder} belongs to another state: {leaf} is {there} there and "
                    f"{here} here. Restore it into the model and optimiser that wrote "
                    "it."
                )
        return read_state(folder, like), body["extra"]

    def read_extra(self, step: int) -> dict[str, Any]:
        """Return the `extra` saved with a step; empty if it has no intact checkpoint.

        Args:
            step: number of the step.
        """
        if step not in self.steps() or self._find_damage(step):
            return {}
        return _read_manifest(self._folder_of(step))["extra"]

    # List the sub-folders that may be checkpoints of ours.
    def _list_folders(self) -> list[Folder]:
        found = _storage.list_folders(self.folder)
        return [p for p in found if _OUR_FOLDER.fullmatch(p.name)]

    def _folder_of(self, step: int) -> Folder:
        return self.folder / f"frugax-{step}"

    def _drop(self, step: int) -> None:
        # The manifest goes first: if this is interrupted, the rest is ignored.
        (self._folder_of(step) / _MANIFEST).unlink()
        _storage.delete(self._folder_of(step))

    def _find_damage(self, step: int) -> str:
        try:
            return _find_damage(self._folder_of(step))
        except OSError as e:
            return f"it cannot be read ({e.strerror})"


def _check_finite(state: TrainState) -> None:
    """Refuse weights that are not finite: they turn NaN a step before the loss."""
    place = find_nonfinite_weight(state)
    if place is not None:
        raise DivergedError(
            f"{place} is not finite after {int(state.step)} steps, so this state was "
            "not saved: lower the learning rate or clip the gradients."
        )


def _start_thread(function: Callable[[], None]) -> concurrent.futures.Future[None]:
    thread = concurrent.futures.ThreadPoolExecutor(1, "frugax checkpoint")
    future = thread.submit(function)
    thread.shutdown(wait=False)
    return future


# --- the manifest ---------------------------------------------------------------------


def _write_manifest(
    folder: Folder,
    *,
    step: int,
    leaves: Sequence[tuple[str, str]],
    extra: Mapping[str, Any],
) -> None:
    """Write the manifest, which makes the checkpoint count."""
    body = {
        "version": _VERSION,
        "step": step,
        "leaves": leaves,
        "files": _compute_checksums(folder),
        "extra": extra,
    }
    # The manifest is stored as text in an envelope, so that its own checksum is over
    # exact bytes and not over one of many ways to write the same JSON.
    text = json.dumps(body)
    envelope = {"crc32": zlib.crc32(text.encode()), "manifest": text}
    _storage.write_text(folder / _MANIFEST, json.dumps(envelope))


def _find_damage(folder: Folder) -> str:
    """Describe the damage to the files of a folder with a manifest; empty if intact."""
    try:
        body = _read_manifest(folder)
    except (ValueError, KeyError, TypeError):
        return f"{_MANIFEST} is damaged"
    if body["version"] != _VERSION:
        return ""  # written by another version: its files may be laid out differently
    found = _compute_checksums(folder)
    for file, checksum in body["files"].items():
        if file not in found:
            return f"{file} is missing"
        if found[file] != checksum:
            return f"{file} is damaged"
    return ""


def _read_manifest(folder: Folder) -> dict[str, Any]:
    """Read the manifest."""
    envelope = json.loads((folder / _MANIFEST).read_text())
    text = str(envelope["manifest"])
    if zlib.crc32(text.encode()) != envelope["crc32"]:
        raise ValueError(f"{folder / _MANIFEST}: the checksum is wrong.")
    return json.loads(text)


def _compute_checksums(folder: Folder) -> dict[str, list[int]]:
    """Return length and CRC-32 of every file that Orbax wrote."""
    # CRC-32 finds damage by disks and copies; it is not a protection against forgery.
    found: dict[str, list[int]] = {}
    for path in _storage.list_files(folder):
        if path.name == _MANIFEST:
            continue
        length = crc = 0
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                length += len(chunk)
                crc = zlib.crc32(chunk, crc)
        found[path.relative_to(folder).as_posix()] = [length, crc]
    return found
