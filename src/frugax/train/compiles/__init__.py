"""Count, explain and cache the programs that XLA compiles."""

from ._cache import (
    compile_cache_folder,
    use_compile_cache,
    use_compile_cache_by_default,
)
from ._call_site import find_call_site, is_user_file, warn_at_call_site
from ._explain import CompileEvent, RecompileExplanation, explain_recompiles
from ._ledger import CompileLedger, FunctionCompiles
from ._signature import Change, ChangeKind, Signature, find_nearest_changes

__all__ = [
    "Change",
    "ChangeKind",
    "CompileEvent",
    "CompileLedger",
    "FunctionCompiles",
    "RecompileExplanation",
    "Signature",
    "compile_cache_folder",
    "explain_recompiles",
    "find_call_site",
    "find_nearest_changes",
    "is_user_file",
    "use_compile_cache",
    "use_compile_cache_by_default",
    "warn_at_call_site",
]
