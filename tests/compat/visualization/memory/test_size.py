"""Sizes are those of the memory that stays alive."""

import dataclasses
import io
import sys

import jax.numpy as jnp
import numpy as np

from frugax.compat.visualization.memory import held_bytes


def test_arrays_in_containers_are_found():
    big = np.zeros(10_000)
    value = {"a": [big, (big * 2,)], "b": {"c": jnp.zeros(500, jnp.float32)}}
    assert 162_000 <= held_bytes(value) <= 164_000


def test_shared_objects_count_once():
    big = np.zeros(10_000)
    assert held_bytes([big, big]) == held_bytes([big]) + sys.getsizeof([0, 0]) - (
        sys.getsizeof([0])
    )
    assert held_bytes([big[:10], big[10:20]]) < 81_000


def test_a_small_view_keeps_the_whole_array_alive():
    assert held_bytes(np.zeros(10_000)[:10]) == 80_000


def test_a_broadcast_array_is_as_large_as_its_base():
    assert held_bytes(np.broadcast_to(np.zeros(10), (1000, 10))) == 80


def test_buffers_of_others_count():
    data = bytes(10_000)
    assert held_bytes(np.frombuffer(data, np.uint8)) == sys.getsizeof(data)
    assert held_bytes(memoryview(bytearray(10_000))) >= 10_000
    assert 4000 <= held_bytes(np.asarray(jnp.zeros(1000, jnp.float32))) <= 4200


def test_objects_count_by_their_fields():
    @dataclasses.dataclass
    class Plain:
        x: np.ndarray

    @dataclasses.dataclass(slots=True)
    class Slotted:
        x: np.ndarray

    class Hidden:
        __slots__ = ("__x",)

        def __init__(self, x):
            self.__x = x

    class Heir(Hidden):
        pass

    for cls in (Plain, Slotted, Hidden, Heir):
        assert 80_000 <= held_bytes(cls(np.zeros(10_000))) <= 81_000
    assert held_bytes(np.array([np.zeros(10_000), None], object)) >= 80_000


def test_circles_and_depth_do_no_harm():
    circle = [np.zeros(1000)]
    circle.append(circle)  # pyright: ignore[reportArgumentType]
    assert 8000 <= held_bytes(circle) <= 8200
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert held_bytes(deep) > 100_000 * 56


def test_objects_shared_with_the_program_are_not_counted():
    class Owner:
        def method(self):
            return np.zeros(3)

    assert held_bytes([np, Owner, Owner.method, len]) < 200


def test_memory_mapped_files_are_not_counted(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(10_000))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert held_bytes(mapped) == held_bytes(mapped[:10]) == 0
    private = np.load(tmp_path / "x.npy", mmap_mode="c")
    assert held_bytes(private) == 80_000


def test_an_open_archive_is_not_read():
    buffer = io.BytesIO()
    np.savez(buffer, x=np.zeros(10_000))
    with np.load(io.BytesIO(buffer.getvalue())) as archive:
        held_bytes(archive)
        archive.zip.close()
        held_bytes(archive)  # reading an item would raise now


def test_a_deleted_jax_array_holds_zero_bytes():
    x = jnp.zeros(1000)
    x.delete()
    assert held_bytes(x) == 0


def test_random_keys_and_arrays_on_several_devices():
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    assert held_bytes(jax.random.key(0)) > 0
    mesh = jax.make_mesh((8,), ("x",))
    for spec, copies in ((PartitionSpec("x"), 1), (PartitionSpec(), 8)):
        x = jax.device_put(jnp.zeros(800, jnp.float32), NamedSharding(mesh, spec))
        assert held_bytes(x) == 3200 * copies
