"""What is told to the network of each place: the same in training and in a campaign."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

from frugax.causal.policy import PRUDENCE, SURE, Outlook

PLACES = 8
MAX_SETS = 12


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A campaign before its next experiment, or many of them, stacked along `b`.

    Attributes:
        loss: the target's mean where less is better, by world, set and place.
        there: which places there are; what else `loss` holds means nothing.
        kept: share of worlds that keep all constraints at a place.
        price: of setting these variables, in budget units.
        cause: whether, by a world, one of them causes the target.
        visits: experiments that were done next to a place.
        purse: what may still be spent, in budget units.
        noise: standard error of an experiment's outcome, in the target's unit.
        point: the place's position in the outlook.
    """

    loss: Float[np.ndarray, "*b w v k"]
    there: Bool[np.ndarray, "*b v k"]
    kept: Float[np.ndarray, "*b v k"]
    price: Float[np.ndarray, "*b v"]
    cause: Float[np.ndarray, "*b w v"]
    visits: Float[np.ndarray, "*b v k"]
    purse: Float[np.ndarray, "*b"]
    noise: Float[np.ndarray, "*b"]
    point: Int[np.ndarray, "*b v k"]

    @property
    def playable(self) -> Bool[np.ndarray, "*b v k"]:
        """The places whose experiments can be paid."""
        # A share of the price for rounding, whatever the currency.
        paid = self.price * (1 - 1e-6) <= self.purse[..., None]
        return self.there & paid[..., None]

    def take(self, which: np.ndarray | slice) -> "Board":
        """Some of many, or one of them several times."""
        return Board(
            **{f.name: getattr(self, f.name)[which] for f in dataclasses.fields(Board)}
        )

    def at(
        self,
        field: Float[np.ndarray, "n v k"],
        action: Int[np.ndarray, " n"],
    ) -> Float[np.ndarray, " n"]:
        """Of each board the value at one place, `set * places + place`."""
        return np.take_along_axis(field.reshape(len(field), -1), action[:, None], 1)[
            :, 0
        ]


def board_of(outlook: Outlook) -> Board:
    """A campaign's outlook as a board.

    Of more than twelve sets those are taken that promise most.

    Args:
        outlook: what is known.
    """
    loss, group = outlook.loss.astype(np.float32), outlook.points.group
    today = float(outlook.mean[outlook.best])
    hoped = np.maximum(today - loss, 0) * outlook.allowed
    hoped = hoped.mean(0)
    promise = [
        (outlook.affordable[group == g].any(), hoped[group == g].max(initial=-1.0))
        for g in range(len(outlook.points.targets))
    ]
    ranked = sorted(range(len(promise)), key=lambda g: promise[g], reverse=True)
    sets = sorted(ranked[:MAX_SETS])
    point = np.zeros((MAX_SETS, PLACES), np.int64)
    there = np.zeros(point.shape, bool)
    visits = np.zeros(point.shape, np.float32)
    price = np.zeros(MAX_SETS, np.float32)
    affordable = np.zeros(MAX_SETS, bool)
    cause = np.zeros((len(loss), MAX_SETS), np.float32)
    done = dict(zip(outlook.done.targets, outlook.done.values, strict=True))
    for row, g in enumerate(sets):
        where, values = outlook.points.targets[g], outlook.points.values[g]
        mine = np.flatnonzero(group == g)
        order = np.lexsort(values.T[::-1])
        parts = [part for part in np.array_split(order, PLACES) if len(part)]
        for k, part in enumerate(parts):
            # The most hoped for, of equals the best on average.
            at = mine[part]
            best = np.lexsort((loss[:, at].mean(0), -hoped[at]))[0]
            point[row, k], there[row, k] = at[best], True
        width = np.ptp(values, axis=0)
        width = np.where(width > 0, width, 1.0)
        for value in done.get(where, ()):
            nearest = [
                (np.abs(values[part] - value) / width).sum(1).min() for part in parts
            ]
            visits[row, int(np.argmin(nearest))] += 1
        price[row] = outlook.price[mine[0]]
        affordable[row] = outlook.affordable[mine[0]]
        bits = sum(1 << v for v in where)
        cause[:, row] = (outlook.causes & bits) > 0
    there &= affordable[:, None]
    usual = price[: len(sets)].mean()
    chosen = loss[:, point.ravel()].reshape(len(loss), *point.shape)
    return Board(
        loss=np.where(there, chosen, 0),
        there=there,
        kept=np.where(there, outlook.allowed.mean(0)[point], 0).astype(np.float32),
        price=price,
        cause=cause,
        visits=visits,
        # Without a limit but of seconds: as much as ever counts.
        purse=np.array(min(outlook.left, 99.0) * usual, np.float32),
        noise=np.array(outlook.noise, np.float32),
        point=point,
    )


def stacked(boards: list[Board]) -> Board:
    """Several boards as one.

    Args:
        boards: at least one; all from as many worlds.
    """
    return Board(
        **{
            f.name: np.stack([getattr(board, f.name) for board in boards])
            for f in dataclasses.fields(Board)
        }
    )


FEATURES = 20


def recommend_place(board: Board) -> Int[np.ndarray, " b"]:
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


def board_features(board: Board) -> Float[np.ndarray, "b v k f"]:
    """`FEATURES` numbers of each place, whatever the units, prices and names.

    Args:
        board: several, stacked.
    """
    loss, there = board.loss, board.there
    n, worlds, v, k = loss.shape
    size = unit(board)[:, None, None]
    best = recommend_place(board)
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
