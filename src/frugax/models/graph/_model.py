"""A model: layers and how they are wired, added in turn or collected from results."""

import re
from typing import Any

from ._calls import Calls
from ._connection import Connection, IOKey
from ._describe import tree
from ._layer import Layer, LayerCall, LayerOutput, WiredLayer


class Model(Calls):
    """Layers wired together; itself a layer of larger models.

    Example:
        >>> from frugax.models import Linear, Model, Relu
        >>> model = Model()
        >>> model |= Linear(dimension=64)(input="input", output="hidden")
        >>> model += Relu()
        >>> model += Linear(dimension=10)(output="output")
        >>> model
        Model(input -> output)
          linear_0: Linear(dimension=64) of input
          relu_0: Relu() of linear_0
          linear_1: Linear(dimension=10) of relu_0
    """

    def __init__(self, *layers: Layer, name: str | None = None) -> None:
        """A model of these layers, each following the one before.

        Args:
            layers: the first layers; more can be added with `|=` and `+=`.
            name: what it is called in a larger model.
        """
        super().__init__(name=name)
        self._members: set[int] = set()
        self._final = False
        for layer in layers:
            self._add(layer, follow=True)

    def __repr__(self) -> str:
        return tree(self)

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
        """Add a layer as it is wired; ports left open are inputs of the port's name.

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

    def __call__(self, *inputs: Any, **wires: Any) -> Any:
        self._final = True
        return super().__call__(*inputs, **wires)

    def _add(self, added: Any, *, follow: bool) -> None:
        """What `|=` and `+=` do.

        Raises:
            TypeError: it is nothing that a model takes.
            ValueError: the model is part of another one, or a name is taken.
        """
        if self._final:
            raise ValueError(
                f"{self.title} is part of another model already, so it cannot be "
                "extended. Finish it first."
            )
        if isinstance(added, LayerOutput):
            self._collect(added)
            self._last = added
            return
        if isinstance(added, Layer):
            added = WiredLayer(LayerCall(added, {}, {}))
        if not isinstance(added, WiredLayer):
            raise TypeError(
                "a model takes layers and wired layers such as "
                f'Linear(8)(input="x", output="y"), got {added!r:.60}.'
            )
        layer, wires = added.call.layer, dict(added.call.wires)
        open_ports = [p for p in layer.needed if p not in wires]
        fed = any(p in wires for p in layer.inputs)
        if follow and self._last is not None and not fed and layer.inputs:
            first = open_ports.pop(0) if open_ports else layer.inputs[0]
            wires[first] = self._last
        wires |= {port: IOKey(port) for port in open_ports}
        for wire in wires.values():
            self._collect(wire)
        self._append(LayerCall(layer, wires, added.call.names, self))

    def _append(self, call: LayerCall) -> None:
        """Add one call, whose inputs are there.

        Raises:
            ValueError: a name is taken, or the layer is this model.
        """
        name = call.layer.name
        if name is not None:
            self._check_layer_name(name)
        if call.layer is self:
            raise ValueError(f"{self.title} cannot be a layer of itself.")
        if isinstance(call.layer, Model):
            call.layer._final = True
        for port, key in call.names.items():
            self._name(key.name, LayerOutput(call, port))
        self._calls.append(call)
        self._members.add(id(call))
        self._found.clear()
        self._last = LayerOutput(call, call.layer.outputs[0])

    def _check_layer_name(self, name: str) -> None:
        """See that a layer can be called so.

        Raises:
            ValueError: it cannot.
        """
        if not re.fullmatch(r"[A-Za-z0-9_\-]+", name):
            raise ValueError(
                f"a layer's name is made of letters, digits, _ and -, got {name!r}."
            )
        if any(call.layer.name == name for call in self._calls):
            raise ValueError(
                f"two layers are called {name!r}; give one of them another name."
            )

    def _name(self, key: str, result: LayerOutput) -> None:
        """Give a result a name.

        Raises:
            ValueError: another result has it.
        """
        before = self._named.get(key)
        if before is not None:
            raise ValueError(
                f"two results are called {key!r}: those of {before.call.layer.title} "
                f"and of {result.call.layer.title}. Give one of them another name."
            )
        self._named[key] = result
        self._found.clear()

    def _collect(self, wire: Connection) -> None:
        """Add the calls that a connection comes from, those first that others need.

        Raises:
            ValueError: it comes from another model.
        """
        waiting: list[Connection] = [wire]
        while waiting:
            top = waiting[-1]
            if not isinstance(top, LayerOutput) or id(top.call) in self._members:
                waiting.pop()
                continue
            if top.call.owner is not None:
                raise ValueError(
                    f"what {top.call.layer.title} gives belongs to another model, by "
                    "whose names it is wired; add that model as a layer instead."
                )
            needs = [
                w
                for w in top.call.wires.values()
                if isinstance(w, LayerOutput) and id(w.call) not in self._members
            ]
            if needs:
                waiting += reversed(needs)
                continue
            self._append(top.call)
            waiting.pop()

    def _expose(self, key: str, value: Connection) -> None:
        if not isinstance(value, LayerOutput):  # an input: an op in between
            made = value._op("identity", value)
            assert isinstance(made, LayerOutput)
            value = made
        self._collect(value)
        if key not in self._named or self._named[key].place != value.place:
            self._name(key, value)
        self._exposed[key] = None
