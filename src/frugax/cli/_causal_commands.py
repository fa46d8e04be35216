"""What `frugax causal COMMAND` does. Each returns the process's exit code."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from frugax.errors import ConfigError

from ._at_terminal import ask_person, say, say_doubts
from ._consoles import console, errors
from ._own_experiment import OwnExperiment, checked_function

if TYPE_CHECKING:
    from frugax.causal.campaign import Campaign, CampaignConfig, Entry, Experiment

_CONFIG = tyro.conf.arg(metavar="[CONFIG]")  # not with --resume
Changes = Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")]
Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


def run(
    config: Annotated[Path | None, tyro.conf.Positional, _CONFIG] = None,
    /,
    *,
    resume: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
    set: Changes = (),
) -> int:
    """Choose experiments within a budget, ask for their answers, write a report.

    For example:

    frugax causal run examples/campaign.yaml

    frugax causal run examples/campaign.yaml --set campaign.seed=3 audit=4

    frugax causal run --resume runs/toy

    Answers come from the config's simulator or, without one, from you: type what the
    target was (4.2), or values by name (pain=4.2 sleep=7), or "failed" with a reason,
    "skip" if it did not take place, "quit" to go on another day. "nan" is a value that
    was not measured: the experiment took place and is paid. "back" corrects the last
    answer, "back 3" that of experiment 3.

    Args:
        config: the YAML file that says what may be done and what it may cost.
        resume: go on with the campaign in this folder.
        runs: the folder in which the campaign's own folder is made.
        set: replace single values, as key=value with a dotted key.

    Raises:
        ConfigError: neither a config nor a campaign to resume, or both; or the config's
            function cannot be asked.
    """
    from frugax.causal import campaign as room

    if (config is None) == (resume is None):
        raise ConfigError(
            "say either a config file (frugax causal run examples/campaign.yaml) or "
            "which campaign to go on with (frugax causal run --resume runs/toy)."
        )
    if resume is not None:
        if set:
            raise ConfigError(
                "--set is for a new campaign: this one has begun with what is in "
                f"{resume / 'config.yaml'}."
            )
        folder = resume
        asked = room.load_campaign_config(folder / "config.yaml")
        prepared = _prepared(asked)
        going = _opened(folder, asked)
        going.keep(folder / "campaign")
    else:
        assert config is not None  # one of the two, by the check above
        asked = room.load_campaign_config(config, overrides=set)
        prepared = _prepared(asked)  # refused before a folder is made for it
        going, folder = _begun(asked, config, runs)
    experiment = prepared(going, folder)

    def told(entry: "Entry") -> None:
        say(going, entry)
        if isinstance(experiment, OwnExperiment):
            experiment.check()

    try:
        advice = room.drive(going, experiment, stop=asked.stop, told=told)
    except (KeyboardInterrupt, EOFError):
        errors.print(
            f"\nStopped; every answer is kept. Go on with: frugax causal run --resume "
            f"{folder}",
            soft_wrap=True,
            highlight=False,
        )
        _finish(asked, going, folder, going.advise(), None)
        return 130
    audited = None
    if asked.audit and going.measured:
        with errors.status(f"replaying the campaign in {asked.audit} worlds"):
            audited = room.audit(going, worlds=asked.audit)
    _finish(asked, going, folder, advice, audited)
    return 0


def report(folder: Folder, /) -> int:
    """Write the report of a campaign as it stands.

    For example:

    frugax causal report runs/toy

    Args:
        folder: the folder of the campaign.
    """
    from frugax.causal import campaign as room

    asked = room.load_campaign_config(folder / "config.yaml")
    going = _opened(folder, asked)
    _finish(asked, going, folder, going.advise(), None)
    return 0


def _opened(folder: Path, asked: "CampaignConfig") -> "Campaign":
    """The campaign in a folder.

    Raises:
        ConfigError: there is none, or its config says something else by now.
    """
    from frugax.causal.campaign import Campaign

    try:
        going = Campaign.load(folder / "campaign")
    except FileNotFoundError:
        raise ConfigError(f"{folder}: there is no campaign in this folder.") from None
    changed = [
        field.name
        for field in dataclasses.fields(going.settings)
        if getattr(going.settings, field.name) != getattr(asked.campaign, field.name)
    ]
    if changed:
        raise ConfigError(
            f"{folder / 'config.yaml'}: campaign.{changed[0]} is not what the "
            f"campaign began with, {getattr(going.settings, changed[0])!s:.200}: "
            "change it back, or begin another campaign with this file."
        )
    return going


def _begun(
    asked: "CampaignConfig", config: Path, runs: Path
) -> tuple["Campaign", Path]:
    """A new campaign in a folder of its own, with its observations told.

    Raises:
        ConfigError: the observations cannot be read.
    """
    import yaml

    from frugax.budget import to_plain
    from frugax.causal.campaign import Campaign
    from frugax.causal.data import Samples
    from frugax.fileio import make_folder, write_whole

    going = Campaign.begin(asked.campaign)
    if isinstance(asked.observations, str):
        path = config.parent / asked.observations
        try:
            going.tell_observations(Samples.from_csv(path))
        except (OSError, ValueError) as e:
            raise ConfigError(f"{config}: observations: {e}") from e
    elif asked.observations is not None:
        simulator = asked.simulator
        truth = simulator.truth(asked.campaign) if simulator is not None else None
        if truth is None or simulator is None:
            raise ConfigError(
                f"{config}: observations: a function answers experiments only; name a "
                "CSV file, or leave it out."
            )
        going.tell_observations(
            truth.sample(asked.observations, seed=simulator.seed * 100_003)
        )
    make_folder(runs)
    tried = 1
    while True:
        folder = runs / (asked.name if tried == 1 else f"{asked.name}-{tried}")
        try:
            folder.mkdir()
            break
        except FileExistsError:
            tried += 1
    write_whole(
        folder / "config.yaml", yaml.safe_dump(to_plain(asked), sort_keys=False)
    )
    going.keep(folder / "campaign")
    return going, folder


def _prepared(
    asked: "CampaignConfig",
) -> Callable[["Campaign", Path], "Experiment"]:
    """Who answers, once there is a campaign in a folder."""
    from frugax.causal import campaign as room

    simulator, settings = asked.simulator, asked.campaign
    if simulator is None:
        return lambda going, folder: lambda entry: ask_person(going, entry)
    if simulator.function is not None:
        own, seed = checked_function(simulator.function), simulator.seed
        return lambda going, folder: OwnExperiment(*own, seed, going, folder)
    truth = simulator.truth(settings)
    assert truth is not None  # only a function has none
    simulated = room.simulated(truth, settings.rows, simulator.seed)
    return lambda going, folder: simulated


def _finish(
    asked: "CampaignConfig",
    going: "Campaign",
    folder: Path,
    advice: object,
    audited: object,
) -> None:
    from frugax.causal import campaign as room
    from frugax.fileio import write_whole

    assert isinstance(advice, room.Advice)
    assert audited is None or isinstance(audited, room.Audit)
    truth = None if asked.simulator is None else asked.simulator.truth(asked.campaign)
    for entry in going.asks:
        say_doubts(going, entry)
    if going.measured:
        best = going.recommend()
        console.print(f"Recommended: {best}", highlight=False, soft_wrap=True)
        if truth is not None:
            console.print(
                f"True mean {truth.expected(best.intervention):.4g}, best possible "
                f"{truth.optimum:.4g}.",
                highlight=False,
                soft_wrap=True,
            )
    console.print(f"Advice: {advice}", highlight=False, soft_wrap=True)
    page = room.report_page(asked.name, going, advice, truth=truth, audited=audited)
    write_whole(folder / "report.html", page)
    console.print(
        f"Spent {going.spent:g}. Report: {folder / 'report.html'}",
        highlight=False,
        soft_wrap=True,
    )


# Each sub-command by its name.
COMMANDS = {"run": run, "report": report}
