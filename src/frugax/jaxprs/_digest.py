"""Hash a traced program, equally in every process, and find its constants."""

import dataclasses
import enum
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from frugax.trees import is_random_key

from ._jax_internals import ClosedJaxpr, Jaxpr, Literal


def digest(program: ClosedJaxpr) -> str:
    """Hash a program's operations, parameters, wiring and constants.

    Neither the place in the source nor the names of variables count, and nothing is
    printed: JAX's text of a program depends on the terminal. Functions that are
    parameters, such as those of callbacks, count by their names.

    Args:
        program: the result of `jax.make_jaxpr(f)(*args)`.

    Returns:
        The SHA-256, in hexadecimal.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> programs = [jax.make_jaxpr(f)(1.0) for f in (jnp.sin, jnp.sin, jnp.cos)]
        >>> sine, again, cosine = map(digest, programs)
        >>> sine == again, sine == cosine
        (True, False)
    """
    writer = _Writer()
    writer.write(program)
    return writer.hash.hexdigest()


class _Writer:
    """Writes the structure of a program into a hash."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, value: Any) -> None:
        """Write a program, a parameter of an operation, or a constant."""
        match value:
            case None | bool() | int() | float() | complex() | str() | bytes():
                self._leaf(type(value).__name__, repr(value))
            case ClosedJaxpr():
                self._leaf("closed", "")
                self._sequence(value.consts)
                self._program(value.jaxpr)
            case Jaxpr():
                self._program(value)
            case enum.Enum():
                self._leaf(_name(type(value)), value.name)
            case np.dtype() | type():
                self._leaf("type", _name(value))
            case jax.Array() | np.ndarray() | np.generic():
                self._array(value)
            case functools.partial():
                self._leaf("partial", "")
                self.write(value.func)
                self._sequence(value.args)
                self.write(value.keywords)
            case jax.sharding.NamedSharding():
                self._leaf("sharding", str(value.memory_kind))
                self._sequence((tuple(value.mesh.shape.items()), tuple(value.spec)))
            case Mapping():
                self._leaf(_name(type(value)), str(len(value)))
                for key, item in value.items():
                    self.write(key)
                    self.write(item)
            case set() | frozenset():
                members = sorted(map(_digest_of, value))
                self._leaf("set", str(members))
            case tuple() | list():
                self._leaf(_name(type(value)), "")
                self._sequence(value)
            case _ if dataclasses.is_dataclass(value):
                self._leaf(_name(type(value)), "")
                fields = dataclasses.fields(value)
                self._sequence([getattr(value, f.name) for f in fields])
            case _ if hasattr(value, "__qualname__"):
                self._leaf("function", _name(value))
            case _:
                # Of other objects no structure is known here; the addresses in their
                # texts differ between processes.
                text = re.sub("0x[0-9a-f]+", "", repr(value))
                self._leaf(_name(type(value)), text)

    def _leaf(self, kind: str, text: str) -> None:
        # With the length, so that two leaves cannot be read as one.
        self.hash.update(f"{kind} {len(text)} {text};".encode())

    def _sequence(self, values: Any) -> None:
        self._leaf("sequence", str(len(values)))
        for value in values:
            self.write(value)

    def _program(self, jaxpr: Jaxpr) -> None:
        numbers: dict[Any, int] = {}

        def define(variables: Any) -> None:
            for v in variables:
                numbers[v] = len(numbers)
                self._aval(v.aval)

        def read(atoms: Any) -> None:
            for v in atoms:
                if isinstance(v, Literal):
                    self._aval(v.aval)
                    self.write(v.val)
                else:
                    self._leaf("variable", str(numbers[v]))

        self._leaf("program", f"{len(jaxpr.constvars)} {len(jaxpr.invars)}")
        define([*jaxpr.constvars, *jaxpr.invars])
        for eqn in jaxpr.eqns:
            self._leaf("operation", eqn.primitive.name)
            read(eqn.invars)
            for name in sorted(eqn.params):
                self._leaf("parameter", name)
                self.write(eqn.params[name])
            define(eqn.outvars)
        self._leaf("results", str(len(jaxpr.outvars)))
        read(jaxpr.outvars)

    def _aval(self, aval: Any) -> None:
        shape = getattr(aval, "shape", None)
        dtype = getattr(aval, "dtype", type(aval).__name__)
        self._leaf("aval", f"{shape} {dtype} {getattr(aval, 'weak_type', False)}")

    def _array(self, value: Any) -> None:
        if is_random_key(value):
            self._leaf("key", str(jax.random.key_impl(value)))
            value = jax.random.key_data(value)
        array = np.asarray(value)
        self._leaf("array", f"{array.dtype}{array.shape}")
        self.hash.update(np.ascontiguousarray(array).tobytes())


def _digest_of(value: Any) -> str:
    writer = _Writer()
    writer.write(value)
    return writer.hash.hexdigest()


def _name(value: Any) -> str:
    module = getattr(value, "__module__", "")
    name = getattr(value, "__qualname__", None)
    if name is None:
        name = getattr(value, "name", None) or type(value).__qualname__
    return f"{module}.{name}"


def constants(program: ClosedJaxpr) -> tuple[Any, ...]:
    """The arrays that a program closes over at any depth, in a fixed order.

    Args:
        program: the result of `jax.make_jaxpr(f)(*args)`.

    Example:
        >>> import jax, numpy as np
        >>> table = np.arange(3)
        >>> (found,) = constants(jax.make_jaxpr(lambda i: i + table)(table))
        >>> found.tolist()
        [0, 1, 2]
    """
    return tuple(_constants(program))


def _constants(part: ClosedJaxpr | Jaxpr) -> Iterator[Any]:
    if isinstance(part, ClosedJaxpr):
        yield from part.consts
        part = part.jaxpr
    for eqn in part.eqns:
        # JAX may also embed an array in an operation, depending on its settings.
        yield from (
            v.val for v in eqn.invars if isinstance(v, Literal) and np.ndim(v.val)
        )
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, ClosedJaxpr | Jaxpr):
                    yield from _constants(inner)
