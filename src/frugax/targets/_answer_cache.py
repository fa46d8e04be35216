"""Cache the compiler's report of a program on disk: memory, flops and HLO text."""

import dataclasses
import json
import os
import types
from pathlib import Path
from typing import Any

import jax
import zstandard

from frugax.fileio import DiskCache, cache_folder

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
        caveat: how it was compiled otherwise than asked for; "" if as asked.
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
    caveat: str = ""
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
    compiled: jax.stages.Compiled,
    *,
    target: str,
    places: str,
    seconds: float,
    caveat: str = "",
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
        caveat=caveat,
        **counts,
    )


def find_caveat(compiled: "jax.stages.Compiled | CompiledAnswer | None") -> str:
    """How a program was compiled otherwise than asked for; "" if as asked."""
    return compiled.caveat if isinstance(compiled, CompiledAnswer) else ""


class AnswerCache:
    """Answers by the digest of the program, the target, versions and options."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Use this folder; by default `frugax/targets` in the user's cache folder."""
        self._files = DiskCache(
            Path(folder or cache_folder("targets")),
            suffix=".answer",
            kind="answer",
            remedy="the program is compiled again",
            max_bytes=_MAX_BYTES,
        )

    def load(self, key: str, *, places: str = "") -> CompiledAnswer | None:
        """The answer under this key, or None.

        Args:
            key: the digest.
            places: if given, the answer must have been traced from these source lines.
        """
        answer = self._files.load(key, _decode)
        if answer is None or (places and answer.places != places):
            return None
        return answer

    def store(self, key: str, answer: CompiledAnswer) -> None:
        """Store an answer; a folder that cannot be written to costs a warning."""
        facts: dict[str, object] = {
            f.name: getattr(answer, f.name)
            for f in dataclasses.fields(answer)
            if f.name not in ("hlo_module", "hlo_text", "remembered")
        }
        facts["module_bytes"] = len(answer.hlo_module)
        texts = zstandard.compress(answer.hlo_module + answer.hlo_text.encode())
        self._files.store(key, json.dumps(facts).encode() + b"\n" + texts)


def _decode(content: bytes) -> CompiledAnswer:
    head, _, texts = content.partition(b"\n")
    facts = json.loads(head)
    module_bytes = facts.pop("module_bytes")
    texts = zstandard.decompress(texts)
    return CompiledAnswer(
        **facts,
        hlo_module=texts[:module_bytes],
        hlo_text=texts[module_bytes:].decode(),
        remembered=True,
    )
