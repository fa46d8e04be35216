"""The layout of compressed-tensors, which vLLM and transformers read.

https://github.com/vllm-project/compressed-tensors: `pack-quantized` for 4 bits,
`int-quantized` for 8. Tools quantise the weights of `Linear` modules alone, which by
their names cannot be told from others with two axes.
"""

import fnmatch
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from frugax.errors import CorruptFileError
from frugax.fileio import write_whole

from .codecs.groups import Grouping, pack_nibbles
from .container import Record

_WEIGHT = ".weight"
_GROUPS = (128, 64, 32)
# The words of compressed-tensors for ours.
_FORMATS = {4: "pack-quantized", 8: "int-quantized"}


def choose_grouping(
    records: Iterable[Record], bits: int, keep: Sequence[str]
) -> Grouping:
    """Return the longest groups that divide the rows of all matrices; rows for 8."""
    rows = [r.shape[-1] for r in records if is_linear(r, keep)]
    for size in _GROUPS if bits == 4 else ():
        if not any(row % size for row in rows):
            return Grouping(bits, size)
    return Grouping(bits, _GROUPS[-1] if bits == 4 else 0)


def is_linear(record: Record, keep: Sequence[str]) -> bool:
    """Whether a tensor may be the weight of a `Linear` module that is not kept."""
    name, ending = record.name[: -len(_WEIGHT)], record.name[-len(_WEIGHT) :]
    kept = any(fnmatch.fnmatchcase(name, pattern) for pattern in keep)
    return ending == _WEIGHT and len(record.shape) == 2 and not kept


def lay_out(
    name: str, integers: np.ndarray, steps: np.ndarray, bits: int
) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    """Return the tensors that stand for one weight."""
    of_steps = f"{name}_scale", steps.dtype.name, steps.shape, steps.tobytes()
    if bits == 8:
        return [(name, "int8", integers.shape, integers.tobytes()), of_steps]
    # From 0 to 15, eight to a word, the first one lowest.
    packed = pack_nibbles(integers + np.int8(8))
    padding = -packed.shape[-1] % 4
    packed = np.ascontiguousarray(np.pad(packed, ((0, 0), (0, padding))))
    words = packed.view("<i4")
    shape = np.array(integers.shape, "<i8")
    return [
        (f"{name}_packed", "int32", words.shape, words.tobytes()),
        of_steps,
        (f"{name}_shape", "int64", shape.shape, shape.tobytes()),
    ]


def add_to_config(
    path: Path, records: Iterable[Record], dense: set[str], grouping: Grouping
) -> None:
    """Write the quantiser's entry into a `config.json`, which may be there already.

    Raises:
        CorruptFileError: what is there is not a configuration.
    """
    try:
        config: Any = json.loads(path.read_bytes()) if path.exists() else {}
    except ValueError as e:
        raise CorruptFileError(f"{path}: not JSON ({e}): copy it again.") from e
    if not isinstance(config, dict):
        raise CorruptFileError(f"{path}: a configuration is a JSON object.")
    weights = {
        "num_bits": grouping.bits,
        "type": "int",
        "symmetric": True,
        "strategy": "group" if grouping.size else "channel",
        "group_size": grouping.size or None,
    }
    kept = [
        r.name.removesuffix(_WEIGHT)
        for r in records
        if r.name in dense and r.name.endswith(_WEIGHT) and len(r.shape) == 2
    ]
    entry = {
        "quant_method": "compressed-tensors",
        "format": _FORMATS[grouping.bits],
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": kept,
    }
    whole = {**config, "quantization_config": entry}
    write_whole(path, json.dumps(whole, indent=2) + "\n")
