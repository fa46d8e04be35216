"""`CampaignSettings`: the checked variables, target, constraints and limits."""

import dataclasses
import difflib
import graphlib
import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from frugax.budget import ExperimentBudget, check_budget
from frugax.causal.policy import DEFAULT, OWN
from frugax.causal.posterior import MAX_VARIABLES
from frugax.errors import InfeasibleBudgetError
from frugax.options import check_choice, check_flag, check_integer, check_number

from ._experiments import add_prices
from .actions import (
    Action,
    Binary,
    Categorical,
    Grid,
    Integer,
    JointLimit,
    Logarithmic,
    bounds,
    describe_settings,
    scale_for_models,
    to_settings,
)

# Every set gets candidates of its own, whatever their number, and each costs time.
_MAX_SETS = 400
# Each sample holds a prediction for each of up to some 700 candidate experiments.
_MAX_SAMPLES = 4096
_FLOAT32_MAX = float(np.finfo(np.float32).max)  # tables hold float32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSettings:
    """The variables, the goal and the limits of a campaign.

    Attributes:
        variables: variables that may be set, each with its range (least, greatest
            value), or as a `Logarithmic`, `Integer`, `Binary`, `Categorical` or `Grid`.
        target: variable to make small or large.
        budget: limits of the experiments. An experiment that sets several variables
            costs the sum of their prices.
        minimize: whether to make the target small; otherwise large.
        max_targets: number of variables that one experiment may set; >= 1.
        sets: larger sets of variables that may be set together besides these.
        forbidden_sets: sets of variables that no experiment may set together.
        joint_limits: limits on variables that one experiment sets together.
        constraints: bounds (least, greatest or None) for the means of other variables.
        required: edges (cause, effect) that exist.
        forbidden: edges (cause, effect) that do not exist.
        rows_per_experiment: most rows of data of one experiment; >= 1.
        tolerance: distance from the best mean that is still good, in the target's unit;
            None for a twentieth of its standard deviation.
        min_gain_per_cost: expected improvement of the target for one unit of budget, in
            its unit, below which the advice is to stop.
        confidence: probability that the recommendation is within `tolerance` of the
            best from which the advice is to stop; in (0, 1].
        policy: "improvement", or "own" if a function chooses experiments.
        num_posterior_samples: number of posterior samples; 8 to 4,096.
        seed: seed of all randomness; >= 0.
    """

    variables: dict[str, Action]
    target: str
    budget: ExperimentBudget
    minimize: bool = True
    max_targets: int = 1
    sets: tuple[tuple[str, ...], ...] = ()
    forbidden_sets: tuple[tuple[str, ...], ...] = ()
    joint_limits: tuple[JointLimit, ...] = ()
    constraints: dict[str, tuple[float | None, float | None]] = dataclasses.field(
        default_factory=dict
    )
    required: tuple[tuple[str, str], ...] = ()
    forbidden: tuple[tuple[str, str], ...] = ()
    rows_per_experiment: int = 1
    tolerance: float | None = None
    min_gain_per_cost: float = 0.0
    confidence: float = 0.95
    policy: str = DEFAULT
    num_posterior_samples: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        check_budget(self.budget, ExperimentBudget)
        self._check_numbers()
        if not self.variables:
            raise ValueError("variables must name at least one variable to set.")
        for name, (low, high) in self.ranges.items():
            _check_range(name, low, high)
        # Setting the target would reach any value, and teach nothing about its causes.
        if self.target in self.variables:
            raise ValueError(
                f"target {self.target!r} cannot be set in an experiment: remove it "
                "from variables."
            )
        for what in ("sets", "forbidden_sets"):
            for each in getattr(self, what):
                _check_set(what, each, self.variables)
        for each in self.sets:
            for bad in self.forbidden_sets:
                if {*bad} <= {*each}:
                    raise ValueError(
                        f"sets holds {each}, but forbidden_sets holds {bad}: remove "
                        "one of them."
                    )
        for limit in self.joint_limits:
            if not isinstance(limit, JointLimit):
                raise TypeError(
                    f"joint_limits must hold JointLimits, got {limit!r:.80}."
                )
            limit.check(self.variables)
        for name, limits in self.constraints.items():
            _check_constraint(name, *limits, self.ranges.get(name))
            if isinstance(self.variables.get(name), Categorical):
                raise ValueError(
                    f"constraints[{name!r}] is about a category, which has no bounds: "
                    "leave levels out of it."
                )
            if isinstance(self.variables.get(name), Logarithmic):
                raise ValueError(
                    f"constraints[{name!r}] is about a variable with a logarithmic "
                    "range, whose mean is not modelled: change its range."
                )
            if name == self.target:
                raise ValueError(
                    f"constraints[{name!r}] is about the target, which is optimised: "
                    "constrain other variables."
                )
        self._check_edges()
        for name, what in self.named.items():
            _check_name(what, name)
        check_choice("policy", self.policy, (DEFAULT, OWN))
        _check_prices(self.budget, self.variables)
        allowed = self.allowed_sets()
        if not allowed:
            raise ValueError("forbidden_sets forbids every experiment: allow one.")
        if min(len(self.modelled | set(s)) for s in allowed) > MAX_VARIABLES:
            raise ValueError(
                f"target, constraints and required name {len(self.modelled)} "
                f"variables, but at most {MAX_VARIABLES} can be modelled, including "
                "those that an experiment sets: name fewer."
            )
        # Refused now, with the price to allow. `ask` would merely return None at once.
        needed = min(add_prices(self.budget, names) for names in allowed)
        limit = self.budget.exact_cost
        if limit is not None and needed > limit:
            raise InfeasibleBudgetError(
                "the cheapest experiment",
                needed=float(needed),
                limit=float(limit),
                unit="of cost",
                hint="allow a cheaper one.",
            )

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The least and the greatest value of each variable that may be set."""
        return {name: bounds(action) for name, action in self.variables.items()}

    def on_model_scale(self) -> "CampaignSettings":
        """The settings as the models have them: ranges of logarithms are plain ones."""
        variables = {
            name: tuple(
                scale_for_models({name: end}, self.variables)[name]
                for end in action.log_range
            )
            if isinstance(action, Logarithmic)
            else action
            for name, action in self.variables.items()
        }
        return dataclasses.replace(self, variables=variables)

    def describe(self, values: Mapping[str, float]) -> str:
        """Describe an experiment as the laboratory sets it: `do(kind = B)`.

        Args:
            values: the variables to set, and their values or codes.
        """
        return describe_settings(to_settings(values, self.variables))

    @property
    def modelled(self) -> frozenset[str]:
        """The variables that the models must have, however weakly they are related."""
        ends = (name for edge in self.required for name in edge)
        return frozenset({self.target, *self.constraints, *ends})

    @property
    def named(self) -> dict[str, str]:
        """Every variable that the settings name, and the argument that names it."""
        found: dict[str, str] = {}
        for what in ("required", "forbidden"):
            for pair in getattr(self, what):
                found |= dict.fromkeys(pair, what)
        return (
            found
            | dict.fromkeys(self.constraints, "constraints")
            | dict.fromkeys(self.variables, "variables")
            | {self.target: "target"}
        )

    def check_columns(
        self, columns: Collection[str], *, complete: bool = False
    ) -> None:
        """Refuse edges that no row can support, or that leave no cause of the target.

        Args:
            columns: the variables that rows have.
            complete: whether experiments measure nothing else. Otherwise a constraint
                may be on a variable that only experiments measure.

        Raises:
            ValueError: an edge, or a constraint if the columns are complete, names an
                unknown variable; or every path to the target is forbidden.
        """
        have = {*columns, *self.variables, self.target}
        for name, what in self.named.items():
            # The same name in other letters is a slip even in a constraint.
            close = [n for n in have if n.casefold() == name.casefold()]
            if name not in have and (close or complete or what != "constraints"):
                close = close or difflib.get_close_matches(name, have, n=1)
                hint = f"there are {', '.join(sorted(have)):.200}."
                if close:
                    hint = f"is it {close[0]!r}?"
                raise ValueError(
                    f"{what} names {name!r}, but no row has it: {hint} Change the "
                    "name, or remove it."
                )
        # Otherwise every candidate would be equally good, and the budget wasted.
        # Search backwards from the target, over the edges that are not forbidden.
        names, forbidden = have | {*self.constraints}, set(self.forbidden)
        causes, pending = {self.target}, [self.target]
        while pending:
            effect = pending.pop()
            more = {n for n in names if (n, effect) not in forbidden} - causes
            causes |= more
            pending += more
        if not causes & {*self.variables}:
            raise ValueError(
                f"forbidden leaves no path by which {', '.join(self.variables):.200} "
                f"could cause {self.target!r}, so no experiment is worth its price: "
                "remove an edge."
            )

    @property
    def goal(self) -> str:
        """The goal in words, such as "a small pain"."""
        return f"a {'small' if self.minimize else 'large'} {self.target}"

    def allowed_sets(self) -> tuple[tuple[str, ...], ...]:
        """Return the sets of variables that one experiment may set, small sets first.

        Raises:
            ValueError: there are more than 400 of these sets.
        """
        names = tuple(self.variables)
        # Listed sets get the order of `variables`, so that (z, x) and (x, z) are one.
        largest = min(self.max_targets, len(names))
        found = dict.fromkeys(
            s for k in range(1, largest + 1) for s in itertools.combinations(names, k)
        ) | dict.fromkeys(tuple(n for n in names if n in s) for s in self.sets)
        kept = [
            s for s in found if not any({*bad} <= {*s} for bad in self.forbidden_sets)
        ]
        if len(kept) > _MAX_SETS:
            raise ValueError(
                f"max_targets={self.max_targets} allows {len(kept)} sets of variables, "
                f"but at most {_MAX_SETS} can be compared: lower it, and list larger "
                "sets in sets."
            )
        return tuple(sorted(kept, key=len))

    def _check_numbers(self) -> None:
        check_flag("minimize", self.minimize)
        for what, least in (
            ("max_targets", 1),
            ("rows_per_experiment", 1),
            ("num_posterior_samples", 8),
            ("seed", 0),
        ):
            check_integer(what, getattr(self, what), minimum=least)
        if self.num_posterior_samples > _MAX_SAMPLES:
            raise ValueError(
                f"num_posterior_samples must be <= {_MAX_SAMPLES}, got "
                f"{self.num_posterior_samples}."
            )
        if self.tolerance is not None:
            check_number("tolerance", self.tolerance, above=0)
        check_number("min_gain_per_cost", self.min_gain_per_cost, minimum=0)
        if not 0 < self.confidence <= 1:
            raise ValueError(f"confidence must be in (0, 1], got {self.confidence}.")

    def _check_edges(self) -> None:
        for what in ("required", "forbidden"):
            for pair in getattr(self, what):
                # A text of two letters must not count as two names.
                if not isinstance(pair, tuple) or len(pair) != 2:
                    raise ValueError(
                        f"{what} holds {pair!r}, which is not an edge: write "
                        "(cause, effect)."
                    )
        if cycle := _find_cycle(self.required):
            raise ValueError(
                f"required has the cycle {' -> '.join(cycle)}: causes must not form a "
                "cycle, so remove one of these edges."
            )
        # Sorted, as the order of a set of texts differs between processes.
        if both := sorted(set(self.required) & set(self.forbidden)):
            raise ValueError(
                f"the edge {both[0]} is both required and forbidden: remove one."
            )


def read_variables(given: Any) -> dict[str, Action]:
    """Read a mapping from names to ranges or other kinds of actions."""
    kinds = (Logarithmic, Integer, Binary, Categorical, Grid)
    pairs: Any = given
    if isinstance(given, Mapping):
        pairs = {n: each for n, each in given.items() if not isinstance(each, kinds)}
    read = read_pairs("variables", pairs)
    return {name: read[name] if name in read else given[name] for name in given}


def read_pairs(
    what: str, given: Any, *, half_open: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Read a mapping from names to pairs of numbers."""
    if not isinstance(given, Mapping) or not all(isinstance(n, str) for n in given):
        raise TypeError(
            f"{what} must be a mapping from names to pairs, such as "
            f"{{'x': (0.0, 1.0)}}, got {given!r:.80}."
        )

    def read_end(end: Any) -> float | None:
        if end is None and half_open:
            return None
        # `float` would read the texts "1" and "nan", and take True for 1.
        if end is None or isinstance(end, str | bool):
            raise TypeError
        return float(end)

    found: dict[str, tuple[Any, Any]] = {}
    for name, pair in given.items():
        try:
            low, high = map(read_end, pair)
        except (TypeError, ValueError):
            listed = isinstance(pair, list | tuple) and len(pair) > 2
            named = listed and all(isinstance(level, str) for level in pair)
            hint = ": give names of levels as Categorical(...)" if named else ""
            raise ValueError(
                f"{what}[{name!r}] must be a pair (least, greatest) of numbers, got "
                f"{pair!r:.80}{hint}."
            ) from None
        found[name] = low, high
    return found


def _check_range(name: str, low: float, high: float) -> None:
    must = f"variables[{name!r}] must be a range (least, greatest)"
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"{must}, both finite, got ({low}, {high}).")
    if low > high:
        raise ValueError(f"{must}, but ({low}, {high}) has its ends in reverse order.")
    if low == high:
        raise ValueError(f"{must}, but ({low}, {high}) has no width.")
    if max(-low, high) > _FLOAT32_MAX or np.float32(low) == np.float32(high):
        raise ValueError(
            f"variables[{name!r}] is ({low}, {high}), whose ends float32 cannot hold "
            "or tell apart: use another unit, or another zero."
        )


def _check_constraint(
    name: str,
    low: float | None,
    high: float | None,
    allowed: tuple[float, float] | None,
) -> None:
    bounds = [b for b in (low, high) if b is not None]
    if not bounds or not all(map(math.isfinite, bounds)):
        raise ValueError(
            f"constraints[{name!r}] needs a finite bound: (least, greatest), one of "
            "which may be None."
        )
    if len(bounds) == 2 and bounds[0] > bounds[1]:
        raise ValueError(
            f"constraints[{name!r}] has its bounds in reverse order: ({low}, {high})."
        )
    if allowed is not None and (
        (low is not None and low > allowed[1])
        or (high is not None and high < allowed[0])
    ):
        raise ValueError(
            f"constraints[{name!r}] is ({low}, {high}), which no value of its range "
            f"{allowed} keeps: change one of them."
        )


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise ValueError(
            f"{what} must be named by a non-empty text of one line, got {name!r:.80}."
        )


def _check_set(what: str, names: Iterable[str], known: Mapping[str, object]) -> None:
    if isinstance(names, str):
        raise ValueError(f"{what} holds {names!r}: write a set of names, ({names!r},).")
    if not tuple(names):
        raise ValueError(f"{what} holds an empty set: name its variables.")
    if len(set(names)) < len(tuple(names)):
        raise ValueError(f"{what} holds {names}, which names a variable twice.")
    for name in names:
        if name not in known:
            raise ValueError(
                f"{what} names {name!r}, which is not one of the variables "
                f"{', '.join(known):.200}."
            )


def _check_prices(budget: ExperimentBudget, known: Mapping[str, object]) -> None:
    # The budget alone would let an experiment with a misspelt price cost 1.
    priced = {name for name, _ in budget.costs}
    if priced and (wrong := sorted(priced ^ set(known))):
        verb = "has no price for"
        if wrong[0] in priced:
            verb = "has a price for"
        raise ValueError(
            f"the budget {verb} {wrong[0]!r}: price each of "
            f"{', '.join(known):.200} and nothing else, or nothing."
        )


def _find_cycle(edges: Iterable[tuple[str, str]]) -> list[str]:
    """Return a cycle of edges, its first name again at its end; [] without one."""
    graph: dict[str, set[str]] = {}
    for cause, effect in edges:
        graph.setdefault(effect, set()).add(cause)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as e:
        cycle = e.args[1][:-1]
        # graphlib starts anywhere in the cycle; the message must not depend on hashes.
        start = cycle.index(min(cycle))
        cycle = [*cycle[start:], *cycle[:start]]
        return [*cycle, cycle[0]]
    return []
