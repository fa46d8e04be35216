"""A campaign as a YAML file: what `frugax causal run` reads."""

import dataclasses
import os
import re
from collections.abc import Sequence

from frugax.causal.environments import (
    Environment,
    environment_from_scm,
    load_environment,
)
from frugax.causal.scm import SCM
from frugax.configs import parse_config, read_text

from ._settings import Settings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Simulator:
    """Where answers come from, if not from a person.

    Attributes:
        environment: a built-in problem: toy, complete, psa or epidemiology; or
        linear: weights of the causes of each variable; or
        function: the user's own, `module:function`, called with a dict of what is set
            and with `rows` and `seed`; it returns a table, a mapping or a number.
        noise_scale: standard deviation of the noise; with `linear`.
        seed: of the noise; >= 0.
    """

    environment: str | None = None
    linear: dict[str, dict[str, float]] | None = None
    function: str | None = None
    noise_scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        told = [self.environment, self.linear, self.function]
        if sum(one is not None for one in told) != 1:
            raise ValueError("say one of environment, linear and function.")
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}.")
        if self.environment is not None:
            load_environment(self.environment)
        if not 0 <= self.noise_scale < float("inf"):
            raise ValueError(
                f"noise_scale must be >= 0 and finite, got {self.noise_scale}."
            )

    def truth(self, settings: Settings) -> Environment | None:
        """The problem with its optimum; None for a function of the user's own.

        Args:
            settings: of the campaign.

        Raises:
            ValueError: the campaign asks for variables that the problem has not.
        """
        if self.function is not None:
            return None
        largest = max(map(len, settings.allowed_sets()))
        if self.environment is not None:
            scm = load_environment(self.environment).scm
            # The known one has its optimum by quadrature, if it is asked that way.
            known = load_environment(self.environment)
            same = dict(known.ranges) == settings.variables
            if same and settings.minimize and settings.target == known.target:
                return dataclasses.replace(known, max_targets=largest)
        else:
            assert self.linear is not None  # one of the three, see above
            scm = SCM.linear(self.linear, noise_scale=self.noise_scale)
        return environment_from_scm(
            scm.with_target(settings.target),
            settings.variables,
            minimize=settings.minimize,
            max_targets=largest,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CampaignConfig:
    """One campaign, from its config file.

    Attributes:
        name: its folder is named after it: letters of any language, digits, `.`, `_`,
            `-`.
        campaign: what may be done, what is wanted and what it may cost.
        simulator: where answers come from; without one, from the terminal.
        observations: a CSV file with rows in which nobody set anything, relative to the
            config's folder; or how many rows the simulator gives.
        stop: whether to end as soon as that is advised, with money left.
        audit: in how many worlds the campaign is replayed beside other ways to choose;
            0 for none.
    """

    name: str
    campaign: Settings
    simulator: Simulator | None = None
    observations: int | str | None = None
    stop: bool = False
    audit: int = 0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^\W_][\w.-]*", self.name):
            raise ValueError(
                "name must start with a letter or digit and go on with these, '.', "
                f"'_' or '-', got {self.name!r}: it becomes a folder."
            )
        if isinstance(self.observations, int):
            if self.observations < 1:
                raise ValueError(f"observations must be >= 1, got {self.observations}.")
            if self.simulator is None:
                raise ValueError(
                    "observations as a number need a simulator: name a CSV file."
                )
        if self.audit < 0:
            raise ValueError(f"audit must be >= 0, got {self.audit}.")
        simulator = self.simulator
        truth = None if simulator is None else simulator.truth(self.campaign)
        if truth is not None:
            self.campaign.check_named(truth.variables, whole=True)
        elif self.observations is None:
            self.campaign.check_named(self.campaign.constraints)


def load_campaign_config(
    path: str | os.PathLike[str], *, overrides: Sequence[str] = ()
) -> CampaignConfig:
    """Read and check a campaign's config file.

    Args:
        path: the YAML file.
        overrides: `key=value` texts that replace single values, the key a dotted path
            (`campaign.seed=3`), the value YAML.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or says something unknown or
            impossible; names file, line and key.
    """
    text = read_text(path)
    return parse_config(CampaignConfig, text, os.fspath(path), overrides=overrides)
