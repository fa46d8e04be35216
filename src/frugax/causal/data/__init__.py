"""Tables of what was observed and what was changed, from files, frames and models.

Start at `Samples`; `load_sachs` reads known data. Guide: docs/causal_scm.md.
"""

from ._frames import FLOAT32_STEPS
from ._package_file import package_file
from ._sachs import load_sachs
from ._samples import Samples

__all__ = ["FLOAT32_STEPS", "Samples", "load_sachs", "package_file"]
