"""What an op is, and the table that holds each of them once.

An op is a body over a small array namespace `xp`; the same text runs in JAX and in
torch, eagerly, compiled, and on shapes alone. Nothing here imports an array library.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

Promotion = Literal["none", "same", "float"]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Op:
    """One operation, declared once.

    Attributes:
        name: what it is called in backends, models, files and errors.
        body: `body(xp, *tensors, **attributes)`; pure, written over `xp` only.
        inputs: the tensors' names, in order; for a variadic op none.
        optional: those of them that may be left out.
        variadic: whether it takes any number of tensors.
        outputs: the results' names, in order.
        attributes: keyword arguments with their defaults; `REQUIRED` has none.
        promote: whether its tensors are brought to one dtype first: not at all, to
            their common dtype, or to their common floating dtype.
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

    def __call__(self, xp: Any, *tensors: Any, **attributes: Any) -> Any:
        """Run the body in a namespace, after promotion.

        Args:
            xp: a namespace such as `to_jax.JaxNamespace`.
            tensors: arrays of that library or Python numbers; None for an optional one.
            attributes: keyword arguments of the op.
        """
        if self.promote != "none":
            tensors = xp.promote(tensors, to_float=self.promote == "float")
        return self.body(xp, *tensors, **attributes)


REQUIRED: Any = inspect.Parameter.empty
OPS: dict[str, Op] = {}


def op_from_function(
    name: str,
    body: Callable[..., Any],
    *,
    promote: Promotion = "none",
    outputs: Iterable[str] = ("output",),
) -> Op:
    """Read an op's ports and attributes off its body's signature.

    Args:
        name: what it will be called.
        body: `body(xp, *tensors, **attributes)`.
        promote: see `Op`.
        outputs: names of the results, in order.

    Raises:
        TypeError: the body has no place for `xp`, or takes `**anything`.
    """
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
    return Op(
        name,
        body,
        tuple(tensors),
        frozenset(optional),
        variadic,
        tuple(outputs),
        attributes,
        promote,
    )


def op(
    *,
    promote: Promotion = "none",
    outputs: Iterable[str] = ("output",),
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Op]:
    """Put an op in the table, under its function's name.

    Args:
        promote: see `Op`.
        outputs: names of the results, in order.
        name: another name than the function's.

    Raises:
        ValueError: there is such an op already.
    """

    def add(body: Callable[..., Any]) -> Op:
        made = op_from_function(
            name or body.__name__, body, promote=promote, outputs=outputs
        )
        if made.name in OPS:
            raise ValueError(f"there is an op {made.name!r} already.")
        OPS[made.name] = made
        return made

    return add


def find(name: str, own: Mapping[str, Op] | None = None) -> Op:
    """The op of that name: a backend's own one first, then the table's.

    Args:
        name: the op's name.
        own: ops that a user registered on a backend.

    Raises:
        KeyError: there is none; close names are listed.
    """
    for table in (own or {}, OPS):
        if name in table:
            return table[name]
    known = [*(own or {}), *OPS]
    close = difflib.get_close_matches(name, known, n=3)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise KeyError(
        f"there is no op {name!r}.{hint} Register your own with "
        f'@backend.register_op("{name}").'
    )


def custom_op(name: str, function: Callable[..., Any]) -> Op:
    """An op whose body is a user's function of arrays, for one backend.

    Args:
        name: what it will be called.
        function: `function(*arrays, **attributes)` in the backend's own library.

    Raises:
        TypeError: it cannot be called, or takes `**anything`.
        ValueError: the name is no identifier.
    """
    if not callable(function):
        raise TypeError(f"op {name!r}: a function is needed, got {function!r:.60}.")
    if not name.isidentifier():
        raise ValueError(f"an op's name must be an identifier, got {name!r}.")

    def body(xp: Any, *tensors: Any, **attributes: Any) -> Any:
        while tensors and tensors[-1] is None:  # the function's own defaults
            tensors = tensors[:-1]
        return function(*tensors, **attributes)

    signature = inspect.signature(function)
    xp = inspect.Parameter("xp", inspect.Parameter.POSITIONAL_ONLY)
    rest = [
        p.replace(kind=p.POSITIONAL_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p
        for p in signature.parameters.values()
    ]
    body.__signature__ = inspect.Signature([xp, *rest])
    return op_from_function(name, body)
