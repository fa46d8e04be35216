"""What a learned policy sees of a campaign: a few places on the range of each variable.

A set of variables that may be set is a row, and its points, in the order of their
values, are cut into parts of equal number. Each part is a place; the point in it that
promises most stands for it. So every campaign is an array of one shape.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

from frugax.causal.policy import Outlook

PLACES = 8
MOST_SETS = 12


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
        for g in range(len(outlook.points.where))
    ]
    ranked = sorted(range(len(promise)), key=lambda g: promise[g], reverse=True)
    sets = sorted(ranked[:MOST_SETS])
    point = np.zeros((MOST_SETS, PLACES), np.int64)
    there = np.zeros(point.shape, bool)
    visits = np.zeros(point.shape, np.float32)
    price = np.zeros(MOST_SETS, np.float32)
    affordable = np.zeros(MOST_SETS, bool)
    cause = np.zeros((len(loss), MOST_SETS), np.float32)
    done = dict(zip(outlook.done.where, outlook.done.values, strict=True))
    for row, g in enumerate(sets):
        where, values = outlook.points.where[g], outlook.points.values[g]
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
