"""`CompileLedger`: count how often XLA compiles, which function, and for how long.

JAX announces every trace, lowering and compilation through `jax.monitoring`; a ledger
counts while it is open. No listener is registered while no ledger is open and nobody
has called `thread_compiles`.
"""

import dataclasses
import functools
import threading
from collections import defaultdict

import jax

from frugax.budget import format_seconds, table

_XLA_EVENT = "/jax/core/compile/backend_compile_duration"
_FIELD_OF_EVENT = {
    "/jax/core/compile/jaxpr_trace_duration": "trace_s",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower_s",
    _XLA_EVENT: "xla_s",
}
_CACHE_HIT = "/jax/compilation_cache/cache_hits"
_CACHE_MISS = "/jax/compilation_cache/cache_misses"

_open_ledgers: list["CompileLedger"] = []
_lock = threading.Lock()  # JAX may compile, and so announce, in any thread


@dataclasses.dataclass
class FunctionCompiles:
    """Compilations of one function.

    Attributes:
        compiles: programs requested from XLA, cache hits included.
        trace_s: seconds in Python, running the function on tracers.
        lower_s: seconds turning the trace into StableHLO.
        xla_s: seconds in XLA, or fetching the program from the cache.
    """

    compiles: int = 0
    trace_s: float = 0.0
    lower_s: float = 0.0
    xla_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of all three phases."""
        return self.trace_s + self.lower_s + self.xla_s


class CompileLedger:
    """Counts compilations while it is open.

    Use it as a context manager; the counts stay after the block. Ledgers may be nested,
    and each sees everything. Operations outside `jit` compile too, under names of their
    own such as `"convert_element_type"`.

    Attributes:
        functions: cost by function name.
        cache_hits: programs found in the persistent cache instead of compiled.
        cache_misses: programs looked up there and not found.

    Example:
        >>> import jax
        >>> f = jax.jit(lambda x: x * 2.0)
        >>> with CompileLedger() as ledger:
        ...     _ = f(1.0), f(2.0)
        >>> ledger.functions["<lambda>"].compiles
        1
    """

    def __init__(self) -> None:
        self.functions: dict[str, FunctionCompiles] = defaultdict(FunctionCompiles)
        self.cache_hits = 0
        self.cache_misses = 0

    @property
    def compiles(self) -> int:
        """Programs that XLA compiled for any function; cache hits are not counted."""
        requested = sum(f.compiles for f in self.functions.values())
        return requested - self.cache_hits

    @property
    def seconds(self) -> float:
        """Seconds of tracing, lowering and compiling for any function."""
        return sum(f.seconds for f in self.functions.values())

    def __enter__(self) -> "CompileLedger":
        with _lock:
            if any(ledger is self for ledger in _open_ledgers):
                raise ValueError("this CompileLedger is open already; make another.")
            # One listener serves all ledgers: JAX calls every listener at every event.
            if not _open_ledgers:
                jax.monitoring.register_event_duration_secs_listener(_on_duration)
                jax.monitoring.register_event_listener(_on_event)
            _open_ledgers.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        with _lock:
            _open_ledgers.remove(self)
            if not _open_ledgers:
                jax.monitoring.unregister_event_duration_listener(_on_duration)
                jax.monitoring.unregister_event_listener(_on_event)

    def __str__(self) -> str:
        by_cost = sorted(self.functions.items(), key=lambda f: -f[1].seconds)
        rows = [
            [
                name,
                str(f.compiles),
                *map(format_seconds, (f.trace_s, f.lower_s, f.xla_s)),
            ]
            for name, f in by_cost
        ]
        return table(["function", "compiles", "trace", "lower", "XLA"], rows)


def _on_duration(event: str, duration_secs: float, **labels: str | int) -> None:
    if event not in _FIELD_OF_EVENT:
        return
    name = str(labels.get("fun_name", "?"))
    # Tracing names the function "f", the later phases name it "jit(f)".
    if "(" in name:
        name = name.removeprefix("jit(").removesuffix(")")
    field = _FIELD_OF_EVENT[event]
    with _lock:
        for ledger in _open_ledgers:
            entry = ledger.functions[name]
            # Time accumulates over phases, but only the last phase counts a program.
            setattr(entry, field, getattr(entry, field) + duration_secs)
            entry.compiles += event == _XLA_EVENT


def _on_event(event: str, **labels: str | int) -> None:
    with _lock:
        for ledger in _open_ledgers:
            ledger.cache_hits += event == _CACHE_HIT
            ledger.cache_misses += event == _CACHE_MISS


class ThreadCompiles(threading.local):
    """Programs that the reading thread has requested from XLA.

    A difference tells whether the calls in between have compiled: JAX compiles in the
    thread that needs the program.
    """

    count = 0


@functools.cache
def thread_compiles() -> ThreadCompiles:
    """Return the counts of all threads, which begin at the first call."""
    found = ThreadCompiles()

    def count(event: str, duration_secs: float, **labels: str | int) -> None:
        del duration_secs, labels
        found.count += event == _XLA_EVENT

    jax.monitoring.register_event_duration_secs_listener(count)
    return found
