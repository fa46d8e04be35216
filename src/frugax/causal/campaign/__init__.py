"""Run campaigns of experiments within a budget: ask, experiment, tell, recommend.

Start at `Campaign`. `plan` says in advance how many experiments a budget pays for,
`drive` runs a campaign to its end, and `report_page` renders it.
Guide: docs/causal_campaign.md.
"""

from ._advice import Recommendation, StopAdvice, prediction_interval
from ._answers import UnknownColumnError
from ._campaign import Campaign
from ._config import (
    CampaignConfig,
    Simulator,
    is_table,
    load_campaign_config,
    states_direction,
)
from ._drive import (
    DoneExperiment,
    ExperimentRunner,
    FailedExperiment,
    drive,
    make_function_runner,
    make_simulator_runner,
)
from ._experiments import Experiment, ExperimentRecord, Forecast
from ._inference import Inference
from ._plan import CampaignPlan, PlannedExperiment
from ._plan_and_apply import apply, plan
from ._settings import CampaignSettings
from .actions import (
    Binary,
    Categorical,
    Grid,
    Integer,
    JointLimit,
    Logarithmic,
)
from .regret_forecast import ExpectedRegret
from .report import graph_svg, report_page

__all__ = [
    "Binary",
    "Campaign",
    "CampaignConfig",
    "CampaignPlan",
    "CampaignSettings",
    "Categorical",
    "DoneExperiment",
    "ExpectedRegret",
    "Experiment",
    "ExperimentRecord",
    "ExperimentRunner",
    "FailedExperiment",
    "Forecast",
    "Grid",
    "Inference",
    "Integer",
    "JointLimit",
    "Logarithmic",
    "PlannedExperiment",
    "Recommendation",
    "Simulator",
    "StopAdvice",
    "UnknownColumnError",
    "apply",
    "drive",
    "graph_svg",
    "is_table",
    "load_campaign_config",
    "make_function_runner",
    "make_simulator_runner",
    "plan",
    "prediction_interval",
    "report_page",
    "states_direction",
]
