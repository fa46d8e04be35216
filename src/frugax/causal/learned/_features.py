"""What is told to the network of each place: the same in training and in a campaign."""

import numpy as np
from jaxtyping import Bool, Float, Int

from frugax.causal.policy import PRUDENCE, SURE

from ._board import Board

FEATURES = 20


def recommended(board: Board) -> Int[np.ndarray, " b"]:
    """The place to recommend today, `set * places + place`, as campaigns do it.

    Args:
        board: several, stacked.
    """
    mean, spread = board.loss.mean(1), board.loss.std(1)
    worth = np.where(_sure(board), mean + PRUDENCE * spread, np.inf)
    return worth.reshape(len(worth), -1).argmin(1)


def unit(board: Board) -> Float[np.ndarray, " b"]:
    """How far the target's mean differs between places and worlds, in its unit."""
    there = board.there[:, None]
    count = np.maximum(there.sum((1, 2, 3)) * board.loss.shape[1], 1)
    centre = (board.loss * there).sum((1, 2, 3)) / count
    apart = (board.loss - centre[:, None, None, None]) * there
    size = np.sqrt((apart**2).sum((1, 2, 3)) / count) + 1e-6 * board.noise
    return np.where(size > 0, size, 1)


def features(board: Board) -> Float[np.ndarray, "b v k f"]:
    """`FEATURES` numbers of each place, whatever the units, prices and names.

    Args:
        board: several, stacked.
    """
    loss, there = board.loss, board.there
    n, worlds, v, k = loss.shape
    size = unit(board)[:, None, None]
    best = recommended(board)
    mean, spread = loss.mean(1), loss.std(1)
    today = board.at(mean, best)[:, None, None]
    is_best = (np.arange(v * k) == best[:, None]).reshape(n, v, k)
    groups = there.any(2)
    usual = (board.price * groups).sum(1) / np.maximum(groups.sum(1), 1)
    dear = np.where(groups, board.price, 1) / np.where(usual > 0, usual, 1)[:, None]
    hoped = np.maximum(today[:, None] - loss, 0).mean(1) * board.kept / size
    better = (loss < today[:, None] - 0.05 * size[:, None]).mean(1)
    first = _shares_of_best(board)
    noise = np.maximum(board.noise[:, None, None] / size, 1e-3)
    # How much knowing this place tells of those that may be the best.
    apart = ((loss - mean[:, None]) / size[:, None]).reshape(n, worlds, v * k)
    together = (apart.swapaxes(1, 2) @ apart / worlds) ** 2
    flat_first = first.reshape(n, v * k)
    tells = (together @ flat_first[:, :, None])[:, :, 0].reshape(n, v, k)
    tells = np.sqrt(tells / ((spread / size) ** 2 + noise**2))
    log_hoped = np.log(hoped / dear[:, :, None] + 1e-4) / 3
    uncertain = -(flat_first * np.log(flat_first + 1e-9)).sum(1)
    left = board.purse / np.where(usual > 0, usual, 1)
    visits = board.visits
    each = (n, v, k)
    of_set = lambda x: np.broadcast_to(x[:, :, None], each)
    of_all = lambda x: np.broadcast_to(x[:, None, None], each)
    least = np.where(there, mean, np.inf).min(2, initial=np.inf)
    least = np.where(groups, (least - today[:, :, 0]) / size[:, :, 0], 0)
    told = [
        np.clip((mean - today) / size, -5, 5),
        spread / size,
        log_hoped,
        np.log(first + 0.01) / 3,
        better,
        tells,
        tells / dear[:, :, None],
        np.log(spread / size / noise + 0.01) / 3,
        board.kept - 1,
        np.log1p(visits),
        is_best,
        of_set(np.log(dear)),
        of_set(board.cause.mean(1)),
        of_set(np.log1p(visits.sum(2))),
        of_set(np.clip(least, -5, 5)),
        of_set(np.where(there, log_hoped, -4).max(2)),
        of_set(first.sum(2)),
        of_all(np.log1p(np.clip(left, 0, 99)) / 2),
        of_all(np.log(noise[:, 0, 0]) / 3),
        of_all(uncertain / 3),
    ]
    return np.where(there[..., None], np.stack(told, -1), 0).astype(np.float32)


def _sure(board: Board) -> Bool[np.ndarray, "b v k"]:
    kept = np.where(board.there, board.kept, -1)
    least = np.minimum(SURE, kept.max((1, 2)))
    return board.there & (kept >= least[:, None, None])


def _shares_of_best(board: Board) -> Float[np.ndarray, "b v k"]:
    """In which share of worlds each place is the best."""
    n, worlds, v, k = board.loss.shape
    loss = np.where(_sure(board)[:, None], board.loss, np.inf).reshape(n, worlds, v * k)
    found = np.zeros((n, v * k), np.float32)
    np.add.at(found, (np.arange(n)[:, None], loss.argmin(2)), 1 / worlds)
    return found.reshape(n, v, k)
