"""Do a campaign's experiments by calling a user's function; errors are failures."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from frugax.errors import ConfigError, FrugaxError
from frugax.run import load_function

if TYPE_CHECKING:
    from frugax.causal.campaign import Campaign, ExperimentRecord

# Failures in a row after which the function is to blame; each of them costs money.
_MAX_FAILURES = 3


def load_experiment(target: str) -> tuple[str, Callable[..., Any]]:
    """Load a function, and refuse it before any cost if it cannot be called."""
    function = load_function(target)
    _check_signature(target, function)
    return target, function


class OwnExperiment:
    """Calls a function; an error in it is a failed experiment, which costs its price.

    Attributes:
        target: module:function, or file.py:function.
        failed: number of experiments in a row that gave no value.
    """

    def __init__(
        self,
        target: str,
        function: Callable[..., Any],
        seed: int,
        campaign: "Campaign",
        folder: object,
    ) -> None:
        from frugax.causal import campaign as package

        self.target = target
        self.failed = 0
        self._ask = package.make_function_runner(
            function,
            campaign.settings.rows_per_experiment,
            seed,
            campaign.settings.variables,
        )
        self._campaign = campaign
        self._mend = (
            f"mend the function, then go on with: frugax causal run --resume {folder}"
        )

    def __call__(self, record: "ExperimentRecord") -> Any:
        """Return the function's answer, or `FailedExperiment` with the error."""
        from frugax.causal.campaign import DoneExperiment, FailedExperiment

        try:
            answer = self._ask(record)
        except SystemExit as e:  # not a failure of the experiment
            raise FrugaxError(
                f"experiment {record.id}: {self.target} ended the program (SystemExit "
                f"{e.code!s:.200}). The experiment is still pending and costs nothing; "
                f"{self._mend}"
            ) from e
        except Exception as e:
            self.failed += 1
            # The function may have reached the laboratory before it failed, so the
            # price is charged. The reason is one line, to fit a table of the report.
            text = " ".join(str(e).split())[:300]
            return FailedExperiment(
                f"{type(e).__name__}: {text}" if text else type(e).__name__
            )
        if isinstance(answer, FailedExperiment):
            self.failed += 1
            return answer
        try:
            # `tell` would refuse the same answers, but could not name the function.
            done = DoneExperiment.of(answer)
            rows = self._campaign.read_answer(record, done.data, actual=done.actual)
        except (TypeError, ValueError) as e:
            raise FrugaxError(
                f"experiment {record.id}: {self.target} did not return an answer: {e} "
                f"The experiment is still pending and costs nothing; {self._mend}"
            ) from e
        values = rows[self._campaign.settings.target]
        # NaN alone differs from itself. It costs as much as a failure, and tells as
        # little.
        if (values != values).all():
            self.failed += 1
        else:
            self.failed = 0
        return DoneExperiment(rows, done.actual)

    def check(self) -> None:
        """Stop if the function fails again and again."""
        # Called after an answer was told, so the last failure is already on disk.
        if self.failed >= _MAX_FAILURES:
            raise FrugaxError(
                f"{self.target} raised an error or gave None or NaN in {self.failed} "
                f"experiments in a row. Every answer is kept; {self._mend}"
            )


def _check_signature(target: str, function: Any) -> None:
    """Refuse a function that cannot be called, before any cost."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # some functions written in C have no signature
    try:
        # Bound and not called: a call could set off a real experiment.
        signature.bind({}, rows=1, seed=0)
    except TypeError as e:
        name = target.rpartition(":")[2]
        raise ConfigError(
            f"{target} takes {signature}, but must take (values, *, rows, seed): "
            f"it is called as {name}({{'x': 1.0}}, rows=10, seed=0); {e}."
        ) from e
