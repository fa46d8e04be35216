"""Recurrent layers (RNN, LSTM, GRU) over (batch, time, features), and their cells.

Gates are in torch's order. torch has two biases, of which only the sum matters; here
they are one, except for the GRU, whose second bias is multiplied by the reset gate.
"""

import dataclasses
import math
from typing import ClassVar, Literal

from frugax.models.graph import (
    Composite,
    Connection,
    Shape,
    Uniform,
    Weight,
    op,
    require_static,
)
from frugax.models.ops import Count, Fraction

from ._activations import Dropout
from ._field_op import FieldOp


@dataclasses.dataclass(frozen=True)
class _Recurrent(FieldOp):
    hidden: Count
    bias: bool = True

    own_fields = frozenset({"hidden", "bias"})
    weight_names = frozenset({"weight", "hidden_weight", "bias"})
    gates: ClassVar[int] = 1
    axes: ClassVar[int] = 3

    def weights(self, input: Shape, *states: Shape) -> dict[str, Weight]:
        if len(input) != self.axes:
            axes = "(batch, time, features)"
            if self.axes == 2:
                axes = "(batch, features)"
            raise ValueError(f"it needs {axes}")
        for state in states:
            if len(state) != 2 or state[1] != self.hidden:
                raise ValueError(f"its state must be (batch, {self.hidden})")
        # torch's initialisation; the bias of the forget gate is not 1, unlike in Keras.
        rows, bound = self.gates * self.hidden, 1 / math.sqrt(self.hidden)
        shapes = {
            "weight": (rows, require_static(input[-1])),
            "hidden_weight": (rows, self.hidden),
        }
        shapes |= dict.fromkeys(self.biases(), (rows,))
        return {k: Weight(s, Uniform(-bound, bound)) for k, s in shapes.items()}

    def biases(self) -> tuple[str, ...]:
        """The names of the biases."""
        if not self.bias:
            return ()
        # A set of text has another order in every process, and weights must not.
        return tuple(sorted(self.weight_names - {"weight", "hidden_weight"}))


@dataclasses.dataclass(frozen=True)
class RNN(_Recurrent):
    """h = act(W x + U h + b) at each time; outputs all h, and the last.

    Elman 1990, Cognitive Science 14:179-211. Weights start uniform within
    1 / sqrt(hidden), as in torch. The first h is `state`, (batch, hidden), or zeros.

    Attributes:
        hidden: features of h.
        bias: whether there is a b.
        activation: `"tanh"` or `"relu"`.
        reverse: whether it runs from the last time to the first.
    """

    # tanh bounds the state. With a Relu it can grow without limit, unless U starts near
    # the identity (Le, Jaitly & Hinton 2015, arXiv:1504.00941).
    activation: Literal["tanh", "relu"] = "tanh"
    reverse: bool = False

    op = "rnn"
    ports = ("input", "state")
    # An open state starts at 0; a wired one continues a sequence piece by piece.
    open_ports = frozenset({"state"})
    output_ports = ("output", "last_state")


@dataclasses.dataclass(frozen=True)
class LSTM(_Recurrent):
    """Long short-term memory; outputs all h, the last h and the last c.

    Hochreiter & Schmidhuber 1997, Neural Computation 9:1735-1780; forget gate of Gers
    et al. 2000. Starts as `RNN`. `state` and `cell_state` may be wired.

    Attributes:
        hidden: features of h and c.
        bias: whether the gates have a bias.
        reverse: whether it runs from the last time to the first.

    Example:
        >>> from frugax.models import IOKey, Linear, LSTM, Model
        >>> words = IOKey("words", shape=("batch", "time", 8))
        >>> output, last_state, last_cell_state = LSTM(16)(words)
        >>> model = Model.create(scores=Linear(2)(last_state))
    """

    reverse: bool = False

    op = "lstm"
    # Input, forget, cell and output gate, one below the other.
    gates = 4
    ports = ("input", "state", "cell_state")
    open_ports = frozenset({"state", "cell_state"})
    output_ports = ("output", "last_state", "last_cell_state")


@dataclasses.dataclass(frozen=True)
class GRU(_Recurrent):
    """Gated recurrent unit; outputs all h, (batch, time, hidden), and the last.

    Cho et al. 2014, arXiv:1406.1078; the reset gate acts after the product with the
    state, as in torch. Starts as `RNN`. The first h is `state`, (batch, hidden), or
    zeros.

    Attributes:
        hidden: features of h.
        bias: whether the gates have biases.
        reverse: whether it runs from the last time to the first.
    """

    reverse: bool = False

    op = "gru"
    # Reset, update and new gate, one below the other.
    gates = 3
    ports = ("input", "state")
    open_ports = frozenset({"state"})
    weight_names = frozenset({"weight", "hidden_weight", "bias", "hidden_bias"})
    output_ports = ("output", "last_state")


@dataclasses.dataclass(frozen=True)
class RNNCell(_Recurrent):
    """One step of `RNN`: (batch, features) and the state to the new state.

    Attributes:
        hidden: features of the state.
        bias: whether there is a bias.
        activation: `"tanh"` or `"relu"`.
    """

    activation: Literal["tanh", "relu"] = "tanh"

    op = "rnn_cell"
    axes = 2
    ports = ("input", "state")


@dataclasses.dataclass(frozen=True)
class LSTMCell(_Recurrent):
    """One step of `LSTM`: (batch, features), h and c to the new h and c.

    Attributes:
        hidden: features of h and c.
        bias: whether the gates have a bias.
    """

    op = "lstm_cell"
    axes, gates = 2, 4
    ports = ("input", "state", "cell_state")
    output_ports = ("output", "next_cell_state")


@dataclasses.dataclass(frozen=True)
class GRUCell(_Recurrent):
    """One step of `GRU`: (batch, features) and the state to the new state.

    Attributes:
        hidden: features of the state.
        bias: whether the gates have biases.
    """

    op = "gru_cell"
    axes, gates = 2, 3
    ports = ("input", "state")
    weight_names = frozenset({"weight", "hidden_weight", "bias", "hidden_bias"})


@dataclasses.dataclass(frozen=True)
class Bidirectional(Composite):
    """A recurrent layer in both directions, concatenated: (..., 2 * hidden).

    Schuster & Paliwal 1997, IEEE Trans. Signal Processing 45:2673-2681. Its layers are
    `forward` and `backward`.

    Attributes:
        layer: an `RNN`, `LSTM` or `GRU`.
    """

    layer: RNN | LSTM | GRU

    def build(self, input: Connection) -> Connection:
        # The backward layer's outputs stay at their times, so the two can be joined.
        both = [
            dataclasses.replace(self.layer, reverse=reverse, name=name)(input)[0]
            for name, reverse in (("forward", False), ("backward", True))
        ]
        return op("concat", axis=-1)(*both)


@dataclasses.dataclass(frozen=True)
class RecurrentStack(Composite):
    """Recurrent layers on top of each other, each in one or both directions.

    Its layers are `forward_0`, `backward_0`, `forward_1`, ... . `state` and
    `cell_state` are (layers, batch, hidden) in this order, and so are `last_state` and
    `last_cell_state`; the output is that of the last layer, (batch, time, directions *
    hidden).

    Attributes:
        layer: an `RNN`, `LSTM` or `GRU`.
        depth: how many are on top of each other.
        bidirectional: whether each runs in both directions.
        dropout: the rate between layers.

    Example:
        >>> from frugax.models import IOKey, LSTM, Model, RecurrentStack
        >>> words = IOKey("words", shape=("batch", "time", 8))
        >>> stack = RecurrentStack(LSTM(16), depth=2, bidirectional=True)
        >>> output, last_state, last_cell_state = stack(words)
        >>> model = Model.create(output=output, last=last_state)
    """

    layer: RNN | LSTM | GRU
    depth: Count = 2
    bidirectional: bool = False
    dropout: Fraction = 0.0

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.layer.inputs

    def build(
        self,
        input: Connection,
        state: Connection | None = None,
        cell_state: Connection | None = None,
    ) -> dict[str, Connection]:
        directions = (False, True)[: 1 + self.bidirectional]
        states = {"state": state, "cell_state": cell_state}
        last: list[tuple[Connection, ...]] = []
        for level in range(self.depth):
            if level and self.dropout:
                input = Dropout(self.dropout)(input)
            sides: list[Connection] = []
            for reverse in directions:
                wires = {k: w[len(last)] for k, w in states.items() if w is not None}
                name = f"{'backward' if reverse else 'forward'}_{level}"
                layer = dataclasses.replace(self.layer, reverse=reverse, name=name)
                output, *ends = layer(input, **wires)
                sides.append(output)
                last.append(tuple(ends))
            input = sides[0]
            if len(sides) == 2:
                input = op("concat", axis=-1)(*sides)
        names = self.layer.outputs[1:]
        ends = {
            name: op("stack", axis=0)(*[one[i] for one in last])
            for i, name in enumerate(names)
        }
        return {"output": input, **ends}
