"""Names of the causal training guide: training helpers, a surrogate's step and GRPO.

New code trains a surrogate with `frugax.causal.train_surrogate` and leaves the choice
of experiments to `frugax.causal.Campaign`. Guide: docs/compat/causal_training.md.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
