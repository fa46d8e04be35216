"""The op table: the class `Op`, and the registry that holds each op once.

An op is a function over a small array namespace `xp`. The same function runs in JAX and
in torch, eagerly, compiled, and on shapes alone. No array library is imported here.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

Promotion = Literal["none", "same", "float"]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Op:
    """One operation, declared once.

    Attributes:
        name: its name in backends, models, files and errors.
        body: `body(xp, *tensors, **attributes)`; pure, written over `xp` only.
        inputs: the names of the tensors, in order; empty for a variadic op.
        optional: the tensors that may be left out.
        variadic: whether it takes any number of tensors.
        outputs: the names of the results, in order.
        attributes: keyword arguments with their defaults; `REQUIRED` means no default.
        promote: the dtype that tensors are promoted to before: `"none"` keeps theirs,
            `"same"` is their common dtype, `"float"` their common floating dtype.
    """

    name: str
    body: Callable[..., Any]
    inputs: tuple[str, ...]
    optional: frozenset[str]
    variadic: bool
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    promote: Promotion

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers: its first tensor is a `key` to draw from."""
        return self.inputs[:1] == ("key",)

    def bind(
        self, args: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Sort the arguments of an eager call into tensors and attributes.

        Unlike a wired op, it takes attributes by position and tensors by name:
        `sum(x, 0)`, `concat([x, y], 1)`, `reshape(x, 2, 3)`, `linear(x, weight=w)`.

        Raises:
            TypeError: an argument is missing, unknown or given twice.
        """
        args, attributes = list(args), dict(named)
        if self.name == "einsum" and args and isinstance(args[0], str):
            attributes["equation"] = args.pop(0)
        ports: list[str] = list(self.inputs)
        if not self.variadic:
            tensors, rest = args[: len(ports)], args[len(ports) :]
        elif args and isinstance(args[0], (list, tuple)):
            tensors, rest = list(args[0]), args[1:]
        else:
            tensors, rest = args, []
        by_position = len(tensors)
        for port in [name for name in attributes if name in ports]:
            at = ports.index(port)
            if at < by_position:
                raise TypeError(f"{self.name}: {port!r} is given twice.")
            tensors += [None] * (at + 1 - len(tensors))
            tensors[at] = attributes.pop(port)
        free = [name for name in self.attributes if name not in attributes]
        # `reshape(x, 2, 3)` and `transpose(x, 1, 0)`: numbers that are one shape.
        is_shape = bool(rest) and type(rest[0]) not in (list, tuple, type(None))
        if self.name in _SHAPE_OPS and is_shape:
            rest = [tuple(rest)]
        takes = ", ".join([*ports, *self.attributes]) or "arrays only"
        if len(rest) > len(free):
            raise TypeError(
                f"{self.name} is given {len(args)} arguments; it takes {takes}."
            )
        attributes |= dict(zip(free, rest, strict=False))
        for name in attributes:
            if name not in self.attributes:
                raise TypeError(
                    f"{self.name} has no argument {name!r}; it takes {takes}."
                )
        given = [t is not None for t in tensors]
        missing = [
            port
            for i, port in enumerate(ports)
            if port not in self.optional and not (i < len(given) and given[i])
        ] + [
            name
            for name, default in self.attributes.items()
            if default is REQUIRED and name not in attributes
        ]
        if missing:
            raise TypeError(f"{self.name} needs {missing[0]!r}; it takes {takes}.")
        return tensors, attributes

    def __call__(self, xp: Any, *tensors: Any, **attributes: Any) -> Any:
        """Promote the tensors, and run the body in a namespace."""
        # Here and not in the bodies, so that no op can have a rule of its own.
        if self.promote != "none":
            tensors = xp.promote(tensors, to_float=self.promote == "float")
        return self.body(xp, *tensors, **attributes)


# The marker of `inspect`: defaults of parameters become defaults of attributes.
REQUIRED: Any = inspect.Parameter.empty
OPS: dict[str, Op] = {}


_SHAPE_OPS = frozenset({"reshape", "transpose", "broadcast_to", "tile"})

# NumPy's other names of ops.
ALIASES = {
    "abs": "absolute",
    "amax": "max",
    "amin": "min",
    "around": "round",
    "astype": "cast",
    "concatenate": "concat",
    "cumulative_sum": "cumsum",
    "matrix_transpose": "swapaxes",
    "mod": "remainder",
    "permute_dims": "transpose",
    "pow": "power",
    "true_divide": "divide",
    "fabs": "absolute",
    "rint": "round",
    "inv": "inverse",
    "det": "determinant",
    "acos": "arccos",
    "asin": "arcsin",
    "atan": "arctan",
    "atan2": "arctan2",
    "invert": "bitwise_not",
}


def op_from_function(
    name: str,
    body: Callable[..., Any],
    *,
    promote: Promotion = "none",
    outputs: Iterable[str] = ("output",),
) -> Op:
    """Make an op of a function; its signature gives the ports and attributes."""
    parameters = list(inspect.signature(body).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise TypeError(f"op {name!r}: the body's first argument must be `xp`.")
    tensors: list[str] = []
    optional: set[str] = set()
    attributes: dict[str, Any] = {}
    variadic = False
    # The kind of a parameter decides: by position a tensor, by keyword an attribute,
    # which is fixed when a model is compiled.
    for p in parameters[1:]:
        if p.kind is p.VAR_KEYWORD:
            raise TypeError(
                f"op {name!r}: the body takes **{p.name}; name its attributes."
            )
        if p.kind is p.VAR_POSITIONAL:
            variadic = True
        elif p.kind is p.KEYWORD_ONLY:
            attributes[p.name] = p.default
        else:
            tensors.append(p.name)
            if p.default is not REQUIRED:
                optional.add(p.name)
    both = sorted({*tensors, *attributes} & set(outputs := tuple(outputs)))
    if both:
        raise ValueError(
            f"op {name!r}: {both[0]!r} is an input and an output; wiring by name needs "
            "two names."
        )
    return Op(
        name,
        body,
        tuple(tensors),
        frozenset(optional),
        variadic,
        outputs,
        attributes,
        promote,
    )


def op(
    *,
    promote: Promotion = "none",
    outputs: Iterable[str] = ("output",),
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Op]:
    """Decorate a function to add it to the table of ops, under its name.

    Args:
        promote: see `Op`.
        outputs: the names of the results, in order.
        name: the name of the op, where it differs from that of the function.

    Raises:
        ValueError: there is such an op already.
    """

    def add(body: Callable[..., Any]) -> Op:
        made = op_from_function(
            name or body.__name__, body, promote=promote, outputs=outputs
        )
        # Saved models name their ops: a second meaning would change them silently.
        if made.name in OPS:
            raise ValueError(f"there is an op {made.name!r} already.")
        OPS[made.name] = made
        return made

    return add


def find(name: str, own: Mapping[str, Op] | None = None) -> Op:
    """Look an op up by name: custom ops first, then the table."""
    for table in (own or {}, OPS):
        if table is OPS:
            name = ALIASES.get(name, name)
        if name in table:
            return table[name]
    # A misspelt op is found when the model is compiled, long after it was written.
    known = [*(own or {}), *OPS]
    close = difflib.get_close_matches(name, known, n=3)
    hint = ""
    if close:
        hint = f" Did you mean {' or '.join(map(repr, close))}?"
    raise KeyError(
        f"there is no op {name!r}.{hint} Register your own with "
        f'@backend.register_op("{name}").'
    )


def custom_op(name: str, function: Callable[..., Any]) -> Op:
    """Make an op of a user's function of arrays, for one backend."""
    if not callable(function):
        raise TypeError(f"op {name!r}: a function is needed, got {function!r:.60}.")
    if not name.isidentifier():
        raise ValueError(f"an op's name must be an identifier, got {name!r}.")

    def body(xp: Any, *tensors: Any, **attributes: Any) -> Any:
        # Open ports at the end are dropped, so that the defaults of the function apply.
        while tensors and tensors[-1] is None:
            tensors = tensors[:-1]
        return function(*tensors, **attributes)

    signature = inspect.signature(function)
    xp = inspect.Parameter("xp", inspect.Parameter.POSITIONAL_ONLY)
    # Arguments by position are tensors. Positional-only, so that an argument that is
    # called `xp` does not clash with the namespace.
    rest = []
    for p in signature.parameters.values():
        if p.kind is p.POSITIONAL_OR_KEYWORD:
            p = p.replace(kind=p.POSITIONAL_ONLY)
        rest.append(p)
    # Ports and attributes are read from the signature.
    body.__signature__ = inspect.Signature([xp, *rest])
    return op_from_function(name, body)
