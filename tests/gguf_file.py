"""Read GGUF files by the description of the format, without any code of ours."""

import struct

import numpy as np

FORMS = {1: "b", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q"}
# Bytes and numbers of a block.
BLOCKS = {
    0: (4, 1),
    1: (2, 1),
    27: (8, 1),
    2: (18, 32),
    8: (34, 32),
    12: (144, 256),
    14: (210, 256),
}


def read_gguf(path):
    """Read a file as ggml's docs/gguf.md says, without any code of ours."""
    data, at = path.read_bytes(), 0

    def take(form):
        nonlocal at
        values = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(f"<{form}")
        return values

    def text():
        return bytes(take(f"{take('Q')[0]}s")[0]).decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, count = take("IQ")
            return [value(inner) for _ in range(count)]
        return take(FORMS[kind])[0]

    magic, version, tensors, pairs = take("4sIQQ")
    assert (magic, version) == (b"GGUF", 3)
    metadata = {text(): value(take("I")[0]) for _ in range(pairs)}
    entries = []
    for _ in range(tensors):
        name, axes = text(), take("I")[0]
        entries.append((name, take(f"{axes}Q")[::-1], *take("IQ")))
    start = -(-at // 32) * 32
    found = {}
    for name, shape, kind, offset in entries:
        length, numbers = BLOCKS[kind]
        count = int(np.prod(shape)) // numbers
        raw = np.frombuffer(data, np.uint8, count * length, start + offset)
        found[name] = DECODERS[kind](raw.reshape(count, length)).reshape(shape)
    return metadata, found


def half(raw):
    return np.ascontiguousarray(raw).view("<f2").astype("f4")


def q4_k(b):
    d, dmin, packed = half(b[:, :2]), half(b[:, 2:4]), b[:, 4:16].astype(int)
    s = np.concatenate(
        [packed[:, :4] & 63, packed[:, 8:] & 15 | packed[:, :4] >> 6 << 4], axis=1
    )
    m = np.concatenate(
        [packed[:, 4:8] & 63, packed[:, 8:] >> 4 | packed[:, 4:8] >> 6 << 4], axis=1
    )
    q = b[:, 16:].reshape(-1, 4, 1, 32) >> np.array([[0], [4]], np.uint8) & 15
    return (d * s)[..., None] * q.reshape(-1, 8, 32) - (dmin * m)[..., None]


def q6_k(b):
    low = b[:, :128].reshape(-1, 2, 1, 64) >> np.array([[0], [4]], np.uint8) & 15
    high = b[:, 128:192].reshape(-1, 2, 1, 32)
    high = high >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    q = low.reshape(-1, 8, 32).astype(int) | high.reshape(-1, 8, 32).astype(int) << 4
    s = b[:, 192:208].view(np.int8)
    return (half(b[:, 208:]) * s)[..., None] * (q.reshape(-1, 16, 16) - 32)


DECODERS = {
    27: lambda b: np.ascontiguousarray(b).view("<i8"),
    0: lambda b: np.ascontiguousarray(b).view("<f4"),
    1: half,
    2: lambda b: (
        half(b[:, :2])
        * (np.concatenate([b[:, 2:] & 15, b[:, 2:] >> 4], axis=1).astype("f4") - 8)
    ),
    8: lambda b: half(b[:, :2]) * b[:, 2:].view(np.int8),
    12: q4_k,
    14: q6_k,
}
