"""A person at the terminal who answers experiments, and corrects what was answered."""

import math
from typing import TYPE_CHECKING

from ._consoles import console, errors

if TYPE_CHECKING:
    from frugax.causal.campaign import Campaign, Entry, Failed
    from frugax.causal.data import Samples


def ask_person(going: "Campaign", entry: "Entry") -> "Samples | Failed":
    """Ask until the answer is one that the campaign takes.

    Args:
        going: the campaign; earlier answers of it may be corrected meanwhile.
        entry: the experiment.

    Raises:
        EOFError: there is nobody to ask, or they have gone.
    """
    from frugax.causal.scm import intervene

    forecast = entry.forecast
    hope = f", {forecast.expected:.4g} is expected" if forecast is not None else ""
    _print(f"Experiment {entry.id}: {intervene(**entry.values)}{hope}.")
    if going.unmeasured:
        _print(f"Give {', '.join(going.unmeasured)} too, by name: it has limits.")
    while True:
        said = _asked(f"{going.settings.target} = ")
        word, _, rest = said.partition(" ")
        if word.lower() != "back":
            answer = _understood(going, entry, said)
            if answer is not None:
                return answer
        elif (earlier := _earlier(going, rest.strip())) is not None:
            _correct(going, earlier)
            _print(f"Again experiment {entry.id}: {intervene(**entry.values)}.")


def say(going: "Campaign", entry: "Entry") -> None:
    """Print what has become of an experiment, and what is left of the budget.

    Args:
        going: the campaign.
        entry: the experiment.
    """
    from frugax.causal.scm import intervene

    left = ", ".join(f"{what} {value:.6g}" for what, value in going.left.items())
    outcome = f"{entry.status}: {entry.why}" if entry.why else entry.status
    if entry.status == "answered":
        values = going.rows_of(entry)[going.settings.target].astype(float)
        known = values[~(values != values)]  # NaN is the one that differs from itself
        outcome = (
            f"{known.mean():.4g}"
            if len(known)
            else f"{going.settings.target} not measured; it took place and is paid"
        )
    _print(f"{entry.id:3}  {intervene(**entry.values)}  ->  {outcome}   (left: {left})")
    say_doubts(going, entry)


def say_doubts(going: "Campaign", entry: "Entry") -> None:
    """Print what is so odd in an answer that it may be a slip.

    Args:
        going: the campaign.
        entry: an experiment that was answered, or not.
    """
    from frugax.causal.campaign import doubts

    if entry.status != "answered":
        return
    for what in doubts(going, entry, going.rows_of(entry)):
        _complain(
            f"Experiment {entry.id}: {what}. If that is wrong, correct it: back at the "
            "terminal, or tell(..., replace=True) in Python."
        )


def read_values(said: str, target: str) -> dict[str, list[float]]:
    """Values by name of what a person typed.

    Args:
        said: the line.
        target: what a value without a name is of.

    Raises:
        ValueError: it is nothing of the kind.
    """
    found: dict[str, list[float]] = {}
    for word in said.split():
        if "," in word:
            raise ValueError(
                f"{word!r} has a comma: write {word.replace(',', '.')!r} for a decimal "
                "number, and blanks between the values of several rows."
            )
        name, sign, number = word.rpartition("=")
        try:
            # Python reads 1_0 as ten; whoever types it has missed a key.
            value = math.inf if "_" in number else float(number)
        except ValueError:
            value = math.inf
        if math.isinf(value) or (sign and not name):
            raise ValueError(f"{word!r} is no number: {_help(target)}")
        found.setdefault(name or target, []).append(value)
    if not found:
        raise ValueError(_help(target))
    lengths = {len(values) for values in found.values()}
    if len(lengths) > 1:
        raise ValueError("give as many values of one variable as of every other.")
    return found


def _help(target: str) -> str:
    return (
        f"type a value of {target} (or several), or values by name ({target}=4.2); nan "
        "for what was not measured; failed or skip, and why; back to correct the last "
        "answer; or quit."
    )


def _understood(
    going: "Campaign", entry: "Entry", said: str
) -> "Samples | Failed | None":
    """What a line says of an experiment; None if it must be asked once more.

    Raises:
        EOFError: they have gone.
    """
    from frugax.causal.campaign import Failed, doubts

    target = going.settings.target
    word, _, rest = said.partition(" ")
    word = word.lower()
    if word == "quit":
        raise EOFError
    if word in ("help", "?"):
        _complain(_help(target))
        return None
    if word in ("failed", "skip"):
        return Failed(rest.strip(), charged=word == "failed")
    try:
        rows = going.read_answer(entry, read_values(said, target), replace=True)
    except ValueError as e:
        _complain(str(e))
        return None
    known = () if going.samples is None else going.samples.variables
    new = [n for n in rows.variables if n not in {*known, *going.settings.named}]
    strange = list(doubts(going, entry, rows))
    if new:
        strange.append(f"{', '.join(new)}: no row has that so far")
    for what in strange:
        if _asked(f"{what}. Is that right? (yes or no) ").lower() not in ("yes", "y"):
            return None
    return rows


def _earlier(going: "Campaign", number: str) -> "Entry | None":
    """The experiment whose answer is to be corrected."""
    told = [e for e in going.asks if e.status in ("answered", "failed")]
    found = [e for e in told if number in ("", str(e.id))]
    if not found:
        numbers = ", ".join(str(e.id) for e in told) or "none so far"
        _complain(
            "There is no such answer to correct: type back for the last one, or back "
            f"and a number of {numbers}."
        )
    return found[-1] if found else None


def _correct(going: "Campaign", entry: "Entry") -> None:
    """Ask for an answer once more; the price of the experiment stays paid.

    Raises:
        EOFError: they have gone; the answer stays as it was.
    """
    from frugax.causal.campaign import Failed
    from frugax.causal.scm import intervene

    _print(
        f"Experiment {entry.id}: {intervene(**entry.values)}. Type what is right; or "
        "keep, to leave the answer as it was."
    )
    while (said := _asked(f"{going.settings.target} = ")).lower() != "keep":
        answer = _understood(going, entry, said)
        if answer is None:
            continue
        if isinstance(answer, Failed):
            going.tell_failed(entry, answer.why, replace=True)
        else:
            going.tell(entry, answer, replace=True)
        say(going, going.asks[entry.id])
        return


def _asked(question: str) -> str:
    return console.input(question, markup=False).strip()


def _complain(text: str) -> None:
    errors.print(text, highlight=False, markup=False, soft_wrap=True)


def _print(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
