from ._checkpoints import (
    has_checkpoints as has_checkpoints,
    is_checkpoint as is_checkpoint,
    open_checkpoints as open_checkpoints,
)
from ._convolutions import (
    use_fast_convolutions as use_fast_convolutions,
)
from ._digest import (
    constants as constants,
    digest as digest,
)
from ._fast_convolution import (
    fast_convolution as fast_convolution,
)
from ._flops import (
    count_heavy as count_heavy,
    count_heavy_in_hlo as count_heavy_in_hlo,
    flops as flops,
    flops_of as flops_of,
    has_convolution as has_convolution,
    is_heavy as is_heavy,
    split_scan as split_scan,
)
from ._graph import (
    MARKS as MARKS,
    Graph as Graph,
    bytes_of as bytes_of,
    find_dependent as find_dependent,
    flatten as flatten,
    has_explicit_axes as has_explicit_axes,
    shape_of as shape_of,
    trace as trace,
    variables as variables,
)
from ._jax_internals import (
    ClosedJaxpr as ClosedJaxpr,
    InlinedError as InlinedError,
    InlinedPrimitive as InlinedPrimitive,
    Jaxpr as Jaxpr,
    JaxprEqn as JaxprEqn,
    Literal as Literal,
    Primitive as Primitive,
    TopLevelTrace as TopLevelTrace,
    Var as Var,
    argument_shardings as argument_shardings,
    close as close,
    close_over as close_over,
    debug_effect as debug_effect,
    donated_positions as donated_positions,
    fresh_var as fresh_var,
    has_backend as has_backend,
    hide_frames as hide_frames,
    hides_frames_below as hides_frames_below,
    intercept_vjp as intercept_vjp,
    is_staging as is_staging,
    is_tracing as is_tracing,
    is_vmapped as is_vmapped,
    jaxpr_as_fun as jaxpr_as_fun,
    jaxprs_in_params as jaxprs_in_params,
    keep_clients as keep_clients,
    lower_for_absent as lower_for_absent,
    names_axes as names_axes,
    new_source_info as new_source_info,
    remove_dead_code as remove_dead_code,
    result_shardings as result_shardings,
    states_shardings as states_shardings,
    static_names as static_names,
    static_positions as static_positions,
    user_context as user_context,
    varying_axes as varying_axes,
    with_named_axes as with_named_axes,
    without_objects as without_objects,
)
from ._liveness import (
    live_bytes as live_bytes,
)
from ._nnx_objects import (
    LostUpdateWarning as LostUpdateWarning,
    call_noting_changes as call_noting_changes,
    changes_weights as changes_weights,
)
from ._retyped_program import (
    OutsideOfShardMap as OutsideOfShardMap,
    RetypedProgram as RetypedProgram,
)
from ._take_arrays import (
    LossOfArrays as LossOfArrays,
    take_arrays as take_arrays,
)
