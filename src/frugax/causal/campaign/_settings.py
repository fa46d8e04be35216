"""What a campaign is told at its start, checked; a file or a YAML config holds it."""

import dataclasses
import difflib
import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from numbers import Integral

from frugax.budget import ExperimentBudget, check_budget
from frugax.causal.policy import OWN, POLICIES
from frugax.causal.posterior import MAX_VARIABLES
from frugax.errors import InfeasibleBudgetError

from ._ledger import price
from ._ranges import check_constraint, check_range

_MOST_SETS = 400
_MOST_WORLDS = 4096  # each takes memory for every experiment that is weighed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What may be done, what is wanted and what it may cost.

    Attributes:
        variables: what may be set, and its range (least, greatest value).
        target: what shall become small or large.
        budget: what the experiments may cost. Setting several variables at once costs
            the sum of their prices.
        minimize: whether the target shall become small; else large.
        together: how many variables one experiment may set; >= 1.
        sets: sets of variables that may be set at once besides these.
        never: sets of variables that no experiment may set together.
        constraints: bounds (least, greatest or None) for the mean of other variables.
        required: edges (cause, effect) that there are.
        forbidden: edges (cause, effect) that there are not.
        rows: rows of data that one experiment gives; >= 1.
        tolerance: how much worse than the best is still good, in the target's unit;
            None for a twentieth of its standard deviation.
        worth: how much better the target must get for one unit of budget, in its unit;
            below it the advice is to stop.
        sure: how probable it must be that the recommendation is within `tolerance` of
            the best for the advice to stop; in (0, 1].
        policy: how the next experiment is chosen; "own" by a function of the user's.
        worlds: how many worlds are drawn; 8 to 4,096.
        max_parents: most causes of one variable; >= 1.
        seed: where all randomness comes from; >= 0.
    """

    variables: dict[str, tuple[float, float]]
    target: str
    budget: ExperimentBudget
    minimize: bool = True
    together: int = 1
    sets: tuple[tuple[str, ...], ...] = ()
    never: tuple[tuple[str, ...], ...] = ()
    constraints: dict[str, tuple[float | None, float | None]] = dataclasses.field(
        default_factory=dict
    )
    required: tuple[tuple[str, str], ...] = ()
    forbidden: tuple[tuple[str, str], ...] = ()
    rows: int = 1
    tolerance: float | None = None
    worth: float = 0.0
    sure: float = 0.95
    policy: str = "improvement"
    worlds: int = 32
    max_parents: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        check_budget(self.budget, ExperimentBudget)
        if not isinstance(self.minimize, bool):
            raise TypeError(
                f"minimize must be True or False, got {self.minimize!r:.80}."
            )
        _check_counts(self)
        if not self.variables:
            raise ValueError("variables must name at least one that may be set.")
        for name, (low, high) in self.variables.items():
            check_range(name, low, high)
        if self.target in self.variables:
            raise ValueError(
                f"target {self.target!r} cannot be set in an experiment: take it out "
                "of variables."
            )
        for what, sets in (("sets", self.sets), ("never", self.never)):
            for each in sets:
                _check_set(what, each, self.variables)
        for each in self.sets:
            if bad := next((bad for bad in self.never if {*bad} <= {*each}), None):
                raise ValueError(f"sets holds {each}, but never forbids {bad}.")
        for name, (low, high) in self.constraints.items():
            check_constraint(name, low, high, self.variables.get(name))
            if name == self.target:
                raise ValueError(
                    f"constraints[{name!r}] is about the target, which is optimised."
                )
        for what, pairs in (("required", self.required), ("forbidden", self.forbidden)):
            for pair in pairs:
                _check_edge(what, pair)
        for name, what in self.named.items():
            _check_name(what, name)
        effects = [effect for _, effect in set(self.required)]
        for effect in effects:
            if effects.count(effect) > self.max_parents:
                raise ValueError(
                    f"required has {effects.count(effect)} causes of {effect!r}, and "
                    f"max_parents is {self.max_parents}: raise that."
                )
        if cycle := _cycle(self.required):
            raise ValueError(
                f"required has the cycle {' -> '.join(cycle)}: nothing can be among "
                "its own causes, so take one of these edges out."
            )
        if both := sorted(set(self.required) & set(self.forbidden)):
            raise ValueError(f"the edge {both[0]} is both required and forbidden.")
        if self.policy not in (*POLICIES, OWN):
            raise ValueError(
                f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}."
            )
        if self.tolerance is not None and not 0 < self.tolerance < math.inf:
            raise ValueError(f"tolerance must be > 0 and finite, got {self.tolerance}.")
        if not 0 <= self.worth < math.inf:
            raise ValueError(f"worth must be >= 0 and finite, got {self.worth}.")
        if not 0 < self.sure <= 1:
            raise ValueError(f"sure must be in (0, 1], got {self.sure}.")
        _check_prices(self.budget, self.variables)
        allowed = self.allowed_sets()
        if len(allowed) == 0:
            raise ValueError("never forbids every experiment: allow one.")
        if min(len(self.weighed | set(s)) for s in allowed) > MAX_VARIABLES:
            raise ValueError(
                f"target, constraints and required name {len(self.weighed)} variables, "
                f"at most {MAX_VARIABLES} can be weighed, what is set among them: "
                "name fewer."
            )
        needed = min(price(self.budget, names) for names in allowed)
        most = self.budget.exact_cost
        if most is not None and needed > most:
            raise InfeasibleBudgetError(
                "the cheapest experiment",
                needed=float(needed),
                limit=float(most),
                unit="of cost",
                hint="allow a cheaper one.",
            )

    @property
    def weighed(self) -> frozenset[str]:
        """What the worlds must be about, however little it goes with the target."""
        ends = (name for edge in self.required for name in edge)
        return frozenset({self.target, *self.constraints, *ends})

    @property
    def named(self) -> dict[str, str]:
        """Every variable that is named, and by which argument."""
        edges = {
            name: what
            for what, pairs in (
                ("required", self.required),
                ("forbidden", self.forbidden),
            )
            for pair in pairs
            for name in pair
        }
        return (
            edges
            | dict.fromkeys(self.constraints, "constraints")
            | dict.fromkeys(self.variables, "variables")
            | {self.target: "target"}
        )

    def check_named(self, columns: Collection[str], *, whole: bool = False) -> None:
        """Refuse edges that name what no row has, or that leave no cause of the target.

        Args:
            columns: the variables that rows have.
            whole: whether experiments measure nothing else: else a constraint may be on
                what they bring.

        Raises:
            ValueError: an edge, or a constraint if these are all, names neither of
                these nor what may be set; or every way to the target is forbidden.
        """
        have = {*columns, *self.variables, self.target}
        for name, what in self.named.items():
            if name not in have and (whole or what != "constraints"):
                close = difflib.get_close_matches(name, have, n=1)
                only = ", ".join(sorted(have))
                hint = f"is it {close[0]!r}?" if close else f"there are {only:.200}."
                raise ValueError(
                    f"{what} names {name!r}, but no row has it: {hint} Change the "
                    "name, or take it out."
                )
        if not _reaches(self.target, self.variables, have | {*self.constraints}, self):
            raise ValueError(
                f"forbidden leaves no way by which {', '.join(self.variables):.200} "
                f"could cause {self.target!r}, so no experiment is worth anything: "
                "take an edge out."
            )

    def allowed_sets(self) -> tuple[tuple[str, ...], ...]:
        """Which variables one experiment may set, small sets first.

        Raises:
            ValueError: there are more than 400 of these sets.
        """
        names = tuple(self.variables)
        found = dict.fromkeys(
            s
            for k in range(1, min(self.together, len(names)) + 1)
            for s in itertools.combinations(names, k)
        ) | dict.fromkeys(tuple(n for n in names if n in s) for s in self.sets)
        kept = [s for s in found if not any(set(bad) <= set(s) for bad in self.never)]
        if len(kept) > _MOST_SETS:
            raise ValueError(
                f"together {self.together} allows {len(kept)} sets of variables, at "
                f"most {_MOST_SETS} can be weighed: lower it and name larger sets in "
                "sets."
            )
        return tuple(sorted(kept, key=len))


def _reaches(
    target: str, settable: Collection[str], names: Collection[str], settings: Settings
) -> bool:
    """Whether any of these can cause the target by edges that are not forbidden."""
    forbidden, found, left = set(settings.forbidden), {target}, [target]
    while left:
        effect = left.pop()
        more = {n for n in names if (n, effect) not in forbidden} - found
        if more & {*settable}:
            return True
        found |= more
        left += more
    return False


def _check_counts(settings: Settings) -> None:
    """Refuse a number that is not whole, or too small or large.

    Raises:
        ValueError: one is.
    """
    least = {"together": 1, "rows": 1, "worlds": 8, "max_parents": 1, "seed": 0}
    for what, smallest in least.items():
        value = getattr(settings, what)
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not whole or value < smallest:
            raise ValueError(
                f"{what} must be a whole number >= {smallest}, got {value!r}."
            )
    if settings.worlds > _MOST_WORLDS:
        raise ValueError(f"worlds must be <= {_MOST_WORLDS}, got {settings.worlds}.")


def _check_name(what: str, name: object) -> None:
    """Refuse a name that nobody can read.

    Raises:
        ValueError: it is no text, empty, or has a line break or the like.
    """
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise ValueError(
            f"{what} must be named by a text in one line that is not empty, got "
            f"{name!r:.80}."
        )


def _check_edge(what: str, pair: object) -> None:
    """Refuse an edge that is no pair of names.

    Raises:
        ValueError: it is none; a text of two letters is not taken for two names.
    """
    if isinstance(pair, str) or not isinstance(pair, tuple) or len(pair) != 2:
        raise ValueError(
            f"{what} holds {pair!r}, which is no edge: write (cause, effect)."
        )


def _cycle(edges: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """A cycle of edges, its first name again at its end; empty if there is none."""
    effects: dict[str, list[str]] = {}
    for cause, effect in edges:
        effects.setdefault(cause, []).append(effect)
    done: set[str] = set()
    for start in effects:
        path, open_ = [start], [iter(effects[start])]
        while path:
            name = next((n for n in open_[-1] if n not in done), None)
            if name is None:
                done.add(path.pop())
                open_.pop()
            elif name in path:
                return (*path[path.index(name) :], name)
            else:
                path.append(name)
                open_.append(iter(effects.get(name, ())))
    return ()


def _check_set(what: str, names: Iterable[str], known: Mapping[str, object]) -> None:
    """Refuse a set that names what cannot be set.

    Raises:
        ValueError: it is a text, is empty or names no variable of the campaign.
    """
    if isinstance(names, str):
        raise ValueError(f"{what} holds {names!r}: write a set of names, ({names!r},).")
    if not tuple(names):
        raise ValueError(f"{what} holds an empty set: name its variables.")
    if len(set(names)) < len(tuple(names)):
        raise ValueError(f"{what} holds {names}, which names a variable twice.")
    for name in names:
        if name not in known:
            raise ValueError(
                f"{what} names {name!r}, which is none of the variables "
                f"{', '.join(known):.200}."
            )


def _check_prices(budget: ExperimentBudget, known: Mapping[str, object]) -> None:
    """Refuse a misspelt price: the budget alone would let its experiment cost 1.

    Raises:
        ValueError: there are prices, and one is missing or for no variable.
    """
    priced = {name for name, _ in budget.costs}
    if priced and (wrong := sorted(priced ^ set(known))):
        have = "has a price for" if wrong[0] in priced else "has no price for"
        raise ValueError(
            f"the budget {have} {wrong[0]!r}: price each of "
            f"{', '.join(known):.200} and nothing else, or nothing."
        )
