"""Parts of a loss that treat rows one by one run in chunks; the rest mixes the rows."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from draws import integers, normal
from frugax import InfeasibleBudgetError, MemoryBudget, remat
from frugax.remat import PlanParts, RowChunks
from frugax.remat.rewrite import MixesBatchError, split_rows, trace_loss
from refusals import refuses

from .checks import assert_same, follow, temp_bytes

ROWS, WIDTH = 64, 16
WS = [normal(i, WIDTH, WIDTH, scale=1 / 4) for i in range(4)]
X = normal(4, ROWS, WIDTH)


def encode(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return x


def sorted_times(ws, x):
    """Causal weights over sorted times, as in physics-informed nets."""
    order = jnp.concatenate([x[:, :1].sort(0), x[:, 1:]], axis=1)
    residual = jax.vmap(jax.grad(lambda row: encode(ws, row).sum()))(order)
    losses = jnp.mean(residual.reshape(8, -1) ** 2, axis=1)
    return jnp.mean(losses * lax.stop_gradient(jnp.exp(-jnp.cumsum(losses))))


def contrastive(ws, x):
    z = encode(ws, x)
    scores, own = z @ z[::-1].T, jnp.arange(len(z))[:, None]
    # Rows choose among columns, and columns among rows.
    return sum(
        jnp.mean(jax.nn.logsumexp(s, axis=1) - jnp.take_along_axis(s, own, 1)[:, 0])
        for s in (scores, scores.T)
    )


def batch_norm(ws, x):
    for w in ws:
        h = x @ w
        x = x + jnp.tanh((h - h.mean(0)[None]) / jnp.sqrt(h.var(0)[None] + 1e-5))
    return jnp.mean(x**2)


def centred_once(ws, x):
    for w in ws:
        h = x @ w
        h = h - h.mean(0)[None]
        x = x + jnp.tanh(h / jnp.sqrt((h**2).mean(0)[None] + 1e-5))
    return jnp.mean(x**2)


def normalised_advantages(ws, x):
    policy, value = encode(ws[:2], x), encode(ws[2:], x).mean(1)
    advantage = x[:, 0] - value
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    picked = jnp.take_along_axis(jax.nn.log_softmax(policy), _ACTIONS[:, None], 1)[:, 0]
    return -jnp.mean(picked * lax.stop_gradient(advantage)) + jnp.var(value)


_ACTIONS = integers(5, WIDTH, ROWS)


def with_metrics(ws, x):
    y = encode(ws, x)
    loss = jnp.var(y) + jnp.max(jnp.mean(y, axis=1))
    return loss, {"rows": y[:, 0], "largest": y.max(), "positive": (y > 0).sum()}


def half_precision(ws, x):
    y = encode([w.astype(jnp.bfloat16) for w in ws], x.astype(jnp.bfloat16))
    return jnp.log(jnp.sum(y.astype(jnp.float32) ** 2, axis=0)).sum()


def messages(ws, x):
    """Edges are the rows: each adds its message to the node that it points to."""
    nodes, (senders, receivers) = x[:8], _EDGES
    for w in ws:
        sent = jnp.tanh((nodes[senders] + x) @ w)
        nodes = nodes + jax.ops.segment_sum(sent, receivers, len(nodes))
    return jnp.log(jnp.sum(nodes**2, axis=0)).sum()


def batch_of_graphs(ws, x):
    """Each row is a graph, whose nodes are summed up in groups."""
    groups = jnp.tile(jnp.arange(WIDTH) // 4, (len(x), 1))
    y = jax.vmap(lambda y, g: jax.ops.segment_sum(y, g, 4))(encode(ws, x), groups)
    return jnp.var(y)


_EDGES = integers(6, 8, 2, ROWS)
LOSSES = [sorted_times, contrastive, batch_norm, normalised_advantages, with_metrics]
LOSSES += [half_precision, messages, batch_of_graphs, centred_once]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("count", [4, pytest.param(64, marks=pytest.mark.thorough)])
def test_a_loss_in_chunks_of_rows_has_the_same_gradients(loss, count):
    has_aux = loss is with_metrics
    how = {"argnums": 0, "has_aux": has_aux}
    step = follow(loss, (WS, X), PlanParts(rows=RowChunks(count, ROWS)), **how)
    scans = [e for e in jax.make_jaxpr(step)(WS, X).eqns if e.primitive.name == "scan"]
    assert scans
    want = jax.jit(jax.value_and_grad(loss, **how))(WS, X)
    assert_same(jax.jit(step)(WS, X), want, 2e-2 if loss is half_precision else 1e-4)


@pytest.mark.parametrize("loss", [messages, batch_of_graphs])
def test_sums_of_rows_by_an_index_belong_to_the_segments(loss):
    split = split_rows(trace_loss(loss, (WS, X)), RowChunks(4, ROWS))
    names = {e.primitive.name for whole in split.whole for e in whole}
    assert "scatter-add" not in names


@pytest.mark.parametrize("loss", [batch_norm, centred_once])
def test_differences_from_a_mean_are_computed_where_they_are_read(loss):
    split = split_rows(trace_loss(loss, (WS, X)), RowChunks(4, ROWS))
    made = [(s, e) for s in split.segments for e in s.eqns]
    passed = {e.primitive.name for s, e in made if {*e.outvars} & {*s.rows}}
    assert passed == {"dot_general", "add"}


def test_gradients_of_the_rows_themselves_are_the_same():
    how = {"argnums": (0, 1), "has_aux": False}
    body = trace_loss(batch_norm, (WS, X), **how)
    # Differentiated inputs are no data: nothing is known to hold rows.
    with pytest.raises(MixesBatchError):
        split_rows(body, RowChunks(4, ROWS))


def test_a_weight_as_long_as_the_batch_is_not_taken_for_rows():
    square = [normal(i, ROWS, ROWS, scale=1 / 8) for i in range(3)]
    x = normal(3, ROWS, ROWS)
    step = follow(batch_norm, (square, x), PlanParts(rows=RowChunks(4, ROWS)))
    want = jax.jit(jax.value_and_grad(batch_norm))(square, x)
    assert_same(jax.jit(step)(square, x), want, 1e-4)


def test_a_budget_that_only_chunks_of_rows_can_keep_is_met():
    ws, x = WS[:2], normal(1, 2048, WIDTH)
    plan = remat.plan(
        sorted_times, MemoryBudget.share(0.3), (ws, x), first_fit=True, cache=False
    )
    assert plan.rows is not None
    assert str(plan.rows) in plan.explain()
    assert remat.RematPlan.from_json(plan.to_json()) == plan
    step = remat.apply(sorted_times, plan)
    assert temp_bytes(step, ws, x) == plan.predicted <= plan.budget.limit_bytes
    want = jax.jit(jax.value_and_grad(sorted_times))(ws, x)
    assert_same(step(ws, x), want, 1e-4)
    damaged = remat.RematPlan.from_json(
        plan.to_json().replace('"length": 2048', '"length": 2047')
    )
    with refuses(ValueError, "2047"):
        remat.apply(sorted_times, damaged)(ws, x)


def autoencoder(ws, x):
    y = x
    for w, step in zip(ws, (2, 2, 1, 1), strict=True):
        if step == 1:
            y = y.repeat(2, 2).repeat(2, 3)
        h = lax.conv_general_dilated(y, w, (step, step), "SAME")
        h = h - h.mean((0, 2, 3), keepdims=True)
        y = jax.nn.relu(h / jnp.sqrt(h.var((0, 2, 3), keepdims=True) + 1e-5))
    return jnp.mean((x - y) ** 2)


def test_a_refusal_names_bytes_that_chunks_of_rows_reach():
    kernels = [(8, 3), (8, 8), (8, 8), (3, 8)]
    ws = [normal(i, *k, 3, 3, scale=0.2) for i, k in enumerate(kernels)]
    args = ws, normal(9, 32, 3, 16, 16)
    with pytest.raises(InfeasibleBudgetError) as refusal:
        remat.plan(autoencoder, MemoryBudget.share(0.02), args, cache=False)
    best = refusal.value.best
    assert isinstance(best, remat.RematPlan)
    assert best.rows is not None
    # Named policies alone needed 0.61 on nearly this net.
    assert refusal.value.needed < 0.5 * best.unplanned_bytes


def some_rows(ws, x):
    return jnp.mean(encode(ws, x[: len(x) // 2]) ** 2)


def pairs(ws, x):
    first, second = jnp.split(encode(ws, x), 2)
    scores = first @ second.T
    own = jnp.sum(first * second, axis=1)
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - own)


@pytest.mark.parametrize(
    "loss", [some_rows, pytest.param(pairs, marks=pytest.mark.thorough)]
)
def test_rows_that_begin_inside_of_the_loss_are_found(loss):
    ws, x = WS, jax.random.normal(jax.random.key(1), (2048, WIDTH))
    plan = remat.plan(
        loss, MemoryBudget.share(0.4), (ws, x), first_fit=True, cache=False
    )
    assert plan.rows is not None
    assert plan.rows.length == len(x) // 2
    step = remat.apply(loss, plan)
    assert_same(step(ws, x), jax.jit(jax.value_and_grad(loss))(ws, x), 1e-4)
