from ._jit import (
    PlannedFunction as PlannedFunction,
    UnplannedWarning as UnplannedWarning,
    jit as jit,
    to_budget as to_budget,
)
from ._plan import JitPlan as JitPlan
from ._replace_jit import planned as planned, replace_jit as replace_jit
from ._report import (
    CallRecord as CallRecord,
    Compile as Compile,
    JitReport as JitReport,
)
from ._script import run_script as run_script, start_in_script as start_in_script
from ._watch_script import watch_script as watch_script
