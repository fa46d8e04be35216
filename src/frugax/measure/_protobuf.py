"""Decode Protocol Buffers messages, such as XLA's HLO, without their schemas.

jaxlib comes without the classes to read them. Unknown field numbers are skipped.

References:
    https://protobuf.dev/programming-guides/encoding
"""

from collections.abc import Iterator

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


class Message:
    """One message: its fields by number, in the order in which they were written."""

    def __init__(self, data: bytes) -> None:
        """Split a message into its fields; nested messages are left as bytes."""
        self._fields: dict[int, list[int | bytes]] = {}
        for number, value in _split_fields(data):
            self._fields.setdefault(number, []).append(value)

    def number(self, field: int) -> int:
        """An integer; 0 if the field is absent, as the format says."""
        # The format lets the last value win where a single field occurs twice.
        (*_, last) = self._fields.get(field, [0])
        return last if isinstance(last, int) else 0

    def text(self, field: int) -> str:
        """Text; empty if the field is absent."""
        (*_, last) = self._fields.get(field, [b""])
        return last.decode() if isinstance(last, bytes) else ""

    def numbers(self, field: int) -> tuple[int, ...]:
        """Integers, packed or one by one."""
        found: list[int] = []
        for value in self._fields.get(field, []):
            if isinstance(value, int):
                found.append(value)
                continue
            at = 0
            while at < len(value):
                number, at = _read_varint(value, at)
                found.append(number)
        return tuple(found)

    def values(self, field: int) -> list[bytes]:
        """Repeated text or bytes."""
        return [v for v in self._fields.get(field, []) if isinstance(v, bytes)]

    def messages(self, field: int) -> "list[Message]":
        """Nested messages."""
        return [Message(v) for v in self._fields.get(field, []) if isinstance(v, bytes)]

    def message(self, field: int) -> "Message":
        """One nested message; empty if the field is absent."""
        return (self.messages(field) or [Message(b"")])[-1]


def _split_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield number, value
            continue
        if kind == _LENGTH:
            length, at = _read_varint(data, at)
        elif kind == _EIGHT_BYTES:
            length = 8
        elif kind == _FOUR_BYTES:
            length = 4
        else:
            raise ValueError(
                f"not a Protocol Buffers message: wire type {kind} at byte {at}."
            )
        if at + length > len(data):
            raise ValueError(f"a Protocol Buffers message is cut off at byte {at}.")
        yield number, data[at : at + length]
        at += length


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits in each byte, least significant first, and its end."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
    raise ValueError(f"a Protocol Buffers message is cut off at byte {at}.")
