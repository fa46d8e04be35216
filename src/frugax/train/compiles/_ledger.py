"""`CompileLedger`: count how often XLA compiles, and which function.

JAX announces every compilation through `jax.monitoring`; a ledger counts while it is
open. No listener is registered while no ledger is open.
"""

import threading
import time
from collections import Counter

import jax

_XLA_EVENT = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT = "/jax/compilation_cache/cache_hits"

_open_ledgers: list["CompileLedger"] = []
_lock = threading.Lock()  # JAX may compile, and so announce, in any thread


class CompileLedger:
    """Counts compilations while it is open.

    Use it as a context manager; the counts stay after the block. Ledgers may be nested,
    and each sees everything. Operations outside `jit` compile too, under names of their
    own such as `"convert_element_type"`.

    Attributes:
        functions: programs requested from XLA by function name, cache hits included.
        latest: the time, by `time.perf_counter`, at which a program was last requested;
            0 before the first.
        latest_of: the same by the identifier of the thread that needs the program.
        cache_hits: programs found in the persistent cache instead of compiled.

    Example:
        >>> import jax
        >>> f = jax.jit(lambda x: x * 2.0)
        >>> with CompileLedger() as ledger:
        ...     _ = f(1.0), f(2.0)
        >>> ledger.functions["<lambda>"]
        1
    """

    def __init__(self) -> None:
        self.functions: Counter[str] = Counter()
        self.latest = 0.0
        self.latest_of: dict[int, float] = {}
        self.cache_hits = 0

    @property
    def compiles(self) -> int:
        """Programs that XLA compiled for any function; cache hits are not counted."""
        return self.functions.total() - self.cache_hits

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


def _on_duration(event: str, duration_secs: float, **labels: str | int) -> None:
    del duration_secs
    if event != _XLA_EVENT:
        return
    # JAX names the program of a function "f" as "jit(f)".
    name = str(labels.get("fun_name", "?"))
    if "(" in name:
        name = name.removeprefix("jit(").removesuffix(")")
    now = time.perf_counter()
    with _lock:
        for ledger in _open_ledgers:
            ledger.functions[name] += 1
            ledger.latest = ledger.latest_of[threading.get_ident()] = now


def _on_event(event: str, **labels: str | int) -> None:
    with _lock:
        for ledger in _open_ledgers:
            ledger.cache_hits += event == _CACHE_HIT
