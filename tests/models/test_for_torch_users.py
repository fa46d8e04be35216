"""Losses, recurrence and pools as a user of torch expects them, compared with torch."""

import itertools

import numpy as np
import pytest

import frugax as ml
from frugax import models as m
from refusals import refuses
from tiers import mostly_thorough

torch = pytest.importorskip("torch")
F = torch.nn.functional
BACKENDS = [ml.JaxBackend(dtype="float64"), ml.TorchBackend(dtype="float64")]
rng = np.random.default_rng(0)
LOGITS, LABELS = rng.normal(size=(6, 4)), np.array([0, 3, 1, 1, 2, 0], np.int32)
SHARES = np.abs(rng.normal(size=(6, 4)))
SHARES /= SHARES.sum(-1, keepdims=True)
WEIGHT = np.array([0.5, 1.0, 2.0, 0.25])


def _both(layer, data, **wires):
    """The loss and the gradient of its input on both libraries."""
    dtypes = {k: "int32" if v.dtype.kind == "i" else None for k, v in data.items()}
    keys = {k: m.IOKey(k, v.shape, dtypes[k]) for k, v in data.items()}
    model = m.Model.create(loss=layer(**keys, **wires))
    for backend in BACKENDS:
        compiled = ml.compile(model, backend, trainable_keys=["input"])
        rest = {k: v for k, v in data.items() if k != "input"}
        shape = compiled.shapes["loss"]
        yield compiled.evaluate(
            {"input": data["input"]}, rest, {"loss": np.ones(shape)}
        )


REDUCTIONS = ("mean", "sum", "none")
CROSS_ENTROPIES = [
    c
    for c in itertools.product(
        [False, True], [None, 1], [0.0, 0.2], [False, True], REDUCTIONS
    )
    if not (c[1] is not None and c[3])
]


@pytest.mark.parametrize(
    "case",
    # One reduction for each choice of the others.
    mostly_thorough(
        CROSS_ENTROPIES,
        in_ci=lambda c: REDUCTIONS[sum(map(bool, c[:4])) % 3] == c[4],
    ),
    ids=str,
)
def test_cross_entropy_equals_torch(case):
    weighted, ignore, smoothing, shares, reduction = case
    data = {"input": LOGITS, "target": SHARES if shares else LABELS}
    if weighted:
        data["weight"] = WEIGHT
    layer = m.CrossEntropy(
        reduction=reduction, ignore_index=ignore, label_smoothing=smoothing
    )
    x = torch.tensor(LOGITS, requires_grad=True)
    target = torch.tensor(SHARES) if shares else torch.tensor(LABELS).long()
    want = F.cross_entropy(
        x,
        target,
        torch.tensor(WEIGHT) if weighted else None,
        reduction=reduction,
        label_smoothing=smoothing,
        ignore_index=-100 if ignore is None else ignore,
    )
    want.sum().backward()
    for outputs, gradients in _both(layer, data):
        np.testing.assert_allclose(outputs["loss"], want.detach(), 1e-10, 1e-12)
        np.testing.assert_allclose(gradients["input"], x.grad, 1e-9, 1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weighted_nll_equals_torch(reduction):
    data = {"input": LOGITS, "target": LABELS, "weight": WEIGHT}
    want = F.nll_loss(
        *(torch.tensor(LOGITS), torch.tensor(LABELS).long(), torch.tensor(WEIGHT)),
        reduction=reduction,
        ignore_index=2,
    )
    layer = m.NegativeLogLikelihood(reduction=reduction, ignore_index=2)
    for outputs, _ in _both(layer, data):
        np.testing.assert_allclose(outputs["loss"], want, 1e-10)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_binary_cross_entropy_with_pos_weight_equals_torch(weighted, reduction):
    target = (SHARES > 0.25).astype(float)
    data = {"input": 30 * LOGITS, "target": target, "pos_weight": WEIGHT}
    if weighted:
        data["weight"] = SHARES
    x = torch.tensor(30 * LOGITS, requires_grad=True)
    want = F.binary_cross_entropy_with_logits(
        x,
        torch.tensor(target),
        torch.tensor(SHARES) if weighted else None,
        pos_weight=torch.tensor(WEIGHT),
        reduction=reduction,
    )
    want.sum().backward()
    for outputs, gradients in _both(m.BinaryCrossEntropy(reduction=reduction), data):
        np.testing.assert_allclose(outputs["loss"], want.detach(), 1e-10)
        np.testing.assert_allclose(gradients["input"], x.grad, 1e-9, 1e-12)


@pytest.mark.parametrize(
    ("layer", "want", "shape"),
    [
        (m.MaxPool1D(2), lambda x: F.max_pool1d(x, 2), (6, 3)),
        (m.MaxPool2D(2), lambda x: F.max_pool2d(x, 2), (4, 6, 3)),
        (
            m.AvgPool2D(3, padding=1, stride=2),
            lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            (5, 7, 3),
        ),
    ],
)
def test_a_pool_takes_one_example_without_a_batch(layer, want, shape):
    x = rng.normal(size=shape)
    channels_first = torch.tensor(np.moveaxis(x, -1, 0))
    for backend in BACKENDS:
        out = ml.compile(layer, backend, shapes={"input": shape}).evaluate(
            {}, {"input": x}
        )["output"]
        expected = np.moveaxis(want(channels_first).numpy(), 0, -1)
        np.testing.assert_allclose(out, expected, 1e-12)


@pytest.mark.parametrize("kind", [m.RNN, m.GRU, m.LSTM])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_recurrent_stack_equals_torch_with_initial_states(kind, bidirectional):
    net = getattr(torch.nn, kind.__name__)(
        3, 4, num_layers=2, bidirectional=bidirectional, batch_first=True
    ).double()
    count = 2 * (1 + bidirectional)
    shapes = {"input": (2, 5, 3), "state": (count, 2, 4)}
    if kind is m.LSTM:
        shapes["cell_state"] = (count, 2, 4)
    data = {k: rng.normal(size=s) for k, s in shapes.items()}
    x, *states = (torch.tensor(v) for v in data.values())
    want, last = net(x, tuple(states) if len(states) == 2 else states[0])
    layer = m.RecurrentStack(kind(4), depth=2, bidirectional=bidirectional)
    outs = layer(**{k: m.IOKey(k, s) for k, s in shapes.items()})
    model = m.Model.create(output=outs[0], last_state=outs[1])
    weights = {}
    for level in range(2):
        for side, suffix in (("forward", ""), ("backward", "_reverse")):
            if suffix and not bidirectional:
                continue
            get = lambda n, s=f"l{level}{suffix}": getattr(net, f"{n}_{s}").detach()
            at = f"recurrent_stack_0.{side}_{level}"
            weights[f"{at}.weight"] = get("weight_ih")
            weights[f"{at}.hidden_weight"] = get("weight_hh")
            if kind is m.GRU:
                weights[f"{at}.bias"] = get("bias_ih")
                weights[f"{at}.hidden_bias"] = get("bias_hh")
            else:
                weights[f"{at}.bias"] = get("bias_ih") + get("bias_hh")
    weights = {k: v.numpy() for k, v in weights.items()}
    for backend in BACKENDS:
        got = ml.compile(model, backend).evaluate(weights, data)
        np.testing.assert_allclose(got["output"], want.detach(), 1e-9, 1e-12)
        h = last[0] if kind is m.LSTM else last
        np.testing.assert_allclose(got["last_state"], h.detach(), 1e-9, 1e-12)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
def test_a_declared_shape_is_enforced_and_the_input_blamed(backend):
    x = m.IOKey("x", shape=("batch", 3))
    model = m.Model.create(y=m.Linear(2)(x), z=m.IOKey("other", shape=("batch", 5)) * 2)
    compiled = ml.compile(model, backend)
    params = compiled.randomize_params()
    good = {"x": np.ones((4, 3)), "other": np.ones((4, 5))}
    compiled.evaluate(params, good)
    with refuses(ml.errors.ShapeError, "'x'", "(4, 7)"):
        compiled.evaluate(params, good | {"x": np.ones((4, 7))})
    with refuses(ml.errors.ShapeError, "'x'", "(4, 1, 3)"):
        compiled.evaluate(params, good | {"x": np.ones((4, 1, 3))})
    with refuses(ml.errors.ShapeError, "other"):
        compiled.evaluate(params, good | {"other": np.ones((6, 5))})


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (ml.models.Conv2D(3), "conv2d"),
        (ml.models.LSTMCell(3), "lstm_cell"),
        (ml.models.RMSNorm(), "rms_norm"),
        (ml.models.UNetDown(3), "unet_down"),
        (ml.models.TopKAccuracy(2), "top_k_accuracy"),
    ],
)
def test_generated_names_read_well(layer, kind):
    assert layer.kind == kind


def test_a_misspelt_setting_suggests_the_right_one():
    with refuses(TypeError, "dim"):
        m.Linear(dim=4)  # pyrefly: ignore[missing-argument, unexpected-keyword]
    with refuses(TypeError, "colour"):
        ml.models.Conv2D(colour=4)  # pyrefly: ignore[missing-argument, unexpected-keyword]


MISTAKES = [
    (lambda m: m.Linear(4, 8), "Linear.bias"),
    (lambda m: m.LSTM(4, 6), "LSTM.bias"),
    (lambda m: m.LayerNorm(8), "LayerNorm.epsilon"),
    (lambda m: m.GroupNorm(4, 16), "GroupNorm.epsilon"),
    (lambda m: m.Linear(out_features=8), "dimension"),
    (lambda m: m.Dropout(p=0.1), "rate"),
    (lambda m: m.Softmax(dim=1), "axis"),
    (lambda m: m.MaxPool2D(kernel_size=2), "window"),
    (lambda m: m.Embedding(num_embeddings=3, embedding_dim=2), "vocabulary"),
    (lambda m: m.Sequential(m.Linear(3), m.Relu()), 2),
    (lambda m: m.ReLU, "models"),
    (lambda m: m.CrossEntropyLoss, "CrossEntropy"),
    (lambda m: m.Dense, "models"),
]


@pytest.mark.parametrize(("mistake", "named"), MISTAKES)
def test_settings_of_torch_and_flax_are_refused_with_the_name_here(mistake, named):
    with refuses((AttributeError, TypeError, ValueError), named):
        mistake(ml.models)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
def test_a_mask_cannot_be_an_index(backend):
    x = m.IOKey("x", shape=(2, 3))
    for model in (m.Model.create(x[x > 0]), m.Model.create(x[:, x[0] > 0, None])):
        with refuses(ml.errors.ShapeError, "where"):
            ml.compile(model, backend)


def test_one_output_by_position_is_called_output():
    assert m.Model.create(m.IOKey("x", shape=(2,)) + 1).outputs == ("output",)
    with refuses(TypeError, "create"):
        m.Model.create(m.IOKey("x"), m.IOKey("y"))
