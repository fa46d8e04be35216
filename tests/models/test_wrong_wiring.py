"""Wrong wiring is refused where it is written."""

import re
from typing import Any

import numpy as np
import pytest

from frugax.models import (
    IOKey,
    Linear,
    Model,
    Relu,
    op,
    weight_of,
)
from frugax.models.graph import Layer

from .model_cases import compiled, x

WRONG: Any = 3


def circle():
    model = Model()
    model |= Linear(2, name="a")(input="u", output="v")
    model |= Linear(2, name="b")(input="v", output="u")
    return compiled(model, shapes={})


def extended_after_use():
    inner = Model(Linear(2))
    Model(inner)
    inner += Relu()


def extended_after_call():
    inner = Model(Linear(2))
    inner(x())
    inner += Relu()


def foreign():
    other = Model()
    other |= Linear(2)(input="x", output="y")
    return Model.create(y=other["y"] + 1)


def foreign_weight():
    other = Linear(2, name="other")(x())
    return compiled(Model.create(y=Linear(2, bias=False)(x(), weight=weight_of(other))))


def named(*names):
    model = Model()
    for i, name in enumerate(names):
        model |= Linear(2, name=name)(input="x", output=f"y{i}")
    return model


def lost_weight():
    model = Model()
    model |= Linear(2)(input="x", weight="b.weight", output="y")
    return compiled(model, shapes={"x": (2, 3)})


def lost_weight_in_a_layer():
    model = Model()
    model |= Linear(2, name="b")(input="x", output="h")
    model |= Linear(2)(input="h", weight="b.wait", output="y")
    return compiled(model, shapes={"x": (2, 3)})


def twice():
    model = Model()
    model |= Linear(2)(input="x", output="y")
    model |= Linear(2)(input="x", output="y")


def nowhere():
    model = Model()
    model |= Linear(2, name="a")(input="x")
    model |= Linear(2, name="b")(input="x", output="y")
    return model.outputs


def random_key_taken():
    y = op("dropout")(x()) + IOKey("key", shape=("batch", 3))
    return compiled(Model.create(y=y))


REFUSED = [
    (circle, ValueError, "circle: a -> b -> a|circle: b -> a -> b"),
    (extended_after_use, ValueError, "cannot be extended"),
    (extended_after_call, ValueError, "cannot be extended"),
    (foreign, ValueError, "belongs to another model"),
    (foreign_weight, ValueError, "not part of the same model"),
    (lambda: named("a", "a"), ValueError, "two layers are called 'a'"),
    (lambda: named("a.b"), ValueError, "letters, digits"),
    (lost_weight, ValueError, "a layer 'b', but there are only the layers linear_0"),
    (lost_weight_in_a_layer, ValueError, "shares the weight 'b.wait', but no layer"),
    (twice, ValueError, "two results are called 'y'"),
    (nowhere, ValueError, "nothing reads the output of layer 'a'"),
    (random_key_taken, ValueError, "cannot be the random key"),
    (lambda: compiled(Model()), ValueError, "no layers"),
    (lambda: Model.create(), TypeError, "needs an output"),
    (lambda: Model.create(y=WRONG), TypeError, "'y' must be a connection"),
    (lambda: Model(WRONG), TypeError, "a model takes layers"),
    (lambda: Linear(2)(x(), x()), TypeError, "takes 1 inputs"),
    (lambda: Linear(2)(x(), input=x()), ValueError, "'input' is wired twice"),
    (lambda: Linear(2)(wrong=x()), ValueError, "no port 'wrong'"),
    (lambda: Linear(2)(x(), output=3), TypeError, "takes a name"),
    (lambda: Linear(2)(x(), output="a.b"), ValueError, "names with a dot"),
    (lambda: Linear(2)(Linear(2)), TypeError, "takes connections"),
    (lambda: x() + object(), TypeError, "takes connections"),
    (lambda: x() + np.array(["a"]), TypeError, "takes connections"),
    (lambda: IOKey(WRONG), TypeError, "must be text"),
    (lambda: IOKey("a/b"), ValueError, "without '/'"),
    (lambda: IOKey(""), ValueError, "IOKey.name"),
    (lambda: IOKey("a", shape="batch"), TypeError, "must be a sequence"),
    (lambda: weight_of(x()), TypeError, "weight_of takes the output of a layer"),
    (lambda: op("gelu", approx=True), ValueError, "no attribute 'approx'"),
    (lambda: op("reshape"), TypeError, "needs the attribute 'shape'"),
    (lambda: op("sum", axis=np.ones(2)), TypeError, "Arrays are inputs"),
    (lambda: compiled(Linear(2)(input="x")), TypeError, "wired already"),
    (lambda: compiled(WRONG), TypeError, "takes a model or a layer"),
    (lambda: compiled(Layer()), TypeError, "made of layers"),
    (lambda: compiled(op("nothing")(x())), TypeError, "takes a model or a layer"),
    (
        lambda: compiled(Model.create(y=op("nothing")(x()))),
        ValueError,
        "no op 'nothing'",
    ),
    (lambda: compiled(Linear(2)), ValueError, "shape of 'input'.* is not known"),
    (lambda: compiled(Linear(2), scan_from=1), ValueError, "at least 2"),
]


@pytest.mark.parametrize(("make", "error", "words"), REFUSED)
def test_an_error_is_one_line(make, error, words):
    with pytest.raises(error) as caught:
        make()
    said = str(caught.value)
    if not said.startswith("Type-check error"):  # the tests' own checks came first
        assert re.search(words, said)
        assert "\n" not in said
