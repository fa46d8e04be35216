"""Data that is loaded at its first use, and released when idle."""

import itertools
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from frugax.errors import InfeasibleBudgetError

from ._held_bytes import held_bytes
from ._idle_watch import idle_watch
from ._ledger import Account

T = TypeVar("T")
_NOTHING: Any = object()  # not None: a loader may well return that
_numbers = itertools.count(1)


class LazyLoader(Generic[T]):
    """Loads at the first `get`, keeps the result, lets go of it after a while unused.

    Letting go needs no call: a thread does it. Whoever still has the data keeps it;
    the loader's own hold on it ends, and the next `get` loads again. A loader that is
    thrown away drops its data, without calling `cleanup_func`.

    Safe to use from any thread: of several that ask at once one loads, the others
    wait for it. No lock is held while `loader_func` or `cleanup_func` runs.

    Attributes:
        name: for messages.
        cleanup_error: text of the last error of `cleanup_func` that could not be
            raised to a caller; None before the first.
    """

    def __init__(
        self,
        loader_func: Callable[[], T],
        cleanup_func: Callable[[T], object] | None = None,
        max_idle_time: float = 300.0,
        *,
        name: str | None = None,
    ) -> None:
        """Load nothing yet.

        Args:
            loader_func: loads the data; may give None, which is kept like any other.
            cleanup_func: called with the data once the loader has let go of it: in a
                thread of its own, except by `force_cleanup`.
            max_idle_time: seconds since the last `get` after which the data is let go;
                > 0, infinity for never.
            name: for messages; by default the name of `loader_func` and a number.

        Raises:
            TypeError: a function cannot be called.
            ValueError: `max_idle_time` is not positive.
        """
        if not callable(loader_func):
            raise TypeError(f"loader_func must be callable, got {loader_func!r}.")
        if cleanup_func is not None and not callable(cleanup_func):
            raise TypeError(
                f"cleanup_func must be callable or None, got {cleanup_func!r}."
            )
        if not max_idle_time > 0:
            raise ValueError(
                f"max_idle_time must be > 0 seconds, got {max_idle_time}; math.inf "
                "keeps the data until force_cleanup."
            )
        called = getattr(loader_func, "__name__", type(loader_func).__name__)
        self.name = name or f"{called} {next(_numbers)}"
        self.cleanup_error: str | None = None
        self._load = loader_func
        self._clean = cleanup_func
        self._max_idle_s = float(max_idle_time)
        # A condition and not a lock held while loading: others can ask `is_loaded`
        # meanwhile.
        self._changed = threading.Condition()
        self._data: T = _NOTHING
        self._nbytes = 0  # charged to the account for `_data`
        self._used = 0.0  # when `get` last gave it out
        # The thread's id tells a loader that asks for itself, which would wait for
        # ever.
        self._loading_in: int | None = None
        self._account: Account | None = None

    def get(self) -> T:
        """The data, loaded now if need be.

        Raises:
            InfeasibleBudgetError: its manager's limit has no room for it.
            RuntimeError: `loader_func` asks for its own data.
        """
        with self._changed:
            self._wait_for_others()
            if self._data is not _NOTHING:
                self._used = time.monotonic()
                return self._data
            self._loading_in = threading.get_ident()
            account = self._account
        kept, nbytes = _NOTHING, 0
        try:
            data = self._load_and_say_so()
            if account is not None:
                nbytes = self._reserve(account, data)
            kept = data
        finally:
            with self._changed:
                self._data, self._nbytes = kept, nbytes
                self._used = time.monotonic()
                self._loading_in = None
                self._changed.notify_all()
        # Outside of the lock: the watch's thread holds a lock of its own while it calls
        # `idle_at`, which takes this one.
        idle_watch().add(self)
        return data

    def is_loaded(self) -> bool:
        """Whether the data is in memory now."""
        with self._changed:
            return self._data is not _NOTHING

    def force_cleanup(self) -> bool:
        """Let go of the data now.

        Returns:
            Whether there was any. What `cleanup_func` raises is raised here; the data
            is gone all the same.
        """
        data, _ = self._let_go()
        if data is _NOTHING:
            return False
        if self._clean is not None:
            self._clean(data)
        return True

    # What follows is for the manager and the thread that looks for idle loaders.

    def idle_at(self) -> float | None:
        """When it will have been idle for long enough; None if it never will.

        Returns:
            Seconds of `time.monotonic`.
        """
        with self._changed:
            at = self._used + self._max_idle_s
            return None if self._data is _NOTHING or at == math.inf else at

    def let_go_if_idle(self) -> None:
        """Let go of the data if it has been idle for long enough."""
        data, _ = self._let_go(used_before=time.monotonic() - self._max_idle_s)
        self._clean_elsewhere(data)

    def let_go_for_room(self, *, wait: bool = False) -> int:
        """Let go of the data because others need the room.

        Args:
            wait: whether `cleanup_func` has run when this returns; else it runs in a
                thread of its own.

        Returns:
            How many bytes its account got back.
        """
        data, nbytes = self._let_go()
        if wait and data is not _NOTHING and self._clean is not None:
            self._clean_quietly(data)
        else:
            self._clean_elsewhere(data)
        return nbytes

    def last_used(self) -> float:
        """When `get` last gave the data out, in seconds of `time.monotonic`."""
        with self._changed:
            return self._used

    def join(self, account: Account) -> None:
        """Count the data in an account from now on.

        Data that is loaded already and has no room there is let go.

        Raises:
            ValueError: it is in an account of another ledger.
        """
        with self._changed:
            self._wait_for_others()
            if self._account is not None:
                if self._account.ledger is account.ledger:
                    return
                raise ValueError(
                    f"loader {self.name!r} is registered with another manager: make a "
                    "loader for each."
                )
            self._account = account
            data = self._data
        # A finalizer may run while this thread holds the ledger's lock, hence
        # `close_later`, which takes none.
        weakref.finalize(self, account.close_later)
        if data is _NOTHING:
            return
        nbytes = held_bytes(data)
        fits = account.reserve(nbytes)
        with self._changed:
            still_there = self._data is data
            if fits and still_there:
                self._nbytes = nbytes
        if fits and not still_there:
            account.release(nbytes)
        elif not fits:
            self.let_go_for_room()

    def recount(self) -> None:
        """Measure the data again: it may have grown since it was loaded."""
        with self._changed:
            data, account = self._data, self._account
        if data is _NOTHING or account is None:
            return
        nbytes = held_bytes(data)
        with self._changed:
            if self._data is data:
                account.charge(nbytes - self._nbytes)
                self._nbytes = nbytes

    def _wait_for_others(self) -> None:
        """Wait until nobody loads. The lock is held before and after."""
        if self._loading_in == threading.get_ident():
            raise RuntimeError(
                f"loader {self.name!r} asks for its own data while loading it: read it "
                "from its source in loader_func."
            )
        self._changed.wait_for(lambda: self._loading_in is None)

    def _load_and_say_so(self) -> T:
        try:
            return self._load()
        except BaseException as e:
            e.add_note(
                f"Raised by loader_func of the lazy loader {self.name!r}. Nothing was "
                "kept: the next get() tries again."
            )
            raise

    def _reserve(self, account: Account, data: T) -> int:
        nbytes = held_bytes(data)
        if account.reserve(nbytes):
            return nbytes
        ledger = account.ledger
        if self._clean is not None:
            self._clean_quietly(data)  # nobody will ever be given it
        # Data that can never fit is refused before others release theirs in vain.
        others = ledger.bytes if nbytes <= ledger.limit_bytes else 0
        raise InfeasibleBudgetError(
            f"keeping what loader {self.name!r} loads",
            needed=max(nbytes + others, ledger.limit_bytes + 1),
            limit=ledger.limit_bytes,
            unit="bytes",
            hint="load less at a time.",
        )

    def _let_go(self, *, used_before: float = math.inf) -> tuple[T, int]:
        with self._changed:
            if self._data is _NOTHING or self._used > used_before:
                return _NOTHING, 0
            data, nbytes, account = self._data, self._nbytes, self._account
            self._data, self._nbytes = _NOTHING, 0
        if account is not None:
            account.release(nbytes)
        return data, nbytes

    def _clean_elsewhere(self, data: T) -> None:
        """Call `cleanup_func` where it cannot hold up the one who needs the room."""
        if data is _NOTHING or self._clean is None:
            return
        thread = threading.Thread(
            target=self._clean_quietly, args=(data,), name="frugax-clean", daemon=True
        )
        thread.start()

    def _clean_quietly(self, data: T) -> None:
        assert self._clean is not None  # or there would be no such thread
        try:
            self._clean(data)
        except BaseException as e:  # nobody is there to be told: the report shows it
            self.cleanup_error = f"{type(e).__name__}: {e}"
