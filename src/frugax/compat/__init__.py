"""Names of older systems' guides, kept working on top of frugax's packages.

One package a guide: `compression`, `memory_planning`, `causal_training` and
`visualization`. New code uses `compress`, `remat`, `causal` and `watch` themselves;
nothing in frugax imports this package. Guide: docs/compat/.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["causal_training", "compression", "memory_planning", "visualization"],
)
