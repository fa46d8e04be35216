"""`Model`: layers wired together by name; itself a layer of larger models."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ._connection import Connection, IOKey
from ._describe import tree
from ._layer import Layer, LayerCall, LayerOutput, WeightRef

T = TypeVar("T")


class Model(Layer):
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
        """Make a model of layers that follow each other.

        Args:
            *layers: the first layers; more can be added with `|=` and `+=`.
            name: the name of the model in a larger model.
        """
        super().__init__(name=name)
        self._calls: list[LayerCall] = []
        # The calls in the model by identity, so that collecting a connection again is
        # cheap.
        self._members: set[int] = set()
        self._named: dict[str, LayerOutput] = {}
        self._exposed: dict[str, None] = {}  # an ordered set
        self._last: LayerOutput | None = None
        self._is_final = False
        self._cache: dict[Any, Any] = {}  # cleared by every change
        for layer in layers:
            self._add(layer, follow=True)

    # Layers are frozen dataclasses that compare by their settings. A model grows, so it
    # is mutable and equal to itself only.
    __setattr__ = object.__setattr__
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    # A model may still grow, so two models are equal blocks only if they are the same
    # object.
    def structural_key(self) -> Any:
        return self

    def __repr__(self) -> str:
        return tree(self)

    @classmethod
    def create(
        cls, *output: Connection, name: str | None = None, **outputs: Connection
    ) -> "Model":
        """Make the model that computes these outputs.

        Args:
            *output: one connection, the output called "output".
            name: the name of the model in a larger model.
            **outputs: a connection for each output.

        Raises:
            TypeError: an output is not a connection, or none is given.
        """
        outputs = dict(zip(("output",), output, strict=False)) | outputs
        if not outputs or len(output) > 1:
            raise TypeError(
                "Model.create needs an output by position, or several by name: "
                "Model.create(y) or Model.create(mean=y, scale=z)."
            )
        model = cls(name=name)
        for key, value in outputs.items():
            if not isinstance(value, Connection):
                raise TypeError(
                    f"Model.create: {key!r} must be a connection, got {value!r:.60}."
                )
            model._expose(key, value)
        return model

    # --- adding layers ------------------------------------------------------------

    def __ior__(self, added: Any) -> "Model":
        """Add a layer as it is wired; open ports become inputs with the port's name."""
        self._add(added, follow=False)
        return self

    def __iadd__(self, added: Any) -> "Model":
        """Add a layer whose first open port reads the last output."""
        self._add(added, follow=True)
        return self

    def __call__(self, *inputs: Any, **wires: Any) -> Any:
        # Whoever wires a model reads its ports now; a layer added later could change
        # them.
        self._is_final = True
        return super().__call__(*inputs, **wires)

    def _add(self, added: Any, *, follow: bool) -> None:
        """Add a layer, for `|=` and `+=`."""
        if self._is_final:
            raise ValueError(
                f"{self.title} is part of another model already, so it cannot be "
                "extended. Finish it first."
            )
        if isinstance(added, Layer):
            added = added._call_open()
        # The outputs of one call; adding one of them adds the call.
        if isinstance(added, tuple) and added and isinstance(added[0], LayerOutput):
            added = added[0]
        if not isinstance(added, LayerOutput):
            raise TypeError(
                "a model takes layers and wired layers such as "
                f'Linear(8)(input="x", output="y"), got {added!r:.60}.'
            )
        if added.call.by_name:
            follows = self._last if follow else None
            added = LayerOutput(added.call.close(self, follows), added.port)
        self._collect(added)
        self._last = added

    def _append(self, call: LayerCall) -> None:
        """Add one call whose inputs are in the model already."""
        name = call.layer.name
        if name is not None:
            self._check_layer_name(name)
        if call.layer is self:
            raise ValueError(f"{self.title} cannot be a layer of itself.")
        if isinstance(call.layer, Model):
            call.layer._is_final = True
        for port, key in call.names.items():
            self._name(key.name, LayerOutput(call, port))
        self._calls.append(call)
        self._members.add(id(call))
        self._cache.clear()
        self._last = LayerOutput(call, call.layer.outputs[0])

    def _check_layer_name(self, name: str) -> None:
        """Check the name of a new layer."""
        if not re.fullmatch(r"[A-Za-z0-9_\-]+", name):
            raise ValueError(
                f"a layer's name is made of letters, digits, _ and -, got {name!r}."
            )
        if any(call.layer.name == name for call in self._calls):
            raise ValueError(
                f"two layers are called {name!r}; give one of them another name."
            )

    def _name(self, key: str, output: LayerOutput) -> None:
        """Name an output of a layer."""
        before = self._named.get(key)
        if before is not None:
            raise ValueError(
                f"two results are called {key!r}: those of {before.call.layer.title} "
                f"and of {output.call.layer.title}. Give one of them another name."
            )
        self._named[key] = output
        self._cache.clear()

    def _collect(self, wire: Connection) -> None:
        """Add the calls that a connection depends on, dependencies first."""
        # A stack and not a recursion: models may be deeper than Python's stack.
        stack: list[Connection] = [wire]
        while stack:
            top = stack[-1]
            if not isinstance(top, LayerOutput) or id(top.call) in self._members:
                stack.pop()
                continue
            if top.call.by_name and top.call.owner is None:
                top.call.close(self)
            if top.call.owner not in (None, self):
                raise ValueError(
                    f"the output of {top.call.layer.title} belongs to another model, "
                    "by whose names it is wired; add that model as a layer instead."
                )
            missing = [
                w
                for w in top.call.wires.values()
                if isinstance(w, LayerOutput) and id(w.call) not in self._members
            ]
            if missing:
                stack += reversed(missing)
                continue
            self._append(top.call)
            stack.pop()

    def _expose(self, key: str, value: Connection) -> None:
        if not isinstance(value, LayerOutput):
            # An input as an output: outputs are found by the calls that compute them.
            identity = value._op("identity", value)
            assert isinstance(identity, LayerOutput)
            value = identity
        self._collect(value)
        if key not in self._named or self._named[key].place != value.place:
            self._name(key, value)
        self._exposed[key] = None

    # --- reading the model ----------------------------------------------------------

    def __getitem__(self, key: str) -> Connection:
        """The output or input called `key`."""
        return self._resolve(IOKey(key), by_name=True)

    def _memoize(self, key: Any, compute: Callable[[], T]) -> T:
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]

    @property
    def calls(self) -> tuple[tuple[str, LayerCall], ...]:
        """Each use of a layer with its name, in the order of adding."""
        return self._memoize("calls", self._name_calls)

    def _name_calls(self) -> tuple[tuple[str, LayerCall], ...]:
        # Names of the user first: a generated name must avoid those that are added
        # later, too.
        taken = {call.layer.name for call in self._calls}
        counts: dict[str, int] = {}
        named: list[tuple[str, LayerCall]] = []
        for call in self._calls:
            name, kind = call.layer.name, call.layer.kind
            while name is None:
                name = f"{kind}_{counts.get(kind, 0)}"
                counts[kind] = counts.get(kind, 0) + 1
                if name in taken:
                    name = None
            named.append((name, call))
        return tuple(named)

    def wires(self, call: LayerCall) -> Mapping[str, Connection]:
        """The connection at each port of a call, after looking names up.

        Where a layer was added by `|=` or `+=`, a key may name an output of another.

        Raises:
            ValueError: a key names a weight of a layer that does not exist.
        """
        return self._memoize(
            ("wires", id(call)),
            lambda: {
                port: self._resolve(wire, by_name=call.owner is self)
                for port, wire in call.wires.items()
            },
        )

    def _resolve(self, wire: Connection, *, by_name: bool) -> Connection:
        """Look up a key that may name an output of a layer or the path of a weight."""
        if not isinstance(wire, IOKey):
            return wire
        # Names are looked up late, so that a layer may read a key whose layer is added
        # afterwards.
        if not wire.is_weight:
            if by_name:
                return self._named.get(wire.name, wire)
            return wire
        owner, _, weight = wire.name.partition(".")
        call = self._memoize("by name", lambda: dict(self.calls)).get(owner)
        if call is None:
            raise ValueError(
                f"{wire.name!r} is the weight {weight!r} of a layer {owner!r}, but "
                f"there are only the layers {', '.join(n for n, _ in self.calls)}."
            )
        return WeightRef(call, weight)

    @property
    def keys(self) -> Mapping[str, IOKey]:
        """The inputs of the model by name, with all that is known of each."""
        return self._memoize("keys", self._merge_keys)

    def _merge_keys(self) -> dict[str, IOKey]:
        found: dict[str, IOKey] = {}
        for call in self._calls:
            for wire in self.wires(call).values():
                if isinstance(wire, IOKey):
                    before = found.get(wire.name, wire)
                    found[wire.name] = merge_keys(before, wire)
        return found

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.keys)

    @property
    def results(self) -> Mapping[str, LayerOutput]:
        """The outputs of the model by name.

        These are the outputs that were exposed, or that have a name and no reader, and
        the output of the last layer if it has no reader.

        Raises:
            ValueError: the model is empty, or nothing reads a layer.
        """
        return self._memoize("results", self._find_results)

    def _find_results(self) -> dict[str, LayerOutput]:
        """Find the outputs; see `results`."""
        if self._last is None:
            raise ValueError("the model has no layers; add one with `model += ...`.")
        wires = [wire for call in self._calls for wire in self.wires(call).values()]
        used = {wire.place for wire in wires if isinstance(wire, LayerOutput)}
        results: dict[str, LayerOutput] = {}
        for key, output in self._named.items():
            name = output.call.names.get(output.port)
            is_exposed = key in self._exposed or (name is not None and name.expose)
            if is_exposed or (output.place not in used and not self._exposed):
                results[key] = output
        used |= {output.place for output in results.values()}
        last = self._last
        is_unread = last.place not in used and last.port not in results
        if not self._exposed and (is_unread or not results):
            results[last.port] = last
            used.add(last.place)
        # An owner of a shared weight may serve for its weight alone.
        shared = {id(wire.call) for wire in wires if isinstance(wire, WeightRef)}
        for name, call in self.calls:
            places = {(id(call), port) for port in call.layer.outputs}
            # With exposed outputs an unread layer is legal: flatten leaves it out.
            if not (places & used or id(call) in shared or self._exposed):
                raise ValueError(
                    f"nothing reads the output of layer {name!r}: wire it to a layer, "
                    "name it as an output, or leave the layer out."
                )
        return results

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.results)


def merge_keys(one: IOKey, other: IOKey) -> IOKey:
    """Merge two keys of one input into one that states everything known."""
    for what, first, second in (
        ("shape", one.known_shape, other.known_shape),
        ("dtype", one.dtype, other.dtype),
    ):
        if None not in (first, second) and first != second:
            raise ValueError(
                f"input {one.name!r} is given the {what} {first} in one place and "
                f"{second} in another."
            )
    shape = one.known_shape
    if shape is None:
        shape = other.known_shape
    trainable = one.trainable or other.trainable
    return IOKey(one.name, shape, one.dtype or other.dtype, trainable=trainable)
