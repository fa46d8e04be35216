"""Measure during a run how much watching slows it, and thin the records until it fits.

`Experiment` runs short random stretches of the loop unwatched and compares them with
their watched neighbours. `Pace` turns the result, and the price of collecting, into a
stride of recording.
"""

from ._experiment import (
    MIN_PAIRS,
    Estimate,
    Experiment,
    Unit,
    combine,
    confidence_interval,
)
from ._pace import Pace

__all__ = [
    "MIN_PAIRS",
    "Estimate",
    "Experiment",
    "Pace",
    "Unit",
    "combine",
    "confidence_interval",
]
