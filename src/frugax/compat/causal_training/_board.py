"""The policy network's input: the features of each candidate experiment."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

from frugax.causal.policy import PRUDENCE, SURE, Outlook

# The network has one size. A board with fewer sets or places is padded, and one with
# more keeps the most promising of them.
PLACES = 8
MAX_SETS = 12


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A campaign before its next experiment, or many of them, stacked along `b`.

    Attributes:
        loss: the target's mean where less is better, by world, set and place.
        there: which places exist; other entries of `loss` have no meaning.
        kept: share of worlds that keep all constraints at a place.
        price: of setting these variables, in budget units.
        cause: whether, by a world, one of them causes the target.
        visits: number of experiments next to a place.
        purse: the rest of the budget, in its units.
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
        """The places with affordable experiments."""
        # A share of the price for rounding, whatever the currency.
        paid = self.price * (1 - 1e-6) <= self.purse[..., None]
        return self.there & paid[..., None]

    def take(self, which: np.ndarray | slice) -> "Board":
        """Select boards by position, one of them several times if asked."""
        return Board(
            **{f.name: getattr(self, f.name)[which] for f in dataclasses.fields(Board)}
        )

    def at(
        self,
        field: Float[np.ndarray, "n v k"],
        action: Int[np.ndarray, " n"],
    ) -> Float[np.ndarray, " n"]:
        """Look up one place of each board, `set * places + place`."""
        return np.take_along_axis(field.reshape(len(field), -1), action[:, None], 1)[
            :, 0
        ]


def board_of(outlook: Outlook) -> Board:
    """Build the board of a campaign's outlook.

    Of more than twelve sets the most promising ones are kept.
    """
    loss, group = outlook.loss.astype(np.float32), outlook.points.group
    # Hope is measured from today's recommendation, because an experiment is worth only
    # its improvement on that.
    today = float(outlook.mean[outlook.best])
    hoped = np.maximum(today - loss, 0) * outlook.allowed
    hoped = hoped.mean(0)
    promise = [
        (outlook.affordable[group == g].any(), hoped[group == g].max(initial=-1.0))
        for g in range(len(outlook.points.targets))
    ]
    # Affordable sets first: the pair compares by its first entry.
    ranked = sorted(range(len(promise)), key=lambda g: promise[g], reverse=True)
    # Back in the order of the outlook, so that the rows do not move when hopes change.
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
        # Sorted by the first variable, then the second, ...; lexsort takes its last key
        # as the most important one, hence the reversal.
        order = np.arange(len(values))
        if values.shape[1]:  # doing nothing sets no variable
            order = np.lexsort(values.T[::-1])
        # Parts of equal number are quantiles of the range. A set with fewer than eight
        # points has empty parts, which are left out.
        parts = [part for part in np.array_split(order, PLACES) if len(part)]
        for k, part in enumerate(parts):
            # The most hoped for, of equals the best on average.
            at = mine[part]
            best = np.lexsort((loss[:, at].mean(0), -hoped[at]))[0]
            point[row, k], there[row, k] = at[best], True
        width = np.ptp(values, axis=0)
        # A variable with one value has no width; distances along it are 0 in any unit.
        width = np.where(width > 0, width, 1.0)
        for value in done.get(where, ()):
            nearest = [
                (np.abs(values[part] - value) / width).sum(1).min() for part in parts
            ]
            visits[row, int(np.argmin(nearest))] += 1
        price[row] = outlook.price[mine[0]]
        affordable[row] = outlook.affordable[mine[0]]
        # `causes` holds a world's causes of the target as bits.
        bits = sum(1 << v for v in where)
        cause[:, row] = (outlook.causes & bits) > 0
    there &= affordable[:, None]
    usual = price[: len(sets)].mean()
    chosen = loss[:, point.ravel()].reshape(len(loss), *point.shape)
    return Board(
        # Entries without a place become 0, since infinities and leftovers would turn
        # sums over all places into NaN.
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
    """Stack boards along a new first axis.

    Args:
        boards: at least one. Those with fewer worlds than others get some of their own
            twice: a campaign adds model-free worlds, as many as their past accuracy
            deserves.
    """
    count = max(len(board.loss) for board in boards)
    boards = [_with_worlds(board, count) for board in boards]
    return Board(
        **{
            f.name: np.stack([getattr(board, f.name) for board in boards])
            for f in dataclasses.fields(Board)
        }
    )


FEATURES = 20


def recommend_place(board: Board) -> Int[np.ndarray, " b"]:
    """Choose the place to recommend today, `set * places + place`, as campaigns do.

    Args:
        board: several, stacked.
    """
    mean, spread = board.loss.mean(1), board.loss.std(1)
    # The rule of `Outlook.best`, on places. Training and campaigns must agree on it, as
    # the reward is the regret of this recommendation.
    worth = np.where(_sure(board), mean + PRUDENCE * spread, np.inf)
    return worth.reshape(len(worth), -1).argmin(1)


def unit(board: Board) -> Float[np.ndarray, " b"]:
    """Compute the spread of the target's mean over places and worlds, in its unit."""
    there = board.there[:, None]
    count = np.maximum(there.sum((1, 2, 3)) * board.loss.shape[1], 1)
    centre = (board.loss * there).sum((1, 2, 3)) / count
    apart = (board.loss - centre[:, None, None, None]) * there
    # A trace of the noise keeps the unit positive if all worlds agree on all places.
    size = np.sqrt((apart**2).sum((1, 2, 3)) / count) + 1e-6 * board.noise
    return np.where(size > 0, size, 1)


def board_features(board: Board) -> Float[np.ndarray, "b v k f"]:
    """Compute `FEATURES` numbers of each place, independent of units and names.

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
    # Prices relative to the usual one, so that the currency does not matter.
    dear = np.where(groups, board.price, 1) / np.where(usual > 0, usual, 1)[:, None]
    hoped = np.maximum(today[:, None] - loss, 0).mean(1) * board.kept / size
    # Better by more than a twentieth of the unit; smaller differences count as equal.
    better = (loss < today[:, None] - 0.05 * size[:, None]).mean(1)
    first = _shares_of_best(board)
    # A lower bound, because the logarithm and the quotient below need it.
    noise = np.maximum(board.noise[:, None, None] / size, 1e-3)
    # How much knowing this place tells of those that may be the best.
    apart = ((loss - mean[:, None]) / size[:, None]).reshape(n, worlds, v * k)
    # The squared covariance of two places over worlds: an experiment at one tells of
    # the other by it.
    together = (apart.swapaxes(1, 2) @ apart / worlds) ** 2
    flat_first = first.reshape(n, v * k)
    tells = (together @ flat_first[:, :, None])[:, :, 0].reshape(n, v, k)
    tells = np.sqrt(tells / ((spread / size) ** 2 + noise**2))
    # Logarithms and divisors bring all features to about the same size, as the network
    # has no normalisation of its inputs.
    log_hoped = np.log(hoped / dear[:, :, None] + 1e-4) / 3
    uncertain = -(flat_first * np.log(flat_first + 1e-9)).sum(1)
    left = board.purse / np.where(usual > 0, usual, 1)
    visits = board.visits
    each = (n, v, k)
    # Features of a set or of the board are repeated at each place, so one network
    # serves all places.
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
    # If no place keeps the constraints surely enough, the surest ones count, as in
    # campaigns.
    least = np.minimum(SURE, kept.max((1, 2)))
    return board.there & (kept >= least[:, None, None])


def _shares_of_best(board: Board) -> Float[np.ndarray, "b v k"]:
    """Compute the share of worlds in which each place is the best."""
    n, worlds, v, k = board.loss.shape
    loss = np.where(_sure(board)[:, None], board.loss, np.inf).reshape(n, worlds, v * k)
    found = np.zeros((n, v * k), np.float32)
    # np.add.at and not `found[...] +=`, which counts repeated places once.
    np.add.at(found, (np.arange(n)[:, None], loss.argmin(2)), 1 / worlds)
    return found.reshape(n, v, k)


def _with_worlds(board: Board, count: int) -> Board:
    # Evenly spread, so that each kind of world keeps its share.
    which = np.arange(count) * len(board.loss) // count
    return dataclasses.replace(board, loss=board.loss[which], cause=board.cause[which])
