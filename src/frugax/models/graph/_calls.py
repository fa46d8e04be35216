"""What is in a model: its layers by name, what their wires mean, and what comes out."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ._connection import Connection, IOKey
from ._layer import Layer, LayerCall, LayerOutput, WeightRef

T = TypeVar("T")


class Calls(Layer):
    """Base of `Model`: what it holds, and how that reads."""

    def __init__(self, *, name: str | None) -> None:
        super().__init__(name=name)
        self._calls: list[LayerCall] = []
        self._named: dict[str, LayerOutput] = {}
        self._exposed: dict[str, None] = {}
        self._last: LayerOutput | None = None
        self._found: dict[Any, Any] = {}  # what was worked out since the last change

    # A model grows, unlike other layers; and each is equal to itself only.
    __setattr__ = object.__setattr__
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def structural_key(self) -> Any:
        return self

    def __getitem__(self, key: str) -> Connection:
        """The result or input called `key`."""
        return self._meant(IOKey(key), by_name=True)

    def _once(self, what: Any, find: Callable[[], T]) -> T:
        if what not in self._found:
            self._found[what] = find()
        return self._found[what]

    @property
    def calls(self) -> tuple[tuple[str, LayerCall], ...]:
        """Each use of a layer with its name, in the order of adding."""
        return self._once("calls", self._find_names)

    def _find_names(self) -> tuple[tuple[str, LayerCall], ...]:
        given = {call.layer.name for call in self._calls}
        counts: dict[str, int] = {}
        named: list[tuple[str, LayerCall]] = []
        for call in self._calls:
            name, kind = call.layer.name, call.layer.kind
            while name is None:
                name = f"{kind}_{counts.get(kind, 0)}"
                counts[kind] = counts.get(kind, 0) + 1
                name = None if name in given else name
            named.append((name, call))
        return tuple(named)

    def wires(self, call: LayerCall) -> Mapping[str, Connection]:
        """What goes in at each port of one of the calls, once names are looked up.

        Where a layer was added by `|=` or `+=`, a key may name a result of another.

        Raises:
            ValueError: a key means a weight of a layer that is not there.
        """
        return self._once(
            ("wires", id(call)),
            lambda: {
                port: self._meant(wire, by_name=call.owner is self)
                for port, wire in call.wires.items()
            },
        )

    def _meant(self, wire: Connection, *, by_name: bool) -> Connection:
        """What a wire stands for: a key may name a result, or the place of a weight.

        Raises:
            ValueError: it names a weight of a layer that is not there.
        """
        if not isinstance(wire, IOKey):
            return wire
        if not wire.is_weight:
            return self._named.get(wire.name, wire) if by_name else wire
        place, _, weight = wire.name.partition(".")
        call = self._once("by name", lambda: dict(self.calls)).get(place)
        if call is None:
            raise ValueError(
                f"{wire.name!r} means the weight {weight!r} of a layer {place!r}, but "
                f"there are only the layers {', '.join(n for n, _ in self.calls)}."
            )
        return WeightRef(call, weight)

    @property
    def keys(self) -> Mapping[str, IOKey]:
        """The model's inputs by name, each as fully described as it is anywhere."""
        return self._once("keys", self._find_keys)

    def _find_keys(self) -> dict[str, IOKey]:
        found: dict[str, IOKey] = {}
        for call in self._calls:
            for wire in self.wires(call).values():
                if isinstance(wire, IOKey):
                    before = found.get(wire.name)
                    found[wire.name] = wire if before is None else merged(before, wire)
        return found

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.keys)

    @property
    def results(self) -> Mapping[str, LayerOutput]:
        """The model's outputs by name.

        Those that were exposed, or are named and read by nobody; and what the last
        layer gives, if nobody reads it.

        Raises:
            ValueError: the model is empty, or something it computes goes nowhere.
        """
        return self._once("results", self._find_results)

    def _find_results(self) -> dict[str, LayerOutput]:
        """See `results`.

        Raises:
            ValueError: the model is empty, or something it computes goes nowhere.
        """
        if self._last is None:
            raise ValueError("the model has no layers; add one with `model += ...`.")
        wires = [wire for call in self._calls for wire in self.wires(call).values()]
        used = {wire.place for wire in wires if isinstance(wire, LayerOutput)}
        shown: dict[str, LayerOutput] = {}
        for key, result in self._named.items():
            name = result.call.names.get(result.port)
            asked = key in self._exposed or (name is not None and name.expose)
            if asked or (result.place not in used and not self._exposed):
                shown[key] = result
        used |= {result.place for result in shown.values()}
        last = self._last
        unread = last.place not in used and last.port not in shown
        if not self._exposed and (unread or not shown):
            shown[last.port] = last
            used.add(last.place)
        shared = {id(wire.call) for wire in wires if isinstance(wire, WeightRef)}
        for name, call in self.calls:
            places = {(id(call), port) for port in call.layer.outputs}
            if not (places & used or id(call) in shared or self._exposed):
                raise ValueError(
                    f"nobody reads what layer {name!r} gives: wire it to a layer, name "
                    "it as an output, or leave the layer out."
                )
        return shown

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.results)


def merged(one: IOKey, other: IOKey) -> IOKey:
    """An input as it is described by two keys of its name.

    Raises:
        ValueError: they contradict each other.
    """
    for what in ("shape", "dtype"):
        said = getattr(one, what), getattr(other, what)
        if None not in said and said[0] != said[1]:
            raise ValueError(
                f"input {one.name!r} is given the {what} {said[0]} in one place and "
                f"{said[1]} in another."
            )
    shape = other.shape if one.shape is None else one.shape
    return IOKey(one.name, shape, one.dtype or other.dtype)
