"""`Observer`: to it a run reports its progress."""

import enum
from collections.abc import Mapping


class Stage(enum.StrEnum):
    """The parts of a run in their order; a value is the text that people see."""

    BUILDING = "building the model"
    EVALUATING_FRESH = "evaluating the fresh model"
    COMPILING_SHOW = "compiling the task's show"
    MEASURING = "measuring the step without a plan"
    PLANNING_MEMORY = "planning memory"
    PLANNING_FILE = "planning the model file"
    TIMING = "timing a few steps"
    TRAINING = "training"
    COMPRESSING = "compressing the weights"
    EVALUATING_FILE = "evaluating the weights in the file"
    REPORTING = "writing the report"


class Observer:
    """Receives the progress of a run, from the run's thread, a few calls a second.

    This one ignores it all: override what you want to know.
    """

    def stage(self, stage: Stage) -> None:
        """A new part of the run begins."""

    def note(self, text: str) -> None:
        """A fact worth a line, for example that a run was resumed."""

    def memory(self, used_bytes: int, limit_bytes: int | None) -> None:
        """Bytes of the compiled step, and its budget if there is one."""

    def training(self, step: int, steps: int, latest: Mapping[str, float]) -> None:
        """Training has reached a step.

        Args:
            step: steps done, those before a resume included.
            steps: steps of the whole run.
            latest: the newest metrics that have reached the host; may lag behind.
        """
