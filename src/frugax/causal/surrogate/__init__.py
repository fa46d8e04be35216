"""Who causes whom in a table, answered in milliseconds by a network trained before.

Start at `default_surrogate`. To train another: `train_surrogate`; the older guide's
names: `create_jax_surrogate_train_step` and those around it. Guide:
docs/causal_surrogate.md.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
