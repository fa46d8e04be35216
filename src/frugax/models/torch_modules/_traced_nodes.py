"""Names, arguments and source lines of the operations in a program of torch.export."""

import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import frugax

_OWN = tuple(f"{Path(m.__file__).parent}/" for m in (torch, frugax) if m.__file__)
_PYTHON = sysconfig.get_path("stdlib")
_CHECKED = str(Path(torch.distributions.__file__).parent)
# Operations that check a program and compute nothing.
CHECKS = (
    "_assert_async", "_assert_scalar", "_assert_tensor_metadata",
    "_linalg_check_errors",
    "sym_constrain_range", "sym_constrain_range_for_size",
)  # fmt: skip


def read_call(node: torch.fx.Node) -> tuple[str, dict[str, Any]]:
    """The name of an operation and its arguments by name, or "" if it is not one."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return "", {}
    schema = node.target._schema
    args = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    names = (a.name for a in schema.arguments)
    args |= dict(zip(names, node.args, strict=False)) | node.kwargs
    return schema.name.partition("::")[2], args


def place_of(node: torch.fx.Node) -> str:
    """The path of the module in which an operation is called, and its source line."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(list(stack.values())), ("", None))[0] or "the module"
    line = _last_line(node.meta.get("stack_trace") or "")
    return f"{path} ({line})" if line else path


def _last_line(trace: str) -> str:
    """The source line of the last call in a printed stack, or nothing."""
    calls = re.findall(r'File "([^<"]+)", line (\d+)', trace)
    return ":".join(calls[-1]) if calls else ""


def place_of_error(error: BaseException) -> str:
    """The last source line of others that an error came through."""
    place = place_of_frames(traceback.extract_tb(error.__traceback__))
    # Of an error in a program that it had traced before, torch prints the line.
    line = _last_line(str(error))
    return place or (f" at {line}" if line else "")


def place_of_frames(frames: Sequence[traceback.FrameSummary]) -> str:
    """The innermost source line not of torch, frugax or Python itself; or nothing."""
    for frame in reversed(frames):
        file = Path(frame.filename)
        is_python = file.is_relative_to(_PYTHON) and "site-packages" not in file.parts
        if file.is_file() and not (is_python or frame.filename.startswith(_OWN)):
            return f" at {frame.filename}:{frame.lineno}"
    return ""


def is_raised_by_others(error: BaseException) -> bool:
    """Whether code raised it that is neither torch's nor frugax's, such as an assert.

    Checks of distributions' arguments count as such.
    """
    *_, last = traceback.extract_tb(error.__traceback__)
    return not last.filename.startswith(_OWN) or last.filename.startswith(_CHECKED)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without a full stop."""
    lines = str(error).strip().splitlines()
    return f"{(lines or [type(error).__name__])[0]:.300}".rstrip(".")
