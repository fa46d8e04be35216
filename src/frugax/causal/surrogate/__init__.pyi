from ._files import (
    load_default_surrogate as load_default_surrogate,
    load_surrogate as load_surrogate,
    save_surrogate as save_surrogate,
)
from ._parent_set_posterior import (
    ParentSetPosterior as ParentSetPosterior,
)
from ._surrogate import (
    MAX_VARIABLES as MAX_VARIABLES,
    Surrogate as Surrogate,
    check_samples as check_samples,
    related_columns as related_columns,
    select_graph as select_graph,
    table_arrays as table_arrays,
)
from ._training import (
    SurrogateTraining as SurrogateTraining,
    set_index as set_index,
    train_surrogate as train_surrogate,
    training_batch as training_batch,
)
from ._training_data import (
    CALIBRATION as CALIBRATION,
    TRAINING as TRAINING,
    draw_tasks as draw_tasks,
)
