"""Files that are damaged, or made to deceive, from a sound one."""

import copy
import hashlib
import json
import struct
import zlib

import numpy as np
import zstandard

FOOTER = 64


def header_of(data):
    """The header as JSON, and where it begins."""
    (packed,) = struct.unpack_from("<Q", data, len(data) - FOOTER)
    end = len(data) - FOOTER - packed
    return json.loads(zstandard.decompress(data[end : end + packed])), end


def finished(body, header):
    """A body with this header (or these bytes for one) and a sound footer behind it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    block = zstandard.compress(text)
    crc = zlib.crc32(block + struct.pack("<Q", len(text)))
    total = len(body) + len(block) + FOOTER
    tail = block + struct.pack("<QQI4xQ", len(block), len(text), crc, total)
    # The checksums of the chunks are in the header.
    return body + tail + hashlib.sha256(body[:FOOTER] + tail).digest()


def rewritten(data, change):
    """The file with another header and correct checksums, as a forger makes it."""
    header, end = header_of(data)
    return finished(data[:end], change(header) or header)


def flipped(data, rng):
    """One byte is another."""
    wrong = bytearray(data)
    wrong[int(rng.integers(len(data)))] ^= int(rng.integers(1, 256))
    return bytes(wrong)


def burst(data, rng):
    """Up to 64 bytes in a row are others, or zero."""
    at, length = int(rng.integers(len(data))), int(rng.integers(1, 65))
    noise = rng.bytes(length) if rng.random() < 0.7 else bytes(length)
    return (data[:at] + noise + data[at + length :])[: len(data)]


def cut(data, rng):
    """Bytes are gone, or some too many, in the middle or at the end."""
    at, length = int(rng.integers(len(data))), int(rng.integers(1, 200))
    match rng.integers(3):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[at + length :]
        case _:
            return data[:at] + rng.bytes(length) + data[at:]


def swapped(data, rng):
    """Two pieces have changed places."""
    a, b, c, d = sorted(int(n) for n in rng.integers(0, len(data) + 1, 4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def swapped_chunks(data, rng):
    """Two chunks of the header have changed places; all checksums are right."""

    def change(header):
        chunks = [t["chunks"] for t in header["tensors"] if t["chunks"]]
        i, j = (int(n) for n in rng.integers(0, len(chunks), 2))
        chunks[i][0], chunks[j][0] = chunks[j][0], chunks[i][0]

    return rewritten(data, change)


def damaged_chunk(data, rng):
    """A chunk is damaged and its checksum mended: decoders must defend themselves."""
    header, end = header_of(data)
    body = bytearray(data[:end])
    tensors = [t for t in header["tensors"] if t["chunks"]]
    chunks = tensors[int(rng.integers(len(tensors)))]["chunks"]
    chunk = chunks[int(rng.integers(len(chunks)))]
    start, length = FOOTER + chunk[0], chunk[1]
    for _ in range(int(rng.integers(1, 5))):
        # Mostly near the start: the tables and lengths are there.
        span = length if rng.random() < 0.4 else min(length, 48)
        at = start + int(rng.integers(span))
        body[at] = int(rng.choice([0, 1, 127, 128, 255, int(rng.integers(256))]))
    if rng.random() < 0.2:
        chunk[1] = int(rng.integers(1, length + 1))
    chunk[2] = zlib.crc32(body[start : start + chunk[1]])
    return finished(bytes(body), header)


STRANGE = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 64, 255, 2**31, 2**32, 2**48 - 1),
    *(2**63, 2**64, 2**70, 0.5, -0.0, 1e300, "", "w", "*", "../x", "\0", "float32"),
    *(
        "bool",
        "float64",
        "lossless",
        "uniform",
        "trellis",
        "stored",
        "trellis scaled",
        "trellis columns",
        "a" * 3000,
    ),
    *([], {}, [1], [[1]], [0] * 40, [1 << 40], {"dict": {}}, {"flat": ["a", "a"]}),
    *({"list": ["*"] * 9}, {"tuple": [None]}, [1 << 20, 1 << 20], [[0, 1, 0]] * 3),
]


def edited_header(data, rng):
    """One or two things in the header are others; all checksums are right."""

    def change(header):
        for _ in range(int(rng.integers(1, 3))):
            where, key = place_in(header, rng)
            if rng.random() < 0.15:
                del where[key]
            elif isinstance(where[key], int) and rng.random() < 0.5:
                where[key] += int(rng.integers(-9, 10))
            else:
                # A copy: the next edit may change a list inside it.
                strange = STRANGE[int(rng.integers(len(STRANGE)))]
                where[key] = copy.deepcopy(strange)

    return rewritten(data, change)


def place_in(value, rng):
    """A container somewhere in a JSON value, and one of its keys."""
    where = value
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        key = keys[int(rng.integers(len(keys)))]
        inner = where[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.15:
            return where, key
        where = inner


# Whole-file checksums notice these.
DAMAGES = (flipped, burst, cut, swapped)
# These only the reader's own checks can.
FORGERIES = (swapped_chunks, damaged_chunk, edited_header)


def rng_of(seed):
    """A separate generator for every case, so that any can be repeated alone."""
    return np.random.default_rng(seed)
