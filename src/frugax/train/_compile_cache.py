"""Compiled programs that outlive the process, in a folder of bounded size."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import jax

from frugax.errors import MissingExtraError
from frugax.fileio import cache_folder, make_folder

# JAX's own threshold of 1 s leaves out most steps that fit on a laptop; below 0.1 s
# reading the file costs as much as compiling anew.
_LEAST_SECONDS = 0.1
_MOST_BYTES = 2 * 2**30


def compile_cache_folder() -> Path:
    """Where `use_compile_cache` keeps programs unless told otherwise."""
    return cache_folder("xla")


def use_compile_cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keep what XLA compiles on disk, for the next process to find.

    This sets JAX's own global options. `fit` does it unless told not to; nothing is set
    by importing frugax.
    Programs that take less than 0.1 s to compile are not kept; past 2 GiB the least
    recently used are dropped. Tracing and lowering are not cached by JAX.

    Args:
        folder: where to keep them; by default `$XDG_CACHE_HOME/frugax/xla`, and
            `~/.cache/frugax/xla` where that is not set. It is made if need be.

    Returns:
        The folder.

    Raises:
        MissingExtraError: JAX needs the package `filelock` to bound the folder.
        OutputError: the folder cannot be made.
    """
    if importlib.util.find_spec("filelock") is None:
        raise MissingExtraError(
            "JAX needs the package filelock to bound its compile cache: "
            "pip install filelock."
        )
    place = make_folder(compile_cache_folder() if folder is None else folder)
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
    jax.config.update("jax_compilation_cache_max_size", _MOST_BYTES)
    return place


def use_compile_cache_by_default() -> None:
    """Do so where nobody has said anything else.

    JAX's own setting comes first, and `FRUGAX_COMPILE_CACHE=0` turns this off.
    """
    settings: Any = jax.config  # its attributes are made at run time
    said = settings.jax_compilation_cache_dir
    if said is None and os.environ.get("FRUGAX_COMPILE_CACHE") != "0":
        use_compile_cache()
