"""Ops for recurrent layers (RNN, LSTM, GRU) over (batch, time, features), and cells.

Weights are laid out as in torch: (gates * hidden, features) for the input and
(gates * hidden, hidden) for the state, the gates in the order input, forget, cell,
output (LSTM) and reset, update, new (GRU). A state that is not wired is zeros.
"""

from typing import Any

from jaxtyping import Shaped

from ._table import op

Sequence = Shaped[Any, "batch time features"]
Outputs = Shaped[Any, "batch time hidden"]
Features = Shaped[Any, "batch features"]
State = Shaped[Any, "batch hidden"]
Weight = Shaped[Any, "gates features"]
HiddenWeight = Shaped[Any, "gates hidden"]
Bias = Shaped[Any, " gates"]


@op(promote="float", outputs=("output", "last_state"))
def rnn(
    xp: Any,
    input: Sequence,
    weight: Weight,
    hidden_weight: HiddenWeight,
    bias: Bias | None = None,
    state: State | None = None,
    *,
    activation: str = "tanh",
    reverse: bool = False,
) -> tuple[Outputs, State]:
    """At each time h = act(W x + U h + b); returns all h, and the last.

    `reverse` runs from the last time to the first; outputs stay at their times.
    """
    act = _activation(xp, activation)
    state = _initial_state(xp, input, hidden_weight, state)
    update = lambda gates, carry: (act(gates),)
    output, (state,) = _recurrence(
        xp, update, (state,), input, weight, hidden_weight, bias, reverse=reverse
    )
    return output, state


@op(promote="float", outputs=("output", "last_state", "last_cell_state"))
def lstm(
    xp: Any,
    input: Sequence,
    weight: Weight,
    hidden_weight: HiddenWeight,
    bias: Bias | None = None,
    state: State | None = None,
    cell_state: State | None = None,
    *,
    reverse: bool = False,
) -> tuple[Outputs, State, State]:
    """Long short-term memory; returns all h, the last h and the last c.

    Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    """
    state = _initial_state(xp, input, hidden_weight, state)
    cell = _initial_state(xp, input, hidden_weight, cell_state)

    update = lambda gates, carry: _lstm_update(xp, gates, carry[1])
    output, (state, cell) = _recurrence(
        xp, update, (state, cell), input, weight, hidden_weight, bias, reverse=reverse
    )
    return output, state, cell


@op(promote="float", outputs=("output", "last_state"))
def gru(
    xp: Any,
    input: Sequence,
    weight: Weight,
    hidden_weight: HiddenWeight,
    bias: Bias | None = None,
    hidden_bias: Bias | None = None,
    state: State | None = None,
    *,
    reverse: bool = False,
) -> tuple[Outputs, State]:
    """Gated recurrent unit; returns all h, and the last.

    The reset gate acts after the state's product and its bias, as in torch and cuDNN.
    Cho et al. 2014, arXiv:1406.1078.
    """
    state = _initial_state(xp, input, hidden_weight, state)

    # The product with the input does not depend on the state: one for all times.
    driven = xp.linear(input, weight, bias)

    recall = xp.transpose(hidden_weight)
    # The reset gate multiplies this bias, so it cannot be added to the other one.
    hidden_bias = _as_row(xp, hidden_bias)

    def step(hidden: Any, driven: Any) -> Any:
        recalled = xp.matmul(hidden, recall) + hidden_bias
        hidden = _gru_update(xp, driven, recalled, hidden)
        return hidden, hidden

    return _over_time(xp, step, state, driven, reverse=reverse)


@op(promote="float")
def rnn_cell(
    xp: Any,
    input: Features,
    state: State,
    weight: Weight,
    hidden_weight: HiddenWeight,
    bias: Bias | None = None,
    *,
    activation: str = "tanh",
) -> State:
    """One step of `rnn` on (batch, features): the new state."""
    act = _activation(xp, activation)
    driven = xp.linear(input, weight, bias)
    return act(driven + xp.linear(state, hidden_weight, None))


@op(promote="float", outputs=("output", "next_cell_state"))
def lstm_cell(
    xp: Any,
    input: Features,
    state: State,
    cell_state: State,
    weight: Weight,
    hidden_weight: HiddenWeight,
    bias: Bias | None = None,
) -> tuple[State, State]:
    """One step of `lstm` on (batch, features): the new h and c."""
    driven = xp.linear(input, weight, bias)
    gates = driven + xp.linear(state, hidden_weight, None)
    return _lstm_update(xp, gates, cell_state)


@op(promote="float")
def gru_cell(
    xp: Any,
    input: Features,
    state: State,
    weight: Weight,
    hidden_weight: HiddenWeight,
    bias: Bias | None = None,
    hidden_bias: Bias | None = None,
) -> State:
    """One step of `gru` on (batch, features): the new state."""
    driven = xp.linear(input, weight, bias)
    recalled = xp.linear(state, hidden_weight, hidden_bias)
    return _gru_update(xp, driven, recalled, state)


def _recurrence(
    xp: Any,
    update: Any,
    carry: tuple[Any, ...],
    input: Any,
    weight: Any,
    hidden_weight: Any,
    bias: Any,
    *,
    reverse: bool,
) -> Any:
    """All outputs and the last carry of `carry = update(W x + U h + b, carry)`."""
    # The weight is transposed once and not in each step: 0.7-0.95 of the forward time.
    if xp.joins_steps and weight.shape[1] <= hidden_weight.shape[1]:
        # One product a step, of x and h side by side, in place of two.
        joined = xp.transpose(xp.concat([weight, hidden_weight], axis=1))
        bias = _as_row(xp, bias)
        gates_of = lambda x, h: xp.matmul(xp.concat([x, h], axis=1), joined) + bias
    else:
        input = xp.linear(input, weight, bias)
        recall = xp.transpose(hidden_weight)
        gates_of = lambda x, h: x + xp.matmul(h, recall)

    def step(carry: Any, x: Any) -> Any:
        carry = update(gates_of(x, carry[0]), carry)
        return carry, carry[0]

    return _over_time(xp, step, carry, input, reverse=reverse)


def _over_time(xp: Any, step: Any, carry: Any, input: Any, *, reverse: bool) -> Any:
    """Scan over time; all outputs, (batch, time, hidden), and the last carry."""
    # A scan steps along the first axis.
    by_time = xp.transpose(input, (1, 0, 2))
    carry, outputs = xp.scan(step, carry, by_time, reverse=reverse)
    return xp.transpose(outputs, (1, 0, 2)), carry


def _lstm_update(xp: Any, gates: Any, cell: Any) -> Any:
    # One product serves all four gates; torch's order is i, f, g, o.
    enter, forget, new, leave = xp.parts(gates, 4)
    # A sum and not a product: gradients pass back through time scaled by the forget
    # gate alone (the constant error carousel of the paper).
    cell = xp.sigmoid(forget) * cell + xp.sigmoid(enter) * xp.tanh(new)
    return xp.sigmoid(leave) * xp.tanh(cell), cell


def _gru_update(xp: Any, driven: Any, recalled: Any, hidden: Any) -> Any:
    # With the reset gate after the product, all three products with the state are one.
    # Cho et al. have it before, and Keras offers both.
    reset, update, new = xp.parts(driven, 3)
    reset_again, update_again, new_again = xp.parts(recalled, 3)
    reset = xp.sigmoid(reset + reset_again)
    update = xp.sigmoid(update + update_again)
    new = xp.tanh(new + reset * new_again)
    # (1 - update) * new + update * hidden, with one product less.
    return new + update * (hidden - new)


def _initial_state(xp: Any, input: Any, hidden_weight: Any, state: Any) -> Any:
    if state is not None:
        batch, hidden = input.shape[0], hidden_weight.shape[-1]
        lengths = zip(state.shape, (batch, hidden), strict=False)
        # Free lengths are left to the library, which knows which are equal.
        differ = any(
            isinstance(a, int) and isinstance(b, int) and a != b for a, b in lengths
        )
        if len(state.shape) != 2 or differ:
            raise ValueError(
                f"a state must be (batch, hidden), here {(batch, hidden)}, not "
                f"{tuple(state.shape)}."
            )
        return state
    zeros = xp.zeros((input.shape[0], hidden_weight.shape[-1]), like=input)
    # A carry must not change its dtype between steps.
    return xp.cast_like(zeros, input)


def _as_row(xp: Any, bias: Any) -> Any:
    if bias is None:
        return 0.0
    return xp.expand_dims(bias, 0)


def _activation(xp: Any, name: str) -> Any:
    if name not in ("tanh", "relu"):
        raise ValueError(f'rnn: activation must be "tanh" or "relu", not {name!r}.')
    return getattr(xp, name)
