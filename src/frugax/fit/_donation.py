"""Advise which arguments of a `TrainStep` to donate."""

import jax

from frugax.capture import describe_donation, find_donatable
from frugax.targets import Target

from ._workload import Workload


def advise_donation(workload: Workload, target: Target) -> str:
    """Say which arguments to donate, and how many of their bytes results can take.

    Args:
        workload: the program; a loss has no results that replace its arguments.
        target: the devices.

    Returns:
        Text such as "donate argument 0: results can take the place of 1.25 GiB", on one
        device; "" where no result has the shape and type of an argument.
    """
    if workload.is_loss:
        return ""
    placed = workload.place(target)
    with target.tracing():
        results = jax.eval_shape(workload.plain(target), *placed)
    # The batch is used again by the caller, or made anew.
    batch = workload.batch_argnum % len(placed)
    arguments = {str(i): arg for i, arg in enumerate(placed) if i != batch}
    donated = list(map(str, workload.donate_argnums))
    return describe_donation(find_donatable(arguments, donated, results))
