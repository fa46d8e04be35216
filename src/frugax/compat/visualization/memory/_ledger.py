"""One ledger of the bytes that all caches hold, under one limit.

Whoever keeps data has an `Account` and reserves before it keeps. Where the limit is in
the way, the ledger asks others to let go, in a fixed order, and refuses if they cannot.
"""

import threading
from collections import deque
from collections.abc import Callable


class ByteLedger:
    """Counts the bytes of all its accounts and keeps their sum within a limit.

    Safe to use from any thread. No lock is held while room is being made.

    Attributes:
        limit_bytes: most bytes that may be reserved at once.
        peak_bytes: most that ever were.
        refusals: how many reservations were refused.
    """

    def __init__(
        self,
        limit_bytes: int,
        *,
        on_change: Callable[[int], None] | None = None,
    ) -> None:
        """Start empty.

        Args:
            limit_bytes: most bytes that may be reserved at once; >= 1.
            on_change: called with the new sum, in bytes, after each change.

        Raises:
            ValueError: `limit_bytes` is below 1.
        """
        if limit_bytes < 1:
            raise ValueError(f"limit_bytes must be >= 1, got {limit_bytes}.")
        self.limit_bytes = limit_bytes
        self.peak_bytes = 0
        self.refusals = 0
        self._on_change = on_change
        self._lock = threading.Lock()
        self._total = 0
        self._by_name: dict[str, int] = {}
        self._reclaimers: list[Callable[[int], int]] = []
        # Filled by finalizers. These may run in the middle of anything, also of a
        # change made here, so they must not wait for the lock.
        self._closed: deque[Account] = deque()

    @property
    def bytes(self) -> int:
        """How many bytes are reserved now."""
        with self._lock:
            self._settle()
            return self._total

    def by_account(self) -> dict[str, int]:
        """Bytes reserved now under each name; names with nothing are left out."""
        with self._lock:
            self._settle()
            return {name: held for name, held in self._by_name.items() if held}

    def account(self, name: str) -> "Account":
        """Open an account; several may share a name.

        Args:
            name: purpose of the bytes, as reports show it.
        """
        return Account(self, name)

    def reclaim_with(self, let_go: Callable[[int], int]) -> None:
        """Add someone to ask for room, after those already added.

        Args:
            let_go: called with the number of bytes wanted; releases bytes and returns
                how many, 0 if nothing is left.
        """
        self._reclaimers.append(let_go)

    def make_room(self, wanted_bytes: int) -> int:
        """Have others let go of bytes, in the order in which they were added.

        Args:
            wanted_bytes: how many would be enough.

        Returns:
            How many bytes were let go; may be more or fewer than wanted.
        """
        freed = 0
        for let_go in self._reclaimers:
            if freed >= wanted_bytes:
                break
            freed += let_go(wanted_bytes - freed)
        return freed

    def _settle(self) -> None:
        """Release what accounts held that nobody can use any more."""
        while self._closed:
            account = self._closed.popleft()
            self._add(account, -account.bytes)

    def _add(self, account: "Account", change: int) -> None:
        account.bytes += change
        self._total += change
        self._by_name[account.name] = self._by_name.get(account.name, 0) + change
        if not self._by_name[account.name]:
            del self._by_name[account.name]  # names may come and go without end
        self.peak_bytes = max(self.peak_bytes, self._total)

    def _change(self, account: "Account", change: int, *, always: bool) -> int:
        """Change what an account holds, if that is allowed.

        Returns:
            By how many bytes it was too much; 0 if it was done.
        """
        with self._lock:
            self._settle()
            short = self._total + change - self.limit_bytes
            if short > 0 and not always:
                return short
            self._add(account, change)
            total = self._total
        # Outside of the lock: the callback may ask the ledger for its sum.
        if self._on_change is not None:
            self._on_change(total)
        return 0

    def _refuse(self) -> None:
        with self._lock:
            self.refusals += 1


class Account:
    """Bytes that one holder has reserved; made by `ByteLedger.account`.

    Attributes:
        name: their purpose.
        bytes: how many there are now.
    """

    def __init__(self, ledger: ByteLedger, name: str) -> None:
        self.name = name
        self.bytes = 0
        self.ledger = ledger

    def reserve(self, nbytes: int, *, make_room: bool = True) -> bool:
        """Ask for bytes before keeping something.

        Args:
            nbytes: how many; >= 0.
            make_room: whether others are asked to let go where the limit is in the way.
                That runs their code, which may write files: a queue says False.

        Returns:
            Whether they may be kept. If not, nothing was reserved.

        Raises:
            ValueError: `nbytes` is negative.
        """
        if nbytes < 0:
            raise ValueError(f"nbytes must be >= 0, got {nbytes}.")
        ledger = self.ledger
        while short := ledger._change(self, nbytes, always=False):
            # A request that can never fit is refused before others release bytes.
            hopeless = nbytes > ledger.limit_bytes
            if hopeless or not make_room or not ledger.make_room(short):
                ledger._refuse()
                return False
        return True

    def charge(self, nbytes: int) -> None:
        """Count bytes that are kept already, whatever the limit says.

        Args:
            nbytes: how many more there are; negative if there are fewer.
        """
        self.ledger._change(self, max(nbytes, -self.bytes), always=True)

    def release(self, nbytes: int) -> None:
        """Give bytes back.

        Args:
            nbytes: how many; at most the reserved number.

        Raises:
            ValueError: negative, or more than the account holds.
        """
        if not 0 <= nbytes <= self.bytes:
            raise ValueError(
                f"nbytes must be in [0, {self.bytes}], what {self.name!r} holds, got "
                f"{nbytes}: release the reserved number."
            )
        self.ledger._change(self, -nbytes, always=True)

    def close_later(self) -> None:
        """Give all back at the ledger's next change; for finalizers: takes no lock."""
        self.ledger._closed.append(self)
