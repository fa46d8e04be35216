from . import (
    allocate as allocate,
    budget as budget,
    capture as capture,
    causal as causal,
    cli as cli,
    compat as compat,
    compress as compress,
    configs as configs,
    errors as errors,
    fileio as fileio,
    fit as fit,
    jaxprs as jaxprs,
    measure as measure,
    models as models,
    remat as remat,
    report as report,
    run as run,
    targets as targets,
    train as train,
    trees as trees,
    tropical as tropical,
    watch as watch,
)
from .budget import (
    ExperimentBudget as ExperimentBudget,
    MemoryBudget as MemoryBudget,
    OverheadBudget as OverheadBudget,
    SizeBudget as SizeBudget,
    TimeBudget as TimeBudget,
)
from .capture import jit as jit, planned as planned
from .errors import (
    CorruptFileError as CorruptFileError,
    FrugaxError as FrugaxError,
    InfeasibleBudgetError as InfeasibleBudgetError,
    UnsupportedFileError as UnsupportedFileError,
)
from .fit import plan as plan
from .models import (
    JaxBackend as JaxBackend,
    TorchBackend as TorchBackend,
    compile as compile,
    op as op,
)
from .models.dtypes import (
    bfloat16 as bfloat16,
    bool_ as bool_,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    uint8 as uint8,
)

__all__: list[str]
__version__: str
