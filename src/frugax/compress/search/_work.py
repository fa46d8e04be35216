"""`Work`: the tensors of a tree, and what its caller asks for besides a budget."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from frugax.trees import PyTree, describe

from .._arguments import MonotonicProgress, Progress
from ..arrays import find_ties, named_arrays, unwrap_modules
from ..codecs import Form
from ._calibration import Calibration
from ._coder import Coder
from ._draft import Draft, Steps, make_draft
from ._measure import Sensitivity
from ._source import Source


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """A tree to compress.

    Attributes:
        sources: its tensors.
        head: the entries of the header beside the tensors, such as `structure`.
        sensitivity: how errors of the tensors are weighed.
        progress: told about the share that is done.
        coder: codes the tensors.
    """

    sources: tuple[Source, ...]
    head: Mapping[str, Any]
    sensitivity: Sensitivity
    progress: MonotonicProgress
    coder: Coder

    @classmethod
    def read(
        cls,
        tree: PyTree,
        sensitivity: Sensitivity,
        metadata: Mapping[str, str] | None,
        progress: Progress | None,
        coder: Coder,
    ) -> "Work":
        """Find the tensors of a tree.

        Raises:
            TypeError: a leaf is not an array or has a dtype that a file cannot hold,
                `progress` is not a function, or the metadata are not text.
            ValueError: two leaves share a name, or the tree has over 100 levels.
        """
        monotonic = MonotonicProgress(progress)
        for key, value in (metadata or {}).items():
            if not (isinstance(key, str) and isinstance(value, str)):
                raise TypeError(
                    f"metadata must be text by key, got {key!r}: {value!r:.60}."
                )
        plain = unwrap_modules(tree)
        arrays = named_arrays(plain)
        ties = find_ties(arrays)
        places = {name: at for at, name in enumerate(arrays)}
        tied: dict[str, list[tuple[int, str]]] = {}
        for name, first in ties.items():
            tied.setdefault(first, []).append((places[name], name))
        sources = tuple(
            Source(name, array, ties=tuple(tied.get(name, ())))
            for name, array in arrays.items()
            if name not in ties
        )
        structure = describe(plain)
        if "flat" in (structure or ()):  # without the leaves that no file has
            structure["flat"] = [*arrays]
        head = {"structure": structure}
        if metadata:
            head["metadata"] = dict(metadata)
        return cls(sources, head, sensitivity, monotonic, coder)

    @property
    def calibration(self) -> Calibration | None:
        """The calibration, where the sensitivity is one."""
        if isinstance(self.sensitivity, Calibration):
            return self.sensitivity
        return None

    def draft(
        self,
        steps: Steps,
        *,
        form: Callable[[Source], Form | None] = lambda _: None,
        gap: float | None = None,
        progress: Progress | None = None,
    ) -> Draft:
        """Code all tensors with these steps into a temporary file."""
        return make_draft(
            *(self.sources, self.head, steps, self.coder),
            form=form,
            gap=gap,
            progress=progress,
        )
