"""A campaign from its first question to its last, with somebody to answer."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from frugax.causal.environments import Environment
from frugax.causal.scm import intervene

from ._campaign import Campaign
from ._ledger import Entry
from ._results import Advice


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """The answer of an experiment that gave nothing.

    Attributes:
        why: in words.
        charged: whether it cost its price nevertheless.
    """

    why: str = ""
    charged: bool = True


Experiment: TypeAlias = Callable[[Entry], Any]
"""Does an experiment: gives its data, or `Failed`."""


def simulated(truth: Environment, rows: int, seed: int) -> Experiment:
    """Experiments on a model.

    The same experiment gives the same answer, so one that was interrupted can be done
    again as if it had not been.

    Args:
        truth: the model.
        rows: rows that one experiment gives.
        seed: of the noise.
    """
    return lambda entry: truth.sample(
        rows, seed=seed * 100_003 + entry.id + 1, intervention=intervene(**entry.values)
    )


def asked_of(function: Callable[..., Any], rows: int, seed: int) -> Experiment:
    """Experiments by a function of the user's own.

    Args:
        function: called with what is set, and with `rows` and `seed`; None says that
            the experiment failed.
        rows: rows that one experiment should give.
        seed: changes with every experiment.
    """

    def experiment(entry: Entry) -> Any:
        given: Mapping[str, float] = dict(entry.values)
        data = function(given, rows=rows, seed=seed * 100_003 + entry.id + 1)
        return Failed("the function gave None") if data is None else data

    return experiment


def drive(
    campaign: Campaign,
    experiment: Experiment,
    *,
    stop: bool = False,
    told: Callable[[Entry], None] = lambda entry: None,
) -> Advice:
    """Go on with a campaign until the budget is spent, or it is advised to stop.

    Experiments whose answers are awaited come first: they have been paid.

    Args:
        campaign: is changed.
        experiment: does an experiment.
        stop: whether to end as soon as that is advised.
        told: called after every answer.

    Returns:
        The advice with which it ended.
    """
    while True:
        waiting = campaign.pending
        if not waiting:
            advice = campaign.advise()
            if (stop and advice.stop) or campaign.ask() is None:
                return advice
            waiting = campaign.pending
        entry = waiting[0]
        data = experiment(entry)
        if isinstance(data, Failed):
            campaign.tell_failed(entry, data.why, charged=data.charged)
        else:
            campaign.tell(entry, data)
        told(campaign.asks[entry.id])
