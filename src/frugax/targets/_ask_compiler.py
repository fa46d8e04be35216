"""Run XLA's compiler with a timeout and a working Ctrl-C, and explain its errors."""

import queue
import re
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from frugax.errors import CompilerRefusedError, InfeasibleBudgetError

_SIZE = r"([\d.]+)([KMGT]?)i?B?"
# "... the total memory required for HLO temporaries (44.00G) exceeds available HBM
# (15.75G)." and "Used 20.01G of 15.75G hbm. ..."
_TOO_LARGE = (
    re.compile(rf"required for .*?\({_SIZE}\) exceeds available \w+ \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE}"),
)
# "/home/me/train.py:24:16 [Block.__call__]", the innermost frame first.
_FRAME = re.compile(r"^\s*(/.+?):(\d+)(?::\d+)? \[", re.MULTILINE)
# Of XLA's status codes those of a compiler that fails at a program that is in order.
# JAX's exception holds the code only as the first word of its text.
_FAILED = ("INTERNAL", "UNIMPLEMENTED")
# Without autotuning XLA takes Triton for every matrix product, also where Triton has no
# tiles of the right size; on a device the tuner then takes cuBLAS, as this option does.
_TRITON = "xla_gpu_enable_triton_gemm"
WITHOUT_TRITON = (
    "compiled without Triton's matrix products: with them the compiler fails, and on a "
    "device it may choose others"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def run_patiently(work: Callable[[], Any], timeout: float | None, name: str) -> Any:
    """Run the compiler so that Ctrl-C and the timeout are heard at once."""
    if threading.current_thread() is not threading.main_thread() and timeout is None:
        return work()
    done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work_and_tell() -> None:
        try:
            done.put((work(), None))
        except BaseException as e:  # raised again by the waiting thread
            done.put((None, e))

    threading.Thread(target=work_and_tell, daemon=True).start()
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        # In short waits: a lock that is waited for without end hides Ctrl-C.
        wait = 0.2
        if deadline is not None:
            wait = min(wait, max(deadline - time.monotonic(), 0.0))
        try:
            result, error = done.get(timeout=wait)
        except queue.Empty:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(
                    f"compiling for {name} took longer than {timeout:g} seconds: "
                    "allow more time, or plan a smaller program."
                ) from None
            continue
        if error is not None:
            raise error
        return result


def compile_robustly(
    compile_with: Callable[[dict[str, Any]], Any],
    platform: str,
    options: dict[str, Any],
) -> tuple[Any, str]:
    """Compile; for a GPU again without Triton where the compiler fails with it.

    Args:
        compile_with: compiles with the options it is given.
        platform: of the target.
        options: of the compiler; one that is set there is never changed.

    Returns:
        The compiled program, and how it differs from the one asked for; "" if it does
        not.

    Raises:
        JaxRuntimeError: the compiler refuses the program; the first refusal, if it
            refuses both.
    """
    try:
        return compile_with(options), ""
    except jax.errors.JaxRuntimeError as e:
        status = str(e).partition(":")[0]
        if platform != "gpu" or _TRITON in options or status not in _FAILED:
            raise
        try:
            return compile_with(options | {_TRITON: False}), WITHOUT_TRITON
        except jax.errors.JaxRuntimeError:
            raise e from None


def translate(error: Exception, target: str) -> Exception:
    text = str(error)
    for pattern in _TOO_LARGE:
        if found := pattern.search(text):
            needed, unit, limit, limit_unit = found.groups()
            return InfeasibleBudgetError(
                f"the program, by the compiler of {target},",
                # Rounded up in the last digit that the compiler prints.
                needed=int((float(needed) + 0.01) * _UNITS[unit]),
                limit=int(float(limit) * _UNITS[limit_unit]),
                unit="bytes",
                hint="use a smaller batch or more devices.",
                proven=False,
            )
    return CompilerRefusedError(explain(error, target))


def explain(error: Exception, target: str) -> str:
    text = " ".join(str(error).split())
    if "custom call" in text.lower() or "FFI handler" in text:
        what = "the program calls a library that this compiler lacks"
    else:
        what = "the compiler refuses the program"
    # The dump of an operation and the stack would fill the terminal.
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    said = textwrap.shorten(first.split(", metadata=")[0], 300, placeholder=" ...")
    place = ""
    frames = [(Path(file), line) for file, line in _FRAME.findall(str(error))]
    for file, line in frames:
        if "site-packages" not in file.parts:
            place = f" (from {file.name}:{line})"
            break
    return (
        f"{target}: {what}{place}: {said}. Rewrite that operation, or plan on the "
        "device itself."
    )
