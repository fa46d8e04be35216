"""A model: layers and how they are wired, added one by one or collected from results."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ._connection import Connection, Constant, IOKey, Result, as_connection
from ._layer import Call, Layer, Wired


class Model(Layer):
    """Layers wired together; itself a layer of larger models.

    Example:
        >>> from frugax.models import Linear, Model, Relu
        >>> model = Model()
        >>> model |= Linear(dimension=64)(input="input", output="hidden")
        >>> model += Relu()
        >>> model += Linear(dimension=10)(output="output")
        >>> model.outputs
        ('output',)
    """

    def __init__(self, *layers: Layer, name: str | None = None) -> None:
        """A model of these layers, each following the one before.

        Args:
            layers: the first layers; more can be added with `|=` and `+=`.
            name: what it is called in a larger model.
        """
        super().__init__(name=name)
        object.__setattr__(self, "_calls", [])
        object.__setattr__(self, "_named", {})
        object.__setattr__(self, "_last", None)
        object.__setattr__(self, "_final", False)
        for layer in layers:
            self += layer  # noqa: PLW0642 - __iadd__ gives the same object back

    _calls: list[Call]
    _named: dict[str, Result]
    _last: Result | None
    _final: bool

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def create(cls, *, name: str | None = None, **outputs: Connection) -> "Model":
        """The model that computes these results.

        Args:
            name: what it is called in a larger model.
            outputs: a connection for each output.

        Raises:
            TypeError: an output is no connection, or there is none.
        """
        if not outputs:
            raise TypeError("Model.create needs an output: Model.create(output=y).")
        model = cls(name=name)
        for key, value in outputs.items():
            if not isinstance(value, Connection):
                raise TypeError(
                    f"Model.create: {key!r} must be a connection, got {value!r:.60}."
                )
            model._expose(key, value)
        return model

    def __ior__(self, added: Any) -> "Model":
        """Add a layer as it is wired.

        Args:
            added: a layer, a wired layer, or a connection.
        """
        self._add(added, follow=False)
        return self

    def __iadd__(self, added: Any) -> "Model":
        """Add a layer whose first open port takes the last result.

        Args:
            added: a layer or a wired layer.
        """
        self._add(added, follow=True)
        return self

    def _add(self, added: Any, *, follow: bool) -> None:
        if self._final:
            raise ValueError(
                f"{self.title} is part of another model already, so it cannot be "
                "extended. Finish it first."
            )
        if isinstance(added, Result):
            self._collect(added)
            self._last = added
            return
        if isinstance(added, Layer):
            added = Wired(Call(added, {}, {}))
        if not isinstance(added, Wired):
            raise TypeError(
                "a model takes layers and wired layers such as "
                f'Linear(8)(input="x", output="y"), got {added!r:.60}.'
            )
        call = added.call
        layer, wires = call.layer, dict(call.wires)
        needed = [p for p in layer.inputs if p not in wires]
        open_ports = [p for p in needed if p not in layer.optional]
        if follow and self._last is not None and not any(
            p in wires for p in layer.inputs
        ):
            first = open_ports.pop(0) if open_ports else layer.inputs[0]
            wires[first] = self._last
        for port in open_ports:
            wires[port] = IOKey(port)
        for wire in wires.values():
            self._collect(wire)
        self._append(Call(layer, wires, call.names))

    def _append(self, call: Call) -> None:
        if isinstance(call.layer, Model):
            call.layer._final = True
        self._calls.append(call)
        for port, key in call.names.items():
            self._name(key, Result(call, port))
        self._last = Result(call, call.layer.outputs[0])

    def _name(self, key: IOKey, result: Result) -> None:
        before = self._named.get(key.name)
        if before is not None:
            raise ValueError(
                f"two results are called {key.name!r}: those of "
                f"{before.call.layer.title} and of {result.call.layer.title}. Give "
                "one of them another name."
            )
        self._named[key.name] = result

    def _collect(self, wire: Connection) -> None:
        """Add the calls that a connection comes from, those first that others need."""
        known = set(map(id, self._calls))
        waiting: list[Connection] = [wire]
        while waiting:
            top = waiting[-1]
            if not isinstance(top, Result) or id(top.call) in known:
                waiting.pop()
                continue
            needs = [
                w
                for w in top.call.wires.values()
                if isinstance(w, Result) and id(w.call) not in known
            ]
            if needs:
                waiting += needs
                continue
            missing = [
                p
                for p in top.call.layer.inputs
                if p not in top.call.wires and p not in top.call.layer.optional
            ]
            for port in missing:
                top.call.wires[port] = IOKey(port)
            known.add(id(top.call))
            self._append(top.call)
            waiting.pop()

    def _expose(self, key: str, value: Connection) -> None:
        if isinstance(value, Result):
            self._collect(value)
            already = next(
                (k for k, r in self._named.items() if _same(r, value)), None
            )
            if already is None:
                self._name(IOKey(key), value)
                self._exposed[key] = None
                return
            if already == key:
                self._exposed[key] = None
                return
        from ._op_layer import op  # an input as an output needs an op in between

        made = op("identity")(value)
        self._collect(made)
        self._name(IOKey(key), made)
        self._exposed[key] = None

    @property
    def _exposed(self) -> dict[str, None]:
        return self.__dict__.setdefault("_shown", {})

    def __getitem__(self, key: str) -> Connection:
        """The result or input called `key`."""
        return self._named.get(key) or IOKey(key)

    @property
    def calls(self) -> tuple[tuple[str, Call], ...]:
        """Each use of a layer with its name, in the order of adding.

        Raises:
            ValueError: two layers are given the same name.
        """
        return tuple(self._with_names())

    def _with_names(self) -> Iterator[tuple[str, Call]]:
        given: set[str] = set()
        for call in self._calls:
            name = call.layer.name
            if name is None:
                continue
            if name in given:
                raise ValueError(
                    f"two layers are called {name!r}; give one of them another name."
                )
            if not re.fullmatch(r"[A-Za-z0-9_\-]+", name):
                raise ValueError(
                    f"a layer's name is made of letters, digits, _ and -, got {name!r}."
                )
            given.add(name)
        counts: dict[str, int] = {}
        for call in self._calls:
            name = call.layer.name
            while name is None or (call.layer.name is None and name in given):
                kind = call.layer.kind
                name = f"{kind}_{counts.get(kind, 0)}"
                counts[kind] = counts.get(kind, 0) + 1
            yield name, call

    def resolve(self, wire: Connection) -> Connection:
        """What a wire means here: a key that names a result means that result."""
        if isinstance(wire, IOKey) and wire.name in self._named:
            return self._named[wire.name]
        return wire

    @property
    def keys(self) -> Mapping[str, IOKey]:
        """The model's inputs by name, each as fully described as it is anywhere."""
        found: dict[str, IOKey] = {}
        for call in self._calls:
            for wire in call.wires.values():
                if isinstance(wire, IOKey) and wire.name not in self._named:
                    before = found.get(wire.name)
                    if before is None or (before.shape is None and wire.shape):
                        found[wire.name] = wire
        return found

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.keys)

    @property
    def results(self) -> dict[str, Result]:
        """The model's outputs by name.

        Those that were exposed and those that are named and read by nobody; if there
        is neither, what comes out of the last layer.

        Raises:
            ValueError: the model is empty.
        """
        if not self._calls:
            raise ValueError("the model has no layers; add one with `model += ...`.")
        read = {
            (id(wire.call), wire.port)
            for call in self._calls
            for wire in map(self.resolve, call.wires.values())
            if isinstance(wire, Result)
        }
        shown: dict[str, Result] = {}
        for key, result in self._named.items():
            name = result.call.names.get(result.port)
            is_shown = key in self._exposed or (name is not None and name.expose)
            unread = (id(result.call), result.port) not in read
            if is_shown or (unread and not self._exposed):
                shown[key] = result
        if shown:
            return shown
        last = self._last
        assert last is not None
        return {port: Result(last.call, port) for port in last.call.layer.outputs[:1]}

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.results)


def _same(one: Connection, other: Connection) -> bool:
    return (
        isinstance(one, Result)
        and isinstance(other, Result)
        and one.call is other.call
        and one.port == other.port
    )


__all__ = ["Constant", "Model", "as_connection"]
