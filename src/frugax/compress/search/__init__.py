"""Search for the codec and step of every tensor that meet a `SizeBudget`."""

from ._calibration import (
    Calibration as Calibration,
    ChannelMoments as ChannelMoments,
)
from ._columns import (
    code_by_columns as code_by_columns,
)
from ._draft import (
    Draft as Draft,
    limit_bytes as limit_bytes,
)
from ._encode import (
    EncodeRequest as EncodeRequest,
)
from ._measure import (
    Sensitivity as Sensitivity,
    check_sensitivity as check_sensitivity,
    sensitivity_of as sensitivity_of,
)
from ._plan import (
    CompressPlan as CompressPlan,
    TensorPlan as TensorPlan,
    make_plan as make_plan,
)
from ._rows import (
    scale_rows as scale_rows,
)
from ._search import (
    choose as choose,
)
from ._source import (
    Source as Source,
)
from ._work import (
    Work as Work,
)
