"""Models wired at random, each with the same computation written directly in torch.

Weights are the layer's own, named by text or by an `IOKey`, shared by name, by path or
by `weight_of`, constants, or results of other layers.
"""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch  # noqa: TID253 - only a test that has it imports this file

from frugax.models import (
    GRU,
    L2,
    IOKey,
    Linear,
    LSTMCell,
    Model,
    RNNCell,
    Tanh,
    op,
    weight_of,
)

ROWS = WIDTH = 3
Arrays = dict[str, torch.Tensor]
Reference = Callable[[Arrays], torch.Tensor]


@dataclasses.dataclass
class Wiring:
    """A model, its inputs and parameters, and the expected value of each output."""

    model: Model
    inputs: set[str]
    params: set[str]
    outputs: dict[str, Reference]


class _Builder:
    """Grows a model and its reference; every value is (ROWS, WIDTH)."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.by_name = self.rng.random() < 0.5
        self.inputs, self.params = {"x"}, set[str]()
        self.values: list[tuple[Any, Reference]] = [
            ("x" if self.by_name else IOKey("x"), lambda a: a["x"])
        ]
        self.calls: list[Any] = []
        self.owners: list[tuple[str, Any]] = []  # Linear layers with their own weight
        self.penalties: list[tuple[Any, Reference]] = []

    def pick(self) -> tuple[Any, Reference]:
        return self.rng.choice(self.values)

    def add(self, layer: Any, reference: Reference, **wires: Any) -> Any:
        """Wire a layer, by names or by connections; remember its first output."""
        if self.by_name:
            name = f"v{len(self.calls)}"
            made = layer(**wires, output=name)
            self.values.append((name, reference))
        else:
            made = layer(**wires)
            made = made[0] if isinstance(made, tuple) else made
            self.values.append((made, reference))
        self.calls.append(made)
        return made

    def named(self, kind: str) -> tuple[Any, str]:
        """A weight called by the user; the kind tells shapes apart."""
        key = f"{kind}{self.rng.randrange(3)}"
        self.params.add(key)
        return (key if self.rng.random() < 0.5 or self.by_name else IOKey(key)), key

    def weight(self) -> tuple[Any, Reference]:
        """A (WIDTH, WIDTH) weight from anywhere, or None for the layer's own."""
        kind = self.rng.randrange(7)
        if kind < 2:
            wire, key = self.named("w")
            if isinstance(wire, str) and not self.by_name:
                wire = IOKey(key)
            return wire, lambda a: a[key]
        if kind == 2 and self.owners:
            name, made = self.rng.choice(self.owners)
            wire = f"{name}.weight" if self.by_name else weight_of(made)
            return wire, lambda a: a[f"{name}.weight"]
        if kind == 3:
            fixed = np.arange(WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH) / 9
            return fixed, lambda a: torch.tensor(fixed, dtype=a["x"].dtype)
        if kind == 4:
            wire, reference = self.pick()
            if wire is self.values[0][0]:  # a key that is read as a weight is one
                self.params.add("x")
                self.inputs.clear()
            return wire, reference
        return None, lambda a: a["unused"]

    def linear(self) -> None:
        name = f"layer{len(self.calls)}"
        (x, x_ref), (wire, w_ref) = self.pick(), self.weight()
        bias, key = None, f"{name}.bias"
        if self.rng.random() < 0.5:
            bias, key = self.named("b")
            if not self.by_name:
                bias = IOKey(key)
        self.params.add(key)
        if wire is None:
            self.params.add(own := f"{name}.weight")
            w_ref = lambda a: a[own]
        made = self.add(
            Linear(WIDTH, name=name),
            lambda a: torch.nn.functional.linear(x_ref(a), w_ref(a), a[key]),
            input=x,
            weight=wire,
            bias=bias,
        )
        if wire is None:
            self.owners.append((name, made))

    def cell(self) -> None:
        name = f"layer{len(self.calls)}"
        (x, x_ref), (state, s_ref) = self.pick(), self.pick()
        wire, key = self.named("w")
        if not self.by_name:
            wire = IOKey(key)
        keys = [f"{name}.hidden_weight", f"{name}.bias"]
        self.params |= {*keys}

        def reference(a: Arrays) -> torch.Tensor:
            h, u = s_ref(a), a[keys[0]]
            return torch.tanh(x_ref(a) @ a[key].T + h @ u.T + a[keys[1]])

        self.add(
            RNNCell(WIDTH, name=name), reference, input=x, state=state, weight=wire
        )

    def lstm_cell(self) -> None:
        name = f"layer{len(self.calls)}"
        (x, x_ref), (h, h_ref), (c, c_ref) = self.pick(), self.pick(), self.pick()
        keys = [f"{name}.{k}" for k in ("weight", "hidden_weight", "bias")]
        self.params |= {*keys}

        def reference(a: Arrays) -> torch.Tensor:
            w, u, b = (a[k] for k in keys)
            cell = torch.lstm_cell(
                x_ref(a), [h_ref(a), c_ref(a)], w, u, b, torch.zeros_like(b)
            )
            return cell[0]

        layer = LSTMCell(WIDTH, name=name)
        self.add(layer, reference, input=x, state=h, cell_state=c)

    def gru(self) -> None:
        name = f"layer{len(self.calls)}"
        (x, x_ref), (h, h_ref) = self.pick(), self.pick()
        wired = {"state": h} if self.rng.random() < 0.7 else {}
        keys = [
            f"{name}.{k}" for k in ("weight", "hidden_weight", "bias", "hidden_bias")
        ]
        self.params |= {*keys}

        def reference(a: Arrays) -> torch.Tensor:
            start = h_ref(a) if wired else torch.zeros_like(x_ref(a))
            flat = [a[k] for k in keys]
            out, _ = torch.gru(
                x_ref(a)[:, None], start[None], flat, True, 1, 0.0, False, False, True
            )
            return out[:, 0]

        if self.by_name:
            row = f"row{len(self.calls)}"
            self.calls.append(op("expand_dims", axis=1)(x, output=row))
            whole = f"whole{len(self.calls)}"
            self.calls.append(GRU(WIDTH, name=name)(input=row, output=whole, **wired))
            self.add(op("getitem", index=(("slice", None, None, None), 0)), reference,
                     input=whole)  # fmt: skip
        else:
            made, _ = GRU(WIDTH, name=name)(op("expand_dims", axis=1)(x), **wired)
            self.values.append((made[:, 0], reference))
            self.calls.append(made)

    def tanh(self) -> None:
        x, ref = self.pick()
        self.add(Tanh(), lambda a: torch.tanh(ref(a)), input=x)

    def mix(self) -> None:
        (x, x_ref), (y, y_ref) = self.pick(), self.pick()
        self.add(op("add"), lambda a: x_ref(a) + y_ref(a), left=x, right=y)

    def penalty(self) -> None:
        names = sorted(k for k in self.params if k[0] == "w")
        if not names or self.penalties:
            return
        key = self.rng.choice(names)
        reference = lambda a: 0.1 * (a[key] ** 2).sum()
        if self.by_name:
            made = L2(0.1)(input=key, output="penalty")
            # Before its owner: names are looked up when the model is whole.
            self.calls.insert(0, made)
            self.penalties.append(("penalty", reference))
        else:
            self.penalties.append((L2(0.1)(IOKey(key)), reference))


def random_wiring(seed: int) -> Wiring:
    """A model of three to eight layers that are wired by this seed."""
    b = _Builder(seed)
    b.linear()
    for _ in range(b.rng.randrange(2, 8)):
        b.rng.choice(
            [b.linear, b.linear, b.linear, b.cell, b.lstm_cell, b.gru, b.tanh, b.mix,
             b.penalty]
        )()  # fmt: skip
    last, reference = b.values[-1]
    outputs = {"y": reference}
    if b.by_name:
        model = Model()
        b.calls.append(op("identity")(last, output=IOKey("y", expose=True)))
        for call in b.calls:
            model |= call
        outputs = {k: r for k, r in b.values[1:] if k in model.outputs} | outputs
        outputs |= {k: r for k, r in b.penalties}
    else:
        # Every value, so that no layer is left out.
        results = {"y": op("identity")(last)}
        every = [*b.values[1:], *b.penalties]
        for i, (value, extra) in enumerate(every):
            results[f"v{i}"], outputs[f"v{i}"] = op("identity")(value), extra
        model = Model.create(**results)
    return Wiring(model, b.inputs, b.params, outputs)
