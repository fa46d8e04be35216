"""Checkpoints that are whole or do not count, and that say whose they are.

Orbax writes the arrays. A manifest is written last: step, every leaf's place and
type, every file's length and checksum, and the caller's own JSON. A folder without
one is a save that was killed, and is passed over. On the way back all of that is
compared first, so neither a damaged file nor a stranger's state reaches Orbax.
"""

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.errors import CheckpointError, DivergedError, OutputError
from frugax.fileio import make_folder, write_error_reason

from ._check_call import refuse_no_state
from ._manifest import MANIFEST, VERSION, damage_at, read_manifest, seal
from ._orbax import read_arrays, write_arrays
from ._processes import one_for_all
from ._signature import Signature
from ._state import TrainState
from ._state_as_numpy import from_numpy, to_numpy
from .options import check_integer, check_path

# Unfinished saves are deleted, so the name must be nobody else's: not a bare number,
# as Orbax's own manager uses.
_OURS = re.compile(r"frugax-(\d+)(\.orbax-checkpoint-tmp.*)?(\.deleted)?")
_DELETED = ".deleted"


class Checkpoints:
    """The last few states of one training run, in one folder.

    Attributes:
        folder: where they are; one sub-folder each, `frugax-<step>`.
        keep: how many of them stay; >= 1.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 2) -> None:
        """Name the folder; nothing is read or written yet.

        Raises:
            TypeError: `folder` is no path, or `keep` no whole number.
            ValueError: `keep` is below 1.
        """
        check_path("folder", folder)
        check_integer("keep", keep)
        # Orbax refuses relative paths.
        self.folder = Path(folder).absolute()
        self.keep = keep

    def steps(self) -> list[int]:
        """The steps that have a finished checkpoint, in order."""
        finished = [p for p in self._ours() if (p / MANIFEST).exists()]
        return sorted(int(p.name.removeprefix("frugax-")) for p in finished)

    def latest_step(self) -> int | None:
        """The last of them, or None."""
        return max(self.steps(), default=None)

    def latest_sound_step(self) -> int | None:
        """The last one whose files are as they were written, or None; reads them."""
        sound = (s for s in reversed(self.steps()) if not self._unsound(s))
        return next(sound, None)

    def damaged(self) -> dict[int, str]:
        """Each step whose files are not as they were written, and what is wrong.

        Every file is read. Nothing is deleted: `save` replaces a damaged step that it
        comes to or that lies ahead of it.
        """
        found = {step: self._unsound(step) for step in self.steps()}
        return {step: why for step, why in found.items() if why}

    def save(self, state: TrainState, extra: Mapping[str, Any] | None = None) -> None:
        """Write a state, then drop what is older than the last `keep`.

        In a run of several processes all must call this: they give their parts of the
        state, and the first one writes it whole. So any number of them can restore it.

        It is on disk when this returns. Killed half-way, it does not count. Damaged
        checkpoints of this step or later ones are dropped before, for good: a run
        that went on from an older one makes them anew.

        Args:
            state: what to save, under the number `state.step`.
            extra: anything JSON can hold, given back by `restore`.

        Raises:
            CheckpointError: the folder has this step, or a later one, already, and
                it is sound.
            DivergedError: a weight is not finite. Such a state must not push a sound
                one out.
            OutputError: no space, no permission, or something in the way.
            TypeError: `state` is none, or `extra` holds something that JSON cannot.
        """
        refuse_no_state(state)
        _refuse_not_finite(state)
        arrays = to_numpy(state)  # all processes take part in this
        with one_for_all("checkpoint") as writes:
            if writes:
                try:
                    self._write(int(state.step), state, arrays, extra)
                except OSError as e:
                    raise OutputError(
                        write_error_reason(e.filename or self.folder, e)
                    ) from e

    def _write(
        self,
        step: int,
        state: TrainState,
        arrays: dict[str, np.ndarray],
        extra: Mapping[str, Any] | None,
    ) -> None:
        not_behind = [s for s in self.steps() if s >= step]
        # What cannot be read just now is no reason to drop it: that may pass.
        sound = [s for s in not_behind if not damage_at(self._place(s))]
        if sound:
            raise CheckpointError(
                f"{self.folder} holds step {sound[-1]}, so step {step} cannot follow: "
                "restore it and go on from there, or use another folder."
            )
        plain = json.loads(json.dumps(extra or {}))  # refused before the slow part
        make_folder(self.folder)
        place = self._place(step)
        for damaged in not_behind:
            self._drop(damaged)
        for unfinished in self._ours():
            if not (unfinished / MANIFEST).exists():
                _delete(unfinished)
        if place.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place))
        leaves = Signature.of_types(state=state).leaves
        write_arrays(place, arrays)
        seal(place, step=step, leaves=leaves, extra=plain)
        for old in self.steps()[: -self.keep]:
            self._drop(old)

    def restore(
        self, like: TrainState, *, step: int | None = None
    ) -> tuple[TrainState, dict[str, Any]]:
        """Read a state back, bit for bit.

        Args:
            like: a state of the same run, for its structure, types and devices; its
                values are not looked at (`jax.ShapeDtypeStruct`s will do).
            step: which one; by default the latest, sound or not.

        Returns:
            The state, and the `extra` that was saved with it.

        Raises:
            CheckpointError: there is none, it is damaged, or it belongs to a state of
                another structure, shape or dtype; the message names the leaf or file.
            TypeError: `like` is no state.
        """
        refuse_no_state(like)
        if step is None:
            step = self.latest_step()
        if step is None or step not in self.steps():
            which = "no checkpoint" if step is None else f"no checkpoint of step {step}"
            raise CheckpointError(
                f"{self.folder} holds {which}: check the path, or train from the start."
            )
        place = self._place(step)
        if why := self._unsound(step):
            sound = self.latest_sound_step()
            remedy = (
                "there is no sound one, train from the start."
                if sound is None
                else f"restore the last sound one with step={sound}."
            )
            raise CheckpointError(f"{place}: {why}; {remedy}")
        body = read_manifest(place)
        if body["version"] != VERSION:
            raise CheckpointError(
                f"{place} is of format {body['version']}, and this frugax reads "
                f"{VERSION}: update frugax."
            )
        saved = {str(where): str(kind) for where, kind in body["leaves"]}
        wanted = dict(Signature.of_types(state=like).leaves)
        for leaf in [*wanted, *saved]:
            if saved.get(leaf) != wanted.get(leaf):
                raise CheckpointError(
                    f"{place} belongs to another state: {leaf} is "
                    f"{saved.get(leaf, 'absent')} there and "
                    f"{wanted.get(leaf, 'absent')} here. Restore it into the model and "
                    "optimiser that wrote it."
                )
        return from_numpy(read_arrays(place), like), body["extra"]

    def extra_of(self, step: int) -> dict[str, Any]:
        """The `extra` that was saved with a step; empty where there is none.

        Args:
            step: which one.
        """
        place = self._place(step)
        if step not in self.steps() or self._unsound(step):
            return {}
        return read_manifest(place)["extra"]

    def _ours(self) -> list[Path]:
        """The folders in ours that may hold a checkpoint.

        Raises:
            OutputError: the system does not let us look.
        """
        try:
            there = list(self.folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as e:
            raise OutputError(write_error_reason(self.folder, e)) from e
        return [p for p in there if _OURS.fullmatch(p.name) and p.is_dir()]

    def _place(self, step: int) -> Path:
        return self.folder / f"frugax-{step}"

    def _drop(self, step: int) -> None:
        # The manifest goes first: a folder without one does not count.
        (self._place(step) / MANIFEST).unlink()
        _delete(self._place(step))

    def _unsound(self, step: int) -> str:
        """Why a step cannot be restored, as far as its files go; empty if it can."""
        try:
            return damage_at(self._place(step))
        except OSError as e:
            return f"it cannot be read ({e.strerror})"


def _refuse_not_finite(state: TrainState) -> None:
    """A gradient may turn to NaN one step before the loss does.

    Raises:
        DivergedError: a weight has.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
        real = jnp.issubdtype(leaf.dtype, jnp.inexact)
        if real and not jnp.isfinite(leaf).all():
            raise DivergedError(
                f"params{jax.tree_util.keystr(path)} is not finite after "
                f"{int(state.step)} steps, so this state was not saved: lower the "
                "learning rate or clip the gradients."
            )


def _delete(place: Path) -> None:
    """Delete a folder in which others may still be at work.

    After a write that failed TensorStore's threads clean up behind themselves: what
    they delete first is no error, and under another name they find nothing to add to.

    Raises:
        OSError: it cannot be deleted.
    """
    aside = place.with_name(place.name.removesuffix(_DELETED) + _DELETED)
    _remove(aside)  # of a process that was killed here
    if place != aside:
        place.rename(aside)
        _remove(aside)


def _remove(place: Path) -> None:
    while place.exists():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(place)
