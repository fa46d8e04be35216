"""`RetypedProgram`: the operations of a program, on values of other types."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, use_abstract_mesh

from ._graph import MARKS
from ._jax_internals import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    fresh_var,
    with_changed_rules,
)


class RetypedProgram:
    """Changes the types of a program, and the parameters of its operations.

    Those of the programs inside of it as well, and of rules for derivatives; a subclass
    says how.
    """

    def __init__(self) -> None:
        self._atoms: dict[Var, Any] = {}

    def type_of(self, aval: Any) -> Any:
        """The new type of a value."""
        return aval

    def mesh_of(self, mesh: AbstractMesh) -> AbstractMesh:
        """The mesh that is set where an operation runs, in the place of another."""
        return mesh

    def parameter_of(self, value: Any) -> Any:
        """The new parameter of an operation."""
        return value

    def is_left_out(self, eqn: JaxprEqn) -> bool:
        """Whether the results of an operation are its operands."""
        return False

    def change(self, value: Any) -> Any:
        """The same program, or parameter of an operation, with other types."""
        if isinstance(value, ClosedJaxpr):  # JAX 0.12 has a single class for both
            return ClosedJaxpr(self._change_jaxpr(value.jaxpr), value.consts)
        if isinstance(value, Jaxpr):
            return self._change_jaxpr(value)
        if type(value) is tuple:  # a named tuple is a value of another kind
            return tuple(map(self.change, value))
        return self.parameter_of(value)

    def _change_jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        inputs = list(map(self._change_atom, jaxpr.invars))
        consts = list(map(self._change_atom, jaxpr.constvars))
        eqns = []
        for eqn in jaxpr.eqns:
            if self.is_left_out(eqn):
                operands = map(self._change_atom, eqn.invars)
                self._atoms.update(zip(eqn.outvars, operands, strict=True))
            else:
                eqns.append(self._change_operation(eqn))
        outputs = list(map(self._change_atom, jaxpr.outvars))
        return jaxpr.replace(
            constvars=consts, invars=inputs, eqns=eqns, outvars=outputs
        )

    def _change_operation(self, eqn: JaxprEqn) -> JaxprEqn:
        params = {name: self.change(value) for name, value in eqn.params.items()}
        context: Any = eqn.ctx
        # It remembers the mesh that was set where it was traced.
        if not context.cur_abstract_mesh.empty:
            mesh = self.mesh_of(context.cur_abstract_mesh)
            with context.manager, use_abstract_mesh(mesh):
                context = type(context)()
        return eqn.replace(
            invars=list(map(self._change_atom, eqn.invars)),
            outvars=list(map(self._change_atom, eqn.outvars)),
            params=with_changed_rules(params, self.change),
            ctx=context,
        )

    def _change_atom(self, atom: Any) -> Any:
        """The variable or number that takes the place of another."""
        if not isinstance(atom, Literal) and atom in self._atoms:
            return self._atoms[atom]
        aval = self.type_of(atom.aval)
        if aval is atom.aval:
            return atom
        if isinstance(atom, Literal):
            value = np.asarray(atom.val)
            # A number of Python is weakly typed, which an array of NumPy is not.
            if aval.weak_type and not value.ndim and jax.typeof(value.item()) == aval:
                value = value.item()
            return Literal(value, aval)
        self._atoms[atom] = fresh_var(aval)
        return self._atoms[atom]


class OutsideOfShardMap(RetypedProgram):
    """A program inside of a `shard_map` as one that can be run outside of it."""

    def type_of(self, aval: Any) -> Any:
        """Without the axes along which a value varies between devices."""
        if not getattr(aval, "manual_axis_type", None):
            return aval
        return jax.core.ShapedArray(aval.shape, aval.dtype, aval.weak_type)

    def mesh_of(self, mesh: AbstractMesh) -> AbstractMesh:
        """No mesh."""
        return AbstractMesh((), ())

    def is_left_out(self, eqn: JaxprEqn) -> bool:
        """Whether it only marks that values vary."""
        return eqn.primitive.name in MARKS
