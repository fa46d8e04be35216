"""The policy network's input: features of a fixed number of candidate experiments."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from frugax.causal.policy import PRUDENCE, SURE, Outlook

# The network has one size: a shortlist of fewer candidates is padded.
PLACES = 64
FEATURES = 11


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist:
    """Candidates for a campaign's next experiment, or several lists along `b`.

    Attributes:
        loss: the target's mean in each posterior sample (world); less is better.
        there: False for padding, which repeats candidates.
        kept: share of worlds in which all constraints hold.
        price: of one experiment, in budget units.
        visits: number of experiments near the candidate.
        money: the rest of the budget, in its units.
        noise: standard error of an experiment's outcome, in the target's unit.
        point: the candidate's position in the outlook.
    """

    loss: Float[np.ndarray, "*b w k"]
    there: Bool[np.ndarray, "*b k"]
    kept: Float[np.ndarray, "*b k"]
    price: Float[np.ndarray, "*b k"]
    visits: Float[np.ndarray, "*b k"]
    money: Float[np.ndarray, "*b"]
    noise: Float[np.ndarray, "*b"]
    point: Int[np.ndarray, "*b k"]

    @property
    def affordable(self) -> Bool[np.ndarray, "*b k"]:
        """The candidates that the budget still pays for."""
        # A share of the price for rounding, whatever the currency.
        return self.there & (self.price * (1 - 1e-6) <= self.money[..., None])


def shortlist_of(outlook: Outlook) -> Shortlist:
    """Divide the affordable points into `PLACES` parts and take the best of each.

    A part holds neighbours: points that set the same variables to similar values.
    """
    loss = outlook.loss.astype(np.float32)
    # Hope is measured from today's recommendation, because an experiment is worth only
    # its improvement on that.
    today = float(outlook.mean[outlook.best])
    hoped = (np.maximum(today - loss, 0) * outlook.allowed).mean(0)
    mean, group = loss.mean(0), outlook.points.group
    # A point that sets no variable has no first value.
    by = [v[:, 0] if v.shape[1] else np.zeros(len(v)) for v in outlook.points.values]
    order = np.lexsort((np.concatenate(by), group))
    parts = np.array_split(order[outlook.affordable[order]], PLACES)
    # The most hoped for; of equals, the best on average.
    chosen = [p[np.lexsort((mean[p], -hoped[p]))[0]] for p in parts if len(p)]
    point = np.resize(np.array(chosen, np.int64), PLACES)
    # The campaign's own definition of the usual price: the mean over sets of variables.
    first = np.unique(group, return_index=True)[1]
    sets = [i for i, w in zip(first, outlook.points.targets, strict=True) if w]
    repeats = outlook.repeats
    return Shortlist(
        loss=loss[:, point],
        there=np.arange(PLACES) < len(chosen),
        kept=outlook.allowed.mean(0)[point].astype(np.float32),
        price=outlook.price[point].astype(np.float32),
        visits=(
            np.zeros(PLACES, np.float32)
            if repeats is None
            else repeats[point].astype(np.float32)
        ),
        # A budget that does not limit experiments is as good as 99 of them.
        money=np.array(
            min(outlook.left, 99.0) * outlook.price[sets].mean(), np.float32
        ),
        noise=np.array(outlook.noise, np.float32),
        point=point,
    )


def stack_shortlists(lists: Sequence[Shortlist]) -> Shortlist:
    """Stack shortlists along a new first axis; those with fewer worlds repeat some."""
    count = max(len(each.loss) for each in lists)
    arrays = {
        f.name: [getattr(each, f.name) for each in lists]
        for f in dataclasses.fields(Shortlist)
    }
    # Evenly spread, so that each kind of world keeps its share.
    arrays["loss"] = [x[np.arange(count) * len(x) // count] for x in arrays["loss"]]
    return Shortlist(**{name: np.stack(each) for name, each in arrays.items()})


def recommend(shortlist: Shortlist) -> Int[np.ndarray, " b"]:
    """Choose the candidate to recommend in each of several lists, as campaigns do."""
    # The rule of `Outlook.best`. Games and campaigns must agree on it, as the reward
    # is the regret of this recommendation.
    worth = shortlist.loss.mean(1) + PRUDENCE * shortlist.loss.std(1)
    return np.where(_sure(shortlist), worth, np.inf).argmin(1)


def loss_scale(shortlist: Shortlist) -> Float[np.ndarray, " b"]:
    """Compute the spread of the loss over candidates and worlds, in its unit."""
    there = np.broadcast_to(shortlist.there[:, None], shortlist.loss.shape)
    spread = shortlist.loss.std((1, 2), where=there)
    # A trace of the noise keeps the scale positive if all worlds and candidates agree.
    scale = spread + 1e-6 * shortlist.noise
    return np.where(scale > 0, scale, 1)


def shortlist_features(shortlist: Shortlist) -> Float[np.ndarray, "b k f"]:
    """Compute `FEATURES` numbers of each candidate, independent of units and names.

    Args:
        shortlist: several, stacked.
    """
    loss, there = shortlist.loss, shortlist.there
    n, worlds, k = loss.shape
    scale = loss_scale(shortlist)[:, None]
    best = recommend(shortlist)[:, None]
    mean, spread = loss.mean(1), loss.std(1)
    today = np.take_along_axis(mean, best, 1)
    ahead = (mean - today) / scale
    # Prices relative to the usual one, so that the currency does not matter.
    usual = shortlist.price.mean(1, keepdims=True, where=there)
    usual = np.where(usual > 0, usual, 1)
    price = np.where(shortlist.price > 0, shortlist.price, usual) / usual
    hoped = np.maximum(today[:, None] - loss, 0).mean(1) * shortlist.kept / scale
    first = _shares_of_best(shortlist)
    # A lower bound, because the logarithm and the quotient below need it.
    noise = np.maximum(shortlist.noise[:, None] / scale, 1e-3)
    # The squared covariance of two candidates over worlds: an experiment at one tells
    # of the other by it, and of those that may be the best it should tell most.
    apart = (loss - mean[:, None]) / scale[:, None]
    together = (apart.swapaxes(1, 2) @ apart / worlds) ** 2
    tells = (together @ first[:, :, None])[:, :, 0]
    tells = np.sqrt(tells / ((spread / scale) ** 2 + noise**2))
    # Logarithms and divisors bring all features to about the same size, as the network
    # does not normalise its inputs.
    features = [
        np.clip(ahead, -5, 5),
        spread / scale,
        np.log(hoped / price + 1e-4) / 3,
        np.log(first + 0.01) / 3,
        tells / price,
        shortlist.kept - 1,
        np.log1p(shortlist.visits),
        np.arange(k) == best,
        np.log(price),
        np.log1p(np.clip(shortlist.money[:, None] / usual, 0, 99)) / 2,
        np.log(noise) / 3,
    ]
    stacked = np.stack([np.broadcast_to(x, (n, k)) for x in features], -1)
    return np.where(there[..., None], stacked, 0).astype(np.float32)


def _sure(shortlist: Shortlist) -> Bool[np.ndarray, "b k"]:
    kept = np.where(shortlist.there, shortlist.kept, -1)
    # If no candidate keeps the constraints surely enough, the surest ones count, as in
    # campaigns.
    least = np.minimum(SURE, kept.max(1))
    return kept >= least[:, None]


def _shares_of_best(shortlist: Shortlist) -> Float[np.ndarray, "b k"]:
    """Compute the share of worlds in which each candidate is the best."""
    loss = np.where(_sure(shortlist)[:, None], shortlist.loss, np.inf)
    best = loss.argmin(2)[:, :, None] == np.arange(loss.shape[2])
    return best.mean(1)
