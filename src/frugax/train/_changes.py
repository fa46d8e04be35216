"""What may differ between two compilations: one `Change` for each, and of what kind."""

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from ._static import Frozen

COMMITTED = " put there on purpose"
_ABSENT = object()  # no value that anybody gives

Kind: TypeAlias = Literal[
    "first",
    "shape",
    "dtype",
    "structure",
    "weak type",
    "static value",
    "placement",
    "committed",
    "setting",
    "function",
]
_TYPE = re.compile(r"(?P<dtype>[^\[]+)\[(?P<shape>[^\]]*)\](?P<weak> weak)?(?P<at>.*)")


class Change(NamedTuple):
    """One reason for another program; as text `batch['x']: old -> new`.

    Attributes:
        place: the leaf, argument or setting.
        kind: what about it.
        old: what the program there is was compiled for.
        new: what it is now.
    """

    place: str
    kind: Kind
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.place}: {self.old} -> {self.new}"

    @property
    def aspects(self) -> int:
        """How much of it is another: of a leaf its shape, dtype and the like."""
        before, after = _TYPE.fullmatch(self.old), _TYPE.fullmatch(self.new)
        if before is None or after is None:
            return 4
        return sum(a != b for a, b in zip(before.groups(), after.groups(), strict=True))


def kind_of(old: str, new: str) -> Kind:
    """What about a leaf is another."""
    before, after = _TYPE.fullmatch(old), _TYPE.fullmatch(new)
    if before is None or after is None:  # one of them is absent
        return "structure"
    if before["shape"] != after["shape"]:
        return "shape"
    if before["dtype"] != after["dtype"]:
        return "dtype"
    if before["weak"] != after["weak"]:
        return "weak type"
    is_committed = {before["at"], after["at"]} == {"", COMMITTED}
    return "committed" if is_committed else "placement"


def static_changes(old: Hashable, new: Hashable) -> list[Change]:
    """Each Python value that is another, by name where they have names."""
    if old == new:
        return []
    before, after = _by_name(old), _by_name(new)
    return [
        _static_change(name, before.get(name, _ABSENT), after.get(name, _ABSENT))
        for name in before | after
        if before.get(name) != after.get(name) or (name in before) != (name in after)
    ]


def _by_name(static: Any) -> dict[str, Any]:
    if static is None:
        return {}
    if isinstance(static, Frozen) and isinstance(static.value, dict):
        return {name: Frozen(value) for name, value in static.value.items()}
    if isinstance(static, Mapping):
        return dict(static)
    return {"static": static}


def _static_change(name: str, old: Any, new: Any) -> Change:
    old, new = (x.value if isinstance(x, Frozen) else x for x in (old, new))
    codes = [getattr(x, "__code__", None) for x in (old, new)]
    if codes[0] is not None and codes[0] == codes[1]:
        file = Path(codes[0].co_filename).name
        said = f"the function of {file}:{codes[0].co_firstlineno}"
        return Change(name, "function", said, "the same defined anew")
    said = ("absent" if x is _ABSENT else f"{x!r:.60}" for x in (old, new))
    return Change(name, "static value", *said)


def structure_changes(old: Any, new: Any) -> list[Change]:
    """Where two structures with the same leaves differ: what a container says."""
    before, after = old.node_data(), new.node_data()
    if before != after:
        forms = [data and data[1] for data in (before, after)]
        kept = [getattr(form, "static", None) for form in forms]
        if all(isinstance(x, Frozen) for x in kept) and kept[0] != kept[1]:
            return static_changes(*kept)
        said = [
            f"{data and data[0].__name__} {data and data[1]}"
            for data in (before, after)
        ]
        return [Change("structure", "structure", *_where_they_differ(*said))]
    pairs = zip(old.children(), new.children(), strict=True)
    return [change for pair in pairs for change in structure_changes(*pair)]


def _where_they_differ(old: str, new: str) -> tuple[str, str]:
    """Two long texts from a little before the first difference on."""
    same = next(
        (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
        min(len(old), len(new)),
    )
    start = max(same - 20, 0)
    return old[start : start + 60], new[start : start + 60]
