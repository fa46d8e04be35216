"""Deserialise models from JSON data of untrusted files; the inverse of `_to_dict`.

Only classes in `graph.LAYERS` are built. Names in the data are never imported or run,
so your own layers must be imported before a file that uses them is read.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from frugax.budget import from_plain, suggest
from frugax.errors import UnsupportedFileError
from frugax.models.graph import (
    LAYERS,
    Composite,
    Connection,
    IOKey,
    Layer,
    LayerCall,
    LayerOutput,
    Model,
    OpLayer,
    Primitive,
    WeightRef,
    op,
)

from ._to_dict import FORMAT, VERSION
from ._values import (
    ArrayConstant,
    NumberConstant,
    check_size,
    constant_from_json,
    join_place,
    place_prefix,
    reject_layer,
    value_from_json,
)

# --- the contents of a file, for `from_plain` -------------------------------------


@dataclasses.dataclass(frozen=True)
class _File:
    format: str
    version: int
    layer: Any


@dataclasses.dataclass(frozen=True)
class _Key:
    key: str
    shape: tuple[int | str | None, ...] | None = None
    dtype: str | None = None
    expose: bool = False
    trainable: bool = False


@dataclasses.dataclass(frozen=True)
class _Result:
    call: int
    port: str


@dataclasses.dataclass(frozen=True)
class _Weight:
    call: int
    weight: str


@dataclasses.dataclass(frozen=True)
class _Call:
    layer: Any
    wires: Mapping[str, _Key | _Result | _Weight | NumberConstant | ArrayConstant]
    names: Mapping[str, _Key]


@dataclasses.dataclass(frozen=True)
class _Model:
    kind: str
    calls: tuple[_Call, ...]
    named: Mapping[str, _Result]
    exposed: tuple[str, ...]
    last: _Result | None
    name: str | None = None


@dataclasses.dataclass(frozen=True)
class _SameModel:
    kind: str
    model: int


@dataclasses.dataclass(frozen=True)
class _Op:
    kind: str
    op: str
    attributes: Mapping[str, Any]
    name: str | None = None


# --- layers -----------------------------------------------------------------------


def layer_from_dict(data: Any) -> Layer:
    """Build the model that `layer_to_dict` described.

    Every class, setting and port is checked before anything is built with it, and every
    type as in Python.

    Args:
        data: the result of `json.loads`.

    Raises:
        TypeError: a constant is of a wrong type; its place is named.
        UnsupportedFileError: a newer version wrote it.
        ValueError: a layer, setting or port is unknown, missing or of a wrong type; its
            place is named.
    """
    # First of all, without recursion: the walk below recurses and would overflow
    # Python's stack on a hostile file.
    check_size(data)
    # A newer version may have other fields: its reader deserves an error about that.
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"this is not a {FORMAT}: its format is not {FORMAT!r}.")
    version = from_plain(int, data.get("version"), at="version")
    if version > VERSION:
        raise UnsupportedFileError(
            f"the model is of version {version}; this frugax reads up to {VERSION}: "
            "update frugax."
        )
    return _LayerReader().layer(from_plain(_File, data).layer, "")


class _LayerReader:
    """Builds nested layers."""

    def __init__(self) -> None:
        self.models: list[Model | None] = []  # None while it is not complete

    def layer(self, data: Any, place: str) -> Layer:
        """Build the layer at a place."""
        kind = data.get("kind") if isinstance(data, dict) else None
        if kind == "Model":
            return self.model(data, place)
        if kind == "same":
            return self.same(data, place)
        if kind == "op":
            return _op(data, place)
        cls = Layer
        if isinstance(kind, str):
            cls = LAYERS.get(kind, Layer)
        # Base classes are in the registry but are not layers of a file: an op or a
        # model has a form of its own.
        if cls in (Layer, Primitive, Composite, OpLayer) or issubclass(cls, Model):
            raise ValueError(
                f"{place_prefix(place)}there is no layer {kind!r:.60}."
                f"{suggest(kind, LAYERS)} If it is your own, import its module first."
            )
        # Fields with defaults may be missing, so that a layer can gain a setting
        # without a new version of the format.
        fields = [f.name for f in dataclasses.fields(cls) if f.init]
        settings = {}
        for key, value in data.items():
            if key == "kind":
                continue
            where = join_place(place, key)
            if key not in fields:
                raise ValueError(f"{where}: unknown key.{suggest(key, fields)}")
            settings[key] = value_from_json(value, where, self.layer)
        try:
            # Fields are checked when the layer is made.
            return cls(**settings)
        except (TypeError, ValueError) as e:
            raise ValueError(f"{place_prefix(place)}{kind}: {e}") from e

    def same(self, data: dict[str, Any], place: str) -> Model:
        """The model with a number that was built before."""
        number, model = from_plain(_SameModel, data, at=place).model, None
        if 0 <= number < len(self.models):
            model = self.models[number]
        if model is None:
            at = join_place(place, "model")
            raise ValueError(f"{at}: no model {number!r:.40} is complete before this.")
        return model

    def model(self, data: dict[str, Any], place: str) -> Model:
        """Build the model at a place."""
        # The number is taken before the models inside are read, in the order in which
        # the writer counted.
        number = len(self.models)
        self.models.append(None)
        given = from_plain(_Model, data, at=place)
        model = Model(name=given.name)
        calls: list[LayerCall] = []
        for i, call in enumerate(given.calls):
            layer = self.layer(call.layer, join_place(place, f"calls[{i}].layer"))
            calls.append(LayerCall(layer, {}, {}, by_name=True, owner=model))
        # All layers are built before any wire, as a wire may lead to a later call.
        wiring = _CallReader(calls, place)
        for i, call in enumerate(given.calls):
            wires, names = wiring.wires(i, call), wiring.names(i, call)
            # In place: a circle of layers is legal here, so wires of other calls may
            # refer to this one before its own wires are known.
            calls[i].wires = wires
            calls[i].names = names
        where = join_place(place, "named")
        results = {k: wiring.result(v, f"{where}.{k}") for k, v in given.named.items()}
        for key in given.exposed:
            _check_known(key, set(given.named), join_place(place, "exposed"))
        last = None
        if given.last is not None:
            last = wiring.result(given.last, join_place(place, "last"))
        try:
            _fill(model, calls, results)
        except ValueError as e:
            raise ValueError(f"{place_prefix(place)}{e}") from e
        model._exposed.update(dict.fromkeys(given.exposed))
        model._last = last
        self.models[number] = model
        return model


def _op(data: dict[str, Any], place: str) -> Layer:
    given = from_plain(_Op, data, at=place)
    where = join_place(place, "attributes")
    # `op` takes the layer's name by this keyword, so an attribute of that name would be
    # read as one.
    if "name" in given.attributes:
        raise ValueError(f"{where}: an op has no attribute 'name'.")
    plain = {
        k: value_from_json(v, f"{where}.{k}", reject_layer)
        for k, v in given.attributes.items()
    }
    try:
        return op(given.op, name=given.name, **plain)
    except (TypeError, ValueError) as e:
        raise ValueError(f"{place_prefix(place)}{e}") from e


def _fill(model: Model, calls: list[LayerCall], named: dict[str, LayerOutput]) -> None:
    """Add calls to a model, and restore the order of the names of its outputs."""
    # By the model's own method, so that names are checked as for models made in Python.
    for call in calls:
        model._append(call)
    for key, result in model._named.items():
        if key not in named or named[key].place != result.place:
            raise ValueError(
                f"the name {key!r} means one thing in calls, not in named."
            )
    model._named = named
    model._cache.clear()


class _CallReader:
    """Reads the wires between the calls of one model."""

    def __init__(self, calls: list[LayerCall], place: str) -> None:
        self.calls, self.place = calls, place
        self.outputs: list[set[str]] = []
        for i, call in enumerate(calls):
            try:
                self.outputs.append(set(call.layer.outputs))
            except (TypeError, ValueError) as e:
                at = join_place(place, f"calls[{i}]")
                raise ValueError(f"{at}.layer: {e}") from e

    def wires(self, i: int, call: _Call) -> dict[str, Connection]:
        """The connection at each input port of a call."""
        at, layer = join_place(self.place, f"calls[{i}].wires"), self.calls[i].layer
        for port in call.wires:
            _check_known(port, {*layer.inputs, *layer.optional}, at)
        for port in layer.required:
            if port not in call.wires:
                raise ValueError(f"{at}: {port!r} is missing.")
        return {p: self.connection(w, f"{at}.{p}") for p, w in call.wires.items()}

    def names(self, i: int, call: _Call) -> dict[str, IOKey]:
        """The names of the outputs of a call."""
        at = join_place(self.place, f"calls[{i}].names")
        for port in call.names:
            _check_known(port, self.outputs[i], at)
        return {p: _key(k, f"{at}.{p}") for p, k in call.names.items()}

    def connection(self, wire: Any, at: str) -> Connection:
        """A wire: a key, a result, a weight or a constant."""
        match wire:
            case _Key():
                return _key(wire, at)
            case _Weight():
                return WeightRef(self.call(wire.call, at), wire.weight)
            case _Result():
                return self.result(wire, at)
        return constant_from_json(wire, at)

    def result(self, wire: _Result, at: str) -> LayerOutput:
        """The output of a call at a port."""
        call = self.call(wire.call, at)
        _check_known(wire.port, self.outputs[wire.call], f"{at}.port")
        return LayerOutput(call, wire.port)

    def call(self, number: int, at: str) -> LayerCall:
        """The call with a number."""
        if not 0 <= number < len(self.calls):
            raise ValueError(f"{at}.call: there is no call {number!r:.40}.")
        return self.calls[number]


def _key(key: _Key, place: str) -> IOKey:
    try:
        return IOKey(key.key, key.shape, key.dtype, key.expose, trainable=key.trainable)
    except (TypeError, ValueError) as e:
        raise ValueError(f"{place}: {e}") from e


def _check_known(name: str, known: set[str], place: str) -> None:
    if name not in known:
        names = ", ".join(sorted(known)[:12]) or "none"
        raise ValueError(f"{place}: there is no {name!r:.60}; there are: {names}.")
