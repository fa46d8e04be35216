from ._apply import apply as apply
from ._batch import (
    BatchAnswer as BatchAnswer,
    find_largest_batch as find_largest_batch,
)
from ._donation import (
    describe_donation as describe_donation,
    find_donatable as find_donatable,
)
from ._picture import draw_memory as draw_memory
from ._plan import (
    DEFAULT_BUDGET as DEFAULT_BUDGET,
    Budget as Budget,
    FitPlan as FitPlan,
    FitRow as FitRow,
    compare as compare,
    plan as plan,
    price_of as price_of,
    show_why as show_why,
)
from ._search import (
    cost as cost,
    search as search,
)
from ._workload import (
    Workload as Workload,
)
