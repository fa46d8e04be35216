"""The disk cache of compiled answers (bytes, flops, HLO), once for each target."""

import contextlib
import dataclasses
import hashlib
import json
import os
import types
import warnings
from pathlib import Path
from typing import Any

import jax
import zstandard

from frugax.errors import OutputError
from frugax.fileio import cache_folder, write_whole

# Above this the least recently used answers are deleted.
_MAX_BYTES = 512 * 2**20
COUNTS = ("argument", "output", "temp", "alias", "generated_code", "host_temp")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompiledAnswer:
    """The compiler's report on a program that cannot be run here.

    It has the methods of `jax.stages.Compiled` that tell of memory and operations. All
    bytes are those of one device.

    Attributes:
        target: the target that it was compiled for.
        argument_bytes: bytes of the arguments.
        output_bytes: bytes of the results.
        temp_bytes: bytes of temporaries at their peak.
        alias_bytes: outputs written over donated arguments, counted as both.
        generated_code_bytes: bytes of the program itself.
        flops: by the compiler's count; None if it gives none, as for GPUs.
        hlo_text: the optimised program.
        hlo_module: the same as an `HloModuleProto`.
        host_temp_bytes: bytes of temporaries in the host's memory.
        places: a digest of the source lines that the program was traced from.
        seconds: time of the compilation.
        remembered: whether the answer comes from the disk.
    """

    target: str
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    generated_code_bytes: int
    flops: float | None
    hlo_text: str = dataclasses.field(repr=False)
    hlo_module: bytes = dataclasses.field(repr=False)
    host_temp_bytes: int = 0
    places: str = ""
    seconds: float = 0.0
    remembered: bool = False

    def memory_analysis(self) -> Any:
        """Byte counts by the names of `jax.stages.Compiled.memory_analysis`."""
        counts = {f"{n}_size_in_bytes": getattr(self, f"{n}_bytes") for n in COUNTS}
        return types.SimpleNamespace(**counts)

    def cost_analysis(self) -> dict[str, float]:
        """Flops, if the compiler counts them."""
        if self.flops is None:
            return {}
        return {"flops": self.flops}

    def as_text(self) -> str:
        """The optimised program as HLO text."""
        return self.hlo_text


def read_answer(
    compiled: jax.stages.Compiled, *, target: str, places: str, seconds: float
) -> CompiledAnswer:
    """Read all that is kept of a compiled program."""
    memory: Any = compiled.memory_analysis()
    counts = {f"{n}_bytes": getattr(memory, f"{n}_size_in_bytes") for n in COUNTS}
    costs: Any = compiled.cost_analysis() or {}
    if isinstance(costs, list):
        costs = costs[0]
    executable: Any = compiled.runtime_executable()
    (module,) = executable.hlo_modules()
    return CompiledAnswer(
        target=target,
        flops=costs.get("flops"),
        hlo_text=compiled.as_text() or "",
        hlo_module=module.as_serialized_hlo_module_proto(),
        places=places,
        seconds=seconds,
        **counts,
    )


class AnswerCache:
    """Answers by the digest of the program, the target, versions and options."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Use this folder; by default `frugax/targets` in the user's cache folder."""
        self.folder = Path(folder or cache_folder("targets"))

    def load(self, key: str, *, places: str = "") -> CompiledAnswer | None:
        """The answer under this key, or None.

        Args:
            key: the digest.
            places: if given, the answer must have been traced from these source lines.
        """
        file = self.folder / f"{key}.answer"
        try:
            head, _, body = file.read_bytes().partition(b"\n")
            facts = json.loads(head)
            if hashlib.sha256(body).hexdigest() != facts.pop("digest"):
                return _warn_damaged(file, "its checksum does not match")
            module_bytes = facts.pop("module_bytes")
            content = zstandard.decompress(body)
            answer = CompiledAnswer(
                **facts,
                hlo_module=content[:module_bytes],
                hlo_text=content[module_bytes:].decode(),
                remembered=True,
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, zstandard.ZstdError) as e:
            return _warn_damaged(file, e)
        with contextlib.suppress(OSError):  # the folder may be read-only
            os.utime(file)  # marks it as recently used
        if places and answer.places != places:
            return None
        return answer

    def store(self, key: str, answer: CompiledAnswer) -> None:
        """Store an answer; a folder that cannot be written to costs a warning."""
        content = answer.hlo_module + answer.hlo_text.encode()
        body = zstandard.compress(content)
        facts: dict[str, object] = {
            f.name: getattr(answer, f.name)
            for f in dataclasses.fields(answer)
            if f.name not in ("hlo_module", "hlo_text", "remembered")
        }
        facts["module_bytes"] = len(answer.hlo_module)
        facts["digest"] = hashlib.sha256(body).hexdigest()
        try:
            write_whole(
                self.folder / f"{key}.answer", json.dumps(facts).encode() + b"\n" + body
            )
        except OutputError as e:
            message = f"this compiled answer is not stored: {e}"
            warnings.warn(message, UserWarning, stacklevel=4)
            return
        self._delete_oldest()

    def last_seconds(self, label: str) -> float | None:
        """Seconds that the newest compilation under this label took, or None."""
        try:
            times = json.loads((self.folder / "times.json").read_text())
            return float(times[label])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def note_seconds(self, label: str, seconds: float) -> None:
        """Remember how long a compilation took, for the next spinner."""
        file = self.folder / "times.json"
        times: dict[str, float] = {}
        with contextlib.suppress(OSError, ValueError):
            times = dict(json.loads(file.read_text()))
        times[label] = round(seconds, 1)
        with contextlib.suppress(OutputError):  # `store` has warned
            write_whole(file, json.dumps(times))

    def _delete_oldest(self) -> None:
        found: list[tuple[float, int, Path]] = []
        for file in self.folder.glob("*.answer"):
            with contextlib.suppress(FileNotFoundError):  # another process deleted it
                stat = file.stat()
                found.append((stat.st_mtime, stat.st_size, file))
        total = 0
        for _, size, file in sorted(found, reverse=True):
            total += size
            if total > _MAX_BYTES:
                file.unlink(missing_ok=True)


def _warn_damaged(file: Path, why: object) -> None:
    warnings.warn(
        f"{file}: this stored answer cannot be read ({why}); the program is compiled "
        "again.",
        UserWarning,
        stacklevel=5,
    )
