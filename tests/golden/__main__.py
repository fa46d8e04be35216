"""Write the golden tables, or compare them with what the program does now.

    make golden                          # write all tables
    make golden PART=watch               # of one part
    make golden CHECK=1                  # compare all, print what moved
    python -m tests.golden causal --check --case plateau

Each part runs in a process of its own, in a fixed environment: 8 devices of the CPU,
one thread of linear algebra, a folder of its own for caches.
"""

import argparse
import concurrent.futures
import os
import subprocess
import sys
import tempfile
import time

from .table import (
    FOLDER,
    MissingPackageError,
    Table,
    compare,
    describe_machine,
    list_parts,
    load_cases,
    make_header,
    run_case,
)

_ROOT = FOLDER.parents[1]
# Set by the parent of a process that runs one part.
_CHILD = "GOLDEN_CHILD"
_KEPT = (
    "JAX_COMPILATION_CACHE",
    "JAX_ENABLE_COMPILATION_CACHE",
    "JAX_PERSISTENT_CACHE",
)


def main() -> int:
    """Run the command; 1 if something moved."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=", ".join(list_parts())
    )
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--quick", action="store_true", help="the quick cases only")
    parser.add_argument("--missing", action="store_true", help="cases without a row")
    parser.add_argument("--case", default="", help="cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="parts at a time")
    options = parser.parse_args()
    unknown = set(options.parts) - set(list_parts())
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}.")
    parts = options.parts or list_parts()
    if os.environ.get(_CHILD):
        return max(map(lambda part: _run_part(part, options), parts))
    flags = [
        f"--{name}" for name in ("check", "quick", "missing") if vars(options)[name]
    ]
    with (
        tempfile.TemporaryDirectory() as caches,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
    ):
        # The quick cases share a process: its start takes longer than most of them.
        groups = [parts] if options.quick else [[part] for part in parts]
        command = [sys.executable, "-m", "tests.golden", *flags, "--case", options.case]
        run = lambda group: subprocess.run(
            [*command, *group], cwd=_ROOT, env=_environment(caches), check=False
        )
        return max(done.returncode for done in pool.map(run, groups))


def _environment(caches: str) -> dict[str, str]:
    """The environment of every run, here and in continuous integration."""
    own = ("JAX_", "XLA_", "FRUGAX_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(own) or name.startswith(_KEPT)
    }
    return kept | {
        _CHILD: "1",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": caches,
        "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "tests")]),
    }


def _run_part(part: str, options: argparse.Namespace) -> int:
    path = FOLDER / f"{part}.json"
    stored = Table.read(path)
    table = Table(make_header(part), dict(stored.rows) if stored else {})
    is_same_machine = stored is None or stored.header["machine"] == describe_machine()
    try:
        cases = list(load_cases(part))
    except MissingPackageError as e:
        print(f"{part}: not run: needs {e}", flush=True)
        return 0
    names = [case.name for case in cases]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"{part}: two cases have the name {min(twice)!r}.")
    asked = [
        case
        for case in cases
        if options.case in case.name
        and (case.quick or not options.quick)
        and not (options.missing and case.name in table.rows)
    ]
    is_whole = len(asked) == len(cases)
    if not (options.check or is_whole or is_same_machine):
        print(f"{part}: the table is of another machine: run the whole part.")
        return 2
    moved: list[str] = []
    left_out = 0
    for number, case in enumerate(asked, 1):
        begin = time.perf_counter()
        try:
            row = run_case(case)
        except MissingPackageError as e:
            print(f"{part}: {case.name}: not run: needs {e}", flush=True)
            continue
        seconds = f"{time.perf_counter() - begin:.1f} s"
        if case.name in table.rows:
            lines, cells = compare(
                case, table.rows[case.name], row, is_same_machine=is_same_machine
            )
        else:
            lines, cells = [f"{case.name}: not in the table"], 0
        moved += lines
        left_out += cells
        print(f"{part} {number}/{len(asked)} {case.name}: {seconds}", flush=True)
        for line in lines:
            print(f"    {line}", flush=True)
        if not options.check:
            # After each case, so that `--missing` goes on after an interruption. A row
            # that moved within its tolerance stays, or noise would be a change.
            if lines or not is_same_machine:
                table.rows[case.name] = row
            table.write(path)
    if is_whole:
        for name in sorted(table.rows.keys() - set(names)):
            moved.append(f"{name}: in the table, but no case")
            print(f"    {moved[-1]}", flush=True)
            del table.rows[name]
        if not options.check:
            table.write(path)
    what = f"{part}: {len(asked)} cases, {len(moved)} cells moved"
    if left_out:
        what += f", {left_out} not compared: they are of another machine"
    print(what, flush=True)
    return 1 if options.check and moved else 0


if __name__ == "__main__":
    sys.exit(main())
