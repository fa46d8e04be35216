"""The disk cache of remat plans, so that the next process need not search for them.

A plan records the memory that some compiled programs need. Its name in the cache is
therefore a digest of everything that those programs depend on (`plan_key`): the
computation down to each parameter and constant, the compiler and the device.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from frugax.budget import MemoryBudget, MemoryShare, to_plain
from frugax.errors import OutputError
from frugax.fileio import cache_folder, write_whole
from frugax.jaxprs import constants, program_text
from frugax.targets import Target

from ._enclosing_program import EnclosingProgram
from ._plan import RematPlan

# Above this the least recently used plans are deleted. A plan takes a few kB.
_MAX_BYTES = 16 * 2**20
# Environment variables that change the programs that XLA makes.
_ENVIRONMENT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def plan_key(
    loss: Callable[..., Any],
    budget: MemoryBudget | MemoryShare,
    example_args: Sequence[Any],
    *,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    within: EnclosingProgram | None = None,
    block_size: int | None = None,
    divide_batch: bool | str = True,
    offload: bool | str = True,
) -> str | None:
    """The name of the plan for these arguments of `plan`, the same in every process.

    It is None if the loss reads an array that is known only inside a `jit` around it:
    then the computation cannot be told from another one.
    """
    args = tuple(example_args)
    program = EnclosingProgram.around(within, args)
    facts: list[object] = [
        to_plain(budget),
        argnums,
        has_aux,
        program.donate_argnums,
        block_size,
        divide_batch,
        offload,
        _compiler_facts(program.target),
    ]
    # The program is traced with its plain gradient as well, because the loss alone does
    # not show the backward rules that the user has defined.
    plain = jax.value_and_grad(loss, argnums, has_aux=has_aux)
    for fn, inputs in ((loss, args), (program.build(plain), program.args)):
        traced = jax.make_jaxpr(fn)(*inputs)
        arrays = constants(traced)
        if any(isinstance(c, Tracer) for c in arrays):
            return None
        facts += [
            program_text(traced),
            str(jax.tree.structure(inputs)),
            *map(_digest_array, arrays),
            *map(_describe_sharding, jax.tree.leaves(inputs)),
        ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def recall(
    key: str | None,
    make: Callable[[], RematPlan],
    *,
    cache: bool | str | os.PathLike[str],
) -> RematPlan:
    """The plan that is stored under this name, or else a new one, then stored."""
    if key is None or cache is False:
        return make()
    folder = cache_folder("plans") if cache is True else Path(cache)
    plan = load_plan(key, folder)
    if plan is None:
        plan = make()
        store_plan(key, plan, folder)
    return plan


def load_plan(key: str, folder: Path) -> RematPlan | None:
    """The plan that is stored under this name, or None; a damaged file warns."""
    file = folder / f"{key}.json"
    try:
        text = file.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as e:
        return _warn_damaged(file, e)
    # The checksum in the first line finds damage that leaves valid JSON, such as one
    # changed digit.
    digest, _, body = text.partition("\n")
    if hashlib.sha256(body.encode()).hexdigest() != digest:
        return _warn_damaged(file, "its checksum does not match")
    try:
        plan = RematPlan.from_json(body)
    except ValueError as e:
        return _warn_damaged(file, e)
    with contextlib.suppress(OSError):  # the folder may be read-only
        os.utime(file)  # marks it as recently used
    return plan


def store_plan(key: str, plan: RematPlan, folder: Path) -> None:
    """Store a plan under this name, and delete old plans if there are too many.

    A folder that cannot be written to costs a warning, not the plan.
    """
    body = plan.to_json()
    digest = hashlib.sha256(body.encode()).hexdigest()
    try:
        write_whole(folder / f"{key}.json", f"{digest}\n{body}")
    except OutputError as e:
        warnings.warn(f"this plan is not stored: {e}", UserWarning, stacklevel=4)
        return
    _delete_oldest(folder, _MAX_BYTES)


def _delete_oldest(folder: Path, max_bytes: int) -> None:
    found: list[tuple[float, int, Path]] = []
    for file in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # another process deleted it
            stat = file.stat()
            # The time of writing stands for the last use, because `load_plan` touches
            # the file: many systems do not record reads.
            found.append((stat.st_mtime, stat.st_size, file))
    total = 0
    for _, size, file in sorted(found, reverse=True):
        total += size
        if total > max_bytes:
            file.unlink(missing_ok=True)


def _warn_damaged(file: Path, why: object) -> None:
    warnings.warn(
        f"{file}: this stored plan cannot be read ({why}); a new one is made.",
        UserWarning,
        stacklevel=5,
    )


def _digest_array(constant: Any) -> str:
    values = np.ascontiguousarray(jax.device_get(constant))
    # Equal bytes may be different arrays, so dtype and shape count as well.
    content = f"{values.dtype}{values.shape}".encode() + values.tobytes()
    return hashlib.sha256(content).hexdigest()


def _describe_sharding(leaf: Any) -> str:
    sharding = getattr(leaf, "sharding", None)
    return str(sharding) if sharding and sharding.num_devices > 1 else ""


def _compiler_facts(target: Target) -> list[object]:
    """Everything besides the program that changes XLA's output for this target."""
    settings = jax.config.values
    return [
        _planner_digest(),
        jax.__version__,
        importlib.metadata.version("jaxlib"),
        target.fingerprint(),
        platform.machine(),
        os.cpu_count(),  # XLA on CPU splits work by it
        # The location of JAX's compilation cache does not change the programs in it.
        [
            [name, repr(settings[name])]
            for name in sorted(settings)
            if "cache" not in name
        ],
        [os.environ.get(name, "") for name in _ENVIRONMENT],
    ]


@functools.cache
def _planner_digest() -> str:
    """A digest of the planner's own source: a changed planner makes new plans."""
    digest = hashlib.sha256()
    rooms = Path(__file__).parent.parent
    for room in ("budget", "jaxprs", "measure", "remat", "targets"):
        for file in sorted((rooms / room).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
