"""Plans that outlive the process: found once, read back the next time.

A plan is what some compiled programs were measured to need, so its name in the cache
is made from all that those programs follow from (`plan_key`): what is computed, down
to each parameter and constant, and what it was compiled by and for.
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

from frugax.budget import MemoryBudget, to_plain
from frugax.errors import OutputError
from frugax.fileio import cache_folder, write_whole
from frugax.jaxprs import constants, program_text

from ._enclosing_program import EnclosingProgram
from ._plan import RematPlan

# Past this, plans that were not used for longest are dropped. A plan has a few kB.
_MOST_BYTES = 16 * 2**20
# What they hold changes the programs that XLA makes.
_ENVIRONMENT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def plan_cache_folder() -> Path:
    """Where plans are kept unless told otherwise."""
    return cache_folder("plans")


def plan_key(
    loss: Callable[..., Any],
    example_args: Sequence[Any],
    budget: MemoryBudget,
    *,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    within: EnclosingProgram | None = None,
    block_size: int | None = None,
) -> str | None:
    """The name under which the plan for all this is kept: the arguments of `plan`.

    The whole program is traced with its plain gradient, which shows what the loss
    alone does not: backward rules of the user's own.

    Returns:
        The same text in every process; None if the loss reads an array that is only
        known inside a `jit` around it, so that nobody can tell what it computes.
    """
    args = tuple(example_args)
    whole = within or EnclosingProgram(build=lambda grad: grad, args=args)
    plain = jax.value_and_grad(loss, argnums, has_aux=has_aux)
    said: list[object] = [
        to_plain(budget),
        argnums,
        has_aux,
        whole.donate_argnums,
        block_size,
        _surroundings(),
    ]
    for fn, given in ((loss, args), (whole.build(plain), whole.args)):
        traced = jax.make_jaxpr(fn)(*given)
        held = constants(traced)
        if any(isinstance(c, Tracer) for c in held):
            return None
        said += [
            program_text(traced),
            str(jax.tree.structure(given)),
            *map(_digest, held),
            *map(_placed, jax.tree.leaves(given)),
        ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def recall(
    key: str | None,
    make: Callable[[], RematPlan],
    *,
    cache: bool | str | os.PathLike[str],
) -> RematPlan:
    """The plan kept under this name, or else a new one, which is then kept.

    Args:
        key: what `plan_key` gave; None: nothing is looked for, and nothing kept.
        make: makes a plan.
        cache: the folder; True: `plan_cache_folder()`; False: as if `key` were None.
    """
    if key is None or cache is False:
        return make()
    folder = plan_cache_folder() if cache is True else Path(cache)
    plan = load_plan(key, folder)
    if plan is None:
        plan = make()
        store_plan(key, plan, folder)
    return plan


def load_plan(key: str, folder: Path) -> RematPlan | None:
    """The plan kept under this name, or None.

    Args:
        key: what `plan_key` gave.
        folder: where plans are kept.

    Warns:
        UserWarning: a file is there, but damaged.
    """
    file = folder / f"{key}.json"
    try:
        text = file.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as e:
        return _damaged(file, e)
    digest, _, written = text.partition("\n")
    if hashlib.sha256(written.encode()).hexdigest() != digest:
        return _damaged(file, "its checksum does not match")
    try:
        plan = RematPlan.from_json(written)
    except ValueError as e:
        return _damaged(file, e)
    with contextlib.suppress(OSError):  # a folder that may be read but not written
        os.utime(file)  # used just now: it is dropped last
    return plan


def store_plan(key: str, plan: RematPlan, folder: Path) -> None:
    """Keep a plan under this name, and drop old ones if there are too many.

    Args:
        key: what `plan_key` gave.
        plan: the plan.
        folder: where plans are kept; it is made if need be.

    Warns:
        UserWarning: it cannot be written; the plan itself is none the worse for it.
    """
    written = plan.to_json()
    digest = hashlib.sha256(written.encode()).hexdigest()
    try:
        write_whole(folder / f"{key}.json", f"{digest}\n{written}")
    except OutputError as e:
        warnings.warn(f"this plan is not kept: {e}", UserWarning, stacklevel=4)
        return
    _drop_oldest(folder, _MOST_BYTES)


def _drop_oldest(folder: Path, most_bytes: int) -> None:
    found: list[tuple[float, int, Path]] = []
    for file in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # another process dropped it
            stat = file.stat()
            found.append((stat.st_mtime, stat.st_size, file))
    kept = 0
    for _, size, file in sorted(found, reverse=True):
        kept += size
        if kept > most_bytes:
            file.unlink(missing_ok=True)


def _damaged(file: Path, why: object) -> None:
    warnings.warn(
        f"{file}: this kept plan cannot be read ({why}); it is made anew.",
        UserWarning,
        stacklevel=5,
    )


def _digest(constant: Any) -> str:
    """Names an array's values, type and shape."""
    values = np.ascontiguousarray(jax.device_get(constant))
    said = f"{values.dtype}{values.shape}".encode() + values.tobytes()
    return hashlib.sha256(said).hexdigest()


def _placed(leaf: Any) -> str:
    """How an argument is spread over devices, if it is."""
    sharding = getattr(leaf, "sharding", None)
    return str(sharding) if sharding and sharding.num_devices > 1 else ""


def _surroundings() -> list[object]:
    """By what and for what programs are compiled here."""
    device = jax.devices()[0]
    settings = jax.config.values
    return [
        _planner(),
        jax.__version__,
        importlib.metadata.version("jaxlib"),
        device.client.platform_version,
        device.platform,
        device.device_kind,
        len(jax.devices()),
        platform.machine(),
        os.cpu_count(),  # XLA on CPU splits work by it
        # Where JAX keeps what it compiled has no part in what it compiles.
        [
            [name, repr(settings[name])]
            for name in sorted(settings)
            if "cache" not in name
        ],
        [os.environ.get(name, "") for name in _ENVIRONMENT],
    ]


@functools.cache
def _planner() -> str:
    """Names the planner by its source: a changed one makes new plans."""
    said = hashlib.sha256()
    rooms = Path(__file__).parent.parent
    for room in ("budget", "jaxprs", "measure", "remat"):
        for file in sorted((rooms / room).rglob("*.py")):
            said.update(file.read_bytes())
    return said.hexdigest()
