"""Names of the older memory-planning guide, on top of `frugax.remat`.

Start at `capture_graph_jaxpr` to read a program, and at `height_compressed_grad` for a
gradient that recomputes blocks. New code uses `frugax.remat.plan`. Guide:
docs/compat/memory_planning.md.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
