"""`PackedArray`: a weight that stays packed in memory and is unpacked under `jit`."""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class PackedArray:
    """A weight as small integers times steps, which a program unpacks where it uses it.

    It is a pytree whose leaves are the packed arrays, so that a jitted function takes
    it as an argument in a fraction of the bytes. There it stands for the dense array
    in `x @ w`, `w @ x`, `w[rows]` and the functions of `jax.numpy`; `unpack` gives
    that array for all else (`jax.lax`, arithmetic).

    Attributes:
        data: the integers, int8; those of 4 bits in pairs along the last axis, uint8.
        steps: of each group of numbers; they broadcast against the groups.
        columns: length of the last axis.
        bits: 4 or 8.
        group: how many neighbours share a step; 0 for whole rows or columns.
        axis: of the groups, -1 or -2.
        dtype: of the weight.
    """

    data: Any
    steps: Any
    columns: int
    bits: int
    group: int
    axis: int
    dtype: "np.dtype[Any]"
    # NumPy then leaves `x @ w` to this class.
    __array_ufunc__: ClassVar[None] = None

    @classmethod
    def pack(
        cls,
        integers: np.ndarray,
        steps: np.ndarray,
        **layout: Any,
    ) -> "PackedArray":
        """Put integers, int8, and their steps on a device, those of 4 bits in pairs."""
        import jax.numpy as jnp

        data = pack_nibbles(integers) if layout["bits"] == 4 else integers
        return cls(
            data=jnp.asarray(data),
            steps=jnp.asarray(steps),
            columns=integers.shape[-1],
            **layout,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return (*self.data.shape[:-1], self.columns)

    @property
    def ndim(self) -> int:
        """How many axes the weight has."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many numbers the weight has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed arrays."""
        return self.data.nbytes + self.steps.nbytes

    def unpack(self) -> Any:
        """Return the weight as a JAX array: one rounded product, then its dtype."""
        import jax.numpy as jnp

        integers = self.data
        if self.bits == 4:
            # Signed: shifting the sign bit of a nibble up and back fills the rest.
            low, high = integers << 4, integers & 0xF0
            pairs = jnp.stack([low, high], axis=-1).astype(jnp.int8) >> 4
            integers = pairs.reshape(*self.data.shape[:-1], -1)[..., : self.columns]
        steps = self.steps.astype(jnp.float32)
        if self.group:
            steps = jnp.repeat(steps, self.group, axis=self.axis)
            length = self.shape[self.axis]
            steps = steps[..., :length] if self.axis == -1 else steps[..., :length, :]
        return (integers.astype(jnp.float32) * steps).astype(self.dtype)

    def astype(self, dtype: Any) -> Any:
        """Return the weight as a JAX array of another dtype."""
        return self.unpack().astype(dtype)

    def reshape(self, *shape: Any) -> Any:
        """Return the weight as a JAX array of another shape."""
        return self.unpack().reshape(*shape)

    @property
    def T(self) -> Any:
        """The transposed weight, as a JAX array."""
        return self.unpack().T

    def __jax_array__(self) -> Any:
        return self.unpack()

    # Without it NumPy would take the whole for one object, equal to nothing.
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self.unpack(), dtype)

    def __matmul__(self, other: Any) -> Any:
        return self.unpack() @ other

    def __rmatmul__(self, other: Any) -> Any:
        return other @ self.unpack()

    def __getitem__(self, index: Any) -> Any:
        """Return entries as a JAX array; of rows by integers, these alone unpacked."""
        import jax.numpy as jnp

        integral = not isinstance(index, tuple | slice | list | bool | type(None))
        if not (integral and self.ndim == 2):
            return self.unpack()[index]
        rows = jnp.asarray(index)
        if not jnp.issubdtype(rows.dtype, jnp.integer):
            return self.unpack()[index]
        rows = jnp.where(rows < 0, rows + self.shape[0], rows)
        group, of_steps = self.group, rows
        if self.axis == -2 and group:
            group, of_steps = 0, rows // group
        elif len(self.steps) == 1:
            of_steps = jnp.zeros_like(rows)
        return dataclasses.replace(
            self, data=self.data[rows], steps=self.steps[of_steps], group=group
        ).unpack()


def pack_nibbles(integers: np.ndarray) -> np.ndarray:
    """Pack integers of 4 bits in pairs along the last axis, the first one lower."""
    nibbles = integers.view(np.uint8) & 15
    if nibbles.shape[-1] % 2:
        nibbles = np.concatenate([nibbles, np.zeros_like(nibbles[..., :1])], axis=-1)
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)


@functools.cache
def register_packed() -> None:
    """Make `PackedArray` a pytree; only once one is made, since that imports JAX."""
    import jax

    jax.tree_util.register_dataclass(
        PackedArray,
        data_fields=["data", "steps"],
        meta_fields=["columns", "bits", "group", "axis", "dtype"],
    )
