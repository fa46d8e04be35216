"""A structural causal model: names outside, arrays inside.

Reads: equations as weights, or as functions of the user's own. Gives: one frozen
pytree. Its arrays: `_mechanisms.py`. Drawing from it: `_sample.py` in NumPy,
`_simulate.py` in JAX.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool

from .._shown import count_and_names
from ._equations import (
    Equation,
    by_name,
    check_known,
    finite,
    names_of,
    parents_read_by,
)
from ._mechanisms import KINDS, Mechanisms, blank
from ._noise import NOISES
from ._order import topological_order


@dataclasses.dataclass(frozen=True, eq=False)
class SCM:
    """Who causes whom, and how.

    A pytree whose leaves are the arrays of `mechanisms`; names and functions are
    static. Over models with other names `vmap` and `jit` go with `stack(models)`.

    Attributes:
        variables: names, in the order of columns.
        mechanisms: the arrays, for at least as many variables.
        target: the variable that a campaign wants to change; or None.
        hidden: variables that nobody observes: samples leave them out.
        functions: the user's own function of each variable or None; empty for none.
        graph: parents of each variable, by name; empty without functions. Those are
            called by name, so their graph must be known while a program is traced.
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
            raise ValueError(f"target {self.target!r} is hidden: nobody could see it.")

    def __repr__(self) -> str:
        said = [count_and_names(self.variables)]
        kind = self.mechanisms.kind
        if isinstance(kind, np.ndarray):  # not where it is traced or mapped over
            there = np.unique(kind[..., : len(self.variables)])
            said.append(", ".join(KINDS[k] for k in there))
        if self.target is not None:
            said.append(f"target {self.target}")
        if self.hidden:
            said.append(f"hidden {', '.join(self.hidden)}")
        return f"SCM({'; '.join(said)})"

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
        """A model whose variables are weighted sums of their parents, plus noise.

        Args:
            equations: for each variable its parents and their weights; `{}` for none.
            bias: constants; 0 where none is given.
            noise_scale: standard deviation of the noise, one for all or by name.
            noise: `"gaussian"`, `"laplace"`, `"uniform"` or `"student"` (4 degrees of
                freedom), one for all or by name.
            target: the variable that a campaign wants to change.
            hidden: variables that samples leave out.

        Raises:
            ValueError: an unknown name, a cycle, or a number that is not finite.

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
        """A model of weights and of functions of your own.

        A function gets the values of its parents by name and the noise, already times
        `noise_scale`, and returns the variable. Written with `jax.numpy`, or with
        operators only, it works in both samplers; with `numpy` in `sample` only.

        Args:
            equations: for each variable its weights, or its function.
            parents: of the functions. Without it each function is called once to see
                which names it reads; one that branches must be told.
            bias: constants of the variables that have weights.
            noise_scale: standard deviation of the noise, one for all or by name.
            noise: kind of noise, one for all or by name.
            target: the variable that a campaign wants to change.
            hidden: variables that samples leave out.

        Raises:
            TypeError: an equation is neither weights nor a function.
            ValueError: an unknown name, a cycle, or a number that is not finite.

        Example:
            >>> scm = SCM.create({"x": {}, "y": lambda p, e: p["x"] ** 2 + e})
            >>> scm.parents("y")
            ('x',)
        """
        names = names_of(equations)
        for what, given in (("parents", parents), ("bias", bias)):
            check_known(given or {}, names, what)
        m = blank((), len(names))
        functions: list[Callable[..., Any] | None] = [None] * len(names)
        for j, (name, equation) in enumerate(equations.items()):
            if isinstance(equation, Mapping):
                if name in (parents or {}):
                    raise ValueError(f"parents of {name!r}: its weights name them.")
                check_known(equation, names, f"the parents of {name!r}")
                for parent, weight in equation.items():
                    i = names.index(parent)
                    m.parents[i, j] = True
                    m.weight[i, j] = finite(weight, f"weight {parent!r} of {name!r}")
                m.bias[j] = finite((bias or {}).get(name, 0.0), f"bias of {name!r}")
            elif callable(equation):
                if name in (bias or {}):
                    raise ValueError(f"bias of {name!r}: its function adds its own.")
                told = (parents or {}).get(name)
                if told is None:
                    reads = parents_read_by(equation, name, names)
                else:
                    reads = tuple(told)
                check_known(reads, names, f"the parents of {name!r}")
                m.parents[[names.index(i) for i in reads], j] = True
                m.kind[j] = KINDS.index("function")
                functions[j] = equation
            else:
                raise TypeError(
                    f"the equation of {name!r} is {equation!r:.60}: give a dict of "
                    "weights ({} for no parents) or a function of parents and noise."
                )
        m.order[:] = topological_order(m.parents, names)
        scales = by_name(noise_scale, names, "noise_scale", 1.0)
        m.noise_scale[:] = [finite(s, "noise_scale") for s in scales]
        if (m.noise_scale < 0).any():
            raise ValueError(f"noise_scale must be >= 0, got {m.noise_scale.min():g}.")
        for j, kind in enumerate(by_name(noise, names, "noise", NOISES[0])):
            if kind not in NOISES:
                raise ValueError(
                    f"noise {kind!r} of {names[j]!r}: is none of {NOISES}."
                )
            m.noise[j] = NOISES.index(kind)
        scm = cls(names, m, target, tuple(hidden))
        if any(functions):
            graph = tuple(scm.parents(name) for name in names)
            scm = dataclasses.replace(scm, functions=tuple(functions), graph=graph)
        return scm

    @property
    def adjacency(self) -> Bool[np.ndarray, "d d"]:
        """Who is a direct cause of whom, `[parent, child]`."""
        if self.graph:
            pairs = [
                [name in causes for causes in self.graph] for name in self.variables
            ]
            return np.array(pairs)
        d = len(self.variables)
        return np.asarray(self.mechanisms.parents)[:d, :d]

    @property
    def order(self) -> tuple[str, ...]:
        """The variables, causes before effects."""
        if self.graph:
            order = topological_order(self.adjacency, self.variables)
        else:
            order = np.asarray(self.mechanisms.order)[: len(self.variables)].tolist()
        return tuple(self.variables[j] for j in order)

    @property
    def observed(self) -> tuple[str, ...]:
        """The variables that samples have: all but the hidden ones."""
        return tuple(name for name in self.variables if name not in self.hidden)

    def parents(self, name: str) -> tuple[str, ...]:
        """The direct causes of a variable.

        Args:
            name: the variable.

        Raises:
            ValueError: there is no such variable.
        """
        column = self.adjacency[:, self.index(name)]
        return tuple(self.variables[i] for i in np.flatnonzero(column))

    def ancestors(self, name: str) -> frozenset[str]:
        """All causes of a variable, direct and indirect.

        Args:
            name: the variable.

        Raises:
            ValueError: there is no such variable.
        """
        found = set(self.parents(name))
        for other in reversed(self.order):
            if other in found:
                found |= set(self.parents(other))
        return frozenset(found)

    def index(self, name: str) -> int:
        """The column of a variable.

        Args:
            name: the variable.

        Raises:
            ValueError: there is no such variable.
        """
        check_known([name], self.variables, "the model")
        return self.variables.index(name)

    def states(self, name: str) -> tuple[str, ...]:
        """What the values 0, 1... of a discrete variable are called; else nothing.

        Args:
            name: the variable.

        Raises:
            ValueError: there is no such variable.
        """
        column = self.index(name)
        return getattr(self.functions[column], "states", ()) if self.functions else ()

    def with_target(self, name: str | None) -> "SCM":
        """The same model with another target.

        Args:
            name: the variable; None for no target.

        Raises:
            ValueError: there is no such variable, or it is hidden.
        """
        return dataclasses.replace(self, target=name)


jax.tree_util.register_dataclass(
    SCM,
    data_fields=["mechanisms"],
    meta_fields=["variables", "target", "hidden", "functions", "graph"],
)
