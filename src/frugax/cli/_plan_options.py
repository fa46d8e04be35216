"""The options of `frugax plan`, and which of them go with each kind of program."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from frugax.budget import MemoryBudget, MemoryShare, read_memory_budget
from frugax.errors import ConfigError

from ._arguments import Arg, Changes, OutFile

if TYPE_CHECKING:
    from frugax.targets import Target

_WITH_TARGET = ("target", "budget", "picture", "json", "why", "price")
_OF_EACH_SUBJECT = {
    "a script": (*_WITH_TARGET, "module", "execute", "step"),
    "a function": ("budget", "kind", "headroom", "picture", "frontier", "json"),
    "a config": ("set",),
    "a function with --target": (*_WITH_TARGET, "largest_batch", "search"),
    "a config with --target": (*_WITH_TARGET, "largest_batch", "search", "set"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of `frugax plan`.

    Attributes:
        set: with a config: replace values, by dotted keys.
        budget: 2GiB, 50% of plain temporaries, 90% of device; the most memory that the
            gradient or, with a target, the program may need; 50% are of the temporaries
            that it needs without a plan. By default that of the config, or 90% of
            device.
        kind: with a function: the bytes that count. temp: temporaries only; total:
            arguments and results, too.
        headroom: with a function: share to keep free, such as 5%.
        picture: draw the live memory over time into this .svg file; with targets, what
            fills the memory of each.
        frontier: with a function: draw all compiled programs; their bytes and flops, as
            a table and in this .svg file.
        json: write the plan into this file.
        target: devices, which need not be here: h100,tpu-v5e:4x4; a row for each. The
            function may also return a step; see docs/targets.md. By default, for a
            script, this device.
        why: with a target: the largest arrays and their lines; those at the peak.
        largest_batch: with a target: the most rows of a batch that fit.
        search: with a target: layout, batch, remat; which of them to search over, batch
            being the number of micro-batches of a run or a TrainStep.
        price: with a target: price an hour: h100=2.5,l4=0.8; of a device.
        module: the subject is the name of a module; as for python -m.
        execute: with a script: make large arrays, too.
        step: with a script: the function to plan; by default the first jitted one that
            takes a gradient. Those before it are not run on large arrays.
    """

    set: Changes = ()
    budget: Annotated[str | None, Arg("SIZE", ("--memory",))] = None
    kind: Literal["temp", "total"] | None = None
    headroom: Annotated[str | None, Arg("SHARE")] = None
    picture: OutFile = None
    frontier: OutFile = None
    json: OutFile = None
    target: Annotated[str | None, Arg("NAME,...")] = None
    why: bool = False
    largest_batch: bool = False
    search: Annotated[str | None, Arg("PART,...")] = None
    price: Annotated[str | None, Arg("NAME=COST,...")] = None
    module: Annotated[bool, Arg(aliases=("-m",))] = False
    execute: bool = False
    step: Annotated[str | None, Arg("NAME")] = None

    def check(self, subject: str) -> None:
        """Refuse an option that does not go with a subject, before it is loaded.

        Args:
            subject: a key of the table above.

        Raises:
            ConfigError: an option is for another one, or a picture is not an .svg file.
        """
        for field in dataclasses.fields(self):
            is_given = getattr(self, field.name) != field.default
            if is_given and field.name not in _OF_EACH_SUBJECT[subject]:
                kinds = _OF_EACH_SUBJECT.items()
                others = " or ".join(k for k, names in kinds if field.name in names)
                remedy = ""
                if field.name == "budget":
                    remedy = " A config states it: --set budgets.memory=2GiB."
                raise ConfigError(
                    f"--{field.name.replace('_', '-')} does not go with {subject}, but "
                    f"with {others}.{remedy}"
                )
        endings = (".svg", ".txt") if subject == "a function" else (".svg",)
        for option in ("picture", "frontier", "json"):
            file: Path | None = getattr(self, option)
            if file is None:
                continue
            if option != "json" and file.suffix not in endings:
                raise ConfigError(
                    f"--{option} {file}: the file must end in {' or '.join(endings)}."
                )
            if not file.absolute().parent.is_dir():
                raise ConfigError(
                    f"--{option} {file}: there is no folder {file.parent}."
                )

    def read_budget(self) -> MemoryBudget | MemoryShare | None:
        """The limit of one device; None if the option is left out.

        Raises:
            ConfigError: it is out of range, or not a number with its unit.
        """
        if self.budget is None:
            return None
        try:
            return read_memory_budget(self.budget, name="--budget")
        except ValueError as e:
            raise ConfigError(str(e)) from e

    def read_targets(self) -> "tuple[list[Target], dict[str, float]]":
        """The targets in this order, each once, and their prices.

        Raises:
            ConfigError: an option is wrong.
        """
        from frugax.targets import Target

        by_name: dict[str, Target] = {}
        for name in filter(None, map(str.strip, (self.target or "here").split(","))):
            target = Target(name)
            if by_name.setdefault(target.name, target).source != target.source:
                raise ConfigError(
                    f"two targets are named {target.name}: change the name in {name}."
                )
        chosen = list(by_name.values())
        if not chosen:
            raise ConfigError('--target names no device; write "h100" or "h100,l4".')
        costs = _read_prices(self.price)
        known = {name for t in chosen for name in (t.name, t.device_name)}
        if unknown := [name for name in costs if name not in known]:
            raise ConfigError(
                f"--price names {unknown[0]!r}, but the targets are "
                f"{', '.join(t.name for t in chosen)}."
            )
        return chosen, costs


NO_PLAN_OPTIONS = PlanOptions()


def _read_prices(text: str | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in (text or "").split(","):
        name, _, price = part.partition("=")
        if not part:
            continue
        try:
            found[name.strip()] = float(price)
        except ValueError:
            raise ConfigError(
                f"--price {part!r}: write a device and its cost for an hour, such as "
                "h100=2.5,l4=0.8."
            ) from None
        if not 0 <= found[name.strip()] < float("inf"):
            raise ConfigError(f"--price {part!r}: a price must be finite and >= 0.")
    return found
