"""JSON Schemas of plans and receipts, made from their dataclasses for other tools."""

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

# https://json-schema.org/draft/2020-12
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS: dict[Any, str] = {
    bool: "boolean",
    int: "integer",
    str: "string",
    type(None): "null",
}


def json_schema(cls: type, *, title: str = "") -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what `to_plain` makes of `cls`.

    Args:
        cls: a dataclass whose fields have types that `to_plain` accepts.
        title: of the schema; the name of the class by default.

    Raises:
        TypeError: a field has a type without a JSON form.
    """
    definitions: dict[str, Any] = {}
    top = _describe(cls, definitions)
    body = definitions.pop(cls.__name__) if "$ref" in top else top
    schema = {"$schema": _DRAFT, "title": title or cls.__name__} | body
    if definitions:
        schema["$defs"] = definitions
    return schema


def _describe(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind in (Any, object):
        return {}
    if kind is float:  # `to_json` writes a number that is not finite as null
        return {"type": ["number", "null"]}
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        return {"enum": [str(member) for member in kind]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_describe(arg, definitions) for arg in args]}
    if dataclasses.is_dataclass(typing.cast("object", kind)):
        return _describe_dataclass(typing.cast("type", kind), definitions)
    if origin is list or (origin is tuple and args[1:] == (Ellipsis,)):
        return {"type": "array", "items": _describe(args[0], definitions)}
    if origin is tuple:
        items = [_describe(arg, definitions) for arg in args]
        # `items: false` forbids more of them than the tuple has.
        return {
            "type": "array",
            "prefixItems": items,
            "items": False,
            "minItems": len(items),
        }
    if isinstance(origin, type) and issubclass(origin, Mapping):
        values = _describe(args[1], definitions)
        return {"type": "object", "additionalProperties": values}
    raise TypeError(f"a {kind} has no JSON form, so no schema describes it.")


def _describe_dataclass(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    if cls.__name__ not in definitions:
        # Entered before its fields are read, so that a class may contain itself.
        definitions[cls.__name__] = {}
        hints = typing.get_type_hints(cls)
        names = [field.name for field in dataclasses.fields(cls)]
        definitions[cls.__name__] = {
            "type": "object",
            "properties": {n: _describe(hints[n], definitions) for n in names},
            "required": names,
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{cls.__name__}"}
