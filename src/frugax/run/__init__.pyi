from ._compare import (
    RunComparison as RunComparison,
    compare_runs as compare_runs,
)
from ._config import (
    Budgets as Budgets,
    DataConfig as DataConfig,
    LayoutConfig as LayoutConfig,
    ModelConfig as ModelConfig,
    RunConfig as RunConfig,
    TrainConfig as TrainConfig,
    load_config as load_config,
)
from ._environment import (
    describe_environment as describe_environment,
)
from ._folder import (
    RunFolder as RunFolder,
    free_folder as free_folder,
    reopen as reopen,
    unfinished_folder as unfinished_folder,
)
from ._ledger import (
    Part as Part,
    start_ledger as start_ledger,
)
from ._observer import (
    Observer as Observer,
    Stage as Stage,
)
from ._outcome import (
    MemoryFacts as MemoryFacts,
    ModelFacts as ModelFacts,
    Outcome as Outcome,
    StepTimeFacts as StepTimeFacts,
)
from ._page import (
    report_page as report_page,
)
from ._plan import (
    RunPlan as RunPlan,
    apply as apply,
    plan as plan,
)
from ._prepare import (
    describe_step as describe_step,
)
from ._receipt_check import (
    FigureCheck as FigureCheck,
    ReceiptCheck as ReceiptCheck,
)
from ._run import (
    InterruptedRunError as InterruptedRunError,
    run as run,
)
from ._task import (
    Task as Task,
    load_task as load_task,
)
from ._trained import (
    load_trained as load_trained,
)
from ._user_code import (
    load_function as load_function,
    user_code as user_code,
)
from ._verify import (
    verify_receipt as verify_receipt,
)
