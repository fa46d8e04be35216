"""A user's own function that answers experiments: what it raises ends no campaign."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from frugax.errors import ConfigError, FrugaxError

from ._user_function import load_function

if TYPE_CHECKING:
    from frugax.causal.campaign import Campaign, Entry

# As many failures one after the other are the function's fault, and each costs money.
_MOST = 3


def checked_function(target: str) -> tuple[str, Callable[..., Any]]:
    """A function and its name, refused before anything is paid if it cannot be asked.

    Args:
        target: module:function, or file.py:function.

    Raises:
        ConfigError: there is none, or it does not take (values, *, rows, seed).
    """
    function = load_function(target)
    _check_signature(target, function)
    return target, function


class OwnExperiment:
    """Asks a function; what it raises is an experiment that failed, and was paid.

    Attributes:
        target: module:function, or file.py:function.
        failed: experiments that gave no value since the function last gave one.
    """

    def __init__(
        self,
        target: str,
        function: Callable[..., Any],
        seed: int,
        going: "Campaign",
        folder: object,
    ) -> None:
        from frugax.causal import campaign as room

        self.target = target
        self.failed = 0
        self._ask = room.asked_of(function, going.settings.rows, seed)
        self._going = going
        self._mend = (
            f"mend the function, then go on with: frugax causal run --resume {folder}"
        )

    def __call__(self, entry: "Entry") -> Any:
        """What the function gives, or `Failed` with the error's type and text.

        Args:
            entry: the experiment.

        Raises:
            FrugaxError: what it gives is no answer, or it ended the program; the
                question stays as it is.
        """
        from frugax.causal.campaign import Failed

        try:
            answer = self._ask(entry)
        except SystemExit as e:  # not a failure: it was told to end the program
            raise FrugaxError(
                f"experiment {entry.id}: {self.target} ended the program (SystemExit "
                f"{e.code!s:.200}). It is not told and not charged; {self._mend}"
            ) from e
        except Exception as e:
            self.failed += 1
            said = " ".join(str(e).split())[:300]
            return Failed(f"{type(e).__name__}: {said}" if said else type(e).__name__)
        if isinstance(answer, Failed):
            self.failed += 1
            return answer
        try:
            rows = self._going.read_answer(entry, answer)
        except (TypeError, ValueError) as e:
            raise FrugaxError(
                f"experiment {entry.id}: {self.target} gave no answer: {e} It is not "
                f"told and not charged; {self._mend}"
            ) from e
        values = rows[self._going.settings.target]
        # NaN, which alone differs from itself, has cost as much and says as little.
        self.failed = self.failed + 1 if (values != values).all() else 0
        return rows

    def check(self) -> None:
        """Stop where the function fails time after time.

        Raises:
            FrugaxError: it raised or gave None or NaN in the last three experiments.
        """
        if self.failed >= _MOST:
            raise FrugaxError(
                f"{self.target} raised an error or gave None or NaN in {self.failed} "
                f"experiments in a row. Every answer is kept; {self._mend}"
            )


def _check_signature(target: str, function: Any) -> None:
    """Refuse a function that cannot be asked, before anything is paid.

    Raises:
        ConfigError: it does not take (values, *, rows, seed).
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # some functions written in C say nothing about themselves
    try:
        signature.bind({}, rows=1, seed=0)
    except TypeError as e:
        name = target.rpartition(":")[2]
        raise ConfigError(
            f"{target} takes {signature}, but must take (values, *, rows, seed): "
            f"it is called as {name}({{'x': 1.0}}, rows=10, seed=0); {e}."
        ) from e
