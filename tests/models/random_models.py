"""Models wired at random from a seed: for `test_random_models.py`.

Five to fifteen layers and ops: dense, convolutional, recurrent and attention layers,
norms, activations, reductions, reshapes, broadcasts, Python's operators,
concatenations, residual sums, nested models, tied weights. Whatever jumps or has a
kink is kept away from it, where rounding alone decides the side.
"""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from frugax.models import (
    GRU,
    LSTM,
    MLP,
    RNN,
    BatchNorm,
    Bidirectional,
    Conv1D,
    Conv2D,
    ConvTranspose1D,
    ConvTranspose2D,
    Dropout,
    Embedding,
    FeedForward,
    Flatten,
    GroupNorm,
    InstanceNorm,
    IOKey,
    LayerNorm,
    LearnedPositions,
    Linear,
    Model,
    MultiHeadAttention,
    PRelu,
    Residual,
    RMSNorm,
    RotaryPositions,
    Sequential,
    SinusoidalPositions,
    TransformerBlock,
    op,
    weight_of,
)

# One shape of each kind, so that JAX, which runs op by op here, compiles each op a few
# times only: a random model as a whole would take it a second.
BATCH, TIME, SIDE, WIDTH = 2, 3, 4, 4


def about(name: str, shape: tuple[int, ...], dtype: str) -> IOKey:
    """The known facts of an input."""
    return IOKey(name, shape=shape, dtype="int32" if dtype == "int" else None)


@dataclasses.dataclass
class Growth:
    """A model while it grows: its readable values, and the inputs so far."""

    rng: random.Random
    inputs: dict[str, tuple[tuple[int, ...], str]]
    values: list[tuple[Any, tuple[int, ...]]]
    inference: bool

    def pick(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def fresh(self, shape: tuple[int, ...], dtype: str = "float") -> IOKey:
        """A new input; of continuous numbers no two of which are equal, if floats."""
        name = f"in{len(self.inputs)}"
        self.inputs[name] = (shape, dtype)
        return about(name, shape, dtype)

    def fits(self, shape: tuple[int, ...]) -> Any:
        """Another value that broadcasts against `shape`, or a new input that does."""
        there = [v for v, s in self.values[:-1] if s == shape]
        if there and self.pick(True, False):
            return self.pick(*there)
        return self.fresh(self.pick(shape, shape, shape[-1:], (*shape[:-1], 1)))

    def aside(self, x: Any) -> Any:
        """x moved by a number that nothing else makes it meet."""
        return x + self.pick(0.37, -0.83, 0.59)


SMOOTH: list[Callable[[Any], Any]] = [
    *map(
        op,
        ["tanh", "sigmoid", "silu", "gelu", "softplus", "mish", "log_sigmoid", "elu"],
    ),
    *map(
        op, ["sin", "cos", "arctan", "arcsinh", "erf", "square", "negative", "identity"]
    ),
    *(op("gelu", approximate=True), op("swish", beta=1.5), op("celu", alpha=0.7)),
    lambda x: op("exp")(op("tanh")(x)) - 1,
    lambda x: op("log")(x * x + 1.0),
    lambda x: op("log1p")(x**2),
    lambda x: op("expm1")(op("sin")(x)),
    lambda x: op("sqrt")(0.5 + abs(x) * abs(x)),
    lambda x: op("rsqrt")(x * x + 1),
    lambda x: 1 / (2 + op("cos")(x)),
    lambda x: op("reciprocal")(x * x + 2),
    lambda x: (x * x + 0.5) ** 1.5 / 4,
    lambda x: 2.0 ** op("tanh")(x),
    lambda x: op("arcsin")(op("tanh")(x) * 0.9),
    lambda x: op("sinh")(op("tanh")(x)) - op("cosh")(op("sigmoid")(x)),
    lambda x: op("arctan2")(x, op("exp")(op("tanh")(-x))),
    lambda x: op("logaddexp")(x, op("cos")(x)),
    lambda x: -x + op("stop_gradient")(x) * 2,
]
KINKED: list[Callable[[Any], Any]] = [
    *map(op, ["relu", "leaky_relu", "relu6", "hard_tanh", "hard_swish", "absolute"]),
    *(op("clip", min=-0.5, max=0.8), PRelu(), op("hard_sigmoid"), op("selu")),
    lambda x: op("softsign")(x),
    lambda x: op("maximum")(x, 0.11) * 0.5,
    lambda x: op("where")(x > 0.21, x, x * x),
    lambda x: op("where")((x < 0.9) & ~(x <= -0.3), 1.0, x),
    lambda x: x * (x >= 0.13),
]


def smooth(g, x, shape):
    return g.pick(*SMOOTH)(x), shape


def kinked(g, x, shape):
    return g.pick(*KINKED)(g.aside(x)), shape


def linear(g, x, shape):
    return Linear(WIDTH, bias=g.pick(True, True, False))(x), shape


def binary(g, x, shape):
    other = g.fits(shape)
    made = g.pick(
        lambda: x + other,
        lambda: other - x,
        lambda: x * other,
        lambda: x / (1.5 + op("tanh")(other)),
        lambda: op("maximum")(x, g.fresh(shape)) + other,
        lambda: op("minimum")(g.fresh(shape), x),
        lambda: op("where")(g.fresh(shape) > g.fresh(shape[-1:]), x, other),
        lambda: x + g.fresh(shape) // 0.7 + g.fresh(shape) % 0.6,
    )()
    return made, shape


def tied(g, x, shape):
    first = Linear(shape[-1])(x)
    second = Linear(shape[-1], bias=g.pick(True, False))
    return second(op("tanh")(first), weight=weight_of(first)), shape


def reduction(g, x, shape):
    """A reduction, put back where it came from by broadcasting."""
    axis = g.pick(1, -1)
    how = g.pick(
        "sum", "mean", "var", "logsumexp", "norm", "std", "max", "median", "prod"
    )
    if how in ("max", "median", "norm", "std"):
        x = x + g.fresh(shape)  # equal numbers have no largest, and no slope at 0
    if how == "prod":
        x = op("tanh")(x)
    if how != "mean":
        return x + op(how, axis=axis, keepdims=True)(x), shape
    return x * op("expand_dims", axis=axis)(op("tanh")(x.mean(axis))), shape


def indexing(g, x, shape):
    n = shape[-1]
    made = g.pick(
        lambda: op("flip", axis=-1)(x),
        lambda: op("roll", shift=1, axis=1)(x),
        lambda: op("cumsum", axis=-1)(x),
        lambda: op("sort", axis=-1)(x + g.fresh(shape)),
        lambda: op("concat", axis=-1)(x[..., n // 2 :], x[..., : n // 2] * 2),
        lambda: x[..., ::-1] + x[:, :1],
        lambda: op("pad", widths=((0, 0),) * (len(shape) - 1) + ((1, 0),))(x)[..., :n],
        lambda: op("stack", axis=0)(x, -x).mean(axis=0, keepdims=False) + x,
        lambda: op("split", sections=2, index=1, axis=-1)(op("concat", axis=-1)(x, x)),
        lambda: op("take", axis=-1)(x, g.fresh((n,), "int")),
        lambda: x + op("one_hot", classes=n)(g.fresh(shape[:-1], "int")),
        lambda: x.reshape((-1, n)).transpose().reshape(shape),
        lambda: op("swapaxes", axis1=0, axis2=-1)(x).transpose().reshape(shape),
        lambda: op("tile", reps=(1,) * (len(shape) - 1) + (2,))(x)[..., 1 : n + 1],
        lambda: x.cast("float32").cast("float32") * 1 + op("zeros_like")(x),
    )()
    return made, shape


def softmaxes(g, x, shape):
    axis = g.pick(-1, 1)
    how = g.pick("softmax", "log_softmax")
    return op(how, axis=axis)(x), shape


def norm(g, x, shape):
    layers: list[Any] = [LayerNorm(), RMSNorm(), LayerNorm(affine=False), BatchNorm()]
    if len(shape) > 2:
        layers += [GroupNorm(groups=2), InstanceNorm(), BatchNorm()]
    return g.pick(*layers)(x + g.fresh(shape)), shape


def concat(g, x, shape):
    wide = op("concat", axis=-1)(x, g.fits(shape) * op("ones_like")(x))
    if g.pick(True, False):
        return op("glu")(wide), shape
    return Linear(WIDTH)(wide), shape


def composed(g, x, shape):
    n = shape[-1]
    layer = g.pick(
        Residual(Sequential((LayerNorm(), Linear(n), op("gelu"), Linear(n)))),
        MLP(hidden_sizes=[n], output_size=n, activation="silu"),
        FeedForward(n, hidden=n, gated=g.pick(True, False)),
        Sequential((Linear(4), op("tanh"), Linear(n))),
    )
    return (Dropout(0.3)(layer(x)) if g.inference else layer(x)), shape


def nested(g, x, shape):
    """A few more steps, as a model inside the model, used once or twice."""
    start = (IOKey("inside", shape=shape), shape)
    inner = Growth(g.rng, g.inputs, [start], g.inference)
    for _ in range(g.pick(1, 2)):
        inner.values.append(step(inner, *inner.values[-1]))
    made, out = inner.values[-1]
    model = Model.create(output=made)
    ours = {k: about(k, *g.inputs[k]) for k in model.inputs if k != "inside"}
    once = model(inside=x, **ours)
    if out == shape and g.pick(True, False):
        return model(inside=once, **ours) + x, out
    return once, out


def product(g, x, shape):
    other = g.fresh((WIDTH, WIDTH))
    made = g.pick(
        lambda: x @ other,
        lambda: op("einsum", equation="...i,ij->...j")(x, other),
        lambda: op("tensordot", axes=1)(x, other),
    )()
    return made * 0.5, shape


# --- data in time -------------------------------------------------------------------


def recurrent(g, x, shape):
    layer = g.pick(
        RNN(4), LSTM(4), GRU(4), GRU(4, reverse=True), Bidirectional(LSTM(2))
    )(x)
    return (layer[0] if isinstance(layer, tuple) else layer), (*shape[:-1], 4)


def attention(g, x, shape):
    causal = g.pick(True, False)
    layer = g.pick(
        MultiHeadAttention(WIDTH, heads=2, causal=causal),
        MultiHeadAttention(WIDTH, heads=2, kv_heads=1, causal=causal),
        TransformerBlock(WIDTH, heads=2, hidden=WIDTH, causal=causal),
        TransformerBlock(WIDTH, heads=2, hidden=WIDTH, norm="rms", norm_first=False),
    )
    return layer(x), shape


def positions(g, x, shape):
    if g.pick(True, False):
        return g.pick(LearnedPositions(5), SinusoidalPositions())(x), shape
    heads = x.reshape((BATCH, TIME, 2, WIDTH // 2))
    return RotaryPositions()(heads).reshape(shape), shape


def conv1d(g, x, shape):
    width = WIDTH
    layer = g.pick(
        Conv1D(width, kernel=3),
        Conv1D(width, kernel=2, dilation=2, padding=((2, 0),)),
        Conv1D(width, kernel=3, groups=2),
        ConvTranspose1D(width, kernel=3),
    )
    return layer(x), shape


def out_of_time(g, x, shape):
    made = g.pick(
        lambda: x.mean(axis=1),
        lambda: x[:, -1],
        lambda: op("global_avg_pool")(x),
        lambda: op("global_max_pool")(x + g.fresh(shape)),
        lambda: op("max_pool1d", window=3)(x + g.fresh(shape)).reshape((-1, shape[-1])),
    )()
    return made, (shape[0], shape[-1])


# --- images -------------------------------------------------------------------------


def conv2d(g, x, shape):
    width = WIDTH
    layer = g.pick(
        Conv2D(width, kernel=3),
        Conv2D(width, kernel=1),
        Conv2D(width, kernel=3, groups=2, dilation=2),
        ConvTranspose2D(width, kernel=3),
        Conv2D(width, kernel=3, stride=2),
        Conv2D(width, kernel=3, padding="valid"),
        ConvTranspose2D(width, kernel=2, stride=2),
    )
    made = layer(x)
    stride = layer.stride
    side = {1: SIDE - 2 * (layer.padding == "valid"), 2: SIDE // 2}[stride]
    if isinstance(layer, ConvTranspose2D) and stride == 2:
        side = SIDE * 2
    if side != SIDE:  # back to the usual side
        made = (
            op("avg_pool2d", window=2)(made)
            if side > SIDE
            else op("upsample", scale=2)(made)
        )
    return made, shape


def pool(g, x, shape):
    how = g.pick("max_pool2d", "avg_pool2d")
    x = x + g.fresh(shape)
    if g.pick(True, False):
        return op(how, window=3, stride=1, padding="same")(x), shape
    return op("upsample", scale=2)(op(how, window=2)(x)), shape


def out_of_space(g, x, shape):
    made = g.pick(
        lambda: (op("global_avg_pool")(x), shape[-1]),
        lambda: (Linear(4)(Flatten()(x)), 4),
        lambda: (x.mean(axis=(1, 2)) - x[:, 0, 1], shape[-1]),
    )()
    return made[0], (shape[0], made[1])


ANY = [
    smooth,
    smooth,
    kinked,
    linear,
    linear,
    binary,
    binary,
    tied,
    reduction,
    indexing,
]
ANY += [indexing, softmaxes, norm, norm, concat, composed, nested, product]
STEPS = {
    2: ANY,
    3: [*ANY, recurrent, attention, attention, positions, conv1d, conv1d, out_of_time],
    4: [*ANY, conv2d, conv2d, conv2d, pool, pool, out_of_space],
}


def step(g, x, shape):
    """One more layer or op, and sometimes a residual sum."""
    made, out = g.pick(*STEPS[len(shape)])(g, x, shape)
    return (
        made + x * 0.5 if out == shape and g.pick(True, False, False) else made
    ), out


def random_model(seed):
    """A model, its inputs, and whether it is compiled for inference."""
    rng = random.Random(seed)
    g = Growth(rng, {}, [], rng.choice([False, False, True]))
    kind = g.pick("rows", "words", "series", "image")
    if kind == "words":
        tokens = g.fresh((BATCH, TIME), "int")
        start = (Embedding(vocabulary=7, dimension=WIDTH)(tokens), (BATCH, TIME, WIDTH))
    else:
        middle = {"rows": (), "series": (TIME,), "image": (SIDE, SIDE)}[kind]
        shape = (BATCH, *middle, WIDTH)
        start = (g.fresh(shape), shape)
    g.values.append(start)
    for _ in range(rng.randint(5, 15)):
        g.values.append(step(g, *g.values[-1]))
    outputs = {"output": g.values[-1][0]}
    if g.pick(True, False):
        outputs["middle"] = g.pick(*[v for v, _ in g.values[1:]])
    if g.pick(True, False):
        x, shape = g.values[-1]
        labels = g.fresh(shape[:-1], "int")
        outputs["loss"] = g.pick(
            lambda: op("cross_entropy", label_smoothing=0.1)(x, labels),
            lambda: op("mse")(x, g.fresh(shape)),
            lambda: op("kl_divergence")(
                op("log_softmax")(x), op("softmax")(g.fresh(shape))
            ),
            lambda: op("huber")(x, g.fresh(shape)),
        )()
    return Model.create(**outputs), g.inputs, g.inference
