"""Layers whose fields are the attributes of an op; `layer_of` makes one of an op."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

from frugax.models.graph import Primitive
from frugax.models.ops import OPS, REQUIRED


@dataclasses.dataclass(frozen=True)
class FieldOp(Primitive):
    """An op whose attributes are the fields of the layer.

    Attributes:
        own_fields: the fields that are not attributes of the op.
    """

    own_fields: ClassVar[frozenset[str]] = frozenset()

    def attrs(self) -> dict[str, Any]:
        # The exceptions are listed, so that a new field reaches the op by itself.
        hidden = {"name", *self.own_fields}
        fields = dataclasses.fields(self)
        return {f.name: getattr(self, f.name) for f in fields if f.name not in hidden}


def layer_of(
    op: str,
    name: str,
    *,
    ports: tuple[str, ...] = (),
    integers: Mapping[str, str] | None = None,
    **defaults: Any,
) -> Any:
    """Make the class of layers that are one op of the table, without weights.

    Settings, their checks and the documentation are those of the op's signature.

    Args:
        op: the name of the op.
        name: that of the class.
        ports: the names of its inputs; those of the op if not given.
        integers: the dtypes of inputs that are not of the backend's dtype.
        **defaults: of attributes for which the op has none.
    """
    found = OPS[op]
    ports = ports or found.inputs
    settings = inspect.signature(found.body).parameters
    fields = {key: defaults.get(key, d) for key, d in found.attributes.items()}
    pairs = zip(ports, found.inputs, strict=True)
    members = {
        "__annotations__": {key: settings[key].annotation for key in fields},
        "__doc__": found.body.__doc__,
        "__module__": __package__,
        "op": op,
        "ports": ports,
        "open_ports": frozenset(p for p, own in pairs if own in found.optional),
        "port_dtypes": integers or {},
        "weight_names": frozenset(),
        **{key: value for key, value in fields.items() if value is not REQUIRED},
    }
    return dataclasses.dataclass(frozen=True)(type(name, (FieldOp,), members))
