"""Enable JAX's persistent compilation cache in a folder of bounded size."""

import contextlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import jax

from frugax.errors import MissingExtraError, OutputError
from frugax.fileio import cache_folder, make_folder

# JAX's default threshold of 1 s excludes most steps that fit on a laptop; below 0.1 s
# reading the file costs as much as compiling again.
_MIN_COMPILE_SECONDS = 0.1
_MAX_BYTES = 2 * 2**30


def compile_cache_folder() -> Path:
    """Return the folder where `use_compile_cache` keeps programs by default."""
    return cache_folder("xla")


def use_compile_cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keep the programs that XLA compiles on disk, for the next process to find.

    This sets JAX's own global options. `fit` does it unless told not to; importing
    frugax sets nothing. Programs that compile in less than 0.1 s are not kept; above
    2 GiB the least recently used are dropped. JAX does not cache tracing and lowering.

    Args:
        folder: where to keep them, created if needed; by default
            `$XDG_CACHE_HOME/frugax/xla`, or `~/.cache/frugax/xla` if that is not set.

    Returns:
        The folder.

    Raises:
        MissingExtraError: JAX needs the package `filelock` to bound the folder.
        OutputError: the folder cannot be made.
    """
    # JAX itself would notice only at the first compile.
    if importlib.util.find_spec("filelock") is None:
        raise MissingExtraError(
            "JAX needs the package filelock to bound its compile cache: "
            "pip install filelock."
        )
    path = make_folder(compile_cache_folder() if folder is None else folder)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update(
        "jax_persistent_cache_min_compile_time_secs", _MIN_COMPILE_SECONDS
    )
    jax.config.update("jax_compilation_cache_max_size", _MAX_BYTES)
    return path


def use_compile_cache_by_default() -> None:
    """Switch the cache on unless JAX has one already or the user switched it off.

    `FRUGAX_COMPILE_CACHE=0` in the environment switches it off.
    """
    config: Any = jax.config  # its attributes are created at run time
    is_off = os.environ.get("FRUGAX_COMPILE_CACHE") == "0"
    if config.jax_compilation_cache_dir is None and not is_off:
        # In a home that cannot be written to, each process compiles anew.
        with contextlib.suppress(OutputError):
            use_compile_cache()
