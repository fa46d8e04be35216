from ._posterior import (
    ParentSetPosterior as ParentSetPosterior,
)
from ._shipped import (
    default_surrogate as default_surrogate,
    load_surrogate as load_surrogate,
    save_surrogate as save_surrogate,
)
from ._surrogate import (
    MOST as MOST,
    Surrogate as Surrogate,
    check_samples as check_samples,
    likely_graph as likely_graph,
    neighbours as neighbours,
    table_arrays as table_arrays,
)
from ._training import (
    SurrogateTraining as SurrogateTraining,
    train_surrogate as train_surrogate,
)
