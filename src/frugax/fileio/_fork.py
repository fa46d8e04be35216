"""Have forked children let go of the files and threads that are their parent's."""

import os
import weakref
from typing import Protocol


class Owner(Protocol):
    """Whatever holds files, threads or locks for one process."""

    def abandon(self) -> None:
        """Let go of them without writing or waiting.

        The threads do not exist in a child, and locks may be held by them for ever.
        """
        ...


_owners: "weakref.WeakSet[Owner]" = weakref.WeakSet()


def abandon_in_children(owner: Owner) -> None:
    """Call `owner.abandon()` in each child of `os.fork`, as long as the owner exists.

    Programs that are started anew (`subprocess`, `multiprocessing` by spawn and by
    forkserver) inherit nothing, so there is nothing to do for them.
    """
    _owners.add(owner)


def _abandon_all() -> None:
    for owner in list(_owners):
        owner.abandon()
    _owners.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
