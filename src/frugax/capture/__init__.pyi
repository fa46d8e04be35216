from ._absent_devices import devices_of as devices_of
from ._absent_plugins import hide_absent_plugins as hide_absent_plugins
from ._donation import (
    Donation as Donation,
    describe_donation as describe_donation,
    find_donatable as find_donatable,
)
from ._jit import (
    LostUpdateWarning as LostUpdateWarning,
    PlannedFunction as PlannedFunction,
    UnplannedWarning as UnplannedWarning,
    jit as jit,
)
from ._plan import (
    JitPlan as JitPlan,
    PlannedProgram as PlannedProgram,
    plan_program as plan_program,
)
from ._replace_jit import planned as planned, replace_jit as replace_jit
from ._report import (
    CallRecord as CallRecord,
    Compile as Compile,
    JitReport as JitReport,
    ProgramRecord as ProgramRecord,
)
from ._script import (
    call_script as call_script,
    run_script as run_script,
    start_in_script as start_in_script,
)
from ._traced_step import TracedStep as TracedStep
from ._unjitted_gradients import UnjittedGradients as UnjittedGradients
from ._unknown_arrays import (
    ShapesOfLargeArrays as ShapesOfLargeArrays,
    UnknownArray as UnknownArray,
    UnknownValueError as UnknownValueError,
)
from ._watch_script import watch_script as watch_script
