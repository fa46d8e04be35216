"""The only module that imports `jax._src` or `jax.extend`: re-exports and wrappers."""

import contextlib
import copy
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src import (  # noqa: PLC2701 - `grad` looks up `vjp`; see `keep_clients`
    api as jax_api,
    callback,
    debugging,
    sharding_impls,
    traceback_util,
    xla_bridge,
)
from jax._src.core import (  # noqa: PLC2701 - no public names tell the trace
    NamedAxisEffect,
    Trace,
    axis_env_state,
    eval_trace,
    extend_axis_env_nd,
    set_current_trace,
    top_axis_env,
    trace_ctx,
    trace_state_strong_ref,
)
from jax._src.interpreters import mlir  # noqa: PLC2701 - see `lower_for_absent`
from jax._src.interpreters.ad import JVPTrace  # noqa: PLC2701
from jax._src.interpreters.batching import BatchTrace, BatchTracer  # noqa: PLC2701
from jax._src.interpreters.partial_eval import DynamicJaxprTrace  # noqa: PLC2701
from jax.extend import linear_util
from jax.extend.core import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Var,
    jaxpr_as_fun,
    jaxprs_in_params,
)
from jax.extend.source_info_util import new_source_info, user_context
from jax.interpreters import partial_eval

__all__ = [
    "ClosedJaxpr",
    "InlinedError",
    "InlinedPrimitive",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "TopLevelTrace",
    "Var",
    "argument_shardings",
    "close",
    "close_over",
    "debug_effect",
    "donated_positions",
    "fresh_var",
    "has_backend",
    "hide_frames",
    "hides_frames_below",
    "intercept_vjp",
    "is_staging",
    "is_tracing",
    "is_vmapped",
    "jaxpr_as_fun",
    "jaxprs_in_params",
    "keep_clients",
    "lower_for_absent",
    "names_axes",
    "new_source_info",
    "remove_dead_code",
    "result_shardings",
    "states_shardings",
    "static_names",
    "static_positions",
    "user_context",
    "varying_axes",
    "with_changed_rules",
    "with_named_axes",
    "without_objects",
]


def close(jaxpr: Any) -> ClosedJaxpr:
    """The program as a ClosedJaxpr, which it may be already.

    JAX 0.12 has a single class for both.
    """
    if isinstance(jaxpr, ClosedJaxpr):
        return jaxpr
    return ClosedJaxpr(jaxpr, ())


def debug_effect() -> Any:
    """The effect of `jax.debug.callback`, which JAX keeps through transformations."""
    traced = jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))()
    (effect,) = traced.effects
    return effect


@contextlib.contextmanager
def _let_meshes_be_set() -> Iterator[None]:
    """Let `jax.set_mesh` know that a `TopLevelTrace` is inside of no transformation."""
    kind: Any = jax.set_mesh
    set_mesh, get_mesh = kind.__init__, sharding_impls.get_mesh

    def call_outside(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            if not isinstance(trace_ctx.trace, TopLevelTrace):
                return function(*args)
            with set_current_trace(eval_trace):
                return function(*args)

        return call

    kind.__init__ = call_outside(set_mesh)
    sharding_impls.get_mesh = jax.sharding.get_mesh = call_outside(get_mesh)
    try:
        yield
    finally:
        kind.__init__ = set_mesh
        sharding_impls.get_mesh = jax.sharding.get_mesh = get_mesh


class InlinedError(Exception):
    """A rule of an `InlinedPrimitive` asks for the program that it stands for."""


class InlinedPrimitive(Primitive):
    """An operation that stands for the program in its parameter `call`.

    Where one of its rules raises `InlinedError`, the transformation goes on with the
    operations of that program, as if they were written in its place.
    """

    multiple_results = True

    def bind_with_trace(self, trace: Any, args: Any, *rest: Any) -> Any:
        """Let the current trace take the operation, or those that it stands for."""
        try:
            return super().bind_with_trace(trace, args, *rest)
        except InlinedError:
            with set_current_trace(trace):
                return jaxpr_as_fun(rest[-1]["call"])(*args)

    def inline_under_checkify(self, note: Callable[..., None]) -> None:
        """Let `checkify` add its checks to the program; `note` gets the parameters."""
        # JAX does not import it by itself.
        from jax._src import checkify  # noqa: PLC2701

        def check(*given: Any, **params: Any) -> Any:
            note(**params)
            # JAX 0.12 gives a context before the error.
            context = [x for x in given[:1] if not isinstance(x, checkify.Error)]
            error, enabled, *operands = given[len(context) :]
            program: Any = params["call"]
            return checkify.checkify_jaxpr(*context, program, enabled, error, *operands)

        checkify.error_checks[self] = check


class TopLevelTrace(Trace):
    """Runs the operations of a program that is inside of no transformation.

    JAX runs operations by the trace that is current: by default at once, on a device.
    """

    def run(self, primitive: Primitive, args: Sequence[Any], params: Any) -> Any:
        """Run one operation as JAX does."""
        return eval_trace.process_primitive(primitive, args, params)

    def stage_value(self, val: Any) -> Any:
        """The value as an array."""
        return val if isinstance(val, jax.Array) else eval_trace.stage_value(val)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Run the operations of this thread by this trace, inside of the block."""
        with set_current_trace(self), _let_meshes_be_set():
            yield

    @staticmethod
    @contextlib.contextmanager
    def suspended() -> Iterator[None]:
        """Run the operations of this thread as JAX does, inside of the block."""
        with set_current_trace(eval_trace):
            yield

    def process_call(self, primitive: Any, fun: Any, args: Any, params: Any, /) -> Any:
        """Run the function of an operation such as `core_call`."""
        with set_current_trace(self):
            return fun.call_wrapped(*args)

    def process_custom_jvp_call(
        self, primitive: Any, fun: Any, jvp: Any, args: Any, /, **_: Any
    ) -> Any:
        """Run a function that has derivatives of its own."""
        with set_current_trace(self):
            return fun.call_wrapped(*args)

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, args: Any, /, **_: Any
    ) -> Any:
        """Run a function that has derivatives of its own."""
        with set_current_trace(self):
            return fun.call_wrapped(*args)

    def cur_qdd(self, value: Any) -> Any:
        """The state of a mutable value, as JAX has it."""
        return eval_trace.cur_qdd(value)


def is_tracing() -> bool:
    """Whether this thread is inside a transformation of JAX."""
    # As `trace_ctx.is_top_level`, whose calls of further functions take 6 us when the
    # processor has forgotten them, as it has after each step.
    trace = trace_state_strong_ref.value
    if trace is eval_trace and axis_env_state.value is top_axis_env:
        return False
    return not isinstance(trace, TopLevelTrace)


def keep_clients() -> None:
    """Never destroy the clients of JAX in this process, a forked child.

    Their destructors wait for threads that a child does not have, so that a child of a
    process that has used JAX would never end. `jax.extend.backend` takes locks that may
    be held.
    """
    for client in getattr(xla_bridge, "_backends", {}).values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


def has_backend() -> bool:
    """Whether JAX has started a backend; on a GPU it takes most of the memory then."""
    return xla_bridge.backends_are_initialized()


def is_staging() -> bool:
    """Whether operations are now written into a program, for rows or with tangents.

    Not where they are differentiated in reverse.
    """
    trace = trace_ctx.trace
    while isinstance(trace, BatchTrace | JVPTrace):
        trace = trace.parent_trace
    return isinstance(trace, DynamicJaxprTrace)


_interception = threading.local()
_patches = threading.Lock()
_open_patches: list[object] = []
_plain_vjp = jax_api.vjp


@contextlib.contextmanager
def intercept_vjp(intercept: Callable[..., Any] | None) -> Iterator[None]:
    """Call `intercept` in the place of `jax.vjp` in this thread, inside of the block.

    `jax.grad`, `jax.value_and_grad` and `jax.jacrev` look `vjp` up when they are
    called, so those that were made or imported before the block are seen as well.

    Args:
        intercept: called as `intercept(vjp, function, *primals, has_aux=...)`, where
            `vjp` is JAX's own. None calls that, also inside of another block.
    """
    outer = getattr(_interception, "call", None)
    token = object()
    with _patches:
        if not _open_patches:
            jax_api.vjp = jax.vjp = _vjp
        _open_patches.append(token)
    _interception.call = intercept
    try:
        yield
    finally:
        _interception.call = outer
        with _patches:
            _open_patches.remove(token)
            if not _open_patches:
                jax_api.vjp = jax.vjp = _plain_vjp


def _vjp(fun: Any, *primals: Any, has_aux: bool = False, **options: Any) -> Any:
    intercept = getattr(_interception, "call", None)
    if intercept is None or options:
        return _plain_vjp(fun, *primals, has_aux=has_aux, **options)
    return intercept(_plain_vjp, fun, *primals, has_aux=has_aux)


# Hides JAX's frames, and those of `hide_frames`, where an error leaves the function.
hides_frames_below = traceback_util.api_boundary


def hide_frames(path: str) -> None:
    """Leave the frames of a file, or of a folder, out of tracebacks as JAX's own.

    JAX_TRACEBACK_FILTERING=off shows them.
    """
    traceback_util.register_exclusion(path)


def names_axes(closed: ClosedJaxpr) -> bool:
    """Whether values of other devices, or of other rows of `jax.vmap`, are read."""
    return any(isinstance(e, NamedAxisEffect) for e in closed.effects)


def with_named_axes(
    axes: Sequence[tuple[Any, int]],
) -> contextlib.AbstractContextManager[None]:
    """Programs that are traced inside of the block may name these axes.

    As inside of a `shard_map` over them.

    Args:
        axes: their names and sizes.
    """
    return extend_axis_env_nd(axes)


def is_vmapped(value: Any) -> bool:
    """Whether a value stands for a whole axis of values, inside of `jax.vmap`."""
    return isinstance(value, BatchTracer)


def with_changed_rules(
    params: dict[str, Any], change: Callable[[Jaxpr], Jaxpr]
) -> dict[str, Any]:
    """Parameters of a `custom_jvp` or `custom_vjp`, whose rule is a changed program.

    JAX traces a rule when it is first used, and knows its program from then on.
    """

    def changed(rule: Any) -> Any:
        def run(*zeros: Any) -> tuple[Any, ...]:
            jaxpr, *rest = rule.call_wrapped(*zeros)
            return (change(jaxpr), *rest)

        return linear_util.wrap_init(run, debug_info=rule.debug_info)

    rules = ("jvp_jaxpr_fun", "fwd_jaxpr_thunk")
    return params | {name: changed(params[name]) for name in rules if name in params}


def fresh_var(aval: Any) -> Var:
    """A new variable of this shape and type."""
    return Var(aval)


def static_positions(jitted: Any) -> tuple[int, ...]:
    """The static positional arguments of a jitted function."""
    info = getattr(jitted, "_jit_info", None)
    return tuple(getattr(info, "static_argnums", None) or ())


def static_names(jitted: Any) -> frozenset[str]:
    """The static parameters of a jitted function; empty if JAX does not reveal them."""
    info = getattr(jitted, "_jit_info", None)
    return frozenset(getattr(info, "static_argnames", None) or ())


def donated_positions(jitted: Any) -> tuple[int, ...]:
    """The donated positional arguments of a jitted function."""
    info = getattr(jitted, "_jit_info", None)
    return tuple(getattr(info, "donate_argnums", None) or ())


def states_shardings(jitted: Any) -> bool:
    """Whether a jitted function says where its arguments or results lie."""
    info = getattr(jitted, "_jit_info", None)
    names = ("in_shardings_leaves", "out_shardings_leaves")
    stated = [x for n in names for x in getattr(info, n, None) or ()]
    return any(isinstance(x, jax.sharding.Sharding) for x in stated)


def close_over(traced: Any) -> ClosedJaxpr:
    """The program of a traced function, with the values it closes over as constants.

    JAX makes them the first inputs if one of them is not known.
    """
    closed, consts = traced.jaxpr, traced._consts
    if not consts:
        return closed
    inputs, count = closed.jaxpr.invars, len(consts)
    jaxpr = closed.jaxpr.replace(
        constvars=[*closed.jaxpr.constvars, *inputs[:count]], invars=inputs[count:]
    )
    return ClosedJaxpr(jaxpr, [*closed.consts, *consts])


def argument_shardings(traced: Any) -> tuple[Any, ...]:
    """Where `in_shardings` puts the flat arguments; None where it does not say."""
    found = traced._params["in_shardings"][len(traced._consts) :]
    is_known = lambda s: isinstance(s, jax.sharding.Sharding)
    return tuple(s if is_known(s) else None for s in found)


def result_shardings(traced: Any) -> tuple[Any, ...]:
    """Where the flat results of a traced function lie; None where it does not say."""
    found = traced._params["out_shardings"]
    is_known = lambda s: isinstance(s, jax.sharding.Sharding)
    return tuple(s if is_known(s) else None for s in found)


def without_objects(traced: Any) -> Any:
    """A traced function whose arguments and results are lists of arrays.

    JAX describes them in objects of the user's classes otherwise, whose
    `tree_unflatten` may compute something and accept only arrays.
    """
    flat, structure = copy.copy(traced), jax.tree.structure
    flat._in_tree = structure((list(range(traced._in_tree.num_leaves)), {}))
    flat.out_tree = structure(list(range(traced.out_tree.num_leaves)))
    return flat


def varying_axes(kind: Any) -> frozenset[str]:
    """The mesh axes along which values of a type differ, inside of `shard_map`."""
    axes = getattr(kind, "manual_axis_type", None)
    return frozenset(axes.varying) if axes is not None else frozenset()


# Operations that call back to Python, with the functions that lower them.
_CALLS_PYTHON = {
    debugging.debug_callback_p: debugging.debug_callback_lowering,
    debugging.debug_print_p: debugging.debug_print_lowering_rule,
    callback.io_callback_p: callback.io_callback_lowering,
    callback.pure_callback_p: callback.pure_callback_lowering,
}


def lower_for_absent(traced: Any, platform: str) -> jax.stages.Lowered:
    """Lower a traced function for devices that this process does not have.

    The program is the one that such a device runs. Where it calls back to Python JAX
    registers the function with the device's runtime, which is not here: the call stays
    in the program, with its arguments and results, and nothing is registered.

    Args:
        traced: the result of a jitted function's `trace`, with shapes on the devices.
        platform: as JAX names it, such as `"cuda"`.
    """
    calls: list[Any] = []

    def without_runtime(lower: Callable[..., Any]) -> Callable[..., Any]:
        def rule(ctx: Any, *operands: Any, **params: Any) -> Any:
            module = _ModuleWithoutRuntime(ctx.module_context, calls)
            apart = ctx.replace(module_context=module)
            results = lower(apart, *operands, **params)
            ctx.tokens_out = apart.tokens_out
            return results

        return rule

    rules: Any = tuple((p, without_runtime(f)) for p, f in _CALLS_PYTHON.items())
    return traced.lower(
        lowering_platforms=(platform,),
        _private_parameters=mlir.LoweringParameters(override_lowering_rules=rules),
    )


class _ModuleWithoutRuntime:
    """JAX's context of a module that is lowered, with a runtime that does nothing."""

    def __init__(self, module: Any, calls: list[Any]) -> None:
        vars(self).update(_module=module, host_callbacks=calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def get_backend(self, **_: Any) -> Any:
        return self

    def add_host_callback(self, call: Any) -> None:
        self.host_callbacks.append(call)

    def make_python_callback_from_host_send_and_recv(self, *_: Any) -> None:
        """Of TPUs, which exchange messages with the host."""


def remove_dead_code(
    jaxpr: Jaxpr, used_outputs: Sequence[bool]
) -> tuple[Jaxpr, list[bool]]:
    """The program without operations that no used output needs, and the used inputs."""
    # JAX names the inputs of a custom_jvp that is called by keywords wrongly, more than
    # there are, and refuses to shorten the names.
    unnamed = jaxpr.replace(debug_info=jaxpr.debug_info.with_unknown_names())
    live, used_inputs = partial_eval.dce_jaxpr(unnamed, list(used_outputs))
    return live, list(used_inputs)
