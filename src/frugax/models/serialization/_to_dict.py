"""Serialise a model's description to dicts for JSON; `_from_dict` builds it again."""

import dataclasses
from typing import Any

from frugax.models.graph import (
    LAYERS,
    Connection,
    Constant,
    IOKey,
    Layer,
    LayerCall,
    LayerOutput,
    Model,
    OpLayer,
    WeightRef,
)

from ._values import (
    check_size,
    constant_to_json,
    join_place,
    place_prefix,
    reject_layer,
    value_to_json,
)

FORMAT, VERSION = "frugax-model", 1


def layer_to_dict(model: Layer) -> dict[str, Any]:
    """Describe a model by dicts, lists, texts and numbers, for `json.dumps`.

    Args:
        model: a `Model` or a single layer.

    Raises:
        TypeError: the class of a layer cannot be found again by its name, or a setting
            is not a number, text, layer or sequence of these.
        ValueError: models are nested too deep, or a layer is wired to something
            outside its model.

    Example:
        >>> from frugax.models import Linear, Model, layer_from_dict, layer_to_dict
        >>> plain = layer_to_dict(Model(Linear(8)))
        >>> plain["layer"]["calls"][0]["layer"]["dimension"]
        8
        >>> layer_from_dict(plain).calls[0][1].layer == Linear(8)
        True
    """
    plain = {
        "format": FORMAT,
        "version": VERSION,
        "layer": _Describer().layer(model, ""),
    }
    check_size(plain)
    return plain


class _Describer:
    """Converts nested layers, and numbers the models among them."""

    def __init__(self) -> None:
        self.num_models = 0
        self.numbers: dict[int, int] = {}  # of the models so far, by identity

    def layer(
        self, layer: Layer, place: str, name: str | None = None
    ) -> dict[str, Any]:
        """Convert a layer; `name` is used if it has none of its own."""
        name, named = layer.name or name, {}
        if name is not None:
            named["name"] = name
        if isinstance(layer, Model):
            if type(layer) is not Model and name is None and place:
                # Keys of weights contain the name of the class, which the file loses.
                raise TypeError(f"{place}: give this {type(layer).__name__} a name.")
            # A model at several places is written once: only the same object, and not a
            # copy, is recognised as an equal block when loops are searched.
            if id(layer) in self.numbers and name == layer.name:
                return {"kind": "same", "model": self.numbers[id(layer)]}
            self.numbers[id(layer)] = self.num_models
            self.num_models += 1
            return {"kind": "Model", **named, **self.model(layer, place)}
        if type(layer) is OpLayer:
            attributes = {
                k: value_to_json(v, join_place(place, f"attributes.{k}"), reject_layer)
                for k, v in layer.attributes
            }
            return {
                "kind": "op",
                **named,
                "op": layer.operation,
                "attributes": attributes,
            }
        cls = type(layer)
        # The reader knows only the registry. A class of the same name in another module
        # would be built in place of this one.
        if LAYERS.get(cls.__name__) is not cls:
            raise TypeError(
                f"{place_prefix(place)}the class {cls.__module__}.{cls.__qualname__} "
                f"cannot be found by its name {cls.__name__!r}: another layer class "
                "has it."
            )
        fields = {f.name: getattr(layer, f.name) for f in dataclasses.fields(layer)}
        # Attributes beside the fields, set by object.__setattr__ on a frozen class,
        # would not survive the file.
        hidden = {k for k in vars(layer) if k not in fields and not hasattr(cls, k)}
        if hidden:
            raise TypeError(
                f"{place_prefix(place)}{cls.__name__}.{min(hidden)} is not a dataclass "
                "field and would be lost: declare it in the class."
            )
        settings = {
            key: value_to_json(value, join_place(place, key), self.layer)
            for key, value in fields.items()
            if key != "name"
        }
        return {"kind": cls.__name__, **named, **settings}

    def model(self, model: Model, place: str) -> dict[str, Any]:
        """Convert the calls of a model, and the names of its outputs."""
        named = model.calls
        # Wires refer to calls by number, as names may be generated and change.
        indices = {id(call): i for i, (_, call) in enumerate(named)}

        def number_of(call: LayerCall, at: str) -> int:
            number = indices.get(id(call))
            if number is None:
                raise ValueError(
                    f"{at}: it is wired to {call.layer.title}, which is not part of "
                    "the same model."
                )
            return number

        def wire(connection: Connection, at: str) -> dict[str, Any]:
            match connection:
                case LayerOutput(call, port):
                    return {"call": number_of(call, at), "port": port}
                case WeightRef(call, name):
                    return {"call": number_of(call, at), "weight": name}
                case IOKey():
                    return _key(connection, at)
                case Constant(value):
                    return constant_to_json(value, at)
            raise TypeError(f"{at}: a {type(connection).__name__} cannot go to a file.")

        calls = []
        for i, (name, call) in enumerate(named):
            at = join_place(place, f"calls[{i}]")
            # A subclass of Model is read as a Model, whose default name would differ.
            own = None
            if isinstance(call.layer, Model) and type(call.layer) is not Model:
                own = name
            wires = {
                p: wire(w, f"{at}.wires.{p}") for p, w in model.wires(call).items()
            }
            names = {p: _key(k, f"{at}.names.{p}") for p, k in call.names.items()}
            layer = self.layer(call.layer, f"{at}.layer", own)
            calls.append({"layer": layer, "wires": wires, "names": names})
        last = None
        if model._last is not None:
            last = wire(model._last, join_place(place, "last"))
        return {
            "calls": calls,
            "named": {
                key: wire(r, join_place(place, f"named.{key}"))
                for key, r in model._named.items()
            },
            "exposed": list(model._exposed),
            "last": last,
        }


def _key(key: IOKey, place: str) -> dict[str, Any]:
    plain: dict[str, Any] = {"key": key.name}
    if key.known_shape is not None:
        plain["shape"] = [
            value_to_json(d, f"{place}.shape", reject_layer) for d in key.known_shape
        ]
    if key.dtype is not None:
        plain["dtype"] = key.dtype
    for flag in ("expose", "trainable"):
        if getattr(key, flag):
            plain[flag] = True
    return plain
