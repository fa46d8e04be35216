"""The disk cache of remat plans, so that the next process need not search for them.

That nothing fits is remembered as well, with the smallest plan.

A plan records the memory that some compiled programs need. Its name in the cache is
therefore a digest of everything that those programs depend on (`plan_key`): the
computation down to each parameter and constant, the compiler and the device.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import jax
from jax.core import Tracer

from frugax.budget import MemoryBudget, MemoryShare, from_plain, to_json, to_plain
from frugax.errors import InfeasibleBudgetError
from frugax.fileio import DiskCache, cache_folder
from frugax.jaxprs import LossOfArrays, constants, digest
from frugax.targets import Target

from ._enclosing_program import EnclosingProgram
from ._plan import RematPlan

# Above this the least recently used plans are deleted. A plan takes a few kB.
_MAX_BYTES = 16 * 2**20
# A search that its time limit cut short is made again where this many times more is
# allowed: a limit that follows the time of a compilation differs from run to run.
_MORE_TIME = 2
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
    take: Callable[[tuple[Any, ...]], LossOfArrays] | None = None,
    **options: object,
) -> str | None:
    """The name of the plan for these arguments of `plan`, the same in every process.

    `options` are the other arguments of `plan`. A time limit does not belong to it, see
    `recall`.

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
        sorted(options.items()),
        _compiler_facts(program.target),
    ]
    # The program is traced with its plain gradient as well, because the loss alone does
    # not show the backward rules that the user has defined.
    gradient = jax.value_and_grad(loss, argnums, has_aux=has_aux)
    is_called = False

    def plain(*given: Any) -> Any:
        nonlocal is_called
        is_called = True
        if take is None or within is None:
            return gradient(*given)
        taken = take(given)
        return taken.finish(gradient(*taken.args))

    for fn, inputs in ((loss, args), (program.build_around(plain), program.args)):
        with program.target.tracing():  # gradients inside may be planned already
            traced = jax.make_jaxpr(fn)(*inputs)
        if any(isinstance(c, Tracer) for c in constants(traced)):
            return None
        facts += [
            digest(traced),
            str(jax.tree.structure(inputs)),
            *map(_describe_sharding, jax.tree.leaves(inputs)),
        ]
    # A program that takes the same gradient by JAX's own transformation looks the same,
    # and no plan changes it.
    facts.append(is_called)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why nothing fits, as `InfeasibleBudgetError` says it, which documents these."""

    what: str
    needed: int
    limit: int
    hint: str
    lower_bound: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The result of a search.

    Attributes:
        plan: the plan, or the one of the smallest program where nothing fits.
        refusal: why nothing fits; None if the plan does.
    """

    plan: RematPlan
    refusal: Refusal | None = None

    @classmethod
    def of(cls, make: Callable[[], RematPlan]) -> Self:
        """The result of a search that returns a plan or raises."""
        try:
            return cls(plan=make())
        except InfeasibleBudgetError as e:
            error = e
        assert isinstance(error.best, RematPlan)
        names = [f.name for f in dataclasses.fields(Refusal)]
        refusal = Refusal(**{name: getattr(error, name) for name in names})
        return cls(plan=error.best, refusal=refusal)

    def answers(self, within_s: float | None) -> bool:
        """Whether a search of at most so many seconds need not be made any more."""
        cut = self.plan.cut_after_s
        return cut is None or (within_s is not None and within_s <= _MORE_TIME * cut)

    def get(self) -> RematPlan:
        """The plan.

        Raises:
            InfeasibleBudgetError: nothing fits.
        """
        if self.refusal is None:
            return self.plan
        raise InfeasibleBudgetError(
            **dataclasses.asdict(self.refusal),
            unit="bytes",
            best=self.plan,
            proven=False,  # the least of those that were tried
        )


def recall(
    key: str | None,
    make: Callable[[], RematPlan],
    *,
    cache: bool | str | os.PathLike[str],
    within_s: float | None = None,
) -> RematPlan:
    """The result that is stored under this name, or else a new one, then stored.

    Args:
        key: its name; None if it has none.
        make: searches for at most `within_s` seconds.
        cache: whether to store results, or the folder that holds them.
        within_s: a stored search that this time cut short is made again where far more
            is allowed now.

    Raises:
        InfeasibleBudgetError: nothing fits.
    """
    if key is None or cache is False:
        return make()
    folder = cache_folder("plans") if cache is True else Path(cache)
    found = load_result(key, folder)
    if found is None or not found.answers(within_s):
        found = SearchResult.of(make)
        store_result(key, found, folder)
    return found.get()


def load_result(key: str, folder: Path) -> SearchResult | None:
    """The result that is stored under this name, or None; a damaged file warns."""
    return _cache(folder).load(key, _decode)


def store_result(key: str, found: SearchResult, folder: Path) -> None:
    """Store a result; a folder that cannot be written to costs only a warning."""
    _cache(folder).store(key, to_json(to_plain(found), indent=1).encode())


def _decode(content: bytes) -> SearchResult:
    return from_plain(SearchResult, json.loads(content), null_is_nan=True)


def _cache(folder: Path) -> DiskCache:
    return DiskCache(
        folder,
        suffix=".json",
        kind="plan",
        remedy="a new one is made",
        max_bytes=_MAX_BYTES,
    )


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
    packages = Path(__file__).parent.parent
    for package in ("budget", "jaxprs", "measure", "remat", "targets"):
        for file in sorted((packages / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
