"""The manifest of a checkpoint: what it holds, and how its files were written."""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from frugax.fileio import write_whole

MANIFEST = "frugax.json"
VERSION = 1


def seal(
    place: Path,
    *,
    step: int,
    leaves: Sequence[tuple[str, str]],
    extra: Mapping[str, Any],
) -> None:
    """Write the manifest: from now on the folder counts.

    Args:
        place: a folder whose other files are whole.
        step: of the state in it.
        leaves: every leaf's place and type.
        extra: the caller's own, which JSON can hold.

    Raises:
        OutputError: it cannot be written.
    """
    body = {
        "version": VERSION,
        "step": step,
        "leaves": leaves,
        "files": _checksums(place),
        "extra": extra,
    }
    text = json.dumps(body)
    sealed = {"crc32": zlib.crc32(text.encode()), "manifest": text}
    write_whole(place / MANIFEST, json.dumps(sealed))


def damage_at(place: Path) -> str:
    """What is wrong with the files of a folder; empty if nothing is.

    Args:
        place: a folder with a manifest.

    Raises:
        OSError: they cannot be read.
    """
    try:
        body = read_manifest(place)
    except (ValueError, KeyError, TypeError):
        return f"{MANIFEST} is damaged"
    if body["version"] != VERSION:
        return ""  # not ours to judge
    found = _checksums(place)
    for file, whole in body["files"].items():
        if file not in found:
            return f"{file} is missing"
        if found[file] != whole:
            return f"{file} is damaged"
    return ""


def read_manifest(place: Path) -> dict[str, Any]:
    """What the manifest says.

    Raises:
        KeyError: it is damaged, as for TypeError and ValueError.
        OSError: it cannot be read.
        TypeError: see KeyError.
        ValueError: see KeyError.
    """
    sealed = json.loads((place / MANIFEST).read_text())
    text = str(sealed["manifest"])
    if zlib.crc32(text.encode()) != sealed["crc32"]:
        raise ValueError(f"{place / MANIFEST}: the checksum is wrong.")
    return json.loads(text)


def _checksums(place: Path) -> dict[str, list[int]]:
    """Length and CRC-32 of every file that Orbax wrote."""
    files = sorted(p for p in place.rglob("*") if p.is_file() and p.name != MANIFEST)
    found: dict[str, list[int]] = {}
    for path in files:
        crc = 0
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                crc = zlib.crc32(chunk, crc)
        found[path.relative_to(place).as_posix()] = [path.stat().st_size, crc]
    return found
