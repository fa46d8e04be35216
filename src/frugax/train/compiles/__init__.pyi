from ._cache import (
    compile_cache_folder as compile_cache_folder,
    use_compile_cache as use_compile_cache,
    use_compile_cache_by_default as use_compile_cache_by_default,
)
from ._call_site import (
    find_call_site as find_call_site,
    find_error_site as find_error_site,
    is_user_file as is_user_file,
    warn_at_call_site as warn_at_call_site,
)
from ._ledger import CompileLedger as CompileLedger
from ._signature import (
    Change as Change,
    Signature as Signature,
    find_nearest_changes as find_nearest_changes,
)
