"""`Workload`: the loss or training step that must fit, with its arguments' shapes."""

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, get_args

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from frugax import remat
from frugax.budget import MemoryBudget
from frugax.capture import TracedStep
from frugax.errors import ConfigError
from frugax.jaxprs import (
    changes_weights,
    donated_positions,
    states_shardings,
    static_names,
    static_positions,
    take_arrays,
)
from frugax.options import check_integer
from frugax.targets import Target
from frugax.train import TrainState, TrainStep
from frugax.train.distributed import Layout, LayoutKind

from ._step_of_arrays import as_shapes, holds_variables, take_step


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """A program and the shapes of its arguments.

    Attributes:
        fn: a loss, which is differentiated; a step, of which the gradients that it
            takes are planned; or a `TrainStep`, of which another one is made for each
            layout and number of micro-batches.
        args: arguments of the loss or the step; arrays or `jax.ShapeDtypeStruct`.
        is_loss: whether `fn` is a loss.
        argnums: arguments of the loss that are differentiated.
        has_aux: whether the loss returns (number, anything).
        changes_variables: whether `fn` returns the variables of flax nnx objects that
            the loss changed, beside what the loss returns.
        donate_argnums: donated arguments of the step.
        batch_argnum: the argument with the batch, along its first axis.
        specs: a `PartitionSpec` for each leaf or subtree of `args`; None leaves the
            sharding to a layout.
        axes: devices along each named axis of `specs`; None puts all on the first.
        layout: where arrays lie if `specs` is None.
        shape: number of devices along the batch, or along batch and weights; None for
            all of them.
        micro_batches: parts of the batch of a `TrainStep` whose gradients are
            accumulated one by one.
        needs_mesh: whether `fn` holds bare `PartitionSpec`s, which name axes of a mesh.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    is_loss: bool = True
    argnums: int | tuple[int, ...] = 0
    has_aux: bool = False
    changes_variables: bool = False
    donate_argnums: tuple[int, ...] = ()
    batch_argnum: int = -1
    specs: Any = None
    axes: Mapping[str, int] | None = None
    layout: LayoutKind = "data"
    shape: tuple[int, ...] | None = None
    micro_batches: int = 1
    needs_mesh: bool = False

    def __post_init__(self) -> None:
        check_integer("micro_batches", self.micro_batches)
        if self.micro_batches > 1 and not isinstance(self.fn, TrainStep):
            raise ConfigError(
                "micro_batches divide the batch of a TrainStep. Of losses and other "
                "steps, leave them out: the plan runs chunks of the batch where that "
                "saves memory."
            )

    @classmethod
    def of(cls, fn: Callable[..., Any], args: Sequence[Any], **options: Any) -> Self:
        """Recognise a function by its parameters and its result.

        Raises:
            TypeError: `fn` is not a function, or `args` is not a tuple.
            ConfigError: an argument is not an array, or `fn` takes other arguments.
        """
        if not callable(fn):
            raise TypeError(f"expected a loss or a step, got {fn!r:.80}.")
        if not isinstance(args, tuple | list):
            raise TypeError(
                f"the arguments must be a tuple, got {type(args).__name__}; for one, "
                "write (x,)."
            )
        args = tuple(args)
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := options.keys() - known:
            raise ConfigError(
                f"there is no option {min(unknown)!r}: choose from "
                f"{', '.join(sorted(known - {'fn', 'args'}))}."
            )
        if isinstance(fn, TrainStep):
            _check_arguments_of_step(args)
            options.setdefault("micro_batches", fn.accum)
            return cls(
                fn=fn,
                args=jax.eval_shape(lambda *arrays: arrays, *args),
                is_loss=False,
                donate_argnums=fn.donate_argnums,
                **options,
            )
        _check_batch_argnum(options.get("batch_argnum", -1), len(args))
        _check_call(fn, args)
        fn, options = _take_from_jit(fn, options, len(args))
        step, given = take_step(fn, args)
        result, options["needs_mesh"] = _trace_result(step, given, options)
        is_step = False
        if holds_variables(args, given):
            options = _point_at_variables(options, len(args))
            result, changed = result  # what it changes in them comes last
            is_step = changes_weights(changed)
        has_aux = isinstance(result, tuple) and len(result) == 2
        value = result[0] if has_aux else result
        is_loss = _is_number(value) and not is_step
        if has_aux and is_loss and "has_aux" not in options:
            # A step returns the next weights beside its loss; a loss returns metrics.
            is_loss = not _succeeds(args[0], result[1])
            options["has_aux"] = is_loss
        if is_loss:
            is_whole = options.get("specs") is None
            if is_whole:
                options["batch_argnum"] = options.get("batch_argnum", -1) % len(args)
            how = {"has_aux": options.get("has_aux", False), "moves": is_whole}
            taken = take_arrays(fn, args, options.get("argnums", 0), **how)
            is_added = taken.has_aux and not how["has_aux"]
            options.update(argnums=taken.argnums, changes_variables=is_added)
            step, given = taken.loss, as_shapes(taken.args)
        return cls(fn=step, args=given, is_loss=is_loss, **options)

    @property
    def is_step(self) -> bool:
        """Whether `fn` is a step that takes its gradients itself."""
        return not (self.is_loss or isinstance(self.fn, TrainStep))

    @property
    def rows(self) -> int:
        """Rows of the batch.

        Raises:
            ConfigError: the batch has no arrays, or they differ in their first axis.
        """
        leaves = jax.tree.leaves(self.args[self.batch_argnum])
        found = {x.shape[0] for x in leaves if len(getattr(x, "shape", ()))}
        if len(found) != 1:
            raise ConfigError(
                f"the batch, argument {self.batch_argnum}, must have one number of "
                f"rows, got {sorted(found) or 'no arrays'}: name the batch by "
                "batch_argnum, and pass arrays that its rows share in other arguments."
            )
        return found.pop()

    def _check_one_batch(self) -> None:
        """Refuse a loss of which another argument has a row for each example, too."""
        count = len(self.args)
        active = (self.argnums,) if isinstance(self.argnums, int) else self.argnums
        batch = self.batch_argnum % count
        if batch in {n % count for n in active}:
            raise ConfigError(
                f"argument {batch} of the loss is differentiated, so it is not the "
                "batch: name the argument with the rows by batch_argnum."
            )
        for i, arg in enumerate(self.args):
            if i == batch or i in {n % count for n in active}:
                continue
            if _has_rows(arg, self.rows):
                raise ConfigError(
                    f"arguments {i} and {batch} of the loss both have {self.rows} "
                    "rows, and only one argument can be divided: pass the batch as "
                    "one, such as (x, y)."
                )

    def with_rows(self, rows: int) -> Self:
        """The same program for a batch of this many rows.

        Raises:
            ConfigError: the batch of the loss is more than one argument.
        """
        if self.is_loss:
            self._check_one_batch()

        def resize(x: Any) -> Any:
            if not len(x.shape):
                return x
            sharding = x.sharding if _is_sharded(x) else None
            shape = (rows, *x.shape[1:])
            return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)

        args = list(self.args)
        args[self.batch_argnum] = jax.tree.map(resize, args[self.batch_argnum])
        return dataclasses.replace(self, args=tuple(args))

    def place(self, target: Target) -> tuple[Any, ...]:
        """The arguments as shapes on the devices of a target.

        Raises:
            ConfigError: an axis of `specs` does not exist, or does not divide an array.
        """
        if self.axes is not None and not isinstance(self.axes, Mapping):
            raise ConfigError(
                f"axes must map names to numbers of devices, such as {{'data': 4}}, "
                f"got {self.axes!r:.80}."
            )
        if self.layout not in get_args(LayoutKind):
            kinds = ", ".join(get_args(LayoutKind))
            raise ConfigError(
                f"layout must be one of {kinds}, got {self.layout!r:.80}."
            )
        if self.specs is not None:
            return self._place_by_specs(target)
        layout = self.layout_on(target)
        if layout is None:
            return target.place(self.args)
        batch = range(len(self.args))[self.batch_argnum]
        try:
            shardings = tuple(
                layout.batch_sharding(arg) if i == batch else layout.state_sharding(arg)
                for i, arg in enumerate(self.args)
            )
        except ValueError as e:
            raise ConfigError(f"{target}: {e}") from e
        return jax.tree.map(_put, self.args, shardings)

    def layout_on(self, target: Target) -> Layout | None:
        """The layout on the devices of a target; None where arguments say it all."""
        shape = self.shape
        if target.num_devices == 1 and shape is None and not self.needs_mesh:
            return None
        if any(map(_is_sharded, jax.tree.leaves(self.args))):
            return None
        if shape is None and self.layout == "tensor":
            # Weights are split inside of a host, where devices are close together.
            shape = (target.num_hosts, target.num_devices // target.num_hosts)
        try:
            return Layout.over(shape, self.layout, devices=target.devices)
        except ValueError as e:
            raise ConfigError(f"{target}: {e}") from e

    def step_on(self, target: Target, memory: MemoryBudget | None = None) -> TrainStep:
        """The step in this layout on the devices, with these micro-batches.

        Args:
            target: the devices.
            memory: a budget for it to keep; by default its own.
        """
        assert isinstance(self.fn, TrainStep)  # by the callers
        layout = self.layout_on(target)
        return self.fn.with_options(
            layout=layout, accum=self.micro_batches, memory=memory
        )

    def _place_by_specs(self, target: Target) -> tuple[Any, ...]:
        axes, named = self.axes, _named_axes(self.specs)
        if axes is None:
            sizes = [target.num_devices, *[1] * (len(named) - 1)]
            axes = dict(zip(named or ["data"], sizes, strict=True))
        if unknown := [n for n in named if n not in axes]:
            raise ConfigError(
                f"a sharding names the axis {unknown[0]!r}, but the mesh has "
                f"{', '.join(axes)}: name its size among the axes."
            )
        mesh = target.mesh(axes)
        try:
            specs = jax.tree.broadcast(self.specs, self.args, is_leaf=_is_spec)
        except ValueError as e:
            reason = " ".join(str(e).split())
            raise ConfigError(f"specs do not fit the arguments: {reason:.200}") from e
        leaves, tree = jax.tree.flatten(self.args)
        found = jax.tree.leaves(specs, is_leaf=_is_spec)
        placed = []
        for leaf, spec in zip(leaves, found, strict=True):
            spec = spec or PartitionSpec()
            for side, part in zip(leaf.shape, spec, strict=False):
                names = part if isinstance(part, tuple) else (part,)
                size = math.prod(mesh.shape[n] for n in names if n is not None)
                if side % size:
                    raise ConfigError(
                        f"an array of shape {leaf.shape} cannot be split by {spec}: "
                        f"{side} is not divisible by {size} devices."
                    )
            placed.append(_put(leaf, NamedSharding(mesh, spec)))
        return jax.tree.unflatten(tree, placed)

    def _in_mesh(self, fn: Callable[..., Any], placed: Any) -> Callable[..., Any]:
        """The function, with a mesh for the bare `PartitionSpec`s inside."""
        meshes = [x.sharding.mesh for x in jax.tree.leaves(placed) if _is_sharded(x)]
        if not meshes:
            return fn

        @functools.wraps(fn)
        def inside(*args: Any) -> Any:
            with jax.sharding.use_abstract_mesh(meshes[0].abstract_mesh):
                return fn(*args)

        return inside

    def enclose(self, target: Target) -> tuple["PlannedPart", remat.EnclosingProgram]:
        """The gradient of a loss or `TrainStep`, and the program around it.

        Raises:
            ConfigError: the layout or the batch does not suit the target.
        """
        placed = self.place(target)
        if isinstance(self.fn, TrainStep):
            try:
                with target.tracing():
                    described = self.step_on(target).describe(*placed)
            except ValueError as e:
                raise ConfigError(f"{target}: {e}") from e
            part = PlannedPart(described.objective, described.args, 0, has_aux=True)
            return part, described.program
        if not target.is_here and self._names_devices():
            raise ConfigError(
                "the loss names devices of this process, such as by a sharding over a "
                "mesh of them, and these move with a step only: plan "
                "jax.value_and_grad(loss) in the place of the loss."
            )
        loss = self._in_mesh(self.fn, placed)
        has_aux = self.has_aux or self.changes_variables
        part = PlannedPart(loss, placed, self.argnums, has_aux)

        def build(value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
            grad = value_and_grad(loss, self.argnums, has_aux=has_aux)
            return self._in_mesh(grad, placed)

        return part, remat.EnclosingProgram(
            build=build, args=placed, donate_argnums=self.donate_argnums
        )

    def _names_devices(self) -> bool:
        if self.needs_mesh:
            return False
        shapes = jax.tree.map(_unplaced, self.args)
        return TracedStep.trace(self.fn, shapes).names_devices

    def trace(self, target: Target) -> TracedStep:
        """The step on the devices of a target, with its gradients marked.

        Where the step or its arguments name devices of this process, they lie likewise
        on those of the target.
        """
        trace = functools.partial(TracedStep.trace, donate_argnums=self.donate_argnums)
        if self.specs is None and not self.needs_mesh:
            step = trace(self.fn, self.args)
            if step.names_devices or self.layout_on(target) is None:
                return step.on(target)
        placed = self.place(target)
        with target.tracing():
            return trace(self._in_mesh(self.fn, placed), placed)

    def plain(self, target: Target) -> Callable[..., Any]:
        """The gradient or `TrainStep` on a target, where nothing is planned."""
        return self.enclose(target)[1].build(jax.value_and_grad)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PlannedPart:
    """A loss inside a program, and the arguments that it is called with there."""

    loss: Callable[..., Any]
    args: tuple[Any, ...]
    argnums: int | tuple[int, ...]
    has_aux: bool

    def apply(self, plan: "remat.RematPlan") -> "remat.PlannedGrad":
        """Its value and gradients by a plan."""
        return remat.apply(self.loss, dataclasses.replace(plan, has_aux=self.has_aux))


def _is_spec(x: Any) -> bool:
    return x is None or isinstance(x, PartitionSpec)


def _named_axes(specs: Any) -> list[str]:
    """The axes that the specs of arguments name."""
    named: dict[str, None] = {}
    for spec in jax.tree.leaves(specs, is_leaf=_is_spec):
        for part in spec or ():
            names = part if isinstance(part, tuple) else (part,)
            named |= {n: None for n in names if n is not None}
    return list(named)


def _trace_result(
    fn: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[Any, bool]:
    """The shapes that a function returns, and whether it needs a mesh for that."""
    try:
        return jax.eval_shape(fn, *args), False
    except Exception:
        # A bare `PartitionSpec` inside of it names the axes of a mesh that comes later.
        axes = options.get("axes")
        names = list(axes) if isinstance(axes, Mapping) else []
        names = names or _named_axes(options.get("specs")) or ["data", "model"]
        auto = (AxisType.Auto,) * len(names)  # not the default of newer JAX
        mesh = AbstractMesh((1,) * len(names), tuple(names), axis_types=auto)
        with contextlib.suppress(Exception), jax.sharding.use_abstract_mesh(mesh):
            return jax.eval_shape(fn, *args), True
        raise


def _check_arguments_of_step(args: tuple[Any, ...]) -> None:
    if len(args) != 2 or not isinstance(args[0], TrainState):
        kinds = ", ".join(type(arg).__name__ for arg in args)
        raise ConfigError(
            f"a training step is planned with a TrainState and a batch, got ({kinds}): "
            "write (step.init_shapes(model), batch)."
        )


def _check_batch_argnum(batch_argnum: int, count: int) -> None:
    if type(batch_argnum) is not int or (count and not -count <= batch_argnum < count):
        raise ConfigError(
            f"batch_argnum must be from {-count} to {count - 1} for {count} arguments, "
            f"got {batch_argnum!r:.80}."
        )


def _point_at_variables(options: dict[str, Any], count: int) -> dict[str, Any]:
    """Count arguments from the front, and donate the variables of nnx objects, too."""
    batch = options.get("batch_argnum", -1) % count
    donated = options["donate_argnums"]
    if donated:
        donated += (-1,)  # the variables are the last argument
    return {**options, "batch_argnum": batch, "donate_argnums": donated}


def _take_from_jit(
    fn: Callable[..., Any], options: dict[str, Any], count: int
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that was jitted, and the arguments that it donates.

    Raises:
        ConfigError: it has static arguments.
    """
    donated = options.get("donate_argnums", donated_positions(fn))
    donated = (donated,) if isinstance(donated, int) else donated
    options = {**options, "donate_argnums": tuple(n % count for n in donated)}
    if static := {*static_positions(fn), *static_names(fn)}:
        name = getattr(fn, "__name__", "the function")
        named = ", ".join(map(str, sorted(static, key=str)))
        raise ConfigError(
            f"{name} has static arguments ({named}), and a plan takes arrays: close "
            "over them, such as by lambda state, batch: step(state, batch, 8)."
        )
    return unwrap_jit(fn), options


def unwrap_jit(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that was jitted, if that says nothing of where arrays lie."""
    if isinstance(fn, jax.stages.Wrapped) and not states_shardings(fn):
        return getattr(fn, "__wrapped__", fn)
    return fn


def _check_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(*args)
    except TypeError as e:
        name = getattr(fn, "__name__", "the function")
        raise ConfigError(
            f"{name}{signature} cannot be called with {len(args)} arguments: {e}."
        ) from None
    if not args:
        raise ConfigError("the program has no arguments: there is nothing to plan.")


def _succeeds(arg: Any, result: Any) -> bool:
    """Whether a result, or a part of it, can take the place of an argument."""
    as_shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    is_value = lambda x: hasattr(x, "shape") or isinstance(x, int | float | complex)
    values = jax.tree.map(lambda x: x if is_value(x) else None, arg)
    whole = as_shapes(jax.eval_shape(lambda x: x, values))
    parts = result if isinstance(result, tuple | list) else ()
    return bool(whole) and any(as_shapes(r) == whole for r in (result, *parts))


def _has_rows(arg: Any, rows: int) -> bool:
    shapes = [x.shape for x in jax.tree.leaves(arg) if len(getattr(x, "shape", ()))]
    return bool(shapes) and all(shape[0] == rows for shape in shapes)


def _unplaced(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _put(leaf: Any, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _is_sharded(leaf: Any) -> bool:
    return isinstance(getattr(leaf, "sharding", None), NamedSharding)


def _is_number(value: Any) -> bool:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return shape == () and dtype is not None and jnp.issubdtype(dtype, jnp.floating)
