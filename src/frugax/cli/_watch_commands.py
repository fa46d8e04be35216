"""The commands `frugax watch export` and `frugax watch serve`, for a run's journal."""

from pathlib import Path
from typing import Annotated, Literal

from frugax.errors import ConfigError

from ._arguments import Arg
from ._consoles import errors, say, show_progress

Journal = Annotated[Path, Arg("RUN_DIR|JOURNAL")]

_SUFFIXES: dict[str, Literal["npz", "csv"]] = {".npz": "npz", ".csv": "csv"}


def export(
    journal: Journal,
    /,
    *,
    to: Annotated[Path, Arg("FILE")],
    format: Literal["npz", "csv"] | None = None,
    force: bool = False,
) -> int:
    """Write the records of a run as .npz or CSV.

    For example:

    frugax watch export runs/digits --to digits.npz

    frugax watch export runs/digits/journal --to digits.csv --force

    Args:
        journal: the folder of a run, or its journal; the run may still be training.
        to: the file to write. A journal of several streams
            becomes several CSV files.
        format: needed if the file's ending does not tell it.
        force: overwrite an existing file.

    Raises:
        ConfigError: the journal does not exist, or the format is not known.
    """
    from frugax.watch.journal import export as write

    named = format or _SUFFIXES.get(to.suffix.lower())
    if named is None:
        raise ConfigError(
            f"the format of {to} is not known: end its name in .npz or .csv, or give "
            "--format."
        )
    path = find_journal(journal)
    with show_progress("exporting") as show:
        tell = lambda n, total: show(n / max(total, 1), to.name)
        try:
            done = write(path, to, named, overwrite=force, progress=tell)
        except ValueError as e:
            raise ConfigError(f"frugax watch export: {e}") from e
    # Damaged pieces are named and the rest is exported: most of a run beats none of it.
    for lost in done.lost:
        say(
            f"Lost: {lost.size_bytes:,} bytes at byte {lost.offset:,} of {path} "
            f"({lost.reason}).",
            on=errors,
        )
    # Closing is the last act of a run, so an open journal does not tell the two cases
    # apart.
    if not done.closed:
        say(
            "The run is still training, or it died: later records may be missing.",
            on=errors,
        )
    counts = ", ".join(
        f"{n:,} records of {name}".removesuffix(" of ")  # the main stream has no name
        for name, n in done.records.items()
        if n or not name
    )
    for place in done.paths:
        say(f"{place}: {counts}" if len(done.paths) == 1 else place)
    return 0


def find_journal(run: Path) -> Path:
    """Find the journal of a run by its folder, or by the journal itself."""
    path = run
    if run.is_dir():
        path = run / "journal"
    if not path.is_file():
        raise ConfigError(
            f"there is no journal at {path}: give the folder of a run (runs/digits) or "
            "a journal."
        )
    return path


def serve(
    run: Journal,
    /,
    *,
    port: Annotated[int, Arg("NUMBER")] = 8765,
    host: Annotated[str, Arg("ADDRESS")] = "127.0.0.1",
    token: bool = False,
    open: bool = False,
) -> int:
    """Show a run in the browser, while it trains or afterwards.

    For example:

    frugax watch serve runs/digits

    frugax watch serve runs/digits --open --port 0

    frugax watch serve runs

    frugax watch serve runs/digits --host 0.0.0.0

    The server is a separate process that only reads the journal: it neither slows nor
    changes the run. From another machine, a tunnel is safest: ssh -L
    8765:localhost:8765 THAT_MACHINE.

    Args:
        run: a run, a journal, or a folder of several; whose runs are then compared.
        port: port to listen on; 0 for any free port.
        host: address to listen on. Other machines need a token, which is part of the
            printed address; the connection is not encrypted.
        token: require a token on this machine, too; against its other users.
        open: open the page in a browser on this machine.
    """
    from frugax.watch.serve import serve as start

    tell = lambda address: say(f"{address}\nCtrl-C ends it.")
    start(run, port=port, host=host, token=token, open_browser=open, say=tell)
    return 0


# Each sub-command by its name.
COMMANDS = {"export": export, "serve": serve}
