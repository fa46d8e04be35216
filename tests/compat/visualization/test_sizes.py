"""Sizes are those of the memory that stays alive."""

import dataclasses
import io
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from frugax.compat.visualization import VisualizationCache

BIG = np.zeros(10_000)  # 80,000 bytes


def held_bytes(value: object) -> int:
    """The bytes that a cache counts for a value."""
    cache = VisualizationCache()
    cache.put("x", value)
    return cache.nbytes


@dataclasses.dataclass
class Plain:
    x: object


@dataclasses.dataclass(slots=True)
class Slotted:
    x: object


class Hidden:
    __slots__ = ("__x",)

    def __init__(self, x):
        self.__x = x


@pytest.mark.parametrize(
    "value",
    [
        BIG,
        BIG[:10],  # keeps the whole array alive
        [BIG, BIG, BIG[5:]],
        {"a": ({1: BIG},)},
        np.array([BIG, None], object),
        jnp.zeros(20_000, jnp.float32),
        np.asarray(jnp.zeros(20_000, jnp.float32)),
        np.frombuffer(bytes(80_000), np.uint8, count=10),
        memoryview(bytearray(80_000)),
        np.lib.stride_tricks.sliding_window_view(BIG, 100),
        np.broadcast_to(BIG, (50, 10_000)),
        Plain(BIG),
        Slotted(BIG),
        Hidden(BIG),
        "x" * 80_000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_counts_what_it_keeps_alive_once(value):
    assert 80_000 <= held_bytes(value) <= 81_500


def test_circles_and_depth_do_no_harm():
    circle: list = [np.zeros(1000)]
    circle.append(circle)
    assert 8000 <= held_bytes(circle) <= 8300
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert held_bytes(deep) > 100_000 * sys.getsizeof([])


def test_objects_shared_with_the_program_are_not_counted():
    assert held_bytes([np, Plain, held_bytes, len, Plain(1).__repr__]) < 200


def test_memory_mapped_files_are_not_counted(tmp_path):
    np.save(tmp_path / "x.npy", BIG)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert held_bytes([mapped, mapped[:10]]) < 5000


def test_an_open_archive_is_not_read():
    buffer = io.BytesIO()
    np.savez(buffer, x=BIG)
    with np.load(io.BytesIO(buffer.getvalue())) as archive:
        held_bytes(archive)
        archive.zip.close()
        held_bytes(archive)  # reading an item would raise now
