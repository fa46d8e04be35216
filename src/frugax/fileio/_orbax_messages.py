"""Keep Orbax's messages off the terminal: its errors are told as frugax's own."""

import functools
import logging
import os
import sys
from typing import Any


@functools.cache
def mute_orbax() -> None:
    """Keep Orbax from printing its errors; the caller gets one error instead.

    For good, because threads of a write that failed go on after it is closed.
    """
    logging.getLogger("absl").addFilter(
        lambda record: f"{os.sep}orbax{os.sep}" not in record.pathname
    )
    usual = sys.unraisablehook

    def hook(found: Any) -> None:
        # Python prints this for each of TensorStore's writes that ends after the first
        # one has failed, since Orbax has closed its event loop by then.
        is_late = found.object is None and isinstance(found.exc_value, RuntimeError)
        if not (is_late and str(found.exc_value) == "Event loop is closed"):
            usual(found)

    sys.unraisablehook = hook
