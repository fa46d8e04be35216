"""Run a loss and its gradients by a plan: segments recompute, loops are rewritten.

Start at `trace_loss`, which prepares a loss, and `build_value_and_grad`, which carries
a plan out. `rewrite_loops` changes the residuals that the bodies of `lax.scan` and
`lax.cond` save.
"""

from ._active import active_variables as active_variables
from ._backward import value_and_gradients as value_and_gradients
from ._batch_chunks import (
    BatchSplit as BatchSplit,
    check_split as check_split,
    split_batch as split_batch,
)
from ._batch_rules import MixesBatchError as MixesBatchError
from ._custom_rules import has_custom_rule as has_custom_rule
from ._gates import (
    Gate as Gate,
    choose_gate as choose_gate,
    is_device_varying as is_device_varying,
)
from ._graph import RematGraph as RematGraph, trace_loss as trace_loss
from ._late_copies import copy_late as copy_late, reads_late_from as reads_late_from
from ._loops import loop_bodies as loop_bodies, rewrite_loops as rewrite_loops
from ._planned_loss import (
    build_value_and_grad as build_value_and_grad,
    chunk_batch as chunk_batch,
    prepare_loss as prepare_loss,
)
from ._row_segments import chunk_rows as chunk_rows, split_rows as split_rows
from ._shard_maps import (
    call_inside as call_inside,
    find_shard_map as find_shard_map,
    prepare_shard_body as prepare_shard_body,
)
from ._traced_parts import TracedParts as TracedParts
