"""The op table: the class `Op`, and the registry that holds each op once.

An op is a function over a small array namespace `xp`. The same function runs in JAX and
in torch, eagerly, compiled, and on shapes alone. No array library is imported here.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from ._promote import is_floating

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
        args, attributes = list(args), self.rename(named)
        if self.name == "einsum":
            args.sort(key=lambda a: not isinstance(a, str))  # the equation goes first
            if args and isinstance(args[0], str):
                attributes["equation"] = args.pop(0)
        if self.name == "flatten" and len(args) > 2:
            raise TypeError(
                "flatten: name the second bound, stop=2 for the axis after the last or "
                "end_dim=1 for the last."
            )
        ports: list[str] = list(self.inputs)
        if self.variadic and not args:
            listed = [n for n in ("input", "inputs", "tensors") if n in attributes]
            args = [attributes.pop(name) for name in listed]
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
        is_shape = bool(rest) and not (
            type(rest[0]) in (list, tuple, type(None)) or is_vector(rest[0])
        )
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

    def rename(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by the names of the table, for those of NumPy or torch.

        Raises:
            TypeError: an argument is given by two names.
        """
        known = {*self.inputs, *self.attributes}
        renamed: dict[str, Any] = {}
        for key, value in named.items():
            if key == "end_dim" and "stop" in known:  # torch names the last axis itself
                key, value = "stop", None if value == -1 else value + 1
            elif key not in known and ARGUMENTS.get(key) in known:
                key = ARGUMENTS[key]
            if key in renamed:
                raise TypeError(f"{self.name}: {key!r} is given twice.")
            renamed[key] = value
        return renamed

    def __call__(self, xp: Any, *tensors: Any, **attributes: Any) -> Any:
        """Promote the tensors, and run the body in a namespace."""
        # Here and not in the bodies, so that no op can have a rule of its own.
        if self.promote != "none":
            tensors = xp.promote(tensors, to_float=self.promote == "float")
        # Of the table's own ops only: an `axis` of a user's op may mean something else.
        if attributes.get("axis") is not None and OPS.get(self.name) is self:
            self._check_axes(tensors[0], attributes["axis"])
        with xp.rules():
            return self.body(xp, *tensors, **attributes)

    def is_promoted(self, xp: Any, tensors: Sequence[Any]) -> bool:
        """Whether tensors have the dtype already that promotion would give them."""
        if self.promote == "none":
            return True
        if not all(isinstance(t, xp.array_class) for t in tensors if t is not None):
            return False
        dtypes = {xp.dtype_of(t) for t in tensors if t is not None}
        is_one = len(dtypes) == 1
        return is_one and (self.promote == "same" or is_floating(*dtypes))

    def _check_axes(self, tensor: Any, axis: Any) -> None:
        """Refuse axes that are not there, which torch would count round and round."""
        axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
        if any(isinstance(a, bool) or not hasattr(a, "__index__") for a in axes):
            raise TypeError(f"{self.name}: axis={axis!r} must be whole numbers.")
        shape = tuple(getattr(tensor, "shape", ()))
        # New axes are counted in the result. A number has none, but 0 and -1 are taken.
        new = {"expand_dims": len(axes), "stack": 1}.get(self.name, 0)
        rank = max(len(shape) + new, 1)
        if any(not -rank <= a < rank for a in axes):
            raise ValueError(
                f"{self.name}: axis={axis!r} is not among {rank} axes, which are 0 to "
                f"{rank - 1}, or -{rank} to -1; the input has shape {shape}."
            )
        if self.name != "roll" and len({a % rank for a in axes}) < len(axes):
            raise ValueError(f"{self.name}: axis={axis!r} names an axis twice.")


# The marker of `inspect`: defaults of parameters become defaults of attributes.
REQUIRED: Any = inspect.Parameter.empty
OPS: dict[str, Op] = {}


_SHAPE_OPS = frozenset({"reshape", "transpose", "broadcast_to", "tile"})

# Other names of ops in NumPy, the array API standard and torch, each before its op.
_OTHER_NAMES = """
    abs:absolute fabs:absolute neg:negative minus:negative positive:identity
    sub:subtract mul:multiply div:divide true_divide:divide mod:remainder pow:power
    float_power:power rint:round around:round inv:inverse det:determinant amax:max
    amin:min bmm:matmul mm:matmul acos:arccos asin:arcsin atan:arctan atan2:arctan2
    acosh:arccosh
    asinh:arcsinh atanh:arctanh invert:bitwise_not bitwise_invert:bitwise_not
    shift_left:left_shift bitwise_left_shift:left_shift shift_right:right_shift
    bitwise_right_shift:right_shift astype:cast cat:concat concatenate:concat
    cumulative_sum:cumsum cumulative_prod:cumprod matrix_transpose:swapaxes
    permute_dims:transpose permute:transpose unsqueeze:expand_dims view:reshape
    topk:top_k numel:size chunk:split hardswish:hard_swish hardsigmoid:hard_sigmoid
    hardtanh:hard_tanh logsigmoid:log_sigmoid
"""
ALIASES: dict[str, str] = {
    old: new for old, _, new in (p.partition(":") for p in _OTHER_NAMES.split())
}

# Other names of arguments there, each before the name in the table.
_OTHER_ARGUMENTS = """
    dim:axis dims:axis keepdim:keepdims correction:ddof fill_value:value
    pad_width:widths constant_values:value num_classes:classes diagonal:k
    newshape:shape a_min:min a_max:max N:rows M:columns start_dim:start chunks:sections
    cond:condition input1:left input2:right other:right x:input x1:left x2:right
    negative_slope:slope dim0:axis1 dim1:axis2 shifts:shift
"""
ARGUMENTS: dict[str, str] = {
    old: new for old, _, new in (p.partition(":") for p in _OTHER_ARGUMENTS.split())
}


def is_vector(value: Any) -> bool:
    """Whether it holds several numbers: a shape, or an array of one axis."""
    return getattr(value, "ndim", getattr(value, "is_vector", False)) in (1, True)


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
    signed: Any = body
    signed.__signature__ = inspect.Signature([xp, *rest])
    return op_from_function(name, body)
