"""Calls of neural-network ops, and the same by torch's own functions.

Run on both libraries by `test_nn_ops.py`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of an op, and the same by torch's own functions.

    Attributes:
        op: its name.
        inputs: shapes of normal random numbers, or arrays, or None.
        attributes: of the op.
        by_torch: the reference, of the same tensors.
    """

    op: str
    inputs: tuple[Any, ...]
    by_torch: Callable[..., Any]
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)

    def arrays(self, dtype: Any) -> list[Any]:
        rng = np.random.default_rng(7)
        return [self._array(given, rng, dtype) for given in self.inputs]

    def _array(self, given: Any, rng: np.random.Generator, dtype: Any) -> Any:
        if isinstance(given, tuple):
            return rng.normal(size=given).astype(dtype)
        is_float = isinstance(given, np.ndarray) and given.dtype.kind == "f"
        return given.astype(dtype) if is_float else given

    @property
    def name(self) -> str:
        shapes = [
            s if isinstance(s, tuple) else getattr(s, "shape", s) for s in self.inputs
        ]
        said = [f"{k}={v}" for k, v in self.attributes.items()]
        return " ".join([self.op, *map(str, shapes), *said]).replace(" ", "_")


# --- torch's functions on data with channels last -------------------------------------


def first(x: Any) -> Any:
    return x.movedim(-1, 1)


def last(x: Any) -> Any:
    return x.movedim(1, -1)


def conv(x: Any, w: Any, b: Any = None, **kw: Any) -> Any:
    n = x.ndim - 2
    f = {1: F.conv1d, 2: F.conv2d}[n]
    return last(f(first(x), w.permute(n + 1, n, *range(n)), b, **kw))


def conv_t(x: Any, w: Any, b: Any = None, **kw: Any) -> Any:
    n = x.ndim - 2
    f = {1: F.conv_transpose1d, 2: F.conv_transpose2d}[n]
    return last(f(first(x), w.permute(n + 1, n, *range(n)), b, **kw))


def padded(pads: tuple[int, ...], value: float, f: Callable[..., Any]) -> Any:
    """After padding, (before, after) of the last axis of space first."""
    return lambda x, *rest: f(last(F.pad(first(x), pads, value=value)), *rest)


def pool(f: Callable[..., Any], *args: Any, **kw: Any) -> Any:
    return lambda x: last(f(first(x), *args, **kw))


def batch_norm(x: Any, mean: Any, variance: Any, w: Any, b: Any) -> Any:
    new_mean, new_variance = mean.detach().clone(), variance.detach().clone()
    out = last(F.batch_norm(first(x), new_mean, new_variance, w, b, True, 0.3, 1e-3))
    # torch moves them in place; the gradient of the old ones is their share.
    share = lambda old: 0.7 * (old - old.detach())
    return out, share(mean) + new_mean, share(variance) + new_variance


def attend(
    q: Any, k: Any, v: Any, mask: Any = None, *, causal: int | None = None, **kw: Any
) -> Any:
    """Written out, one query at a time: no kernel of torch is trusted here."""
    batch, reads, heads, d = q.shape
    seen, share = k.shape[1], heads // k.shape[2]
    scale = kw.get("scale", d**-0.5)
    rows = []
    for b in range(batch):
        for i in range(reads):
            for h in range(heads):
                score = (k[b, :, h // share] @ q[b, i, h]) * scale
                allowed = torch.ones(seen, dtype=torch.bool)
                if causal is not None:
                    allowed &= torch.arange(seen) <= i + causal
                if mask is not None:
                    at = mask.expand(batch, heads, reads, seen)[b, h, i]
                    if mask.dtype == torch.bool:
                        allowed &= at
                    else:
                        score = score + at
                weights = torch.softmax(score[allowed], 0)
                rows.append(weights @ v[b, allowed, h // share])
    return torch.stack(rows).reshape(batch, reads, heads, v.shape[3])


def recurrent(
    kind: str, x: Any, w: Any, u: Any, b: Any, *rest: Any, reverse: bool = False
) -> Any:
    """torch's own layer with these weights."""
    extra, states = ([rest[0]], rest[1:]) if kind == "GRU" else ([None], rest)
    layer = getattr(torch.nn, kind)(x.shape[2], u.shape[1], batch_first=True).to(
        x.dtype
    )
    hidden_bias = torch.zeros_like(b) if extra[0] is None else extra[0]
    given = dict(
        zip(
            ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"),
            (w, u, b, hidden_bias),
            strict=True,
        )
    )
    states = tuple(s[None] for s in states if s is not None)
    start = (states if kind == "LSTM" else states[0],) if states else ()
    x = x.flip(1) if reverse else x
    out, state = torch.func.functional_call(layer, given, (x, *start))
    out = out.flip(1) if reverse else out
    return (out, *(s[0] for s in state)) if kind == "LSTM" else (out, state[0])


def rotated(x: Any, *, base: float = 10000.0, offset: int = 0) -> Any:
    """As complex numbers, pairs of neighbours: the paper's equation 34."""
    batch, time, heads, d = x.shape
    frequencies = base ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
    angles = torch.arange(offset, offset + time, dtype=x.dtype)[:, None] * frequencies
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    pairs = torch.view_as_complex(x.reshape(batch, time, heads, d // 2, 2))
    return torch.view_as_real(pairs * turn).reshape(x.shape)


def rotated_halves(x: Any, **kw: Any) -> Any:
    neighbours = x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
    turned = rotated(neighbours, **kw)
    return turned.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def waves(x: Any, *, offset: int = 0) -> Any:
    time, d = x.shape[-2:]
    rows = [
        [
            f((offset + t) / 10000 ** (2 * i / d))
            for f in (math.sin, math.cos)
            for i in range(d // 2)
        ]
        for t in range(time)
    ]
    return x + torch.tensor(rows, dtype=x.dtype)


LABELS = np.array([[0, 3, -1], [4, 2, -1]], np.int32)
CLASSES = np.array([[0, 3, 1], [4, 2, 2]], np.int32)
SHARES = np.random.default_rng(3).dirichlet(np.ones(5), (2, 3))
WITH_ZEROS = np.where(SHARES > 0.1, SHARES, 0.0)
SIGNS = np.array([[1.0, -1, 1], [-1, -1, 1]])
BINARY = np.array([[1.0, 0, 1], [0, 0.25, 1]])
SEES = np.random.default_rng(5).random((2, 1, 4, 5)) > 0.3
SEES[..., 0] = True
TIED_IN_2D = np.random.default_rng(2).integers(0, 2, (1, 6, 6, 1)).astype(float)
TIED = np.array([0.0, 0, 1, 1, 1, 0, -1, -1]).reshape(1, 8, 1)


def rowwise(f: Callable[..., Any], **kw: Any) -> Any:
    """A loss of torch on (batch, classes) for more leading axes."""

    def run(z: Any, y: Any) -> Any:
        y = y.flatten().long() if y.ndim < z.ndim else y.flatten(0, -2)
        out = f(z.flatten(0, -2), y, **kw)
        return out.reshape(z.shape[:-1]) if kw.get("reduction") == "none" else out

    return run


CASES = [
    Case("linear", ((3, 4), (5, 4), (5,)), F.linear),
    Case("linear", ((2, 3, 1, 4), (5, 4)), F.linear),
    Case("linear", ((4,), (5, 4), (5,)), F.linear),
    Case(
        "layer_norm",
        ((2, 3, 7), (7,), (7,)),
        lambda x, w, b: F.layer_norm(x, (7,), w, b),
    ),
    Case(
        "layer_norm",
        ((3, 7),),
        lambda x: F.layer_norm(x, (7,), eps=0.1),
        {"epsilon": 0.1},
    ),
    Case(
        "rms_norm",
        ((2, 3, 7), (7,)),
        lambda x, w: F.rms_norm(x, (7,), w, 1e-6),
    ),
    Case(
        "group_norm",
        ((2, 3, 5, 6), (6,), (6,)),
        lambda x, w, b: last(F.group_norm(first(x), 3, w, b)),
        {"groups": 3},
    ),
    Case("group_norm", ((2, 6),), lambda x: F.group_norm(x, 2), {"groups": 2}),
    Case(
        "instance_norm",
        ((2, 3, 5, 6), (6,), (6,)),
        lambda x, w, b: last(F.instance_norm(first(x), weight=w, bias=b)),
    ),
    Case(
        "batch_norm",
        ((4, 3, 5, 6), (6,), np.arange(1.0, 7.0), (6,), (6,)),
        batch_norm,
        {"momentum": 0.3, "epsilon": 1e-3},
    ),
    Case(
        "batch_norm",
        ((4, 6), (6,), np.arange(1.0, 7.0), (6,), (6,)),
        batch_norm,
        {"momentum": 0.3, "epsilon": 1e-3},
    ),
    Case(
        "batch_norm",
        ((4, 3, 6), (6,), np.arange(1.0, 7.0)),
        lambda x, m, v: ((x - m) / (v + 1e-5).sqrt(), m, v),
        {"inference": True},
    ),
    # Convolutions: odd sizes, strides, paddings, dilation, groups.
    Case(
        "conv2d",
        ((2, 7, 6, 4), (3, 3, 4, 5), (5,)),
        functools.partial(conv, padding="same"),
    ),
    Case(
        "conv2d",
        ((2, 7, 6, 4), (2, 4, 4, 5)),
        padded((1, 2, 0, 1), 0, conv),
        {"padding": "same"},
    ),
    Case(
        "conv2d",
        ((2, 7, 6, 4), (3, 3, 4, 2)),
        padded((0, 1, 1, 1), 0, functools.partial(conv, stride=2)),
        {"stride": 2},
    ),
    Case(
        "conv2d",
        ((2, 9, 8, 4), (3, 2, 2, 6), (6,)),
        functools.partial(
            conv, stride=(2, 1), padding=(2, 1), dilation=(2, 3), groups=2
        ),
        {"stride": (2, 1), "padding": (2, 1), "dilation": (2, 3), "groups": 2},
    ),
    Case(
        "conv2d",
        ((2, 7, 6, 4), (3, 3, 1, 8)),
        functools.partial(conv, groups=4),
        {"padding": "valid", "groups": 4},
    ),
    Case(
        "conv2d",
        ((1, 5, 5, 2), (1, 1, 2, 3)),
        functools.partial(conv, stride=3),
        {"stride": 3, "padding": 0},
    ),
    Case(
        "conv2d",
        ((2, 5, 6, 3), (3, 3, 3, 2)),
        padded((2, 0, 0, 1), 0, conv),
        {"padding": ((0, 1), (2, 0))},
    ),
    Case(
        "conv1d",
        ((2, 11, 3), (4, 3, 5), (5,)),
        functools.partial(conv, padding="same", dilation=2),
        {"dilation": 2},
    ),
    Case(
        "conv1d",
        ((2, 11, 4), (3, 2, 4)),
        functools.partial(conv, padding=1, stride=3, groups=2),
        {"padding": 1, "stride": 3, "groups": 2},
    ),
    Case(
        "conv2d_transpose",
        ((2, 4, 3, 4), (3, 2, 5, 4), (5,)),
        functools.partial(conv_t, stride=(2, 3)),
        {"stride": (2, 3), "padding": "valid"},
    ),
    Case(
        "conv2d_transpose",
        ((2, 4, 3, 4), (4, 4, 5, 4)),
        functools.partial(conv_t, stride=2, padding=1),
        {"stride": 2},
    ),
    Case(
        "conv2d_transpose",
        ((2, 4, 3, 4), (3, 3, 3, 4)),
        functools.partial(
            conv_t, stride=2, padding=1, output_padding=1, groups=2, dilation=2
        ),
        {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "dilation": 2},
    ),
    Case(
        "conv1d_transpose",
        ((2, 5, 4), (1, 3, 4), (3,)),
        functools.partial(conv_t, stride=2, output_padding=1),
        {"stride": 2},
    ),
    Case(
        "conv1d_transpose",
        ((2, 5, 4), (3, 3, 4)),
        lambda x, w: conv_t(x, w, stride=2)[:, :-1],
        {"stride": 2},
    ),
    Case("upsample", ((2, 3, 4, 5),), pool(F.interpolate, scale_factor=2)),
    Case("upsample", ((2, 3, 5),), pool(F.interpolate, scale_factor=3), {"scale": 3}),
    # Pools.
    Case("max_pool2d", ((2, 7, 6, 3),), pool(F.max_pool2d, 2), {"window": 2}),
    Case(
        "max_pool2d",
        ((2, 7, 6, 3),),
        pool(F.max_pool2d, 3, 2, 1),
        {"window": 3, "stride": 2, "padding": 1},
    ),
    Case(
        "max_pool2d",
        ((2, 5, 6, 3),),
        padded((0, 1, 0, 1), -math.inf, pool(F.max_pool2d, 2, 1)),
        {"window": 2, "stride": 1, "padding": "same"},
    ),
    Case(
        "max_pool1d",
        ((2, 40, 3),),
        pool(F.max_pool1d, 17, 3),
        {"window": 17, "stride": 3},
    ),
    Case(
        "max_pool2d",
        (TIED_IN_2D,),
        pool(F.max_pool2d, 3, 1),
        {"window": 3, "stride": 1},
    ),
    Case(
        "max_pool1d",
        (TIED,),
        pool(F.max_pool1d, 3, 1),
        {"window": 3, "stride": 1},
    ),
    Case(
        "avg_pool2d",
        ((2, 7, 6, 3),),
        pool(F.avg_pool2d, (2, 3)),
        {"window": (2, 3)},
    ),
    Case(
        "avg_pool2d",
        ((2, 7, 6, 3),),
        pool(F.avg_pool2d, 3, 2, 1, count_include_pad=False),
        {"window": 3, "stride": 2, "padding": 1},
    ),
    Case(
        "avg_pool2d",
        ((2, 7, 6, 3),),
        pool(F.avg_pool2d, 3, 2, 1),
        {"window": 3, "stride": 2, "padding": 1, "count_padding": True},
    ),
    Case(
        "avg_pool1d",
        ((2, 40, 3),),
        pool(F.avg_pool1d, 17, 3),
        {"window": 17, "stride": 3},
    ),
    Case("global_avg_pool", ((2, 3, 4, 5),), lambda x: x.mean((1, 2))),
    Case(
        "global_max_pool",
        ((2, 3, 4, 5),),
        lambda x: x.amax((1, 2), keepdim=True),
        {"keepdims": True},
    ),
    # Lookups and positions.
    Case(
        "embedding",
        (np.array([[1, 4], [0, 1]], np.int32), (5, 3)),
        lambda i, w: F.embedding(i.long(), w),
    ),
    Case(
        "learned_positions",
        ((2, 3, 4), (9, 4)),
        lambda x, w: x + w[2:5],
        {"offset": 2},
    ),
    Case("sinusoidal_positions", ((2, 3, 6),), waves),
    Case(
        "sinusoidal_positions",
        ((3, 6),),
        functools.partial(waves, offset=4),
        {"offset": 4},
    ),
    Case("rotary_positions", ((2, 5, 3, 6),), rotated_halves),
    Case(
        "rotary_positions",
        ((2, 5, 3, 6),),
        functools.partial(rotated, base=50.0, offset=3),
        {"base": 50.0, "offset": 3, "interleaved": True},
    ),
    Case(
        "rotary_positions",
        ((2, 3, 1, 4), np.array([[2, 3, 4]] * 2, np.int32)),
        lambda x, p: rotated_halves(x, offset=2),
    ),
    # Attention.
    Case("attention", ((2, 4, 3, 5), (2, 5, 3, 5), (2, 5, 3, 2)), attend),
    Case("attention", ((2, 4, 6, 5), (2, 5, 2, 5), (2, 5, 2, 5), SEES), attend),
    Case(
        "attention",
        ((2, 4, 2, 3), (2, 5, 2, 3), (2, 5, 2, 3), (4, 5)),
        functools.partial(attend, scale=0.3),
        {"scale": 0.3},
    ),
    Case(
        "attention",
        ((2, 4, 2, 3), (2, 4, 1, 3), (2, 4, 1, 3)),
        functools.partial(attend, causal=0),
        {"causal": True},
    ),
    Case(
        "attention",
        ((2, 4, 2, 3), (2, 6, 2, 3), (2, 6, 2, 3)),
        functools.partial(attend, causal=2),
        {"causal": True},
    ),
    Case(
        "attention",
        ((2, 4, 2, 3), (2, 5, 2, 3), (2, 5, 2, 3), SEES),
        functools.partial(attend, causal=1),
        {"causal": True},
    ),
    Case(
        "attention",
        ((2, 4, 2, 3), (2, 4, 2, 3), (2, 4, 2, 3), (2, 1, 4, 4)),
        functools.partial(attend, causal=0),
        {"causal": True},
    ),
    Case(
        "attention",
        ((2, 1, 3), (2, 5, 3), (2, 5, 3)),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    ),
    # Recurrent layers.
    Case(
        "rnn",
        ((2, 5, 3), (4, 3), (4, 4), (4,)),
        functools.partial(recurrent, "RNN"),
    ),
    Case(
        "rnn",
        ((2, 1, 3), (4, 3), (4, 4), (4,), (2, 4)),
        functools.partial(recurrent, "RNN"),
    ),
    Case(
        "lstm",
        ((2, 5, 3), (16, 3), (16, 4), (16,)),
        functools.partial(recurrent, "LSTM"),
    ),
    Case(
        "lstm",
        ((2, 5, 3), (16, 3), (16, 4), (16,), (2, 4), (2, 4)),
        functools.partial(recurrent, "LSTM", reverse=True),
        {"reverse": True},
    ),
    Case(
        "lstm",
        ((2, 1, 3), (16, 3), (16, 4), (16,)),
        functools.partial(recurrent, "LSTM"),
    ),
    Case(
        "gru",
        ((2, 5, 3), (12, 3), (12, 4), (12,), (12,)),
        functools.partial(recurrent, "GRU"),
    ),
    Case(
        "gru",
        ((2, 4, 3), (12, 3), (12, 4), (12,), None, (2, 4)),
        functools.partial(recurrent, "GRU", reverse=True),
        {"reverse": True},
    ),
    Case(
        "rnn_cell",
        ((2, 3), (2, 4), (4, 3), (4, 4), (4,)),
        lambda x, h, w, u, b: torch.relu(x @ w.T + b + h @ u.T),
        {"activation": "relu"},
    ),
    Case(
        "lstm_cell",
        ((2, 3), (2, 4), (2, 4), (16, 3), (16, 4), (16,)),
        lambda x, h, c, w, u, b: torch.lstm_cell(
            x, (h, c), w, u, b, torch.zeros_like(b)
        ),
    ),
    Case(
        "gru_cell",
        ((2, 3), (2, 4), (12, 3), (12, 4), (12,), (12,)),
        torch.gru_cell,
    ),
    # Losses.
    Case("mse", ((3, 4), (3, 4)), F.mse_loss),
    Case(
        "mse",
        ((3, 4), (3, 4)),
        functools.partial(F.mse_loss, reduction="sum"),
        {"reduction": "sum"},
    ),
    Case(
        "mae",
        ((3, 4), (3, 4)),
        functools.partial(F.l1_loss, reduction="none"),
        {"reduction": "none"},
    ),
    Case(
        "huber",
        ((5, 4), (5, 4)),
        functools.partial(F.huber_loss, delta=0.7),
        {"delta": 0.7},
    ),
    Case("cross_entropy", ((2, 3, 5), CLASSES), rowwise(F.cross_entropy)),
    Case(
        "cross_entropy",
        ((2, 3, 5), LABELS),
        rowwise(
            F.cross_entropy, ignore_index=-1, label_smoothing=0.2, reduction="none"
        ),
        {"ignore_index": -1, "label_smoothing": 0.2, "reduction": "none"},
    ),
    Case(
        "cross_entropy", ((5,), np.array(2)), lambda z, y: F.cross_entropy(z, y.long())
    ),
    Case(
        "nll",
        ((2, 3, 5), LABELS),
        rowwise(F.nll_loss, ignore_index=-1, reduction="sum"),
        {"ignore_index": -1, "reduction": "sum"},
    ),
    Case(
        "binary_cross_entropy",
        ((2, 3), BINARY),
        F.binary_cross_entropy_with_logits,
    ),
    Case(
        "kl_divergence",
        ((2, 3, 5), WITH_ZEROS),
        lambda x, p: F.kl_div(x[p > 0], p[p > 0], reduction="sum") / 6,
    ),
    Case(
        "hinge",
        ((2, 3), SIGNS),
        lambda z, y: (1 - y * z).clamp(min=0).mean(),
    ),
    Case(
        "cosine_distance",
        ((2, 3, 5), (2, 3, 5)),
        lambda x, y: (1 - F.cosine_similarity(x, y, -1)).mean(),
    ),
    Case(
        "l1_penalty",
        ((2, 3), (4,)),
        lambda x, y: x.abs().sum() + y.abs().sum(),
    ),
    Case(
        "l2_penalty",
        ((2, 3), (4,)),
        lambda x, y: (x * x).sum() + (y * y).sum(),
    ),
    # Metrics.
    Case(
        "accuracy",
        ((2, 3, 5), LABELS),
        lambda z, y: (z.argmax(-1) == y)[y >= 0].float().mean(),
        {"ignore_index": -1},
    ),
    Case(
        "top_k_accuracy",
        ((2, 3, 5), CLASSES),
        lambda z, y: (z.topk(2).indices == y[..., None]).any(-1).float().mean(),
        {"k": 2},
    ),
    Case(
        "r2",
        ((7, 2), (7, 2)),
        lambda x, y: 1 - F.mse_loss(x, y) / y.var(unbiased=False),
    ),
    Case(
        "perplexity",
        ((2, 3, 5), CLASSES),
        lambda z, y: rowwise(F.cross_entropy)(z, y).exp(),
    ),
]
