"""The visualization guide's names on top of `frugax.watch`.

Callbacks for use inside `jit`, a memory manager for pictures, compressed storage and
YAML configs. New code uses `frugax.watch` itself. Guide: docs/compat/visualization.md.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
