"""Campaigns on a chain of causes, which several files test."""

from typing import Any

from frugax import ExperimentBudget, causal

CHAIN = causal.SCM.linear(
    {"x": {}, "z": {"x": 1.0}, "y": {"z": -1.0}}, noise_scale=0.1, target="y"
)


def campaign_of(**more: Any) -> causal.Campaign:
    """Begin a campaign on the chain; `more` replaces its arguments."""
    told: dict[str, Any] = {
        "variables": {"x": (-2.0, 2.0), "z": (-3.0, 3.0)},
        "target": "y",
        "budget": ExperimentBudget(cost=6.0, costs={"x": 1.0, "z": 2.5}),
        "num_posterior_samples": 8,
    }
    return causal.Campaign(**told | more)
