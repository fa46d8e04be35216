"""What a watcher is given, checked before anything is watched."""

import os
from collections.abc import Sequence
from typing import Any

from .journal import Journal
from .sinks import Sink


def check_journal(journal: object) -> None:
    """Refuse what is no journal.

    Raises:
        TypeError: it is a path, or something else.
    """
    if journal is not None and not isinstance(journal, Journal):
        text = isinstance(journal, str | os.PathLike)
        hint = f" Write Journal.create({str(journal)!r}, {{}})." if text else ""
        raise TypeError(
            f"journal must be a Journal or None, got {journal!r:.99}.{hint}"
        )


def checked_sinks(sinks: Any) -> tuple[Sink, ...]:
    """The sinks.

    Raises:
        TypeError: they are no list, or one is no sink.
    """
    if isinstance(sinks, Sink) or not isinstance(sinks, Sequence):
        raise TypeError(
            f"sinks must be a list of sinks, such as [Terminal()], got {sinks!r:.99}."
        )
    for sink in sinks:
        if not isinstance(sink, Sink) or isinstance(sink, type):
            raise TypeError(
                f"a sink needs name, write(events) and close(), {sink!r:.99} lacks "
                "one; a class must be called first."
            )
    return tuple(sinks)
