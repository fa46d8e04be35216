"""`SCM`: a structural causal model, a pytree of mechanisms with named variables."""

import dataclasses
import graphlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool

from frugax.options import check_choice

from ..names import count_and_names
from ._equations import (
    Equation,
    check_known,
    check_names,
    detect_parents,
    expand_by_name,
    to_finite,
)
from ._mechanisms import KINDS, Mechanisms, empty_mechanisms
from ._noise import NOISES


@dataclasses.dataclass(frozen=True, eq=False)
class SCM:
    """A structural causal model.

    A pytree whose leaves are the arrays of `mechanisms`; names and functions are
    static.

    Attributes:
        variables: names, in the order of columns.
        mechanisms: the arrays, for at least as many variables.
        target: the variable that a campaign optimises, or None.
        hidden: unobserved variables; samples leave them out.
        functions: for each variable its user-defined function or None; empty without
            functions.
        graph: the parents of each variable, by name; empty without functions.
            Functions are called by name, so their graph must be static under tracing.
    """

    variables: tuple[str, ...]
    mechanisms: Mechanisms
    target: str | None = None
    hidden: tuple[str, ...] = ()
    functions: tuple[Callable[..., Any] | None, ...] = ()
    graph: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.target is not None:
            self.index(self.target)
        for name in self.hidden:
            self.index(name)
        if self.target in self.hidden:
            raise ValueError(
                f"target {self.target!r} is hidden: choose an observed variable."
            )

    def __repr__(self) -> str:
        parts = [count_and_names(self.variables)]
        kind = self.mechanisms.kind
        if isinstance(kind, np.ndarray):  # not a tracer, and not mapped over
            parts.append(
                ", ".join(KINDS[k] for k in np.unique(kind[..., : len(self.variables)]))
            )
        if self.target is not None:
            parts.append(f"target {self.target}")
        if self.hidden:
            parts.append(f"hidden {', '.join(self.hidden)}")
        return f"SCM({'; '.join(parts)})"

    @classmethod
    def linear(
        cls,
        equations: Mapping[str, Mapping[str, float]],
        *,
        bias: Mapping[str, float] | None = None,
        noise_scale: float | Mapping[str, float] = 1.0,
        noise: str | Mapping[str, str] = "gaussian",
        target: str | None = None,
        hidden: Iterable[str] = (),
    ) -> "SCM":
        """Build a linear model: each variable is a weighted sum of parents plus noise.

        Args:
            equations: for each variable its parents and their weights; `{}` for none.
            bias: constants by variable; 0 by default.
            noise_scale: standard deviation of the noise, one for all or by name.
            noise: `"gaussian"`, `"laplace"`, `"uniform"` or `"student"` (4 degrees of
                freedom), one for all or by name.
            target: the variable that a campaign optimises.
            hidden: variables that samples leave out.

        Raises:
            ValueError: a name is unknown, the graph has a cycle, or a number is not
                finite.

        Example:
            >>> scm = SCM.linear({"x": {}, "y": {"x": 2.0}}, target="y")
            >>> scm.parents("y")
            ('x',)
        """
        return cls.create(
            equations,
            bias=bias,
            noise_scale=noise_scale,
            noise=noise,
            target=target,
            hidden=hidden,
        )

    @classmethod
    def create(
        cls,
        equations: Mapping[str, Equation],
        *,
        parents: Mapping[str, Iterable[str]] | None = None,
        bias: Mapping[str, float] | None = None,
        noise_scale: float | Mapping[str, float] = 1.0,
        noise: str | Mapping[str, str] = "gaussian",
        target: str | None = None,
        hidden: Iterable[str] = (),
    ) -> "SCM":
        """Build a model from weights and user-defined functions.

        A function takes the values of its parents by name and the noise, already
        scaled by `noise_scale`, and returns the variable. Written with `jax.numpy`, or
        with operators only, it works in both samplers; with `numpy`, in `sample` only.

        Args:
            equations: for each variable its weights, or its function.
            parents: parents of the functions. By default each function is called once
                to record which names it reads; a function that branches on values
                needs its parents listed here.
            bias: constants of the variables that have weights.
            noise_scale: standard deviation of the noise, one for all or by name.
            noise: kind of noise, one for all or by name.
            target: the variable that a campaign optimises.
            hidden: variables that samples leave out.

        Raises:
            TypeError: an equation is neither weights nor a function.
            ValueError: a name is unknown, the graph has a cycle, or a number is not
                finite.

        Example:
            >>> scm = SCM.create({"x": {}, "y": lambda p, e: p["x"] ** 2 + e})
            >>> scm.parents("y")
            ('x',)
        """
        names = check_names(equations)
        parents, bias = parents or {}, bias or {}
        check_known(parents, names, "parents")
        check_known(bias, names, "bias")
        m = empty_mechanisms((), len(names))
        functions: list[Callable[..., Any] | None] = [None] * len(names)
        for j, (name, equation) in enumerate(equations.items()):
            where = f"the parents of {name!r}"
            if isinstance(equation, Mapping):
                if name in parents:
                    raise ValueError(f"parents of {name!r}: its weights name them.")
                check_known(equation, names, where)
                for parent, weight in equation.items():
                    i = names.index(parent)
                    m.parents[i, j] = True
                    m.weight[i, j] = to_finite(weight, f"weight {parent!r} of {name!r}")
                m.bias[j] = to_finite(bias.get(name, 0.0), f"bias of {name!r}")
            elif callable(equation):
                if name in bias:
                    raise ValueError(f"bias of {name!r}: its function adds its own.")
                if name in parents:
                    causes = tuple(parents[name])
                else:
                    causes = detect_parents(equation, name, names)
                check_known(causes, names, where)
                m.parents[[names.index(i) for i in causes], j] = True
                m.kind[j] = KINDS.index("function")
                functions[j] = equation
            else:
                raise TypeError(
                    f"the equation of {name!r} is {equation!r:.60}: give a dict of "
                    "weights ({} for no parents) or a function of parents and noise."
                )
        m.order[:] = topological_order(m.parents, names)
        scales = expand_by_name(noise_scale, names, "noise_scale", 1.0)
        m.noise_scale[:] = [to_finite(s, "noise_scale") for s in scales]
        if (m.noise_scale < 0).any():
            raise ValueError(f"noise_scale must be >= 0, got {m.noise_scale.min():g}.")
        for j, kind in enumerate(expand_by_name(noise, names, "noise", NOISES[0])):
            check_choice(f"noise of {names[j]!r}", kind, NOISES)
            m.noise[j] = NOISES.index(kind)
        scm = cls(names, m, target, tuple(hidden))
        # Under `jit` the array of parents is a tracer, which cannot choose names.
        if any(functions):
            graph = tuple(scm.parents(name) for name in names)
            scm = dataclasses.replace(scm, functions=tuple(functions), graph=graph)
        return scm

    @property
    def adjacency(self) -> Bool[np.ndarray, "d d"]:
        """The direct causes, `[parent, child]`."""
        if self.graph:
            return np.array(
                [[name in causes for causes in self.graph] for name in self.variables]
            )
        # Padding comes last and has neither causes nor effects.
        d = len(self.variables)
        return np.asarray(self.mechanisms.parents)[:d, :d]

    @property
    def order(self) -> tuple[str, ...]:
        """The variables in topological order, causes before effects."""
        if self.graph:
            order = topological_order(self.adjacency, self.variables)
        else:
            order = np.asarray(self.mechanisms.order)[: len(self.variables)].tolist()
        return tuple(self.variables[j] for j in order)

    @property
    def observed(self) -> tuple[str, ...]:
        """The variables that samples contain: all but the hidden ones."""
        return tuple(name for name in self.variables if name not in self.hidden)

    def parents(self, name: str) -> tuple[str, ...]:
        """Return the direct causes of a variable.

        Args:
            name: the variable.

        Raises:
            ValueError: there is no such variable.
        """
        column = self.adjacency[:, self.index(name)]
        return tuple(self.variables[i] for i in np.flatnonzero(column))

    def ancestors(self, name: str) -> frozenset[str]:
        """Return all causes of a variable, direct and indirect.

        Args:
            name: the variable.

        Raises:
            ValueError: there is no such variable.
        """
        found = set(self.parents(name))
        # In reverse order every effect comes before its causes: one pass finds them
        # all.
        for other in reversed(self.order):
            if other in found:
                found |= set(self.parents(other))
        return frozenset(found)

    def index(self, name: str) -> int:
        """Return the column of a variable.

        Args:
            name: the variable.

        Raises:
            ValueError: there is no such variable.
        """
        check_known([name], self.variables, "the model")
        return self.variables.index(name)

    def with_target(self, name: str | None) -> "SCM":
        """Return the same model with another target.

        Args:
            name: the variable; None for no target.

        Raises:
            ValueError: there is no such variable, or it is hidden.
        """
        return dataclasses.replace(self, target=name)


# A change of a static field compiles anew, a change of the arrays does not.
jax.tree_util.register_dataclass(
    SCM,
    data_fields=["mechanisms"],
    meta_fields=["variables", "target", "hidden", "functions", "graph"],
)


def topological_order(
    parents: Bool[np.ndarray, "D D"], names: tuple[str, ...]
) -> list[int]:
    """Order the variables, given as `[parent, child]`, causes before effects."""
    sorter = graphlib.TopologicalSorter[int]()
    # All nodes enter first, in column order: ties then keep the order of the columns.
    for j in range(len(names)):
        sorter.add(j)
    for j in range(len(names)):
        sorter.add(j, *np.flatnonzero(parents[:, j]).tolist())
    try:
        return list(sorter.static_order())
    except graphlib.CycleError as error:
        cycle = " -> ".join(names[j] for j in error.args[1])
        raise ValueError(
            f"the edges run in a cycle: {cycle}. Remove one of them."
        ) from error
