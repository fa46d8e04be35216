"""`Workload`: the loss or training step that must fit, with its arguments' shapes."""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, get_args

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from frugax import remat
from frugax.budget import MemoryBudget
from frugax.errors import ConfigError
from frugax.jaxprs import changes_weights, take_arrays
from frugax.options import check_integer
from frugax.targets import Target
from frugax.train import TrainState, TrainStep
from frugax.train.distributed import Layout, LayoutKind

from ._micro_batches import accumulate_gradient, split_shapes
from ._step_of_arrays import as_shapes, holds_variables, take_step


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """A program and the shapes of its arguments.

    Attributes:
        fn: a loss, which is differentiated; a step, which is compiled as it is; a
            `TrainStep`, of which another one is made for each layout and number of
            micro-batches; or, with `takes_gradient`, a function that is given a
            transform in the place of `jax.value_and_grad`, and returns a step that
            calls it with its loss.
        args: arguments of the loss or the step; arrays or `jax.ShapeDtypeStruct`.
        takes_gradient: whether `fn` is given the `value_and_grad` that its step calls,
            so that the gradient inside can be planned.
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
        micro_batches: parts of the batch whose gradients are accumulated one by one.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    takes_gradient: bool = False
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

    def __post_init__(self) -> None:
        check_integer("micro_batches", self.micro_batches)

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
        if isinstance(fn, TrainStep):
            _check_arguments_of_step(args)
            options.setdefault("micro_batches", fn.accum)
            return cls(
                fn=fn,
                args=jax.eval_shape(lambda *arrays: arrays, *args),
                takes_gradient=True,
                is_loss=False,
                donate_argnums=fn.donate_argnums,
                **options,
            )
        _check_batch_argnum(options.get("batch_argnum", -1), len(args))
        is_factory = takes_value_and_grad(fn)
        if not is_factory:
            _check_call(fn, args)
        make_step, given = take_step(fn if is_factory else lambda _: fn, args)
        if holds_variables(args, given):
            options = _point_at_variables(options, len(args))
        if is_factory:
            return cls(
                fn=make_step, args=given, takes_gradient=True, is_loss=False, **options
            )
        step = make_step(jax.value_and_grad)
        result = jax.eval_shape(step, *given)
        is_step = False
        if holds_variables(args, given):  # what it changes in them comes last
            result, changed = result
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
    def can_be_planned(self) -> bool:
        """Whether the backward pass can be planned, and not only measured."""
        return self.is_loss or self.takes_gradient

    @property
    def caveat(self) -> str:
        """Says so if no gradient is planned; "" if one is."""
        if self.can_be_planned:
            return ""
        return (
            "measured as a step, without planning a gradient: it does not take "
            "value_and_grad, and does not return one number, with metrics or without, "
            "as a loss does"
        )

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
        if not self.is_loss:
            return
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

    def _find_batch(
        self,
        args: tuple[Any, ...],
        argnums: int | tuple[int, ...],
        batch_leaves: set[int],
    ) -> int:
        """Which argument of the loss inside a step has the rows of the step's batch."""
        active = (argnums,) if isinstance(argnums, int) else argnums
        others = [
            i for i in range(len(args)) if i not in {n % len(args) for n in active}
        ]
        is_same = lambda arg: any(id(x) in batch_leaves for x in jax.tree.leaves(arg))
        found = [i for i in others if is_same(args[i])]
        found = found or [i for i in others if _has_rows(args[i], self.rows)]
        if len(found) != 1:
            named = " and ".join(map(str, found)) or "none"
            raise ConfigError(
                f"micro-batches divide one argument of the loss that the step calls, "
                f"the one with the {self.rows} rows of the batch, got {named} of its "
                f"{len(args)} arguments: pass the batch as one, such as (x, y)."
            )
        return found[0]

    def with_rows(self, rows: int) -> Self:
        """The same program for a batch of this many rows.

        Raises:
            ConfigError: the batch of the loss is more than one argument.
        """
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
        layout = self._layout_on(target)
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

    def _layout_on(self, target: Target) -> Layout | None:
        """The layout on the devices of a target; None where arguments say it all."""
        shape = self.shape
        if target.num_devices == 1 and shape is None:
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
        layout = self._layout_on(target)
        return self.fn.with_options(
            layout=layout, accum=self.micro_batches, memory=memory
        )

    def _place_by_specs(self, target: Target) -> tuple[Any, ...]:
        is_spec = lambda x: x is None or isinstance(x, PartitionSpec)
        named: list[str] = []
        for spec in jax.tree.leaves(self.specs, is_leaf=is_spec):
            for part in spec or ():
                names = part if isinstance(part, tuple) else (part,)
                named += [n for n in names if n is not None and n not in named]
        axes = self.axes
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
            specs = jax.tree.broadcast(self.specs, self.args, is_leaf=is_spec)
        except ValueError as e:
            reason = " ".join(str(e).split())
            raise ConfigError(f"specs do not fit the arguments: {reason:.200}") from e
        leaves, tree = jax.tree.flatten(self.args)
        found = jax.tree.leaves(specs, is_leaf=is_spec)
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

        def inside(*args: Any) -> Any:
            with jax.sharding.use_abstract_mesh(meshes[0].abstract_mesh):
                return fn(*args)

        return inside

    def enclose(self, target: Target) -> tuple["PlannedPart", remat.EnclosingProgram]:
        """The gradient to be planned, and the program around it, on a target.

        Raises:
            ConfigError: the step does not call the gradient that it is given.
        """
        placed = self.place(target)
        parts = self.micro_batches
        if isinstance(self.fn, TrainStep):
            try:
                with target.tracing():
                    described = self.step_on(target).describe(*placed)
            except ValueError as e:
                raise ConfigError(f"{target}: {e}") from e
            part = PlannedPart(described.objective, described.args, 0, has_aux=True)
            return part, described.program
        if self.is_loss:
            if parts > 1:
                self._check_one_batch()
            shapes = split_shapes(placed, self.batch_argnum, parts)
            fn = self._in_mesh(self.fn, placed)
            part = PlannedPart(
                fn,
                shapes,
                self.argnums,
                self.has_aux or self.changes_variables,
                self.batch_argnum % len(placed),
                parts,
            )

            def build_loss(value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
                return self._in_mesh(part.differentiate(value_and_grad), placed)

            return part, remat.EnclosingProgram(
                build=build_loss, args=placed, donate_argnums=self.donate_argnums
            )
        found: list[PlannedPart] = []
        shardings: dict[int, Any] = {}
        batch_leaves: set[int] = set()

        def record(
            loss: Callable[..., Any],
            argnums: int | tuple[int, ...] = 0,
            *others: Any,
            has_aux: bool = False,
        ) -> Callable[..., Any]:
            _check_argnums(argnums, *others)

            def grad(*args: Any) -> Any:
                taken = take_arrays(loss, args, argnums, has_aux=has_aux)
                shapes = jax.eval_shape(lambda *given: given, *taken.args)
                leaves = jax.tree.leaves(taken.args)
                if all(id(leaf) in shardings for leaf in leaves):
                    known = [shardings[id(leaf)] for leaf in leaves]
                    tree = jax.tree.structure(taken.args)
                    shapes = jax.tree.map(_put, shapes, jax.tree.unflatten(tree, known))
                at = self._find_batch(args, argnums, batch_leaves) if parts > 1 else -1
                shapes = split_shapes(shapes, at, parts)
                inside = self._in_mesh(taken.loss, placed)
                how = {"argnums": taken.argnums, "has_aux": taken.has_aux}
                found.append(
                    PlannedPart(inside, shapes, **how, batch_argnum=at, parts=parts)
                )
                plain = jax.value_and_grad(taken.loss, **how)
                return taken.finish(plain(*taken.args))

            return grad

        def step(*args: Any) -> Any:
            # The arguments that the step hands on to its gradient lie where they lay.
            leaves, given = jax.tree.leaves(args), jax.tree.leaves(placed)
            shardings.update(
                (id(x), p.sharding) for x, p in zip(leaves, given, strict=True)
            )
            batch_leaves.update(map(id, jax.tree.leaves(args[self.batch_argnum])))
            return self.fn(record)(*args)

        with target.tracing():
            jax.eval_shape(self._in_mesh(step, placed), *placed)
        if len(found) != 1:
            raise ConfigError(
                "the step must call the value_and_grad that it is given once, it "
                f"called it {len(found)} times."
            )

        def build(value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
            grad = found[0].differentiate(value_and_grad)

            def planned(
                loss: Callable[..., Any],
                argnums: int | tuple[int, ...] = 0,
                *,
                has_aux: bool = False,
            ) -> Callable[..., Any]:
                def grad_of_modules(*args: Any) -> Any:
                    taken = take_arrays(loss, args, argnums, has_aux=has_aux)
                    return taken.finish(grad(*taken.args))

                return grad_of_modules

            return self._in_mesh(self.fn(planned), placed)

        return found[0], remat.EnclosingProgram(
            build=build, args=placed, donate_argnums=self.donate_argnums
        )

    def plain(self, target: Target) -> Callable[..., Any]:
        """The function to compile on a target where nothing is planned."""
        if not self.can_be_planned:
            return self._in_mesh(self.fn, self.place(target))
        return self.enclose(target)[1].build(jax.value_and_grad)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PlannedPart:
    """A loss inside a program, and the arguments that it is called with there."""

    loss: Callable[..., Any]
    args: tuple[Any, ...]
    argnums: int | tuple[int, ...]
    has_aux: bool
    # Of the loss's arguments, the one that is divided into parts.
    batch_argnum: int = -1
    parts: int = 1

    def apply(self, plan: "remat.RematPlan") -> "remat.PlannedGrad":
        """Its value and gradients by a plan."""
        return remat.apply(self.loss, dataclasses.replace(plan, has_aux=self.has_aux))

    def differentiate(self, value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
        """Its value and gradients, by JAX's transform or one in the place of it."""
        return accumulate_gradient(
            value_and_grad(self.loss, self.argnums, has_aux=self.has_aux),
            self.argnums,
            has_aux=self.has_aux,
            batch_argnum=self.batch_argnum,
            parts=self.parts,
        )


def _check_arguments_of_step(args: tuple[Any, ...]) -> None:
    if len(args) != 2 or not isinstance(args[0], TrainState):
        kinds = ", ".join(type(arg).__name__ for arg in args)
        raise ConfigError(
            f"a training step is planned with a TrainState and a batch, got ({kinds}): "
            "write (step.init_shapes(model), batch)."
        )


def _check_batch_argnum(batch_argnum: int, count: int) -> None:
    if count and not -count <= batch_argnum < count:
        raise ConfigError(
            f"batch_argnum must be from {-count} to {count - 1} for {count} arguments, "
            f"got {batch_argnum}."
        )


def _check_argnums(argnums: object, *others: object) -> None:
    numbers = argnums if isinstance(argnums, tuple | list) else (argnums,)
    if others or not all(isinstance(n, int) for n in numbers):
        raise ConfigError(
            "the step calls value_and_grad with the arguments of its loss; it is "
            "called as jax.value_and_grad is: value_and_grad(loss)(weights, batch)."
        )


def _point_at_variables(options: dict[str, Any], count: int) -> dict[str, Any]:
    """Count arguments from the front, and donate the variables of nnx objects, too."""
    batch = options.get("batch_argnum", -1) % count
    donated = tuple(n % count for n in options.get("donate_argnums", ()))
    if donated:
        donated += (count,)
    return {**options, "batch_argnum": batch, "donate_argnums": donated}


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
            f"{name}{signature} cannot be called with {len(args)} arguments: {e}. If "
            "it makes a step, name its first parameter value_and_grad."
        ) from None
    if not args:
        raise ConfigError("the program has no arguments: there is nothing to plan.")


def takes_value_and_grad(fn: Callable[..., Any]) -> bool:
    """Whether the first parameter of a function is named `value_and_grad`."""
    try:
        names = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    return names[:1] == ["value_and_grad"]


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


def _put(leaf: Any, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _is_sharded(leaf: Any) -> bool:
    return isinstance(getattr(leaf, "sharding", None), NamedSharding)


def _is_number(value: Any) -> bool:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return shape == () and dtype is not None and jnp.issubdtype(dtype, jnp.floating)
