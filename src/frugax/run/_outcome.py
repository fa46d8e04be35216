"""`Outcome`: every figure of a finished run, for its receipt and its report.

Plain data only: `receipt.json` holds all of it, so the report can be rendered again.
"""

import dataclasses
import hashlib
import json

from frugax.budget import (
    Receipt,
    Verdict,
    format_seconds,
    from_plain,
    to_json,
    to_plain,
)
from frugax.measure import StepTime

from ._config import RunConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """Bytes of one compiled training step, as XLA counts them.

    Attributes:
        unplanned_bytes: of the same step without a plan.
        planned_bytes: of the step that ran.
        limit_bytes: the budget; None if memory was not limited.
        kind: which bytes: `"temp"` or `"total"`.
        argument_bytes: arguments of the step that ran.
        output_bytes: its results.
        temp_bytes: its temporaries.
        alias_bytes: results that take the place of donated arguments.
        plan: the memory plan as a table; empty if none was needed.
        flops: of one step, by the compiler's count; None if it gives none.
    """

    unplanned_bytes: int
    planned_bytes: int
    limit_bytes: int | None
    kind: str
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    plan: str
    flops: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeFacts:
    """How long a training step takes.

    Attributes:
        predicted: from the compiled step and the rates of its device.
        measured: median seconds from one step to the next; None if too few were taken.
    """

    predicted: StepTime
    measured: float | None

    @property
    def verdict(self) -> Verdict:
        """Whether steps are as far apart as one is predicted to take.

        It is not broken otherwise: between two steps a run also makes batches, watches
        and saves, and other programs take their share of a processor.
        """
        if self.measured is None:
            return Verdict.CANNOT_TELL
        verdict = Verdict(self.predicted.judge(self.measured))
        return Verdict.KEPT if verdict is Verdict.KEPT else Verdict.CANNOT_TELL

    def __str__(self) -> str:
        measured = "not measured, as too few were taken"
        if self.measured is not None:
            measured = f"{format_seconds(self.measured)} measured"
        if self.predicted.problem:
            return f"{measured}; not predicted: {self.predicted.problem}"
        return f"{measured}; {self.predicted} predicted: {self.verdict}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The trained model and its file.

    Attributes:
        summary: one line about model and data.
        weights: how many numbers were trained.
        original_bytes: their bytes in memory.
        file_name: the model file, within the run's folder.
        file_bytes: its length.
        file_sha256: its SHA-256, in hexadecimal.
        rel_error: relative error of the decoded weights, measured.
        tensors: the table of tensors, codecs, bytes and errors.
        before: evaluation of the trained weights; empty if nothing is evaluated.
        after: evaluation of the weights decoded from the file.
        noise: half-width of the interval of the change between the two, for figures
            of single examples.
    """

    summary: str
    weights: int
    original_bytes: int
    file_name: str
    file_bytes: int
    file_sha256: str
    rel_error: float
    tensors: str
    before: dict[str, float]
    after: dict[str, float]
    noise: dict[str, float]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One finished run.

    Attributes:
        config: of the run.
        receipt: every budget with its measured expense.
        steps: training steps in the final weights.
        stopped_because: why training ended.
        seconds: wall time by part; `"total"` also counts the rest.
        evaluations: (step, figures), in order.
        memory: bytes of the training step.
        step_time: seconds of the training step.
        model: the model and its file.
        notes: shortcomings, omissions and fallbacks, one sentence each.
        environment: versions, device, date, command and commit.
        learning_rates: (step, learning rate), for some steps; empty where the task has
            an optimiser of its own.
    """

    config: RunConfig
    receipt: Receipt
    steps: int
    stopped_because: str
    seconds: dict[str, float]
    evaluations: tuple[tuple[int, dict[str, float]], ...]
    memory: MemoryFacts
    step_time: StepTimeFacts
    model: ModelFacts
    notes: tuple[str, ...]
    environment: dict[str, str]
    learning_rates: tuple[tuple[int, float], ...]

    @classmethod
    def from_json(cls, text: str) -> "Outcome":
        """Read what `to_json` wrote.

        Raises:
            ValueError: the text is not that of an outcome.
        """
        data = json.loads(text)
        names = {field.name for field in dataclasses.fields(cls)}
        data = {k: v for k, v in data.items() if k in names}
        receipt = to_plain(Receipt.from_json(text))
        return from_plain(cls, data | {"receipt": receipt}, null_is_nan=True)

    @property
    def digest(self) -> str:
        """SHA-256 of the JSON text, in hexadecimal: two receipts are alike or not."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Write all of it as JSON text, including the verdicts."""
        # Verdicts are properties, which `to_plain` leaves out; the receipt writes them
        # itself.
        receipt = json.loads(self.receipt.to_json())
        rest = {k: v for k, v in to_plain(self).items() if k != "receipt"}
        return to_json(receipt | rest, indent=1) + "\n"
