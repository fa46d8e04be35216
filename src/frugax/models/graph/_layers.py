"""The layers: what each makes of a shape, which parameters it has, what it costs.

Shapes are those of one example, without the batch. Images are (height, width,
channels). Each method that can refuse a shape takes `at`, the layer's place in the
model, and names it. What a layer computes is said here and done in the backends.
"""

import dataclasses
import math
from typing import Literal

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One array of a layer.

    Attributes:
        shape: its shape.
        fill: 0 or 1 for a constant start; None for normal random numbers.
        std: their standard deviation, if random.
    """

    shape: Shape
    fill: int | None = None
    std: float = 0.0

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


class Layer:
    """Base of everything a model is made of."""

    __slots__ = ()


class Leaf(Layer):
    """Base of the layers that are not made of layers."""

    __slots__ = ()

    def shape_after(self, shape: Shape, at: str) -> Shape:
        """The shape that comes out when `shape` goes in, at the place `at`.

        Raises:
            ValueError: `shape` does not suit the layer.
        """
        return shape

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        """The layer's arrays by name, for an input of this shape."""
        return {}

    def flops(self, shape: Shape) -> int:
        """Floating-point operations for one example of this shape, forwards."""
        return 0


@dataclasses.dataclass(frozen=True, slots=True)
class Pointwise(Leaf):
    """Base of the layers that map each number by itself."""

    def flops(self, shape: Shape) -> int:
        """One for each number; a convention, as nobody agrees on a tanh's."""
        return math.prod(shape)


class Relu(Pointwise):
    """max(x, 0)."""


class Gelu(Pointwise):
    """x Phi(x), by the error function, not by the tanh approximation."""


class Tanh(Pointwise):
    """tanh(x)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Linear(Leaf):
    """x W^T + b over the last axis.

    Attributes:
        features: length of the last axis afterwards; >= 1.
        bias: whether there is a b.
        init: spread of W at the start. `"he"`: std sqrt(2 / fan_in), for a Relu or
            Gelu behind it (He et al. 2015, ICCV, eq. 10). `"glorot"`: std
            sqrt(2 / (fan_in + fan_out)) (Glorot & Bengio 2010, AISTATS, eq. 12).
    """

    features: int
    bias: bool = True
    init: Literal["he", "glorot"] = "he"

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: `features` is below 1 or `init` is unknown.
        """
        _at_least_one("Linear.features", self.features)
        _known_init("Linear.init", self.init)

    def shape_after(self, shape: Shape, at: str) -> Shape:
        """The last axis becomes `features`.

        Raises:
            ValueError: there is no axis.
        """
        if not shape:
            raise ValueError(f"{at} (Linear) needs at least one axis, got shape ().")
        return (*shape[:-1], self.features)

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        """`weight` (features, inputs) and, if wanted, `bias` (features,)."""
        fan_in = shape[-1]
        std = _std(self.init, fan_in, self.features)
        found = {"weight": Parameter((self.features, fan_in), std=std)}
        if self.bias:
            found["bias"] = Parameter((self.features,), fill=0)
        return found

    def flops(self, shape: Shape) -> int:
        """Two for each weight and place, one for each bias added."""
        return math.prod(shape[:-1]) * self.features * (2 * shape[-1] + self.bias)


@dataclasses.dataclass(frozen=True, slots=True)
class Conv(Leaf):
    """A square convolution over an image, zeros around it, and a bias.

    Attributes:
        features: channels afterwards; >= 1.
        kernel: side of the square it sees; >= 1.
        stride: pixels from one result to the next; >= 1.
        init: as for `Linear`.
    """

    features: int
    kernel: int = 3
    stride: int = 1
    init: Literal["he", "glorot"] = "he"

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: a number is below 1 or `init` is unknown.
        """
        _at_least_one("Conv.features", self.features)
        _at_least_one("Conv.kernel", self.kernel)
        _at_least_one("Conv.stride", self.stride)
        _known_init("Conv.init", self.init)

    def shape_after(self, shape: Shape, at: str) -> Shape:
        """Each side is divided by `stride`, rounded up.

        Raises:
            ValueError: the shape is not (height, width, channels).
        """
        if len(shape) != 3:
            raise ValueError(
                f"{at} (Conv) needs (height, width, channels), got shape {shape}. "
                "Give an input_shape of three numbers and flatten later."
            )
        height, width, _ = shape
        return (-(-height // self.stride), -(-width // self.stride), self.features)

    def padding(self, shape: Shape) -> tuple[tuple[int, int], tuple[int, int]]:
        """Zeros before and after the rows, and before and after the columns."""
        pads: list[tuple[int, int]] = []
        for side in shape[:2]:
            results = -(-side // self.stride)
            total = max((results - 1) * self.stride + self.kernel - side, 0)
            pads.append((total // 2, total - total // 2))
        return pads[0], pads[1]

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        """`weight` (kernel, kernel, inputs, features) and `bias` (features,)."""
        area, channels = self.kernel**2, shape[-1]
        std = _std(self.init, area * channels, area * self.features)
        weight = Parameter((self.kernel, self.kernel, channels, self.features), std=std)
        return {"weight": weight, "bias": Parameter((self.features,), fill=0)}

    def flops(self, shape: Shape) -> int:
        """Two for each weight and result, zeros around the image included."""
        results = math.prod(self.shape_after(shape, ""))
        return results * (2 * self.kernel**2 * shape[-1] + 1)


@dataclasses.dataclass(frozen=True, slots=True)
class LayerNorm(Leaf):
    """(x - mean) / sqrt(variance + epsilon) over the last axis, scaled and shifted.

    Attributes:
        epsilon: keeps a constant input finite; > 0.

    References:
        Ba, Kiros & Hinton 2016, arXiv:1607.06450, eq. 4.
    """

    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        """Check the number.

        Raises:
            ValueError: `epsilon` is not positive.
        """
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"LayerNorm.epsilon must be > 0, got {self.epsilon}.")

    def shape_after(self, shape: Shape, at: str) -> Shape:
        """The same shape.

        Raises:
            ValueError: there is no axis.
        """
        if not shape:
            raise ValueError(f"{at} (LayerNorm) needs at least one axis, got shape ().")
        return shape

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        """`scale` and `shift`, both of the last axis' length."""
        return {
            "scale": Parameter(shape[-1:], fill=1),
            "shift": Parameter(shape[-1:], fill=0),
        }

    def flops(self, shape: Shape) -> int:
        """Eight for each number: two sums, a difference, a square, two products..."""
        return 8 * math.prod(shape)


@dataclasses.dataclass(frozen=True, slots=True)
class Flatten(Leaf):
    """All numbers of an example in one axis, last axis fastest."""

    def shape_after(self, shape: Shape, at: str) -> Shape:
        """One axis."""
        return (math.prod(shape),)


@dataclasses.dataclass(frozen=True, slots=True)
class MeanPool(Leaf):
    """The mean of square windows side by side, or of the whole image.

    Attributes:
        window: side of the square; None takes the whole and drops both axes.
    """

    window: int | None = None

    def __post_init__(self) -> None:
        """Check the number.

        Raises:
            ValueError: `window` is below 1.
        """
        if self.window is not None:
            _at_least_one("MeanPool.window", self.window)

    def shape_after(self, shape: Shape, at: str) -> Shape:
        """(channels,), or each side divided by `window`.

        Raises:
            ValueError: no image, or a side that the window does not divide.
        """
        if len(shape) != 3:
            raise ValueError(
                f"{at} (MeanPool) needs (height, width, channels), got shape {shape}."
            )
        height, width, channels = shape
        if self.window is None:
            return (channels,)
        if height % self.window or width % self.window:
            both = math.gcd(height, width)
            fits = [str(n) for n in range(1, both + 1) if both % n == 0]
            raise ValueError(
                f"{at} (MeanPool) has a window of {self.window}, which does not divide "
                f"{height} x {width}. Windows that do: {', '.join(fits)}."
            )
        return (height // self.window, width // self.window, channels)

    def flops(self, shape: Shape) -> int:
        """One for each number that goes in."""
        return math.prod(shape)


def _std(init: str, fan_in: int, fan_out: int) -> float:
    return math.sqrt(2 / (fan_in if init == "he" else fan_in + fan_out))


def _at_least_one(name: str, value: object) -> None:
    """Refuse what is no count.

    Raises:
        ValueError: it is no whole number >= 1.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, got {value!r}.")


def _known_init(name: str, value: object) -> None:
    """Refuse an unknown initialiser.

    Raises:
        ValueError: it is unknown.
    """
    if value not in ("he", "glorot"):
        raise ValueError(f'{name} must be "he" or "glorot", got {value!r}.')
