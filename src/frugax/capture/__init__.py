"""Plan the training programs of other people as they are.

Start at `jit`, which takes the place of `jax.jit`; `run_script` runs a whole script
with it. Guide: docs/jit.md.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
