"""Ask a person at the terminal for the outcomes of a campaign's experiments."""

import math
import os
from typing import TYPE_CHECKING, Any

from frugax.errors import ConfigError

from ._consoles import console, errors, say

# The packages are imported when a command runs: `frugax --help` must not wait for JAX.
if TYPE_CHECKING:
    from frugax.causal.campaign import (
        Campaign,
        DoneExperiment,
        ExperimentRecord,
        FailedExperiment,
    )


def ask_direction(target: str, config: "os.PathLike[str]") -> bool:
    """Ask whether to make the target small; a config must say so, or a person.

    Raises:
        ConfigError: nobody answers.
    """
    while True:
        try:
            word = _prompt(f"Should {target} become small or large? ").lower()
        except EOFError:
            raise ConfigError(
                f"{config}: campaign.minimize is missing: write minimize: true to make "
                f"{target!r} small, or minimize: false to make it large."
            ) from None
        if word in ("small", "large"):
            return word == "small"
        say("Type small or large.", on=errors)


def ask_person(
    campaign: "Campaign", record: "ExperimentRecord"
) -> "DoneExperiment | FailedExperiment":
    """Ask until the campaign accepts the answer; earlier answers may be corrected."""
    forecast = record.forecast
    hope = ""
    # Before the first value there is a prior only, which knows no unit.
    if forecast is not None and campaign.measured:
        hope = f", {forecast.expected:.4g} is expected"
    say(f"Experiment {record.id}: {campaign.settings.describe(record.as_set)}{hope}.")
    if campaign.unmeasured:
        say(f"Give {', '.join(campaign.unmeasured)} too, by name: it has constraints.")
    while True:
        line = _prompt(f"{campaign.settings.target} = ")
        word, _, rest = line.partition(" ")
        # `back` is not known to `_parse_answer`, which also reads corrections:
        # correcting within a correction would leave two questions open at one prompt.
        if word.lower() != "back":
            answer = _parse_answer(campaign, record, line)
            if answer is not None:
                return answer
        elif (earlier := _find_earlier(campaign, rest.strip())) is not None:
            _correct(campaign, earlier)
            again = campaign.settings.describe(record.as_set)
            say(f"Again experiment {record.id}: {again}.")


def print_answer(campaign: "Campaign", record: "ExperimentRecord") -> None:
    """Print the answer of an experiment, and the rest of the budget."""
    left = ", ".join(f"{what} {value:.6g}" for what, value in campaign.left.items())
    outcome = f"{record.status}: {record.reason}" if record.reason else record.status
    if record.status == "answered":
        values = campaign.get_rows(record)[campaign.settings.target].astype(float)
        known = values[values == values]  # NaN alone differs from itself
        outcome = f"{campaign.settings.target} not measured; it took place and is paid"
        if len(known):
            outcome = f"{known.mean():.4g}"
    done = campaign.settings.describe(record.as_set)
    say(f"{record.id:3}  {done}  ->  {outcome}   (left: {left})")
    print_outliers(campaign, record)


def print_outliers(campaign: "Campaign", record: "ExperimentRecord") -> None:
    """Print values that are so odd that they may be slips."""
    if record.status != "answered":
        return
    # A person is asked before a slip counts. A function cannot be asked, so its answers
    # are accepted and pointed out.
    for what in campaign.find_outliers(record, campaign.get_rows(record)):
        say(
            f"Experiment {record.id}: {what}. If that is wrong, correct it: back at "
            "the terminal, or tell(..., replace=True) in Python.",
            on=errors,
        )


def read_values(line: str, target: str) -> dict[str, list[float]]:
    """Read the values that a person typed, by name."""
    from frugax.causal.data import suggest_number

    found: dict[str, list[float]] = {}
    for word in line.split():
        # Much of the world writes decimals with a comma. Splitting there would turn 4,2
        # into two rows.
        if "," in word:
            raise ValueError(
                f"{word!r} has a comma: put blanks between the values of several rows. "
                f"{suggest_number(word.rpartition('=')[2])}".strip()
            )
        name, sign, number = word.rpartition("=")
        try:
            # Python reads 1_0 as ten, but it is a typing error.
            value = math.inf if "_" in number else float(number)
        except ValueError:
            value = math.inf
        # Infinity is never measured; NaN passes, as it marks a missing value.
        if math.isinf(value) or (sign and not name):
            raise ValueError(f"{word!r} is not a number: {_help(target)}")
        found.setdefault(name or target, []).append(value)
    if not found:
        raise ValueError(_help(target))
    # The n-th values of all variables form one row, so their counts must agree.
    lengths = {len(values) for values in found.values()}
    if len(lengths) > 1:
        raise ValueError("give as many values of one variable as of every other.")
    return found


def _help(target: str) -> str:
    return (
        f"type a value of {target} (or several), or values by name ({target}=4.2), "
        "also of what was really set; nan for a value that was not measured; failed or "
        "skip, and why; back to correct the last answer; or quit."
    )


def _parse_answer(
    campaign: "Campaign", record: "ExperimentRecord", line: str
) -> "DoneExperiment | FailedExperiment | None":
    """Read an answer; None if the question must be asked again."""
    from frugax.causal.campaign import (
        DoneExperiment,
        FailedExperiment,
        UnknownColumnError,
    )

    target = campaign.settings.target
    word, _, rest = line.partition(" ")
    word = word.lower()
    if word == "quit":
        raise EOFError
    if word in ("help", "?"):
        say(_help(target), on=errors)
        return None
    if word in ("failed", "skip"):
        return FailedExperiment(rest.strip(), charged=word == "failed")
    try:
        values = read_values(line, target)
        actual: dict[str, Any] = {**record.actual}
        changed: list[str] = []
        for name, asked in record.values.items():
            # One number for all rows; `read_answer` complains of anything else.
            told = {*values.get(name, ())}
            if target in values and len(told) == 1 and not told <= {asked}:
                (actual[name],) = told
                changed.append(f"{name} was set to {actual[name]:g}, not {asked:g}")
        # Corrections are read here, too, hence `replace`; nothing is told yet.
        rows = campaign.read_answer(record, values, actual=actual, replace=True)
    except UnknownColumnError as e:
        # `replace` is an argument in Python; here a word corrects an answer.
        say(f"{e.problem} If an earlier answer is wrong, type back.", on=errors)
        return None
    except ValueError as e:
        say(str(e), on=errors)
        return None
    # Before the first table the campaign accepts any column, so this is the only place
    # where a misspelt one can be noticed.
    known = {*campaign.settings.named}
    if campaign.samples is not None:
        known |= {*campaign.samples.variables}
    new = [n for n in rows.variables if n not in known]
    strange = [*changed, *campaign.find_outliers(record, rows)]
    if new:
        strange.append(f"{', '.join(new)}: no row has this column so far")
    for what in strange:
        if _prompt(f"{what}. Is that right? (yes or no) ").lower() not in ("yes", "y"):
            return None
    return DoneExperiment(rows, actual)


def _find_earlier(campaign: "Campaign", number: str) -> "ExperimentRecord | None":
    """Find the experiment whose answer the person wants to correct."""
    told = [e for e in campaign.experiments if e.status in ("answered", "failed")]
    found = [e for e in told if number in ("", str(e.id))]
    if not found:
        numbers = ", ".join(str(e.id) for e in told) or "none so far"
        say(
            "There is no such answer to correct: type back for the last one, or back "
            f"and a number of {numbers}.",
            on=errors,
        )
        return None
    return found[-1]


def _correct(campaign: "Campaign", record: "ExperimentRecord") -> None:
    """Ask for an answer again; the cost of the experiment stays spent."""
    from frugax.causal.campaign import FailedExperiment

    say(
        f"Experiment {record.id}: {campaign.settings.describe(record.as_set)}. Type "
        "the right answer, or keep to leave the answer as it was."
    )
    while (line := _prompt(f"{campaign.settings.target} = ")).lower() != "keep":
        answer = _parse_answer(campaign, record, line)
        if answer is None:
            continue
        if isinstance(answer, FailedExperiment):
            campaign.tell_failed(record, answer.reason, replace=True)
        else:
            campaign.tell(record, answer.data, actual=answer.actual, replace=True)
        print_answer(campaign, campaign.experiments[record.id])
        return


def _prompt(question: str) -> str:
    # Names of variables may have brackets, which rich would read as markup.
    return console.input(question, markup=False).strip()
