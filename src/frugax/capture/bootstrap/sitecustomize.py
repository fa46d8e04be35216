"""Python imports this before the script that `run_script` starts.

It restores the environment, so that programs which the script starts run under a plain
Python, imports the `sitecustomize` that it hides, if there is one, and lets frugax wait
for the import of JAX.
"""

import importlib
import os
import sys
import types

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _restore() -> None:
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != _FOLDER]
    before = os.environ.pop("FRUGAX_SCRIPT_PYTHONPATH", None)
    if before is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = before
    del sys.modules["sitecustomize"]
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        # Python imports this module by its name, and finds none otherwise.
        sys.modules["sitecustomize"] = types.ModuleType("sitecustomize")


_settings = os.environ.pop("FRUGAX_SCRIPT", None)
_restore()
if _settings is not None:
    from frugax.capture import start_in_script

    start_in_script(_settings)
