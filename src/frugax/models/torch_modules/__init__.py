"""`from_torch`: import a torch module as a model.

torch.export traces a copy of the module (`_traced_module`, `_traced_calls`, `_export`);
its program is walked and becomes a model of ATen's operations (`_masked_rows`, `_walk`,
`_converted_module`); both are compared (`_certificate`).
"""

from ._certificate import Certificate
from ._from_torch import ImportedModule, from_torch

__all__ = ["Certificate", "ImportedModule", "from_torch"]
