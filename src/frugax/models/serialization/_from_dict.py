"""Deserialise models from JSON data of untrusted files; the inverse of `_to_dict`.

Only classes in `graph.LAYERS` are built. Names in the data are never imported or run,
so your own layers must be imported before a file that uses them is read.
"""

import dataclasses
import difflib
from typing import Any

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
    MAX_DEPTH,
    check_size,
    check_type,
    constant_from_json,
    field_types,
    join_place,
    place_prefix,
    reject_layer,
    require_fields,
    value_from_json,
)


def layer_from_dict(data: Any) -> Layer:
    """Build the model that `layer_to_dict` described.

    Every class, setting, port and type is checked before anything is built with it.

    Args:
        data: the result of `json.loads`.

    Raises:
        TypeError: a value is of a wrong type; its place is named.
        UnsupportedFileError: a newer version wrote it.
        ValueError: a layer, setting or port is unknown or missing; its place is named.
    """
    # First of all, without recursion: the walk below recurses and would overflow
    # Python's stack on a hostile file.
    check_size(data)
    # Other fields are allowed until the version is known: a newer one may have more,
    # and its reader deserves the error about the version.
    require_fields(data, "", {"format", "version"}, others=True)
    if data["format"] != FORMAT or type(data["version"]) is not int:
        raise ValueError(f"this is not a {FORMAT}: format is {data['format']!r:.40}.")
    if data["version"] > VERSION:
        raise UnsupportedFileError(
            f"the model is of version {data['version']}; this frugax reads up to "
            f"{VERSION}: update frugax."
        )
    require_fields(data, "", {"format", "version", "layer"})
    return _LayerReader().layer(data["layer"], "")


class _LayerReader:
    """Builds nested layers."""

    def __init__(self) -> None:
        self.depth = 0
        self.models: list[Model | None] = []  # None while it is not complete

    def layer(self, data: Any, place: str) -> Layer:
        """Build the layer at a place."""
        if self.depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} layers inside each other.")
        self.depth += 1
        layer = self._build(data, place)
        self.depth -= 1
        return layer

    def _build(self, data: Any, place: str) -> Layer:
        """Build a layer at any depth."""
        kind = require_fields(data, place, {"kind"}, others=True)["kind"]
        check_type(data.get("name"), str | None, join_place(place, "name"))
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
            close = difflib.get_close_matches(str(kind), LAYERS, n=2)
            hint = ""
            if close:
                hint = f" Did you mean {' or '.join(close)}?"
            raise ValueError(
                f"{place_prefix(place)}there is no layer {kind!r:.60}.{hint} If it "
                "is your own, import its module first."
            )
        fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
        # Fields with defaults may be missing, so that a layer can gain a setting
        # without a new version of the format.
        needed = {
            name
            for name, f in fields.items()
            if f.default is dataclasses.MISSING
            and f.default_factory is dataclasses.MISSING
        }
        require_fields(data, place, {"kind", *needed}, optional=set(fields))
        hints = field_types(cls, place)
        settings = {}
        for key, value in data.items():
            if key != "kind":
                where = join_place(place, key)
                settings[key] = value_from_json(value, where, self.layer)
                # Checked by the annotations, since dataclasses do not check anything: a
                # text as a dimension would fail much later, inside JAX.
                check_type(settings[key], hints[key], where)
        try:
            # A layer's own checks run in its __post_init__.
            return cls(**settings)
        except (TypeError, ValueError) as e:
            raise ValueError(f"{place_prefix(place)}{kind}: {e}") from e

    def same(self, data: dict[str, Any], place: str) -> Model:
        """The model with a number that was built before."""
        number = require_fields(data, place, {"kind", "model"})["model"]
        model = None
        # By exact type: True would be model 1, and -1 the last one.
        if type(number) is int and 0 <= number < len(self.models):
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
        needed = {"kind", "calls", "named", "exposed", "last"}
        require_fields(data, place, needed, optional={"name"})
        model = Model(name=data.get("name"))
        calls: list[LayerCall] = []
        for i, given in enumerate(_list(data["calls"], join_place(place, "calls"))):
            at = join_place(place, f"calls[{i}]")
            require_fields(given, at, {"layer", "wires", "names"})
            layer = self.layer(given["layer"], f"{at}.layer")
            calls.append(LayerCall(layer, {}, {}, by_name=True, owner=model))
        # All layers are built before any wire, as a wire may lead to a later call.
        wiring = _CallReader(calls, place)
        for i, given in enumerate(data["calls"]):
            wires = wiring.wires(i, given["wires"])
            names = wiring.names(i, given["names"])
            # In place: a circle of layers is legal here, so wires of other calls may
            # refer to this one before its own wires are known.
            calls[i].wires = wires
            calls[i].names = names
        where = join_place(place, "named")
        named = require_fields(data["named"], where, set(), others=True)
        results = {k: wiring.result(v, f"{where}.{k}") for k, v in named.items()}
        exposed = _list(data["exposed"], join_place(place, "exposed"))
        for key in exposed:
            _check_known(key, set(named), join_place(place, "exposed"))
        last = data["last"]
        if last is not None:
            last = wiring.result(last, join_place(place, "last"))
        try:
            _fill(model, calls, results)
        except ValueError as e:
            raise ValueError(f"{place_prefix(place)}{e}") from e
        model._exposed.update(dict.fromkeys(exposed))
        model._last = last
        self.models[number] = model
        return model


def _op(data: dict[str, Any], place: str) -> Layer:
    require_fields(data, place, {"kind", "op", "attributes"}, optional={"name"})
    check_type(data["op"], str, join_place(place, "op"))
    where = join_place(place, "attributes")
    given = require_fields(data["attributes"], where, set(), others=True)
    # `op` takes the layer's name by this keyword, so an attribute of that name would be
    # read as one.
    if "name" in given:
        raise ValueError(f"{where}: an op has no attribute 'name'.")
    plain = {
        k: value_from_json(v, f"{where}.{k}", reject_layer) for k, v in given.items()
    }
    try:
        return op(data["op"], name=data.get("name"), **plain)
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

    def wires(self, i: int, data: Any) -> dict[str, Connection]:
        """The connection at each input port of a call."""
        at, layer = join_place(self.place, f"calls[{i}].wires"), self.calls[i].layer
        require_fields(data, at, set(layer.required), others=True)
        for port in data:
            _check_known(port, {*layer.inputs, *layer.optional}, at)
        return {p: self.connection(d, f"{at}.{p}") for p, d in data.items()}

    def names(self, i: int, data: Any) -> dict[str, IOKey]:
        """The names of the outputs of a call."""
        at = join_place(self.place, f"calls[{i}].names")
        for port in require_fields(data, at, set(), others=True):
            _check_known(port, self.outputs[i], at)
        return {p: _key(d, f"{at}.{p}") for p, d in data.items()}

    def connection(self, data: Any, at: str) -> Connection:
        """A wire: a key, a result, a weight or a constant."""
        require_fields(data, at, set(), others=True)
        if "key" in data:
            return _key(data, at)
        if "weight" in data:
            require_fields(data, at, {"call", "weight"})
            check_type(data["weight"], str, f"{at}.weight")
            return WeightRef(self.calls[self.number(data, at)], data["weight"])
        if "call" in data:
            return self.result(data, at)
        return constant_from_json(data, at)

    def result(self, data: Any, at: str) -> LayerOutput:
        """The output of a call at a port."""
        require_fields(data, at, {"call", "port"})
        number = self.number(data, at)
        _check_known(data["port"], self.outputs[number], f"{at}.port")
        return LayerOutput(self.calls[number], data["port"])

    def number(self, data: dict[str, Any], at: str) -> int:
        """The number of a call."""
        number = data["call"]
        if type(number) is not int or not 0 <= number < len(self.calls):
            raise ValueError(f"{at}.call: there is no call {number!r:.40}.")
        return number


def _key(data: Any, place: str) -> IOKey:
    optional = {"shape", "dtype", "expose", "trainable"}
    require_fields(data, place, {"key"}, optional=optional)
    shape = value_from_json(data.get("shape"), f"{place}.shape", reject_layer)
    dtype, expose = data.get("dtype"), data.get("expose", False)
    check_type(data["key"], str, f"{place}.key")
    check_type(shape, tuple[int | str | None, ...] | None, f"{place}.shape")
    check_type(dtype, str | None, f"{place}.dtype")
    check_type(expose, bool, f"{place}.expose")
    trainable = data.get("trainable", False)
    check_type(trainable, bool, f"{place}.trainable")
    try:
        return IOKey(data["key"], shape, dtype, expose, trainable=trainable)
    except (TypeError, ValueError) as e:
        raise ValueError(f"{place}: {e}") from e


def _check_known(name: Any, known: set[str], place: str) -> None:
    if not isinstance(name, str) or name not in known:
        names = ", ".join(sorted(known)[:12]) or "none"
        raise ValueError(f"{place}: there is no {name!r:.60}; there are: {names}.")


def _list(data: Any, place: str) -> list[Any]:
    if not isinstance(data, list):
        raise TypeError(f"{place}: a list is needed, got {data!r:.60}.")
    return data
