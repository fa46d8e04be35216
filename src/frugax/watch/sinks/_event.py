"""What a sink is given: one record that has left the program."""

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import numpy as np

Kind: TypeAlias = Literal["summary", "scalar", "frame"]
_KINDS: tuple[str, ...] = get_args(Kind)


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One record on the host.

    Attributes:
        kind: its class; when something must be dropped, frames go before scalars, and
            those before summaries.
        stream: what it belongs to, `""` for the training steps themselves.
        step: rising within a stream.
        values: by name; copies of the sink's own, so nothing on the device stays alive.
    """

    kind: Kind
    stream: str
    step: int
    values: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(
                f"kind must be one of {', '.join(_KINDS)}, got {self.kind!r:.99}."
            )

    @property
    def bytes(self) -> int:
        """What its arrays hold."""
        return sum(value.nbytes for value in self.values.values())
