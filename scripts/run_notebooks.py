"""Run the notebooks and keep their outputs and pictures in them.

    make notebooks
    "$(scripts/tools notebooks)"/python scripts/run_notebooks.py notebooks/2_train.ipynb

Jupyter is in an environment of its own (scripts/tools). The kernel is the Python of
.venv, which looks for the kernel's packages after its own, so that a notebook runs with
the versions that the tests run with. A notebook that writes to standard error fails, as
its readers would see the warning, too.
"""

import os
import re
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "notebooks"
CELL = re.compile(r"/tmp/ipykernel_\d+/\d+\.py:")
START = (
    "import sys; sys.path.append({packages!r}); "
    "from ipykernel.kernelapp import launch_new_instance; launch_new_instance()"
)


def run(path: Path) -> float:
    """Run one notebook and write it with its outputs.

    Args:
        path: the notebook.

    Returns:
        Seconds of wall time, the start of its kernel included.
    """
    notebook = nbformat.read(path, as_version=4)
    start = START.format(packages=sysconfig.get_path("purelib"))
    manager = AsyncKernelManager()
    manager._kernel_spec = KernelSpec(
        argv=[
            *(str(ROOT / ".venv/bin/python"), "-c", start),
            *("-f", "{connection_file}", "--log-level=ERROR"),
        ],
        display_name="Python 3",
        language="python",
    )
    begin = time.perf_counter()
    client = NotebookClient(notebook, km=manager, timeout=300, record_timing=False)
    with client.setup_kernel(cwd=str(NOTEBOOKS)):
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
    seconds = time.perf_counter() - begin
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            name_cells(output)
            if output.get("name") == "stderr":
                sys.exit(f"{path.name}, cell {number}: {output.text}")
            # An SVG of it exists, or the text is the same.
            if set(output.get("data", ())) > {"text/plain"}:
                del output["data"]["text/plain"]
    notebook.metadata = {
        "kernelspec": {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, path)
    return seconds


def name_cells(output: dict[str, Any]) -> None:
    """Replace the file of a cell, which is another one in each run."""
    for texts in (output, output.get("data", {})):
        for kind in ("text", "text/plain", "image/svg+xml"):
            if kind in texts:
                texts[kind] = CELL.sub("this notebook, line ", texts[kind])


if __name__ == "__main__":
    # The figures that are kept are those of a CPU, wherever this runs. XLA warns of
    # programs that do not fit, which are what the first notebook is about.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for path in [Path(p) for p in sys.argv[1:]] or sorted(NOTEBOOKS.glob("*.ipynb")):
        print(f"{path.name}: {run(path):.1f} s", flush=True)
