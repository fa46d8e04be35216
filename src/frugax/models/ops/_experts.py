"""Ops of sparse mixtures of experts: each token goes through a few chosen experts."""

from typing import Any

from jaxtyping import Int, Shaped

from ._table import OPS, op


@op(promote="none")
def grouped_linear(
    xp: Any,
    input: Shaped[Any, "rows features"],
    weight: Shaped[Any, "groups out features"],
    counts: Int[Any, " groups"],
) -> Shaped[Any, "rows out"]:
    """Each group of rows times the transpose of its own weight.

    The first `counts[0]` rows are of group 0, the next `counts[1]` of group 1, and so
    on; the counts must add up to the rows. Each row is multiplied by one weight only.

    Raises:
        ValueError: the shapes do not fit each other.
    """
    fits = len(input.shape) == 2 and len(weight.shape) == 3
    if (
        not fits
        or weight.shape[2] != input.shape[1]
        or counts.shape != weight.shape[:1]
    ):
        raise ValueError(
            "grouped_linear: it takes (rows, features), (groups, out, features) and "
            f"(groups,), not {tuple(input.shape)} {tuple(weight.shape)} "
            f"{tuple(counts.shape)}."
        )
    return xp.grouped_linear(input, weight, counts)


@op(promote="none")
def sparse_experts(
    xp: Any,
    input: Shaped[Any, "*batch features"],
    scores: Shaped[Any, "*batch experts"],
    up: Shaped[Any, "experts hidden features"],
    down: Shaped[Any, "experts out hidden"],
    gate: Shaped[Any, "experts hidden features"] | None = None,
    *,
    chosen: int = 2,
    activation: str = "silu",
) -> Shaped[Any, "*batch out"]:
    """The mean of the experts with the highest scores, weighted by their softmax.

    An expert is down(act(up(x))), or down(act(gate(x)) * up(x)) with a `gate`. Tokens
    are sorted by expert, and each runs through its `chosen` experts only: the work does
    not grow with the number of experts. No token is dropped.
    Shazeer et al. 2017, arXiv:1701.06538; sorted as in Gale et al. 2022,
    arXiv:2211.15841.

    Raises:
        ValueError: there are fewer experts than are chosen.
    """
    experts, features = up.shape[0], input.shape[-1]
    if not 1 <= chosen <= experts:
        raise ValueError(f"sparse_experts: chosen={chosen} of {experts} experts.")
    tokens = xp.reshape(input, (-1, features))
    best, which = xp.top_k(xp.reshape(scores, (-1, experts)), chosen)
    # Over the chosen ones only, as in Mixtral: their shares add up to 1.
    shares = xp.softmax(xp.widened(best), -1)
    owner = xp.reshape(which, (-1,))
    order = xp.argsort(owner, 0)
    numbers = xp.arange(experts, dtype=xp.dtype_of(owner), like=owner)
    is_own = xp.equal(xp.expand_dims(owner, -1), numbers)
    counts = xp.sum(xp.cast(is_own, "int32"), 0)
    rows = xp.take(tokens, xp.floor_divide(order, chosen), 0, "clip")
    act = OPS[activation]
    hidden = xp.grouped_linear(rows, up, counts)
    if gate is None:
        hidden = act(xp, hidden)
    else:
        hidden = act(xp, xp.grouped_linear(rows, gate, counts)) * hidden
    mixed = xp.take(
        xp.grouped_linear(hidden, down, counts), xp.argsort(order, 0), 0, "clip"
    )
    out = down.shape[1]
    mixed = xp.reshape(mixed, (-1, chosen, out))
    total = xp.sum(mixed * xp.cast_like(xp.expand_dims(shares, -1), mixed), 1)
    return xp.reshape(total, (*input.shape[:-1], out))
