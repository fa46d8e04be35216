"""`Target`: the devices that a program is compiled for, here or absent."""

import contextlib
import contextvars
import dataclasses
import functools
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np
from jax.core import Tracer

from frugax.budget import MemoryBudget, MemoryShare
from frugax.errors import ConfigError
from frugax.jaxprs import lower_for_absent

from ._answer_cache import COUNTS, AnswerCache, CompiledAnswer, read_answer
from ._ask_compiler import compile_robustly, run_patiently, translate
from ._compilers import compiler_options, load_compiler
from ._device_facts import DeviceFacts, known_devices
from ._measured_rates import measured_rates
from ._parse_name import parse_name
from ._rates import AcceleratorRates, CpuRates, published_rates

# Environment variables that change the programs that XLA makes.
_ENVIRONMENT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_traced_for: contextvars.ContextVar["Target | None"] = contextvars.ContextVar(
    "traced_for", default=None
)


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Devices of one kind that a program is compiled for, present or absent.

    Written `Target("h100")`, `Target("h100x8")`, `Target("32 x 8 h100")` (hosts and
    devices in each), `Target("tpu-v5e:4x4")`, `Target("gpu.yaml")` for a description
    of one's own, `Target("cpu")` or `Target.here()` for the devices of this process.

    Attributes:
        name: as it is written in plans and receipts.
        platform: `"cpu"`, `"gpu"` or `"tpu"`.
        kind: the device's own name for itself.
        num_devices: number of devices.
        num_hosts: number of hosts that hold them.
        memory_bytes: bytes of one device that a program can use; None if unknown.
        source: the origin of these facts.
        is_here: whether programs can be run on it in this process.
    """

    name: str
    platform: str
    kind: str
    num_devices: int
    num_hosts: int
    memory_bytes: int | None
    source: str
    is_here: bool
    _facts: DeviceFacts | None = dataclasses.field(repr=False, compare=False)
    _topology: str = dataclasses.field(repr=False)
    _given: tuple[Any, ...] = dataclasses.field(repr=False, compare=False)

    def __init__(self, name: str = "here") -> None:
        """Read the name of a target; see the class.

        Raises:
            ConfigError: there is no such device, or the number does not fit it.
            TypeError: the name is not a text.
        """
        if not isinstance(name, str):
            raise TypeError(f"a target is named by a text, got {name!r:.80}.")
        if name in ("here", "cpu"):
            self._fill(**_attached(None if name == "here" else "cpu"))
        else:
            self._fill(**parse_name(name))

    def _fill(self, **values: Any) -> None:
        for key, value in {"_facts": None, "_topology": "", "_given": ()}.items():
            object.__setattr__(self, key, values.pop(key, value))
        for key, value in values.items():
            object.__setattr__(self, key, value)

    @classmethod
    def here(cls) -> Self:
        """The devices of this process."""
        return cls("here")

    @classmethod
    def of_devices(cls, devices: Sequence[Any]) -> Self:
        """The target that consists of these devices, which a mesh may have.

        Args:
            devices: devices of this process, or those of a topology.
        """
        first = devices[0]
        made = cls.__new__(cls)
        if found := _MADE.get(id(first.client)):
            made._fill(**_values_of(found) | _part_of(found, tuple(devices)))
        elif _is_attached(first):
            made._fill(**_attached(first.platform, tuple(devices)))
        else:
            kind = first.device_kind
            made._fill(
                name=f"{kind} x {len(devices)}",
                platform=first.platform,
                kind=kind,
                num_devices=len(devices),
                num_hosts=len({d.process_index for d in devices}),
                memory_bytes=None,
                source="the topology that the devices come from",
                is_here=False,
                _given=tuple(devices),
            )
        return made

    @property
    def rates(self) -> AcceleratorRates | CpuRates | None:
        """How fast its devices are: published peaks, or measured here; or None."""
        if self.platform == "cpu":
            return measured_rates() if self.is_here else None
        facts = self._facts
        if facts is None and self.is_here:
            facts = next((f for f in known_devices() if f.kind == self.kind), None)
        return None if facts is None else published_rates(facts)

    @property
    def devices(self) -> tuple[Any, ...]:
        """The devices, for meshes and shardings.

        Raises:
            MissingExtraError: the compiler for them is not installed.
            ConfigError: the compiler does not know this shape of a cluster.
        """
        if self._given:
            return self._given
        if self.is_here:
            return tuple(jax.devices(self.platform))
        devices = _topology_devices(self)
        # So that shardings on them lead back to this target.
        _MADE.setdefault(id(devices[0].client), self)
        return devices

    @property
    def device_name(self) -> str:
        """The name of one device, as targets are named after it."""
        return self._facts.name if self._facts is not None else self.kind

    def in_bytes(
        self, budget: MemoryBudget | MemoryShare
    ) -> MemoryBudget | MemoryShare:
        """The same limit, where a share of a device's memory is stated in bytes.

        Args:
            budget: a limit; bytes and a share of the program stay as they are.

        Raises:
            ConfigError: there is no such device, or its memory is not known.
        """
        if not isinstance(budget, MemoryShare) or budget.device is None:
            return budget
        device = self
        if not budget.is_of(self.name, self.device_name):
            try:
                device = Target(budget.device)
            except ConfigError as e:
                raise ConfigError(f'budget "{budget}": {e.args[0]}') from e
        if device.memory_bytes is None:
            raise ConfigError(
                f"the memory of {device} is not known: state the budget in bytes, not "
                f"as {budget}."
            )
        return budget.of(device.memory_bytes)

    def mesh(self, axes: Mapping[str, int] | None = None) -> jax.sharding.Mesh:
        """A mesh over the devices.

        Args:
            axes: number of devices along each named axis, the slowest first; by default
                one axis, `data`, with all of them.

        Raises:
            ConfigError: the axes have more devices than there are.
        """
        axes = dict(axes or {"data": self.num_devices})
        size = int(np.prod(list(axes.values())))
        if size > self.num_devices or size < 1:
            shape = " x ".join(f"{k}={v}" for k, v in axes.items())
            raise ConfigError(
                f"the mesh {shape} has {size} devices, but {self.name} has "
                f"{self.num_devices}: name a larger target or a smaller mesh."
            )
        devices = np.asarray(self.devices[:size], dtype=object)
        return jax.sharding.Mesh(devices.reshape(*axes.values()), tuple(axes))

    def place(self, args: Any) -> Any:
        """Shapes like these arrays, with shardings on the devices of this target.

        A sharding over a mesh of other devices becomes the same sharding over a mesh of
        these. Without one, a leaf lies on the first device, or is replicated where
        another leaf is sharded.

        Raises:
            ConfigError: a mesh has more devices than the target.
        """
        if self.is_here:
            return args
        leaves = jax.tree.leaves(args)
        meshes = [m for m in map(_mesh_of, leaves) if m is not None]
        common: jax.sharding.Sharding
        if meshes:
            mesh = self._like(meshes[0])
            common = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        else:
            common = jax.sharding.SingleDeviceSharding(self.devices[0])
        return jax.tree.map(lambda x: self._place_leaf(x, common), args)

    def _like(self, mesh: Any) -> jax.sharding.Mesh:
        if isinstance(mesh, jax.sharding.Mesh):
            first = mesh.devices.flat[0]
            if first in self.devices:
                return mesh
        grid = self.mesh(dict(mesh.shape)).devices
        return jax.sharding.Mesh(grid, mesh.axis_names, axis_types=mesh.axis_types)

    def move(self, sharding: jax.sharding.Sharding) -> jax.sharding.Sharding:
        """The same sharding on the devices of this target.

        A sharding without a mesh becomes one on the first device.

        Raises:
            ConfigError: its mesh has more devices than the target.
        """
        if isinstance(sharding, jax.sharding.NamedSharding):
            if isinstance(sharding.mesh, jax.sharding.AbstractMesh):
                return sharding  # without devices
            return jax.sharding.NamedSharding(self._like(sharding.mesh), sharding.spec)
        return jax.sharding.SingleDeviceSharding(self.devices[0])

    def _place_leaf(self, leaf: Any, common: jax.sharding.Sharding) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf  # a number, which JAX places itself
        sharding, mesh = common, _mesh_of(leaf)
        if mesh is not None:
            sharding = jax.sharding.NamedSharding(self._like(mesh), leaf.sharding.spec)
        dtype = leaf.dtype
        return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding)

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace for this target: a plan that was made for it can be applied inside."""
        token = _traced_for.set(self)
        try:
            yield
        finally:
            _traced_for.reset(token)

    def compile(
        self,
        jitted: Any,
        *args: Any,
        options: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        cache: bool | str | os.PathLike[str] = True,
        with_places: bool = False,
    ) -> "jax.stages.Compiled | CompiledAnswer":
        """Compile a function for this target.

        Args:
            jitted: a jitted function, or the result of its `trace`.
            args: its arguments or their shapes; see `place`.
            options: more options of the compiler.
            timeout: seconds to wait for the compiler; None waits as long as it takes.
                A compilation that is given up goes on in the background.
            cache: whether answers are kept on disk, or the folder that holds them.
            with_places: whether source lines in the answer must be those of today.

        Returns:
            On the devices of this process the executable, otherwise the compiler's
            report.

        Raises:
            TimeoutError: the compiler took longer.
            InfeasibleBudgetError: the program needs more than the device has, and this
                compiler refuses such programs (TPU).
            CompilerRefusedError: the compiler cannot translate an operation.
        """
        with self.tracing():
            traced = jitted
            if args:
                traced = jitted.trace(*self.place(args))
            if self.is_here:
                lowered = traced.lower()
                return lowered.compile(compiler_options=dict(options or {}))
            return self._ask(
                traced,
                dict(options or {}),
                timeout,
                cache=cache,
                with_places=with_places,
            )

    def _ask(
        self,
        traced: Any,
        options: dict[str, Any],
        timeout: float | None,
        *,
        cache: bool | str | os.PathLike[str],
        with_places: bool,
    ) -> CompiledAnswer:
        version = load_compiler(self.platform)
        options = compiler_options(self.platform) | options
        platform = {"gpu": "cuda"}.get(self.platform, self.platform)
        lowered = lower_for_absent(traced, platform)
        facts = [
            hashlib.sha256(lowered.as_text().encode()).hexdigest(),
            self._description(),
            version,
            jax.__version__,
            COUNTS,
            {k: str(v) for k, v in options.items() if not k.endswith("_dir")},
            [os.environ.get(name, "") for name in _ENVIRONMENT],
        ]
        key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        places = ""
        store = AnswerCache(None if isinstance(cache, bool) else cache)
        if with_places:
            text = lowered.as_text(debug_info=True)
            places = hashlib.sha256(text.encode()).hexdigest()
        if cache is not False and (found := store.load(key, places=places)):
            return found
        if tell := _listener.get():
            tell(self)
        started = time.perf_counter()
        try:
            compiled, caveat = run_patiently(
                lambda: compile_robustly(
                    functools.partial(_compile_apart, lowered), self.platform, options
                ),
                timeout,
                self.name,
            )
        except jax.errors.JaxRuntimeError as e:
            raise translate(e, self.name) from e
        answer = read_answer(
            compiled,
            target=self.name,
            places=places,
            seconds=time.perf_counter() - started,
            caveat=caveat,
        )
        if cache is not False:
            store.store(key, answer)
        return answer

    def _description(self) -> str:
        """Everything about the devices that changes a program."""
        text = self._topology
        if self._facts is not None and self.platform == "gpu":
            text += self._facts.describe_gpu()
        return text or f"{self.kind} {self.num_devices} {self.num_hosts}"

    def fingerprint(self) -> str:
        """Names the devices and the compiler, for the keys of caches."""
        parts = [self.platform, self.kind, str(self.num_devices), self._description()]
        if self.is_here:
            everything = jax.devices(self.platform)
            parts += [everything[0].client.platform_version, str(len(everything))]
        else:
            parts.append(load_compiler(self.platform))
        return "\n".join(parts)

    def describe_caveats(self, *of_programs: str) -> str:
        """How programs may differ from a real device's, each reason once.

        Args:
            of_programs: how each was compiled otherwise than asked for, as
                `find_caveat` returns it.
        """
        return "; ".join(dict.fromkeys(filter(None, (self.caveat, *of_programs))))

    @property
    def caveat(self) -> str:
        """How the program may differ from a real device's; "" if not at all."""
        if self.is_here:
            return ""
        if self.platform == "gpu":
            return (
                "compiled without autotuning: scratch space of matrix products may "
                "differ on a device"
            )
        return "compiled, not run"

    def __str__(self) -> str:
        return self.name


def find_target(args: Any) -> Target:
    """The target where these arguments live: that of the first placed leaf, or here."""
    sharding = _find_sharding(args)
    if sharding is None:
        return _traced_for.get() or Target.of_devices([_default_device()])
    if isinstance(sharding, jax.sharding.NamedSharding):
        return Target.of_devices(list(sharding.mesh.devices.flat))
    return Target.of_devices(list(sharding.device_set))


def find_platform(args: Any) -> str:
    """The platform where these arguments live; as `find_target`, and quicker."""
    sharding = _find_sharding(args)
    if sharding is not None:
        return next(iter(sharding.device_set)).platform
    return (_traced_for.get() or _default_device()).platform


def _find_sharding(args: Any) -> Any:
    """The sharding of the first leaf that lies on devices; None if there is none."""
    for leaf in jax.tree.leaves(args):
        sharding = getattr(leaf, "sharding", None)
        mesh = getattr(sharding, "mesh", None)
        is_abstract = isinstance(mesh, jax.sharding.AbstractMesh)
        if sharding is not None and not is_abstract and not isinstance(leaf, Tracer):
            return sharding
    return None


def _default_device() -> Any:
    chosen = jax.config.values["jax_default_device"]
    if chosen is None:
        return jax.local_devices()[0]
    if isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen


@contextlib.contextmanager
def listen(tell: Callable[["Target"], None]) -> Iterator[None]:
    """Call `tell` with the target before each compilation."""
    token = _listener.set(tell)
    try:
        yield
    finally:
        _listener.reset(token)


_listener: contextvars.ContextVar[Callable[[Target], None] | None] = (
    contextvars.ContextVar("listener", default=None)
)
_apart = threading.Lock()
# Targets whose devices were asked for, by their client. Topologies are kept for good,
# so the addresses are not used again.
_MADE: dict[int, Target] = {}


def _values_of(target: Target) -> dict[str, Any]:
    return {f.name: getattr(target, f.name) for f in dataclasses.fields(target)}


def _compile_apart(lowered: Any, options: dict[str, Any]) -> jax.stages.Compiled:
    """Compile without JAX's cache, which cannot load a program for an absent device."""
    name = "jax_persistent_cache_min_compile_time_secs"
    with _apart:
        before = jax.config.values[name]
        jax.config.update(name, 1e18)
        try:
            return lowered.compile(options)
        finally:
            jax.config.update(name, before)


def _part_of(whole: Target, devices: tuple[Any, ...]) -> dict[str, Any]:
    """The values that differ in a target with only some devices of another."""
    count = len(devices)
    if count == whole.num_devices:
        return {}
    assert whole._facts is not None  # a target without facts is not in `_MADE`
    name = whole._facts.name if count == 1 else f"{whole._facts.name}x{count}"
    hosts = len({d.process_index for d in devices})
    return {
        "name": name,
        "num_devices": count,
        "num_hosts": hosts,
        "_given": devices,
    }


def _is_attached(device: Any) -> bool:
    # A device of a topology has a client that compiles and does not run.
    return type(device.client).__name__ != "CompileOnlyPyClient"


def _attached(
    platform: str | None, devices: tuple[Any, ...] | None = None
) -> dict[str, Any]:
    everything = devices or tuple(jax.devices(platform))
    # Only the devices of this process state their memory.
    own = [d for d in everything if d.process_index == jax.process_index()]
    first = next(iter(own), everything[0])
    stats = first.memory_stats() or {} if own else {}
    memory, source = stats.get("bytes_limit"), "this device"
    if memory is None and first.platform == "cpu":
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        source = "this machine"
    name = first.platform if first.platform == "cpu" else "here"
    return {
        "name": name if len(everything) == 1 else f"{name}x{len(everything)}",
        "platform": first.platform,
        "kind": first.device_kind,
        "num_devices": len(everything),
        "num_hosts": len({d.process_index for d in everything}),
        "memory_bytes": memory,
        "source": source,
        "is_here": True,
        "_given": devices or (),
    }


@functools.cache
def _topology_devices(target: Target) -> tuple[Any, ...]:
    from jax.experimental import topologies

    load_compiler(target.platform)
    facts = target._facts
    assert facts is not None  # targets without facts have their devices
    options: dict[str, Any]
    if target.platform == "gpu":
        name, platform = facts.name, "cuda"
        options = {
            "target_config": facts.describe_gpu(),
            "topology": target._topology,
        }
    else:
        name, platform, options = target._topology, "tpu", {}
        if facts.chip_config:
            options["chip_config_name"] = facts.chip_config
        sides = [int(n) for n in name.partition(":")[2].split("x")]
        if min(sides[:2]) < 2:  # less than the usual host of 2 x 2 chips
            options["chips_per_host_bounds"] = [*(min(n, 2) for n in sides), 1][:3]
    try:
        found = topologies.get_topology_desc(name, platform, **options)
    except jax.errors.JaxRuntimeError as e:
        reason = " ".join(str(e).split())
        raise ConfigError(
            f"target {target.name!r} cannot be made: {reason:.300}"
        ) from e
    return tuple(found.devices)


def _mesh_of(leaf: Any) -> Any:
    """The mesh of a leaf's named sharding, or None."""
    if isinstance(leaf, Tracer):
        return None
    sharding = getattr(leaf, "sharding", None)
    if isinstance(sharding, jax.sharding.NamedSharding):
        return sharding.mesh
    return None
