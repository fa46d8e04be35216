"""A least-recently-used cache with a limit in bytes."""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable
from uuid import uuid4

from .._storage import CompressedStorage
from ._held_bytes import BYTES_PER_MB, held_bytes
from ._ledger import Account


@runtime_checkable
class Store(Protocol):
    """Where items go that leave the memory: `frugax.watch.CompressedStorage` is one."""

    def save(self, data: Any, name: str) -> Path:
        """Write a value under a name; returns the file."""
        ...

    def load(self, name: str) -> Any:
        """Read it back."""
        ...


class Spilled(NamedTuple):
    """One item in a store."""

    name: str
    path: Path


class _Item(NamedTuple):
    value: Any
    nbytes: int


class VisualizationCache:
    """Keeps values by key, within limits of bytes and items.

    An item that must leave goes to the store if there is one, and is read back when it
    is asked for; without a store it is dropped. An item larger than the whole cache
    goes to the store at once, or is refused. Files written by a cache are for itself
    only and go with it.

    Finding, adding and leaving take the same time however many items there are. Safe to
    use from any thread; no lock is held while something is loaded, measured or written.
    Values are not copied: who changes an array that was put here changes the cache's.
    """

    def __init__(
        self,
        max_memory_mb: float = 100.0,
        max_items: int = 1000,
        storage_path: str | Path | None = None,
        *,
        store: Store | None = None,
        compression: bool = True,
        account: Account | None = None,
    ) -> None:
        """Start empty.

        Args:
            max_memory_mb: most to keep in memory, in MB of 1,000,000 bytes; > 0.
            max_items: most items to keep in memory; >= 1.
            storage_path: folder for items that leave the memory; or
            store: what takes them instead.
            compression: whether files in `storage_path` are compressed.
            account: where the bytes are counted besides.

        Raises:
            ValueError: a limit that is too small, or both `storage_path` and `store`.
        """
        if not 0 < max_memory_mb < float("inf"):
            raise ValueError(
                f"max_memory_mb must be > 0 and finite, got {max_memory_mb}."
            )
        if max_items < 1:
            raise ValueError(f"max_items must be >= 1, got {max_items}.")
        if store is not None and storage_path is not None:
            raise ValueError("storage_path and store are two places: give one of them.")
        if storage_path is not None:
            store = open_store(storage_path, compression=compression)
        self._most_bytes = int(max_memory_mb * BYTES_PER_MB)
        self._most_items = max_items
        self._store = store
        self._account = account
        self._lock = threading.Lock()
        self._items: OrderedDict[str, _Item] = OrderedDict()
        self._bytes = 0
        self._leaving: dict[str, _Item] = {}  # on their way to the store
        self._files: dict[str, Spilled] = {}
        # Keys may hold any characters, so files have names of their own. The prefix
        # keeps two caches in one folder apart.
        self._prefix, self._written = uuid4().hex[:12], 0
        self._counts: dict[str, int] = dict.fromkeys(
            ("hits", "misses", "spilled", "dropped", "refused", "failures"), 0
        )
        self._last_failure: str | None = None
        # The dict and not the cache is passed, or the finalizer would keep the cache
        # alive.
        weakref.finalize(self, remove_all, self._files)

    def put(self, key: str, value: Any) -> bool:
        """Keep a value, in place of any that has the same key.

        Args:
            key: its name.
            value: anything whose parts `held_bytes` can measure.

        Returns:
            Whether it is kept, in memory or in the store.
        """
        # Measured outside of the lock: walking a large value takes long.
        item = _Item(value, held_bytes(value))
        self.remove(key)
        if not self._claim(item.nbytes):
            with self._lock:
                self._leaving[key] = item  # never in memory, but found meanwhile
            return self._send_out(key, item, counted="refused")
        with self._lock:
            stale = self._insert(key, item)
        if stale is not None:
            remove_file(stale)
        self._keep_within_limits()
        return True

    def get(self, key: str, loader_func: Callable[[], Any] | None = None) -> Any:
        """The value of a key.

        Args:
            key: its name.
            loader_func: makes the value if it is not there; the result is put. Threads
                that miss at the same time each call theirs, and the last one stays.

        Returns:
            The value; None if there is none and nothing to make it.
        """
        with self._lock:
            item = self._items.get(key) or self._leaving.get(key)
            if key in self._items:
                self._items.move_to_end(key)
            file = self._files.get(key)
            found = item is not None
            self._counts["hits"] += found
        if item is not None:
            return item.value
        if file is not None and (item := self._read_back(key, file)) is not None:
            return item.value
        with self._lock:
            self._counts["misses"] += 1
        if loader_func is None:
            return None
        value = loader_func()
        self.put(key, value)
        return value

    def remove(self, key: str) -> bool:
        """Forget a key, wherever its value is.

        Returns:
            Whether there was one.
        """
        with self._lock:
            item = self._items.pop(key, None)
            if item is not None:
                self._bytes -= item.nbytes
            leaving = self._leaving.pop(key, None)
            file = self._files.pop(key, None)
        if item is not None:
            self._release(item.nbytes)
        if file is not None:
            remove_file(file)
        return not item is leaving is file is None

    def clear(self) -> None:
        """Forget everything, files included."""
        with self._lock:
            keys = {*self._items, *self._leaving, *self._files}
        for key in keys:
            self.remove(key)

    def let_go(self, wanted_bytes: float = float("inf")) -> int:
        """Make room: send out items, those used longest ago first.

        Args:
            wanted_bytes: how many are enough; all by default.

        Returns:
            How many bytes left the memory.
        """
        freed = 0
        # Each item is popped under the lock and written without it, so that `get` never
        # waits for a disk.
        while freed < wanted_bytes and (oldest := self._pop_oldest()) is not None:
            freed += oldest[1].nbytes
            self._leave(*oldest)
        return freed

    def recount(self) -> None:
        """Measure all items again: some may have grown since they were put."""
        with self._lock:
            items = list(self._items.items())
        for key, item in items:
            nbytes = held_bytes(item.value)
            with self._lock:
                if nbytes == item.nbytes or self._items.get(key) is not item:
                    continue
                self._items[key] = _Item(item.value, nbytes)
                self._bytes += nbytes - item.nbytes
                if self._account is not None:
                    self._account.charge(nbytes - item.nbytes)
        self._keep_within_limits()

    def get_stats(self) -> dict[str, Any]:
        """Return counts of the items that were kept, evicted and refused.

        Returns:
            `items_in_memory`, `memory_usage_mb`, `max_memory_mb`, `memory_utilization`
            (used over most), `storage_items`; counts `hits`, `misses`, `spilled` (to
            the store), `dropped` (no store), `refused` (no room, no store), `failures`
            of the store, and `last_failure` of these as text or None.
        """
        with self._lock:
            return {
                "items_in_memory": len(self._items),
                "memory_usage_mb": self._bytes / BYTES_PER_MB,
                "max_memory_mb": self._most_bytes / BYTES_PER_MB,
                "memory_utilization": self._bytes / self._most_bytes,
                "storage_items": len(self._files),
                **self._counts,
                "last_failure": self._last_failure,
            }

    def __len__(self) -> int:
        with self._lock:
            return len(self._items.keys() | self._leaving.keys() | self._files.keys())

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return any(key in d for d in (self._items, self._leaving, self._files))

    def _claim(self, nbytes: int) -> bool:
        """Reserve bytes in memory; returns whether they fit."""
        if nbytes > self._most_bytes:
            return False
        return self._account is None or self._account.reserve(nbytes)

    def _release(self, nbytes: int) -> None:
        if self._account is not None:
            self._account.charge(-nbytes)

    def _insert(self, key: str, item: _Item) -> Spilled | None:
        """Insert an item whose bytes are reserved. The lock is held.

        Returns:
            A file that this makes stale.
        """
        old = self._items.pop(key, None)  # another thread may have been quicker
        if old is not None:
            self._bytes -= old.nbytes
            self._release(old.nbytes)
        self._items[key] = item
        self._bytes += item.nbytes
        return self._files.pop(key, None)

    def _keep_within_limits(self) -> None:
        while (oldest := self._pop_oldest(only_if_over=True)) is not None:
            self._leave(*oldest)

    def _pop_oldest(self, *, only_if_over: bool = False) -> tuple[str, _Item] | None:
        with self._lock:
            over = self._bytes > self._most_bytes or len(self._items) > self._most_items
            if not self._items or (only_if_over and not over):
                return None
            key, item = self._items.popitem(last=False)
            self._bytes -= item.nbytes
            self._leaving[key] = item  # found there until the file is written
            return key, item

    def _leave(self, key: str, item: _Item) -> None:
        """Evict an item; its bytes count until it has left."""
        try:
            self._send_out(key, item, counted="dropped")
        finally:
            self._release(item.nbytes)

    def _send_out(self, key: str, item: _Item, *, counted: str) -> bool:
        """Write an evicted item to the store; without a store, count and forget it."""
        with self._lock:
            if self._store is None:
                self._counts[counted] += 1
                self._end_leaving(key, item)
                return False
            if self._leaving.get(key) is not item:
                return False  # removed or replaced meanwhile
            self._written += 1
            name = f"{self._prefix}-{self._written}"
        try:
            file = Spilled(name, self._store.save(item.value, name))
        except Exception as e:  # what made room cannot mend it: the statistics tell
            with self._lock:
                self._fail("save", key, e)
                self._end_leaving(key, item)
            return False
        with self._lock:
            current = self._end_leaving(key, item)
            stale: Spilled | None = file  # if removed or replaced meanwhile
            if current:
                stale = self._files.pop(key, None)
                self._files[key] = file
                self._counts["spilled"] += 1
        if stale is not None:
            remove_file(stale)
        return current

    def _end_leaving(self, key: str, item: _Item) -> bool:
        """Whether it was still wanted. The lock is held."""
        if self._leaving.get(key) is not item:
            return False
        del self._leaving[key]
        return key not in self._items

    def _read_back(self, key: str, file: Spilled) -> _Item | None:
        assert self._store is not None  # or there would be no file
        try:
            value = self._store.load(file.name)
        except Exception as e:  # damaged or gone: as if it had never been kept
            with self._lock:
                self._fail("load", key, e)
                if self._files.get(key) is file:
                    del self._files[key]
            remove_file(file)
            return None
        item = _Item(value, held_bytes(value))
        claimed = self._claim(item.nbytes)
        with self._lock:
            self._counts["hits"] += 1
            current = self._files.get(key) is file
            if claimed and current:
                # The file goes: the value may be changed by who gets it now.
                self._insert(key, item)
        if claimed and current:
            remove_file(file)
            self._keep_within_limits()
        elif claimed:
            self._release(item.nbytes)
        return item

    def _fail(self, what: str, key: str, error: Exception) -> None:
        self._counts["failures"] += 1
        self._last_failure = f"{what} of {key!r}: {type(error).__name__}: {error}"


def open_store(path: str | Path, *, compression: bool) -> Store:
    """A store in a folder of the user's."""
    return CompressedStorage(Path(path), compression_level=6 if compression else 0)


def remove_file(file: Spilled) -> None:
    """Remove what nobody will read again."""
    try:
        file.path.unlink(missing_ok=True)
    except OSError:
        return  # it may stay: nothing will read it, and its folder is the user's


def remove_all(files: dict[str, Spilled]) -> None:
    """Remove all files of a cache, when it goes."""
    for file in list(files.values()):
        remove_file(file)
