"""Find which `.safetensors` files of a folder hold its weights, and which is missing.

Folders are those of Hugging Face: one file, or several whose names say how many there
are, as `model-00001-of-00002.safetensors`, with or without an index. An index decides
which file a tensor is in; other copies of it are left-overs of earlier downloads.
Without one, the file that transformers or diffusers read is the model, and files beside
it are another precision, another tool's copy or an adapter.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from frugax.errors import CorruptFileError, UnsupportedFileError

# The name of an index that is written; any other is read, also of a variant:
# `model.safetensors.index.fp16.json`.
SHARD_INDEX = "model.safetensors.index.json"
_INDEX = re.compile(r"\.index(\.[\w-]+)?\.json$")
# What transformers and diffusers read of a folder without an index.
_MODELS = ("model.safetensors", "diffusion_pytorch_model.safetensors")
# As deep as in the cache of Hugging Face: models--X/snapshots/REVISION.
_WITHIN = tuple("*/" * depth + "*.safetensors" for depth in (1, 2, 3))
# Files of torch that are pickles, or may be.
_PICKLES = (".bin", ".ckpt", ".pkl", ".pt", ".pth")
# Not those of a training, such as optimizer.pt.
_PICKLED_MODEL = re.compile(r"(\w*model|consolidated)\b")
# As in model-00001-of-00002, and in part_1_of_2.
_NUMBERED = re.compile(r"(?<!\d)(\d+)([-_.]of[-_.])(\d+)(?!\d)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Shards:
    """The files that make up the weights of a folder.

    Attributes:
        files: their paths.
        assigned: the file of each tensor by an index; None without an index.
        unused: names of files and folders within whose weights do not belong to it.
    """

    files: tuple[Path, ...]
    assigned: Mapping[str, Path] | None = None
    unused: tuple[str, ...] = ()


def is_index(path: Path) -> bool:
    """Whether a path is named as the index of a folder."""
    return _INDEX.search(path.name) is not None


def find_shards(place: Path) -> Shards:
    """Return the files of a folder, or of one index.

    Raises:
        CorruptFileError: a file is missing, or an index is damaged.
        UnsupportedFileError: no weights can be read, or two indices disagree.
    """
    folder = place if place.is_dir() else place.parent
    # Hidden ones are of the system: macOS puts ._model.safetensors beside a copy.
    there = sorted(folder.glob("[!.]*.safetensors"))
    pickles = [f for f in sorted(folder.glob("[!.]*")) if is_pickle(f)]
    # Modules of sentence-transformers, and earlier checkpoints of a training.
    within = {f"{file.parent.name}/" for file in folder.glob("[!.]*/*.safetensors")}

    def shards(files: Iterable[Path], assigned: Mapping[str, Path] | None) -> Shards:
        """Return the files of the model, and those left out."""
        files = tuple(files)
        for file in files:
            if not file.is_file():  # or a link, as in a cache of Hugging Face
                why = "an index names this file" if assigned else "this is a link"
                raise CorruptFileError(
                    f"{file}: {why}, and it is not there: download it too."
                )
        unused = [file.name for file in there if file not in files]
        unused += [file.name for file in pickles if _PICKLED_MODEL.match(file.name)]
        return Shards(files, assigned, (*unused, *sorted(within)))

    indices = [place]
    if place.is_dir():
        found = sorted(filter(is_index, folder.glob("[!.]*.json")))
        # Indices of variants, such as fp16, are read only without a plain one.
        plain = [index for index in found if index.name.endswith(".index.json")]
        indices = plain or found
    assigned: dict[str, Path] = {}
    by: dict[str, Path] = {}  # the index that names a tensor
    for index in indices:
        for name, file in _read_index(index).items():
            if assigned.setdefault(name, file) != file:
                raise UnsupportedFileError(
                    f"{folder}: {by[name].name} and {index.name} give the tensor "
                    f"{name!r} to different files: name the index that you mean in "
                    "place of the folder."
                )
            by.setdefault(name, index)
    if assigned:
        return shards(sorted(set(assigned.values())), assigned)
    if not place.is_dir():
        raise UnsupportedFileError(f"{place}: this index names no .safetensors file.")
    models = [file for file in there if file.name in _MODELS]
    if models:
        return shards(models[:1], None)
    # An adapter, say, beside a model that is a pickle is not that model.
    whole = [file for file in pickles if file.name.startswith("pytorch_model")]
    if not there or whole:
        for file in whole or pickles:
            raise UnsupportedFileError(refuse_pickle(file))
        raise UnsupportedFileError(
            f"{folder}: this folder has no .safetensors file"
            f"{_suggest_subfolders(folder)}."
        )
    _check_complete(there)
    return shards(there, None)


def _suggest_subfolders(folder: Path) -> str:
    """Return which folders within have weights: a pipeline has several models."""
    found = {f.parent for pattern in _WITHIN for f in folder.glob(pattern)}
    names = sorted(str(f.relative_to(folder)) for f in found)
    if not names:
        return ""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f": name one of those within, {', '.join(names[:4])}{more}"


def count_siblings(path: Path) -> int:
    """Return how many files a file's name says that it is one of; 1 if nothing."""
    found = _NUMBERED.search(path.name)
    return int(found[3]) if found else 1


def refuse_pickle(path: Path) -> str:
    """Return why pickles are not read, and how to convert one."""
    return (
        f"{path}: torch's own files are pickles, which may run code when they are "
        "read, so frugax does not. If you trust it: weights = torch.load(path, "
        "weights_only=True), then safetensors.torch.save_file(weights, "
        '"model.safetensors").'
    )


def is_pickle(path: Path) -> bool:
    """Whether a file is torch's own by its name."""
    return path.suffix in _PICKLES


def _read_index(index: Path) -> dict[str, Path]:
    """Return the file of each tensor; nothing for an index of other files."""
    try:
        found = json.loads(index.read_bytes())
        shards: dict[str, object] = dict(found["weight_map"])
    except (ValueError, KeyError, TypeError) as e:
        if ".safetensors" not in index.name:  # of something else than weights
            return {}
        raise CorruptFileError(f"{index}: not an index of weights: {e!r:.80}.") from e
    files: dict[str, Path] = {}
    for name, file in shards.items():
        # An index comes from strangers, and must not name files elsewhere.
        if not isinstance(file, str) or Path(file).name != file:
            raise CorruptFileError(f"{index}: {file!r} is not a file of this folder.")
        files[name] = index.parent / file
    # Of the files of torch, TensorFlow or flax, which stand beside.
    if all(file.suffix != ".safetensors" for file in files.values()):
        return {}
    for file in files.values():
        if is_pickle(file):
            raise UnsupportedFileError(refuse_pickle(file))
    return files


def _check_complete(files: Iterable[Path]) -> None:
    """Refuse files of a numbered series that is not all there."""
    series: dict[tuple[str, str], dict[int, re.Match[str]]] = {}
    for file in files:
        if found := _NUMBERED.search(file.name):
            before = str(file)[: -len(file.name) + found.start()]
            after = file.name[found.start(2) :]
            series.setdefault((before, after), {})[int(found[1])] = found
    for (before, after), numbers in series.items():
        name = next(iter(numbers.values()))
        first, count = 0 if 0 in numbers else 1, int(name[3])
        missing = [n for n in range(first, first + count) if n not in numbers]
        if missing:
            raise CorruptFileError(
                f"{before}{missing[0]:0{len(name[1])}}{after}: this file is missing, "
                f"and {len(missing)} of {count} in all: download them too."
            )
