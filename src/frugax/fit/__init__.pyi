from ._apply import apply as apply
from ._batch import (
    BatchAnswer as BatchAnswer,
    find_largest_batch as find_largest_batch,
)
from ._fit_plan import (
    FitPlan as FitPlan,
    FitRow as FitRow,
)
from ._picture import draw_memory as draw_memory
from ._plan import (
    DEFAULT_BUDGET as DEFAULT_BUDGET,
    Budget as Budget,
    compare as compare,
    plan as plan,
    price_of as price_of,
    show_why as show_why,
)
from ._plan_script import (
    ScriptPlan as ScriptPlan,
    answer as answer,
    plan_in_script as plan_in_script,
)
from ._search import (
    cost as cost,
    search as search,
)
from ._workload import (
    Workload as Workload,
)
