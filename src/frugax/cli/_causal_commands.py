"""The commands `frugax causal run` and `frugax causal report`, for campaigns."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from frugax.errors import ConfigError

from ._arguments import Arg, Changes, Folder
from ._at_terminal import ask_direction, ask_person, print_answer, print_outliers
from ._consoles import errors, say
from ._user_experiment import OwnExperiment, load_experiment

if TYPE_CHECKING:
    from frugax.causal.campaign import (
        Campaign,
        CampaignConfig,
        ExperimentRecord,
        ExperimentRunner,
        StopAdvice,
    )

# The observations and the first experiment of a simulator must not share their noise.
_SEED_STRIDE = 100_003


def run(
    config: Path | None = None,  # not with --resume
    /,
    *,
    target: Annotated[str | None, Arg("COLUMN")] = None,
    experiments: Annotated[int | None, Arg("N")] = None,
    resume: Annotated[Path | None, Arg("FOLDER")] = None,
    runs: Folder = Path("runs"),
    set: Changes = (),
) -> int:
    """Choose experiments within a budget, and ask for their answers.

    For example:

    frugax causal run examples/campaign.yaml

    frugax causal run examples/campaign.yaml --set campaign.seed=3

    frugax causal run past.csv --target yield --experiments 12

    frugax causal run --resume runs/toy

    Answers come from the config's simulator or, without one, from you: type the value
    of the target (4.2), or values by name (pain=4.2 sleep=7), or "failed" with a
    reason, "skip" if the experiment did not take place, "quit" to go on another day.
    "nan" is a value that was not measured: the experiment took place and is paid.
    "back" corrects the last answer, "back 3" that of experiment 3.

    Whether the target shall become small or large is asked for, unless the config says
    "minimize: true" or "minimize: false" under "campaign".

    Rows in which nothing was set are read from a CSV file that the config names, as in
    "observations: field.csv" (docs/causal_campaign.md).

    Args:
        config: the YAML file of the campaign, or a CSV file of rows; each of its
            columns but the target becomes a variable within its values.
        target: what shall become small or large.
        experiments: how many may be done.
        resume: go on with the campaign in this folder.
        runs: parent folder of its own folder; the campaign's.
        set: replace single values, as key=value with a dotted key.

    Raises:
        ConfigError: neither a config nor a campaign to resume is given, or both; the
            config's function cannot be called; or nobody says whether the target shall
            become small or large.
    """
    from frugax.causal import campaign as package

    set = (*_as_overrides(target, experiments), *set)
    if (config is None) == (resume is None):
        raise ConfigError(
            "give either a config file (frugax causal run examples/campaign.yaml) or "
            "a campaign to go on with (frugax causal run --resume runs/toy)."
        )
    if resume is not None:
        if set:
            raise ConfigError(
                "--set, --target and --experiments are for a new campaign, and this "
                f"one has begun with the settings in {resume / 'config.yaml'}: leave "
                "them out."
            )
        folder = resume
        settings = package.load_campaign_config(folder / "config.yaml")
        make_runner = _prepare_runner(settings)
        campaign = _open(folder, settings)
        campaign.keep(folder / "campaign")
    else:
        assert config is not None  # one of the two, by the check above
        settings = package.load_campaign_config(config, overrides=set)
        if package.is_table(config):
            _print_variables(settings)
        if not package.states_direction(config, set):
            minimize = ask_direction(settings.campaign.target, config)
            goal = dataclasses.replace(settings.campaign, minimize=minimize)
            settings = dataclasses.replace(settings, campaign=goal)
        # A function that cannot be called is refused before a folder is made for it.
        make_runner = _prepare_runner(settings)
        campaign, folder = _begin(settings, config, runs)
    runner = make_runner(campaign, folder)

    def report_answer(record: "ExperimentRecord") -> None:
        print_answer(campaign, record)
        if isinstance(runner, OwnExperiment):
            runner.check()

    try:
        advice = package.drive(
            campaign, runner, stop=settings.stop, on_answer=report_answer
        )
    except (KeyboardInterrupt, EOFError):
        say(
            # The end of the input counts as quitting: a pipe cannot say so otherwise.
            f"\nStopped; every answer is kept. Go on with: frugax causal run --resume "
            f"{folder}",
            on=errors,
        )
        _finish(settings, campaign, folder, campaign.advise())
        # 128 + 2, as shells report a program that SIGINT has ended.
        return 130
    _finish(settings, campaign, folder, advice)
    return 0


def _as_overrides(target: str | None, experiments: int | None) -> tuple[str, ...]:
    """Return options as values that replace those of a config."""
    stated = {
        "campaign.target": target,
        "campaign.budget": None if experiments is None else {"n": experiments},
    }
    return tuple(f"{key}={json.dumps(value)}" for key, value in stated.items() if value)


def _print_variables(settings: "CampaignConfig") -> None:
    """Print which variables a table has given, in the words that change them."""
    import yaml

    from frugax.budget import to_plain

    variables = to_plain(settings.campaign.variables)
    stated = yaml.safe_dump(
        variables,
        default_flow_style=True,
        sort_keys=False,
        width=math.inf,
        allow_unicode=True,
    )
    say(
        f"Variables within the values of the table: {stated.strip()}\n"
        "To set other ones: --set 'campaign.variables={NAME: [LOW, HIGH]}'"
    )


def report(folder: Folder, /) -> int:
    """Write the report of a campaign as it is now.

    For example:

    frugax causal report runs/toy

    Args:
        folder: the folder of the campaign.
    """
    from frugax.causal import campaign as package

    settings = package.load_campaign_config(folder / "config.yaml")
    campaign = _open(folder, settings)
    _finish(settings, campaign, folder, campaign.advise())
    return 0


def _open(folder: Path, config: "CampaignConfig") -> "Campaign":
    """Load the campaign of a folder."""
    from frugax.causal.campaign import Campaign

    try:
        campaign = Campaign.load(folder / "campaign")
    except FileNotFoundError:
        raise ConfigError(
            f"{folder}: there is no campaign in this folder: name the folder of one."
        ) from None
    for field in dataclasses.fields(campaign.settings):
        began_with = getattr(campaign.settings, field.name)
        # Edits are refused and not applied from here on: the forecasts so far were made
        # with the old settings, and the report judges them all together.
        if began_with != getattr(config.campaign, field.name):
            raise ConfigError(
                f"{folder / 'config.yaml'}: campaign.{field.name} was changed since "
                f"the campaign began with {began_with!s:.200}: change it back, or "
                "begin another campaign with this file."
            )
    return campaign


def _begin(
    settings: "CampaignConfig", config: Path, runs: Path
) -> tuple["Campaign", Path]:
    """Begin a campaign in a folder of its own, and tell it its observations."""
    import yaml

    from frugax.budget import to_plain
    from frugax.causal.campaign import Campaign
    from frugax.fileio import make_folder, write_whole

    # Observations are read before the folder is made, so a bad file leaves nothing
    # behind.
    campaign = Campaign.begin(settings.campaign)
    if isinstance(settings.observations, str):
        path = config.parent / settings.observations
        try:
            campaign.tell_csv(
                path,
                intervened=settings.intervened,
                units=settings.units,
                delimiter=settings.delimiter,
            )
        except (OSError, ValueError) as e:
            # A table that was given in place of a config is named already.
            where = "" if path == config.resolve() else f"{config}: observations: "
            raise ConfigError(f"{where}{e}") from e
    elif settings.observations is not None:
        simulator = settings.simulator
        truth = None
        if simulator is not None:
            truth = simulator.make_truth(settings.campaign)
        assert simulator is not None  # a number of rows needs one
        seed = simulator.seed * _SEED_STRIDE
        if truth is None:
            _tell_own_observations(campaign, settings, config, seed)
        else:
            campaign.tell_observations(truth.sample(settings.observations, seed=seed))
    make_folder(runs)
    folder, number = runs / settings.name, 1
    while True:
        try:
            # mkdir fails if the folder exists, so two processes never share one.
            folder.mkdir()
            break
        except FileExistsError:
            number += 1
            folder = runs / f"{settings.name}-{number}"
    # With its overrides applied, so that --resume needs nothing but the folder.
    text = yaml.safe_dump(to_plain(settings), sort_keys=False)
    write_whole(folder / "config.yaml", text)
    campaign.keep(folder / "campaign")
    return campaign, folder


def _tell_own_observations(
    campaign: "Campaign", settings: "CampaignConfig", config: Path, seed: int
) -> None:
    """Ask the user's function for rows in which nothing is set."""
    assert settings.simulator is not None
    assert settings.simulator.function is not None  # other simulators have a truth
    name, function = load_experiment(settings.simulator.function)
    try:
        rows = function({}, rows=settings.observations, seed=seed)
        campaign.tell_observations(rows)
    except Exception as e:
        raise ConfigError(
            f"{config}: observations: {name} gave none for {{}}, nothing set: {e} "
            "Mend the function, name a CSV file, or leave observations out."
        ) from e


def _prepare_runner(
    config: "CampaignConfig",
) -> Callable[["Campaign", Path], "ExperimentRunner"]:
    """Return a function that makes the runner, once the campaign has a folder."""
    from frugax.causal import campaign as package

    simulator, settings = config.simulator, config.campaign
    if simulator is None:
        return lambda campaign, folder: lambda record: ask_person(campaign, record)
    if simulator.function is not None:
        own, seed = load_experiment(simulator.function), simulator.seed
        return lambda campaign, folder: OwnExperiment(*own, seed, campaign, folder)
    truth = simulator.make_truth(settings)
    assert truth is not None  # only a function has no known truth
    rows = settings.rows_per_experiment
    runner = package.make_simulator_runner(truth, rows, simulator.seed)
    return lambda campaign, folder: runner


def _finish(
    config: "CampaignConfig",
    campaign: "Campaign",
    folder: Path,
    advice: "StopAdvice",
) -> None:
    """Print the recommendation, the advice and the receipt; write the report."""
    from frugax.causal import campaign as package
    from frugax.fileio import write_whole

    truth = None
    if config.simulator is not None:
        truth = config.simulator.make_truth(config.campaign)
    # Repeated here, because in a long run the lines below each answer have scrolled
    # away.
    for record in campaign.experiments:
        print_outliers(campaign, record)
    if campaign.measured:
        best = campaign.recommend()
        say(f"Recommended: {best}")
        if truth is not None:
            mean = truth.expected(best.intervention)
            say(f"True mean {mean:.4g}, best possible {truth.optimum:.4g}.")
    say(f"Advice: {advice}")
    page = package.report_page(config.name, campaign, advice, truth=truth)
    write_whole(folder / "report.html", page)
    say(campaign.receipt)
    say(f"Spent {campaign.spent:g}. Report: {folder / 'report.html'}")


# Each sub-command by its name.
COMMANDS = {"run": run, "report": report}
