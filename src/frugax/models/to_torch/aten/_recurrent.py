"""Convert torch's LSTM, GRU and RNN, of any depth and direction, for `from_torch`."""

from collections.abc import Callable, Sequence
from typing import Any

from frugax.models.graph import op

from ._conversions import CONVERSIONS, aten, select


def _recurrent(kind: str, gates: int) -> Callable[..., Any]:
    """Torch's stacked, bidirectional recurrence, whose weights come as one list."""

    def convert(
        x: Any,
        states: Any,
        weights: Sequence[Any],
        has_biases: Any,
        depth: int,
        dropout: float,
        train: Any,
        bidirectional: Any,
        batch_first: Any,
    ) -> Any:
        states = states if isinstance(states, list) else [states]
        x = x if batch_first else op("swapaxes", axis1=0, axis2=1)(x)
        per_layer, last = (4 if has_biases else 2), []
        for _ in range(depth):
            sides = []
            for reverse in (False, True)[: 1 + bool(bidirectional)]:
                number = len(last)
                own = weights[number * per_layer : (number + 1) * per_layer]
                wires: dict[str, Any] = {"weight": own[0], "hidden_weight": own[1]}
                if has_biases and kind == "gru":
                    wires |= {"bias": own[2], "hidden_bias": own[3]}
                elif has_biases:
                    wires["bias"] = op("add")(own[2], own[3])
                for port, state in zip(("state", "cell_state"), states, strict=False):
                    wires[port] = select(state, 0, number)
                name, extra = kind, {}
                if kind.startswith("rnn_"):
                    name, extra = "rnn", {"activation": kind.removeprefix("rnn_")}
                output, *ends = op(name, reverse=reverse, **extra)(input=x, **wires)
                sides.append(output)
                last.append(ends)
            x = sides[0] if len(sides) == 1 else op("concat", axis=-1)(*sides)
        x = x if batch_first else op("swapaxes", axis1=0, axis2=1)(x)
        ends = [
            op("stack", axis=0)(*[one[i] for one in last]) for i in range(len(last[0]))
        ]
        return (x, *ends)

    return convert


CONVERSIONS[aten.lstm.input] = _recurrent("lstm", 4)
CONVERSIONS[aten.gru.input] = _recurrent("gru", 3)
CONVERSIONS[aten.rnn_tanh.input] = _recurrent("rnn_tanh", 1)
CONVERSIONS[aten.rnn_relu.input] = _recurrent("rnn_relu", 1)
