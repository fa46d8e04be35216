"""Work that does not fit the pool is done in pieces that do."""

from ._jax_pool import JaxMemoryPool

# Below this a piece is all overhead; the pool is then passed over for its length.
_LEAST = 1 << 16


class JaxMemoryOptimizer:
    """Cuts flat work into pieces that fit what the pool has left.

    Args:
        pool: the pool.
    """

    def __init__(self, pool: JaxMemoryPool) -> None:
        self._pool = pool

    def pieces(self, size: int, bytes_each: int) -> list[slice]:
        """Slices that cover `size` numbers, each within the pool's free bytes.

        Args:
            size: how many numbers.
            bytes_each: bytes that one number takes on the device, its result and
                what stands between included.
        """
        most = max(_LEAST, self._pool.free_bytes // bytes_each)
        return [slice(i, min(i + most, size)) for i in range(0, size, most)]
