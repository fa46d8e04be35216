"""Checkpoints that are whole or do not count, and that say whose they are.

Orbax writes the arrays. A manifest is written last: step, every leaf's place and
type, every file's length and checksum, and the caller's own JSON. A folder without
one is a save that was killed, and is passed over. On the way back all of that is
compared first, so neither a damaged file nor a stranger's state reaches Orbax.
"""

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.errors import CheckpointError, DivergedError, OutputError
from frugax.files import make_folder, why_not_written, write_whole

from ._check_call import refuse_no_state
from ._check_options import check_path, check_whole
from ._processes import on_host, one_for_all, put
from ._signature import Signature
from ._state import TrainState

_MANIFEST = "frugax.json"
_VERSION = 1
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
        check_whole("keep", keep)
        # Orbax refuses relative paths.
        self.folder = Path(folder).absolute()
        self.keep = keep

    def steps(self) -> list[int]:
        """The steps that have a finished checkpoint, in order."""
        finished = [p for p in self._ours() if (p / _MANIFEST).exists()]
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
        arrays = _to_numpy(state)  # all processes take part in this
        with one_for_all("checkpoint") as writes:
            if writes:
                try:
                    self._write(int(state.step), state, arrays, extra)
                except OSError as e:
                    raise OutputError(
                        why_not_written(e.filename or self.folder, e)
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
        sound = [s for s in not_behind if not self._damage_at(s)]
        if sound:
            raise CheckpointError(
                f"{self.folder} holds step {sound[-1]}, so step {step} cannot follow: "
                "restore it and go on from there, or use another folder."
            )
        extra = json.loads(json.dumps(extra or {}))  # refused before the slow part
        make_folder(self.folder)
        place = self._place(step)
        for damaged in not_behind:
            self._drop(damaged)
        for unfinished in self._ours():
            if not (unfinished / _MANIFEST).exists():
                _delete(unfinished)
        if place.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place))
        leaves = Signature.of_types(state=state).leaves
        _write_arrays(place, arrays)
        body = {
            "version": _VERSION,
            "step": step,
            "leaves": leaves,
            "files": _checksums(place),
            "extra": extra,
        }
        text = json.dumps(body)
        sealed = {"crc32": zlib.crc32(text.encode()), "manifest": text}
        write_whole(place / _MANIFEST, json.dumps(sealed))
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
        body = _read_manifest(place)
        if body["version"] != _VERSION:
            raise CheckpointError(
                f"{place} is of format {body['version']}, and this frugax reads "
                f"{_VERSION}: update frugax."
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
        return _from_numpy(_read_arrays(place), like), body["extra"]

    def extra_of(self, step: int) -> dict[str, Any]:
        """The `extra` that was saved with a step; empty where there is none.

        Args:
            step: which one.
        """
        place = self._place(step)
        if step not in self.steps() or self._unsound(step):
            return {}
        return _read_manifest(place)["extra"]

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
            raise OutputError(why_not_written(self.folder, e)) from e
        return [p for p in there if _OURS.fullmatch(p.name) and p.is_dir()]

    def _place(self, step: int) -> Path:
        return self.folder / f"frugax-{step}"

    def _drop(self, step: int) -> None:
        # The manifest goes first: a folder without one does not count.
        (self._place(step) / _MANIFEST).unlink()
        _delete(self._place(step))

    def _damage_at(self, step: int) -> str:
        """What is wrong with the files of a step; empty if nothing is.

        Raises:
            OSError: they cannot be read.
        """
        place = self._place(step)
        try:
            body = _read_manifest(place)
        except (ValueError, KeyError, TypeError):
            return f"{_MANIFEST} is damaged"
        if body["version"] != _VERSION:
            return ""  # not ours to judge
        found = _checksums(place)
        for file, whole in body["files"].items():
            if file not in found:
                return f"{file} is missing"
            if found[file] != whole:
                return f"{file} is damaged"
        return ""

    def _unsound(self, step: int) -> str:
        """Why a step cannot be restored, as far as its files go; empty if it can."""
        try:
            return self._damage_at(step)
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


def _read_manifest(place: Path) -> dict[str, Any]:
    """What the manifest says.

    Raises:
        KeyError: it is damaged, as for TypeError and ValueError.
        OSError: it cannot be read.
        TypeError: see KeyError.
        ValueError: see KeyError.
    """
    sealed = json.loads((place / _MANIFEST).read_text())
    text = str(sealed["manifest"])
    if zlib.crc32(text.encode()) != sealed["crc32"]:
        raise ValueError(f"{place / _MANIFEST}: the checksum is wrong.")
    return json.loads(text)


def _to_numpy(state: TrainState) -> dict[str, np.ndarray]:
    """Every leaf on the host, by its place; Orbax cannot hold empty ones."""
    flat = jax.tree_util.tree_leaves_with_path(state)
    named = {_name(path): _pack(on_host(_raw(leaf))) for path, leaf in flat}
    return {name: array for name, array in named.items() if array.size}


def _from_numpy(arrays: Mapping[str, np.ndarray], like: TrainState) -> TrainState:
    def build(path: Any, leaf: Any) -> jax.Array:
        raw = jax.eval_shape(_raw, leaf)
        # A copy: XLA may not write over memory that NumPy owns, and steps donate.
        value = jnp.array(_unpack(arrays.get(_name(path)), raw))
        if _is_key(leaf):
            # Only an array of keys can be asked for its implementation.
            impl = jax.random.key_impl(jnp.empty((), leaf.dtype))
            value = jax.random.wrap_key_data(value, impl=impl)
        sharding = getattr(leaf, "sharding", None)
        return value if sharding is None else put(value, sharding)

    return jax.tree_util.tree_map_with_path(build, like)


def _pack(array: np.ndarray) -> np.ndarray:
    """NumPy's own dtypes as they are; bfloat16, int4, float8... as their bytes.

    Orbax can hold some of these and not others (no uint4 in 0.12).
    """
    own = array.dtype.isbuiltin == 1
    return array if own else np.frombuffer(array.tobytes(), np.uint8)


def _unpack(packed: np.ndarray | None, like: jax.ShapeDtypeStruct) -> np.ndarray:
    if packed is None:
        return np.zeros(like.shape, like.dtype)
    if packed.dtype == like.dtype:
        return packed
    return np.frombuffer(packed.tobytes(), like.dtype).reshape(like.shape)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    """Numbers as they are, random keys as the numbers in them."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path)


def _checksums(place: Path) -> dict[str, list[int]]:
    """Length and CRC-32 of every file that Orbax wrote."""
    files = sorted(p for p in place.rglob("*") if p.is_file() and p.name != _MANIFEST)
    found: dict[str, list[int]] = {}
    for path in files:
        crc = 0
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                crc = zlib.crc32(chunk, crc)
        found[path.relative_to(place).as_posix()] = [path.stat().st_size, crc]
    return found


def _write_arrays(place: Path, arrays: dict[str, np.ndarray]) -> None:
    with _orbax() as (ocp, checkpointer):
        try:
            checkpointer.save(place, args=ocp.args.StandardSave(arrays))
        except OSError as e:
            raise OutputError(why_not_written(place, e)) from e
        except ValueError as e:
            # TensorStore reports what the disk refuses as ValueError, in many lines.
            reason = str(e).splitlines()[0][:200]
            raise OutputError(
                f"cannot write {place}: {reason}; free some space, or write elsewhere."
            ) from e


def _read_arrays(place: Path) -> dict[str, np.ndarray]:
    with _orbax() as (ocp, checkpointer):
        try:
            return checkpointer.restore(place, args=ocp.args.StandardRestore())
        except (OSError, ValueError, KeyError) as e:
            # The files are as they were written: this Orbax cannot read them.
            reason = str(e).splitlines()[0][:200]
            raise CheckpointError(
                f"{place} cannot be read by orbax-checkpoint {ocp.__version__}: "
                f"{reason}; use the version that wrote it."
            ) from e


@contextlib.contextmanager
def _orbax() -> Iterator[tuple[Any, Any]]:
    """Orbax and a checkpointer of it, with its chatter on stderr turned off."""
    import orbax.checkpoint as ocp  # here: it takes half a second

    # Only this process reads or writes: the others must not be waited for.
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"frugax{me}"
    )
    if jax.process_count() == 1:
        alone = ocp.options.MultiprocessingOptions()
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.closing(
            ocp.Checkpointer(
                ocp.StandardCheckpointHandler(multiprocessing_options=alone),
                multiprocessing_options=alone,
            )
        ) as checkpointer:
            yield ocp, checkpointer
    finally:
        logger.setLevel(level)
