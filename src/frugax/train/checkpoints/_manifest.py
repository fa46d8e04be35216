"""The manifest of a checkpoint: its state's leaves and a checksum of every file."""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from frugax.fileio import write_whole

MANIFEST = "frugax.json"
VERSION = 1
_CHUNK_BYTES = 1 << 20


def write_manifest(
    folder: Path,
    *,
    step: int,
    leaves: Sequence[tuple[str, str]],
    extra: Mapping[str, Any],
) -> None:
    """Write the manifest, which makes the checkpoint count."""
    body = {
        "version": VERSION,
        "step": step,
        "leaves": leaves,
        "files": _compute_checksums(folder),
        "extra": extra,
    }
    # The manifest is stored as text in an envelope, so that its own checksum is over
    # exact bytes and not over one of many ways to write the same JSON.
    text = json.dumps(body)
    envelope = {"crc32": zlib.crc32(text.encode()), "manifest": text}
    write_whole(folder / MANIFEST, json.dumps(envelope))


def find_damage(folder: Path) -> str:
    """Describe the damage to the files of a folder with a manifest; empty if intact."""
    try:
        body = read_manifest(folder)
    except (ValueError, KeyError, TypeError):
        return f"{MANIFEST} is damaged"
    if body["version"] != VERSION:
        return ""  # written by another version: its files may be laid out differently
    found = _compute_checksums(folder)
    for file, checksum in body["files"].items():
        if file not in found:
            return f"{file} is missing"
        if found[file] != checksum:
            return f"{file} is damaged"
    return ""


# Read the manifest.
def read_manifest(folder: Path) -> dict[str, Any]:
    envelope = json.loads((folder / MANIFEST).read_text())
    text = str(envelope["manifest"])
    if zlib.crc32(text.encode()) != envelope["crc32"]:
        raise ValueError(f"{folder / MANIFEST}: the checksum is wrong.")
    return json.loads(text)


def _compute_checksums(folder: Path) -> dict[str, list[int]]:
    """Return length and CRC-32 of every file that Orbax wrote."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    # CRC-32 finds damage by disks and copies; it is not a protection against forgery.
    found: dict[str, list[int]] = {}
    for path in files:
        crc = 0
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                crc = zlib.crc32(chunk, crc)
        found[path.relative_to(folder).as_posix()] = [path.stat().st_size, crc]
    return found
