"""The YAML config of `frugax causal run`: a campaign's settings and its laboratory."""

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from frugax.causal.environments import (
    Environment,
    environment_from_scm,
    load_environment,
)
from frugax.causal.scm import SCM
from frugax.configs import parse_config, read_text
from frugax.options import check_integer, check_number

from ._config_from_table import config_from_table
from ._settings import CampaignSettings

_TABLES = (".csv", ".tsv")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Simulator:
    """The source of answers, if they do not come from a person.

    Attributes:
        environment: a built-in problem: toy, complete, psa or epidemiology; or
        linear: weights of the causes of each variable; or
        function: the user's own, `module:function`, called with a mapping from
            variables to their values and with `rows` and `seed`; it returns a table, a
            mapping or a number.
        noise_scale: standard deviation of the noise; with `linear`.
        seed: seed of the noise; >= 0.
    """

    environment: str | None = None
    linear: dict[str, dict[str, float]] | None = None
    function: str | None = None
    noise_scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        # With two sources the answers would depend on which one is looked at first.
        sources = [self.environment, self.linear, self.function]
        if sum(one is not None for one in sources) != 1:
            raise ValueError("give one of environment, linear and function.")
        check_integer("seed", self.seed, minimum=0)
        if self.environment is not None:
            # Loaded for its error only: an unknown name is then refused with the line
            # of the config, and not by the first experiment.
            load_environment(self.environment)
        check_number("noise_scale", self.noise_scale, minimum=0)

    def make_truth(self, settings: CampaignSettings) -> Environment | None:
        """Make the problem with its optimum; None for a function of the user's own.

        Args:
            settings: settings of the campaign.

        Raises:
            ValueError: the campaign names variables that the problem does not have.
        """
        # The optimum may set no more variables at once than an experiment may;
        # otherwise the regret of a perfect campaign would not be 0.
        largest = max(map(len, settings.allowed_sets()))
        if self.environment is not None:
            scm = load_environment(self.environment).scm
        elif self.linear is not None:
            scm = SCM.linear(self.linear, noise_scale=self.noise_scale)
        else:
            return None
        return environment_from_scm(
            scm.with_target(settings.target),
            settings.ranges,
            minimize=settings.minimize,
            max_targets=largest,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CampaignConfig:
    """One campaign, from its config file.

    Attributes:
        name: name of its folder: letters of any language, digits, `.`, `_` and `-`.
        campaign: settings of the campaign.
        simulator: source of answers; without one, they are typed at the terminal.
        observations: a CSV file with rows in which no variable was set, relative to the
            config's folder; or the number of rows to get from the simulator.
        intervened: column of that file that lists the variables that were set in a row,
            separated by commas; None if nothing was set in any row.
        units: units of variables in this campaign; columns of that file whose headers
            have others in brackets (`heat [K]`) are converted.
        delimiter: between the cells of that file; None to find it.
        stop: whether to end as soon as the advice is to stop, with money left.
    """

    name: str
    campaign: CampaignSettings
    simulator: Simulator | None = None
    observations: int | str | None = None
    intervened: str | None = None
    units: dict[str, str] = dataclasses.field(default_factory=dict)
    delimiter: str | None = None
    stop: bool = False

    def __post_init__(self) -> None:
        # The name is joined to a path: a separator would leave the folder of all runs,
        # and a leading dot would hide in it.
        if not re.fullmatch(r"[^\W_][\w.-]*", self.name):
            raise ValueError(
                f"name becomes a folder, got {self.name!r}: use letters, digits, '.', "
                "'_' and '-', and begin with a letter or a digit."
            )
        if isinstance(self.observations, int):
            check_integer("observations", self.observations)
            if self.simulator is None:
                raise ValueError(
                    "observations as a number need a simulator: name a CSV file."
                )
        for what in ("intervened", "units"):
            if getattr(self, what) and not isinstance(self.observations, str):
                raise ValueError(
                    f"{what} is about a column of the observations: name their "
                    "CSV file."
                )
        if self.delimiter is not None and (
            len(self.delimiter) != 1 or self.delimiter in '"\r\n'
        ):
            raise ValueError(
                f"delimiter must be one character, such as ';', got {self.delimiter!r}."
            )
        truth = None
        if self.simulator is not None:
            truth = self.simulator.make_truth(self.campaign)
        if truth is not None:
            self.campaign.check_columns(truth.variables, complete=True)
        elif self.observations is None:
            self.campaign.check_columns(self.campaign.constraints)


def states_direction(path: str | os.PathLike[str], overrides: Sequence[str]) -> bool:
    """Return whether a config, or an override, says what to do with the target."""
    content = {"campaign": {}}
    if not is_table(path):
        content = yaml.safe_load(read_text(path))
    return (
        "minimize" in content["campaign"]
        or _find_override("campaign.minimize", overrides) is not None
    )


def load_campaign_config(
    path: str | os.PathLike[str], *, overrides: Sequence[str] = ()
) -> CampaignConfig:
    """Read and check a campaign's config file.

    Args:
        path: the YAML file; or a CSV file of rows in which nothing was set, with the
            override `campaign.target`: every other column becomes a variable.
        overrides: `key=value` texts that replace single values, the key a dotted path
            (`campaign.seed=3`), the value YAML.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or has an unknown key or an
            impossible value; the message names file, line and key.
    """
    if is_table(path):
        text = config_from_table(
            path,
            _find_override("campaign.target", overrides),
            _find_override("delimiter", overrides),
        )
    else:
        text = read_text(path)
    return parse_config(CampaignConfig, text, os.fspath(path), overrides=overrides)


def is_table(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of a table, and not of a config."""
    return Path(path).suffix.lower() in _TABLES


def _find_override(key: str, overrides: Sequence[str]) -> str | None:
    """Return the last value that overrides give a key, as text; None without one."""
    found = None
    for change in overrides:
        name, _, value = change.partition("=")
        if name.strip() == key:
            found = str(yaml.safe_load(value))
    return found
