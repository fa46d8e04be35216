"""Names of the guide "JAX integration", over `frugax.compress`.

Start at `ModelCompressionAPI` for a torch model, or at `SystemIntegrationCoordinator`
for one tensor. Both write `.fxz` files by `frugax.compress`; what JAX does is to turn
the whole numbers of a file into weights, on its devices, and to prove by their digest
that every bit is that of NumPy. torch and JAX are imported when they are needed, and
without JAX one warning says that NumPy does its part.

Guide: docs/compat/compression.md.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
