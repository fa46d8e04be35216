"""`drive`: run a whole campaign with a simulator or a function as its laboratory."""

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from frugax.causal.environments import Environment
from frugax.causal.scm import intervene

from ._advice import StopAdvice
from ._campaign import Campaign
from ._experiments import ExperimentRecord
from .actions import Action, Setting, to_settings

# Seeds of experiments in campaigns with different seeds must not meet.
_SEED_STRIDE = 100_003


@dataclasses.dataclass(frozen=True, slots=True)
class FailedExperiment:
    """The answer of an experiment that gave no data.

    Attributes:
        reason: the reason, in words.
        charged: whether the experiment costs its price nevertheless.
    """

    reason: str = ""
    # An experiment that was prepared in vain has usually cost its price, so whoever
    # forgets this argument does not overdraw.
    charged: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class DoneExperiment:
    """The answer of an experiment in which values differed from those asked for.

    Attributes:
        data: the answer, as for `Campaign.tell`.
        actual: the values that were really set.
    """

    data: Any
    actual: Mapping[str, Setting] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, answer: Any) -> "DoneExperiment":
        """Return an answer as this class, whatever its form."""
        return answer if isinstance(answer, cls) else cls(answer)


ExperimentRunner: TypeAlias = Callable[[ExperimentRecord], Any]
"""Does an experiment, and returns data, `DoneExperiment` or `FailedExperiment`."""


def make_simulator_runner(truth: Environment, rows: int, seed: int) -> ExperimentRunner:
    """Make a runner that samples a model.

    The same experiment gives the same answer, so one that was interrupted can be done
    again as if nothing had happened.

    Args:
        truth: the model.
        rows: number of rows of one experiment.
        seed: seed of the noise.
    """
    # Offset 0 is left to the observations of `frugax causal run`, hence the + 1.
    return lambda record: truth.sample(
        rows,
        seed=seed * _SEED_STRIDE + record.id + 1,
        intervention=intervene(**record.values),
    )


def make_function_runner(
    function: Callable[..., Any],
    rows: int,
    seed: int,
    variables: Mapping[str, Action] = types.MappingProxyType({}),
) -> ExperimentRunner:
    """Make a runner that calls a function of the user's own.

    Args:
        function: called with a mapping from variables to their values, and with `rows`
            and `seed`; None means that the experiment failed, and a `DoneExperiment`
            that it set other values.
        rows: number of rows of one experiment.
        seed: seed, from which each experiment gets another.
        variables: kinds of the variables, so that the function gets names of levels
            and not their codes.
    """

    def run(record: ExperimentRecord) -> Any:
        # A copy: the user's function may change its argument, and records are evidence.
        values = to_settings(record.values, variables)
        data = function(values, rows=rows, seed=seed * _SEED_STRIDE + record.id + 1)
        return FailedExperiment("the function gave None") if data is None else data

    return run


def drive(
    campaign: Campaign,
    run: ExperimentRunner,
    *,
    stop: bool = False,
    on_answer: Callable[[ExperimentRecord], None] = lambda record: None,
) -> StopAdvice:
    """Run a campaign until the budget is spent, or until the advice is to stop.

    Pending experiments come first, as they are paid already.

    Args:
        campaign: the campaign, which is changed.
        run: does an experiment.
        stop: whether to end as soon as the advice is to stop.
        on_answer: called after every answer.

    Returns:
        The advice at the end.
    """
    while True:
        # After a crash the last question is on disk without an answer.
        pending = campaign.pending
        if not pending:
            advice = campaign.advise()
            # Advice comes before the question, because a question that was asked is
            # paid. Both use the same posterior, which is cached.
            if (stop and advice.stop) or campaign.ask() is None:
                return advice
            pending = campaign.pending
        record = pending[0]
        data = run(record)
        if isinstance(data, FailedExperiment):
            campaign.tell_failed(record, data.reason, charged=data.charged)
        else:
            done = DoneExperiment.of(data)
            campaign.tell(record, done.data, actual=done.actual)
        on_answer(campaign.experiments[record.id])
