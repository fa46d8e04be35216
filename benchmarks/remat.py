"""Plans of `remat` beside plain JAX, checkpoints by hand, stock policies and PyTorch.

    python -m benchmarks.remat [bytes time chunks torch by_hand policies depth ...]

`bytes`, `time`: the six nets of `nets.py` in ever less memory; `--cases` names nets.
`chunks`: the step time of plans in chunks of the batch beside recomputation. `torch`:
PyTorch's `activation_memory_budget` at the same shares, on two of the nets. `by_hand`:
plans in the bytes of what an engineer writes by hand: one `jax.checkpoint` around each
block, a scan over parts of a batch, loops that checkpoint themselves. `policies`: one
`jax.checkpoint` around each block with each stock policy, `--target h100` for the
compiler of another device. `depth`, `libraries`: processor time of planning.
`convolutions`: gradients of convolutions in loops by `remat.fast_convolutions`.

Bytes are XLA's temporary bytes, flops those of the traced program; both are the same
each time. On CPU checkpoints by hand are compiled with XLA's barriers kept
(`xla_disable_hlo_passes=cse_barrier_expander`), without which they save little there.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from benchmarks import nets
from benchmarks.harness import (
    CONTROL,
    OURS,
    Case,
    Figures,
    Part,
    Row,
    choose,
    cpu_seconds,
    install,
    run,
    say,
    time_cases,
)
from benchmarks.remat_nets import NETS, normal
from jax import lax
from tests.golden.library_losses import LOSSES

from frugax import InfeasibleBudgetError, MemoryBudget, measure, remat
from frugax.jaxprs import flops, take_arrays
from frugax.targets import Target

SHARES = (0.75, 0.5, 0.35, 0.25)
# For scans; the others cannot go that low, and are not asked to.
LOW_SHARE = 0.05
KEEP_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}
# The share of a rival's bytes that a plan may need beyond them, for its gates.
GATES = 0.001
HERE = Target("cpu")
Loss = Callable[..., Any]


def compile_gradient(
    loss: Loss, args: Any, target: Target = HERE
) -> tuple[Any, int, int]:
    """Compile a loss with its gradient; return its temporary bytes and flops too."""
    options = KEEP_BARRIERS if target.platform == "cpu" else {}
    # Wrapped, so that JAX compiles each again and does not reuse a known program.
    both = jax.value_and_grad(loss)
    with target.tracing():
        traced = jax.jit(lambda *a: both(*a)).trace(*target.place(args))
    compiled = target.compile(traced, options=dict(options))
    return compiled, measure.program(compiled).temp_bytes, flops(traced.jaxpr.jaxpr)


def plan_within(
    loss: Loss, args: Any, budget: Any, target: Target = HERE, **how: Any
) -> tuple[remat.RematPlan, Figures]:
    """Plan for a budget, or for what is needed at least; compile the plan again."""
    met, started = True, time.process_time()
    try:
        plan = remat.plan(loss, budget, args, cache=False, target=target, **how)
    except InfeasibleBudgetError as e:
        met, plan = False, e.best
    assert isinstance(plan, remat.RematPlan)
    seconds = time.process_time() - started
    spend = remat.apply(loss, plan).report(*target.place(args)).spends[0]
    assert spend.measured is not None
    return plan, {
        "met": met,
        "bytes": int(spend.measured),
        "over": met and spend.measured > plan.budget.usable_bytes,
        "extra": plan.extra_share,
        "compiles": plan.compiles,
        "cpu_seconds": round(seconds, 1),
        "chunks": plan.batch.count if plan.batch else 1,
    }


def share_of(plain: int, found: Figures) -> Figures:
    """The bytes as a share of the plain program's."""
    return {"share": found["bytes"] / plain} | found


def small_net(name: str, *, quick: bool) -> nets.Net:
    """One of the six nets; a shallow one to try a command."""
    return nets.mlp(depth=3, width=16, batch=64) if quick else nets.NETS[name]()


def count_bytes(given: argparse.Namespace) -> Figures:
    """The six nets at four shares of their plain bytes, and scans at their least."""
    found: Figures = {}
    for name in choose(nets.NETS, given, 1):
        net = small_net(name, quick=given.quick)
        _, plain, _ = compile_gradient(net.loss, net.shapes)
        shares = SHARES if net.unrolled else (*SHARES, LOW_SHARE, 0.0)
        for share in shares[1:2] if given.quick else shares:
            limit = MemoryBudget(limit_bytes=max(1, int(share * plain)))
            _, figures = plan_within(net.loss, net.shapes, limit)
            figures |= {"use": figures["bytes"] / limit.limit_bytes}
            found[f"{name}, {share:g}"] = share_of(plain, figures)
            say(f"{name}, {share:g}: {figures}")
    return found


def time_nets(given: argparse.Namespace) -> Figures:
    """Step times of plans, of checkpoints by hand and of plain JAX, with bytes."""
    found: Figures = {}
    for name in choose(nets.NETS, given, 1):
        net = small_net(name, quick=given.quick)
        arrays = net.arrays()
        plain, plain_bytes, _ = compile_gradient(net.loss, net.shapes)
        by_layer = net.by_layer(jax.checkpoint)
        both = jax.value_and_grad(by_layer)
        as_shipped = (
            jax.jit(lambda *a, both=both: both(*a)).lower(*net.shapes).compile()
        )
        kept, kept_bytes, _ = compile_gradient(by_layer, net.shapes)
        sizes = {"by hand": measure.program(as_shipped).temp_bytes}
        sizes["by hand, barriers kept"] = kept_bytes
        programs = {
            "plain": plain,
            "by hand": as_shipped,
            "by hand, barriers kept": kept,
        }
        extra: dict[str, float] = {}
        for share in (0.5, 0.25):
            budget = MemoryBudget(limit_bytes=int(share * plain_bytes))
            plan, figures = plan_within(net.loss, net.shapes, budget)
            if not figures["met"]:
                continue
            step = remat.apply(net.loss, plan)
            label = f"frugax, plan {share:g}"
            programs[label] = (
                jax.jit(lambda *a, step=step: step(*a)).lower(*net.shapes).compile()
            )
            extra[label], sizes[label] = figures["extra"], figures["bytes"]
        ours = min(extra, key=lambda label: sizes[label])
        ready = {k: functools.partial(p, *arrays) for k, p in programs.items()}
        case = Case(name=name, ours=ready.pop(ours), rivals=ready)
        times = case.measure(0.2 if given.quick else given.seconds)
        shares = {k: size / plain_bytes for k, size in sizes.items()}
        found[name] = {"ours": ours, "shares": shares, "times": times, "extra": extra}
    return found


def time_rows(found: Figures) -> Iterator[Row]:
    """Memory and step time beside `jax.checkpoint` on each layer."""
    peer = "jax.checkpoint on each layer"
    for name, figures in found.items():
        ours, times = figures["ours"], figures["times"]
        shares, by_hand = figures["shares"], times["by hand"]
        yield Row.counted(
            f"{name}: memory of the backward pass, planned for {ours.split()[-1]}",
            "share of the plain temporaries",
            shares[ours],
            peer,
            shares["by hand"],
        )
        yield Row(
            task=f"{name}: step time at that memory",
            quantity="ms",
            ours=times[OURS]["us"] / 1e3,
            peer=peer,
            theirs=by_hand["us"] / 1e3,
            ahead_by=by_hand["ratio"],
            low=by_hand["low"],
            high=by_hand["high"],
        )


def show_times(found: Figures) -> str:
    lines = []
    for name, figures in found.items():
        for program, t in figures["times"].items():
            own = figures["ours"] if program in (OURS, CONTROL) else program
            share = figures["shares"].get(own, 1.0)
            ratio = f"{t['ratio']:.2f} ({t['low']:.2f} to {t['high']:.2f})"
            label = f"{program} ({own})" if own != program else program
            lines.append(
                f"{name}, {label}: {t['us'] / 1e3:.1f} ms, {ratio}; {share:.2f}"
            )
    return "\n".join(lines)


def time_chunks(given: argparse.Namespace) -> Iterator[Case]:
    """Plans in chunks of the batch beside plans that recompute, at the same share."""
    for name in choose(nets.NETS, given, 1):
        net = small_net(name, quick=given.quick)
        plain = jax.jit(jax.value_and_grad(net.loss))
        arrays = net.arrays()
        for share in (0.5,) if given.quick else (0.3, 0.2):
            budget = MemoryBudget.share(share)
            how: dict[str, Any] = {"divide_batch": False}
            steps = []
            for divide in ("first", False):
                how["divide_batch"] = divide
                plan, _ = plan_within(net.loss, arrays, budget, **how)
                steps.append(jax.jit(remat.apply(net.loss, plan)))
            chunks, recomputed = (functools.partial(step, *arrays) for step in steps)
            rivals = {"frugax, recomputed": recomputed}
            rivals["plain"] = functools.partial(plain, *arrays)
            yield Case(name=f"{name}, {share:g}", ours=chunks, rivals=rivals)


# --- PyTorch ------------------------------------------------------------------------


def torch_mlp(params: Any, x: Any) -> Any:
    from torch.nn import functional

    for w in params:
        x = x + functional.gelu(x @ w, approximate="tanh")
    return (x**2).mean()


def torch_transformer(params: Any, x: Any, heads: int = 4) -> Any:
    import torch
    from torch.nn import functional

    def norm(x: Any) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt((centred**2).mean(-1, keepdim=True) + 1e-5)

    for p in params:
        batch, length, width = x.shape
        qkv = (norm(x) @ p["qkv"]).split(width, -1)
        q, k, v = (y.view(batch, length, heads, -1).transpose(1, 2) for y in qkv)
        scores = q @ k.transpose(2, 3) / (width / heads) ** 0.5
        causal = torch.tril(torch.ones(1, 1, length, length, dtype=torch.bool))
        mixed = torch.softmax(torch.where(causal, scores, -1e9), -1) @ v
        x = x + mixed.transpose(1, 2).reshape(x.shape) @ p["out"]
        x = x + functional.gelu(norm(x) @ p["up"], approximate="tanh") @ p["down"]
    return (x**2).mean()


TORCH_NETS = {"mlp24": torch_mlp, "transformer12": torch_transformer}


def run_torch(net: nets.Net, torch_loss: Loss, budget: float) -> Figures:
    """One step: most bytes held, those held between forward and backward, flops.

    Summed up from the allocator's own events, as the profiler records them; flops are
    those of the matrix products that ran.
    """
    import torch
    import torch._functorch.config as functorch_config  # noqa: PLC2701
    from torch.profiler import ProfilerActivity, profile, record_function

    turn_name = "backward of the benchmark"
    to_torch = lambda a: torch.tensor(np.asarray(a)).requires_grad_()
    params, x = net.arrays()
    held = jax.tree.map(to_torch, params)
    leaves, data = jax.tree.leaves(held), torch.tensor(np.asarray(x))
    torch.compiler.reset()
    # Compiled at the first call, so that has to be in here.
    with functorch_config.patch(activation_memory_budget=budget):
        compiled = torch.compile(torch_loss)
        torch.autograd.grad(compiled(held, data), leaves)
    for _ in range(2):  # the profiler's own set-up is in the first
        with profile(
            activities=[ProfilerActivity.CPU],
            profile_memory=True,
            with_flops=True,
            record_shapes=True,  # flops follow from them
        ) as step:
            loss = compiled(held, data)
            with record_function(turn_name):
                torch.autograd.grad(loss, leaves)
    # PyTorch has no types for its events.
    events: list[Any] = step.profiler.kineto_results.events()  # type: ignore
    (turn,) = (e.start_ns() for e in events if e.name() == turn_name)
    now = peak = kept = 0
    for change in sorted(events, key=lambda e: e.start_ns()):
        if change.name() == "[memory]":
            now += change.nbytes()
            peak = max(peak, now)
            kept = now if change.start_ns() < turn else kept
    # The profiler also knows some elementwise flops, when not fused: left out.
    products = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
    count = sum(e.flops or 0 for e in step.key_averages() if e.key in products)
    ours = float(net.loss(params, x))
    apart = abs(float(loss.detach()) - ours) / abs(ours)
    return {"peak": peak, "held": kept, "flops": count, "loss_apart": apart}


def torch_budgets(given: argparse.Namespace) -> Figures:
    """PyTorch's budget is a share of what the forward pass holds for the backward pass.

    It guarantees nothing about the peak. Its peak is what its allocator held beyond the
    arguments, gradients included; ours has XLA's temporary bytes and outputs. Shares
    are of each one's own program without a plan.
    """
    found: Figures = {}
    for name in choose(TORCH_NETS, given, 1):
        net = small_net(name, quick=given.quick)
        base = run_torch(net, TORCH_NETS[name], 1.0)
        plain, plain_bytes, _ = compile_gradient(net.loss, net.shapes)
        outputs = measure.program(plain).output_bytes
        for share in (0.5,) if given.quick else SHARES:
            ran = run_torch(net, TORCH_NETS[name], share)
            limit = MemoryBudget(limit_bytes=int(share * plain_bytes))
            _, ours = plan_within(net.loss, net.shapes, limit)
            found[f"{name}, {share:g}"] = {
                "torch held": ran["held"] / base["held"],
                "torch peak": ran["peak"] / base["peak"],
                "torch extra": ran["flops"] / base["flops"] - 1,
                "our peak": (ours["bytes"] + outputs) / (plain_bytes + outputs),
                "our extra": ours["extra"],
                "met": ours["met"],
                "loss apart": ran["loss_apart"],
            }
    return found


def torch_rows(found: Figures) -> Iterator[Row]:
    for name, figures in found.items():
        net, share = name.split(", ")
        if share == "0.5":
            yield Row.counted(
                f"{net}: peak memory at a budget of one half",
                "share of the unplanned peak",
                figures["our peak"],
                "torch activation_memory_budget",
                figures["torch peak"],
            )


# --- what is written by hand --------------------------------------------------------

STEPS, END = 128, 6.4
ODE_ARGS = normal(0, 32, 32, scale=1 / 6), normal(1, 64, 32)


def field(w: Any, y: Any) -> Any:
    return jnp.tanh(jnp.tanh(y @ w) @ w) - y


def runge_kutta(w: Any, y: Any) -> Any:
    h = END / STEPS
    k1 = field(w, y)
    k2 = field(w, y + h / 2 * k1)
    k3 = field(w, y + h / 2 * k2)
    k4 = field(w, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def midpoint(w: Any, y: Any) -> Any:
    h = END / STEPS
    return y + h * field(w, y + h / 2 * field(w, y))


def solve(step: Loss) -> Loss:
    """The loss without checkpoints, of which plans are made."""
    loop = lambda w, y: lax.fori_loop(0, STEPS, lambda _, y: step(w, y), y)
    return lambda w, y: jnp.mean(loop(w, y) ** 2)


def by_hand_experts() -> Iterator[tuple[Any, ...]]:
    loss, args = NETS["experts"](lambda f: f)
    by_hand, _ = NETS["experts"](jax.checkpoint)
    yield "experts, a checkpoint a block", "by hand", loss, args, by_hand, None


def by_hand_pinn(chunks: int = 8) -> Iterator[tuple[Any, ...]]:
    """A scan over parts of the batch, each of which recomputes its forward pass."""
    loss, args = NETS["pinn"](lambda f: f)

    def by_hand(ws: Any, points: Any) -> Any:
        part = jax.checkpoint(loss, prevent_cse=False)
        parts = points.reshape(chunks, -1, *points.shape[1:])
        add = lambda total, rows: (total + part(ws, rows) / chunks, None)
        return lax.scan(add, 0.0, parts)[0]

    name = f"PINN, a scan over 1/{chunks} of the batch"
    yield name, "by hand", loss, args, by_hand, None


def by_hand_loop() -> Iterator[tuple[Any, ...]]:
    """Steps in scans of scans, each with a checkpoint."""
    for across in (8, 16):

        def by_hand(w: Any, y: Any, across: int = across) -> Any:
            @jax.checkpoint
            def group(y: Any, _: Any) -> Any:
                one = jax.checkpoint(lambda y, _: (runge_kutta(w, y), None))
                return lax.scan(one, y, None, length=across)

            return jnp.mean(lax.scan(group, y, None, length=STEPS // across)[0] ** 2)

        name = f"ODE, {STEPS // across} groups of {across} steps by hand"
        yield name, "by hand", solve(runge_kutta), ODE_ARGS, by_hand, None


def by_hand_ode() -> Iterator[tuple[Any, ...]]:
    """Runge-Kutta steps in equinox's loop that checkpoints itself."""
    for checkpoints in (16, 8, 2):

        def by_hand(w: Any, y: Any, note: Any = None, kept: int = checkpoints) -> Any:
            def body(state: Any) -> Any:
                if note:
                    jax.debug.callback(note, state[0])
                return state[0] + END / STEPS, runge_kutta(w, state[1])

            more = lambda state: state[0] < END - END / STEPS / 2
            how = {"max_steps": STEPS, "kind": "checkpointed", "checkpoints": kept}
            start = jnp.zeros(()), y
            return jnp.mean(eqxi.while_loop(more, body, start, **how)[1] ** 2)

        name = f"ODE, {checkpoints} checkpoints of the library"
        yield name, "equinox", solve(runge_kutta), ODE_ARGS, by_hand, STEPS


def by_hand_diffrax() -> Iterator[tuple[Any, ...]]:
    """Midpoint steps of diffrax, whose adjoint recomputes them."""
    sys.path.append(str(install("diffrax", "lineax", "optimistix")))
    import diffrax

    for checkpoints in (None, 16, 8):

        def by_hand(w: Any, y: Any, note: Any = None, kept: Any = checkpoints) -> Any:
            def term(t: Any, y: Any, w: Any) -> Any:
                if note:
                    jax.debug.callback(note, t)
                return field(w, y)

            found = diffrax.diffeqsolve(
                diffrax.ODETerm(term), diffrax.Midpoint(), 0.0, END, END / STEPS, y, w,
                max_steps=STEPS + 1, throw=False,
                adjoint=diffrax.RecursiveCheckpointAdjoint(kept),
            )  # fmt: skip
            return jnp.mean(found.ys[-1] ** 2)

        name = f"ODE, {checkpoints or 'as many'} checkpoints of diffrax"
        name += "" if checkpoints else " as it chooses"
        yield name, "diffrax", solve(midpoint), ODE_ARGS, by_hand, 2 * STEPS


BY_HAND: dict[str, Callable[[], Iterator[tuple[Any, ...]]]] = {
    "loop": by_hand_loop,
    "experts": by_hand_experts,
    "pinn": by_hand_pinn,
    "ode": by_hand_ode,
    "diffrax": by_hand_diffrax,
}


def count_flops(by_hand: Loss, steps: int, loss: Loss, args: Any) -> float:
    """Flops of a loop that checkpoints itself, from how often its body runs."""
    count = [0]

    def note(_: Any) -> None:
        count[0] += 1

    both = jax.value_and_grad(functools.partial(by_hand, note=note))
    jax.block_until_ready(jax.jit(both)(*args))
    jax.effects_barrier()
    _, _, plain = compile_gradient(loss, args)
    forward = flops(jax.make_jaxpr(loss)(*args).jaxpr)
    return plain + (count[0] - steps) / steps * forward


def beside_hand(given: argparse.Namespace) -> Figures:
    """Plans in the bytes of each rival."""
    found: Figures = {}
    for case in choose(BY_HAND, given, 1):
        for name, peer, loss, args, by_hand, steps in BY_HAND[case]():
            say(name)
            _, plain, plain_flops = compile_gradient(loss, args)
            _, size, count = compile_gradient(by_hand, args)
            if steps:
                count = count_flops(by_hand, steps, loss, args)
            limit = MemoryBudget(limit_bytes=size)
            _, ours = plan_within(loss, args, limit, divide_batch=True)
            theirs = {"bytes": size, "extra": count / plain_flops - 1}
            found[name] = {"peer": peer, "plain": plain, "theirs": theirs, "ours": ours}
            if given.quick:
                return found
    return found


def at_bytes_row(task: str, peer: str, theirs: Figures, ours: Figures) -> Row:
    """Flops in at most the bytes of a rival; a plan that needs more is behind."""
    row = Row.counted(
        task, "of the plain flops", 1 + ours["extra"], peer, 1 + theirs["extra"]
    )
    if ours["met"]:
        return row
    ratio = theirs["bytes"] / ours["bytes"]
    return Row(**{**vars(row), "ahead_by": ratio})


def by_hand_rows(found: Figures) -> Iterator[Row]:
    for name, f in found.items():
        task = f"flops in at most the bytes of {name}"
        yield at_bytes_row(task, f["peer"], f["theirs"], f["ours"])


def show_rivals(found: Figures) -> str:
    """Bytes as shares of plain, and more flops, of each rival and of ours."""
    cell = lambda f, plain: f"{f['bytes'] / plain:.4f} for {f['extra']:+.1%}"
    lines = []
    for name, f in found.items():
        needs = "" if f["ours"]["met"] else "needs "
        mine = f"{needs}{cell(f['ours'], f['plain'])}, {f['ours']['chunks']} chunks"
        lines.append(f"| {name} | {cell(f['theirs'], f['plain'])} | {mine} |")
    return "\n".join(["| rival | its bytes | ours |", "| --- | --: | --: |", *lines])


# --- stock policies -----------------------------------------------------------------

POLICIES = (
    "everything_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "nothing_saveable",
)


def beside_policies(given: argparse.Namespace) -> Figures:
    """Plans in the bytes of each policy that needs less than plain, and 0.1 % more."""
    target = Target(given.target)
    found: Figures = {}
    for name in choose(NETS, given, 1):
        say(f"{name} on {target.name}")
        loss, args = NETS[name](lambda f: f)
        _, plain, plain_flops = compile_gradient(loss, args, target)
        planned: dict[int, Figures] = {}
        for policy in POLICIES[3:] if given.quick else POLICIES:
            chosen = getattr(jax.checkpoint_policies, policy)
            mark = lambda f, chosen=chosen: jax.checkpoint(f, policy=chosen)
            _, size, count = compile_gradient(*NETS[name](mark), target)
            if size >= plain:
                continue
            if size not in planned:
                limit = MemoryBudget(limit_bytes=int((1 + GATES) * size))
                how: dict[str, Any] = {"divide_batch": False}
                planned[size] = plan_within(loss, args, limit, target, **how)[1]
            found[f"{name} on {target.name}, {policy}"] = {
                "plain": plain,
                "theirs": {"bytes": size, "extra": count / plain_flops - 1},
                "ours": planned[size],
            }
    return found


def policy_rows(found: Figures) -> Iterator[Row]:
    """The policy of each net that is hardest to beat."""
    rows: dict[str, list[Row]] = {}
    for name, f in found.items():
        net, policy = name.split(", ")
        task = f"{net}: flops in the bytes of a stock policy"
        row = at_bytes_row(task, policy, f["theirs"], f["ours"])
        rows.setdefault(net, []).append(row)
    for each in rows.values():
        yield min(each, key=lambda row: row.ahead_by)


def plan_deep(given: argparse.Namespace) -> Figures:
    """Processor time of planning beside compiling the plain program, by depth."""

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = x + jax.nn.gelu(x @ w[0]) @ w[1]
        return jnp.mean(x**2)

    found: Figures = {}
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    for depth in (2,) if given.quick else (12, 24, 48, 96):
        args = [f32(2, 64, 64)] * depth, f32(512, 64)
        begun = time.process_time()
        compile_gradient(loss, args)
        plain = time.process_time() - begun
        half, how = MemoryBudget.share(0.5), {"divide_batch": False}
        _, planned = plan_within(loss, args, half, **how)
        seconds = planned["cpu_seconds"]
        found[f"{depth} layers"] = {
            "plain_s": plain,
            "planning_s": seconds,
            "ratio": seconds / plain,
            "compiles": planned["compiles"],
        }
    return found


def plan_libraries(given: argparse.Namespace) -> Figures:
    """The same for losses that go through other libraries, at two shares each."""
    found: Figures = {}
    for name in choose(LOSSES, given, quick=1):
        loss, args = LOSSES[name]()
        taken = take_arrays(loss, args, 0, has_aux=False)
        grad = jax.value_and_grad(taken.loss, taken.argnums, has_aux=taken.has_aux)

        def compile_plain(grad: Loss = grad, args: Any = taken.args) -> None:
            jax.clear_caches()
            jax.jit(lambda *a: grad(*a)).lower(*args).compile()

        compile_plain()  # the first one imports modules and fills JAX's own caches
        plain = min(cpu_seconds(compile_plain) for _ in range(2))
        for share in (0.5, 0.25):
            jax.clear_caches()
            met, started = True, time.process_time()
            try:
                plan = remat.plan(loss, MemoryBudget.share(share), args, cache=False)
            except InfeasibleBudgetError as e:
                met, plan = False, e.best
            assert isinstance(plan, remat.RematPlan)
            seconds = time.process_time() - started
            found[f"{name} within {share}"] = {
                "met": met,
                "plain_s": plain,
                "planning_s": seconds,
                "ratio": seconds / plain,
                "compiles": plan.compiles,
            }
    return found


# Layout, stride, groups and dtype of four equal layers in a scan or written out.
CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "scan, 3x3, NHWC": {},
    "scan, 3x3, NCHW": {"spec": ("NCHW", "OIHW", "NCHW")},
    "scan, 3x3, NHWC, 8 groups": {"groups": 8},
    "scan, 3x3, NHWC, depthwise": {"groups": 32},
    "scan, 3x3, NHWC, bfloat16": {"dtype": "bfloat16"},
    "scan, 5, NWC": {"spec": ("NWC", "WIO", "NWC"), "space": 512, "window": 5},
    "unrolled, 3x3, NHWC": {"scanned": False},
    "unrolled, 3x3, NHWC, 8 groups": {"groups": 8, "scanned": False},
}


def convolve(
    spec: tuple[str, str, str] = ("NHWC", "HWIO", "NHWC"),
    groups: int = 1,
    dtype: str = "float32",
    space: int = 32,
    window: int = 3,
    *,
    scanned: bool = True,
) -> tuple[Loss, tuple[Any, ...]]:
    """Four convolutions that keep the number of features, a batch of 8."""
    sizes = {"N": 8, "C": 32, "O": 32, "I": 32 // groups}
    spatial = len(spec[0]) - 2

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        how: dict[str, Any] = {"dimension_numbers": spec, "feature_group_count": groups}
        out = lax.conv_general_dilated(x, w, (1,) * spatial, "SAME", **how)
        return jnp.tanh(out), None

    def loss(kernels: jax.Array, x: jax.Array) -> jax.Array:
        if scanned:
            x = lax.scan(layer, x, kernels)[0]
        else:
            for w in kernels:
                x = layer(x, w)[0]
        return x.sum().astype(jnp.float32)

    shape = [sizes.get(axis, space) for axis in spec[0]]
    kernels = 4, *(sizes.get(axis, window) for axis in spec[1])
    scale = (sizes["I"] * window**spatial) ** -0.5
    args = normal(1, *kernels, scale=scale), normal(0, *shape)
    return loss, tuple(a.astype(dtype) for a in args)


def time_convolutions(given: argparse.Namespace) -> Iterator[Case]:
    for name in choose(CONVOLUTIONS, given, 1):
        loss, args = convolve(**CONVOLUTIONS[name])
        fast = remat.fast_convolutions(loss)
        programs = [
            functools.partial(jax.jit(lambda *a, f=f: jax.grad(f, (0, 1))(*a)), *args)
            for f in (fast, fast, loss)
        ]
        ours, again, plain = programs
        yield Case(name=name, ours=ours, control=again, rivals={"plain": plain})


PARTS = {
    "bytes": Part(measure=count_bytes),
    "time": Part(
        measure=time_nets,
        rows=time_rows,
        show=show_times,
        is_timed=True,
        short=("--cases", "mlp24", "--seconds", "3"),
        minutes=(60, 1),
    ),
    "chunks": time_cases(time_chunks, compares=False),
    "torch": Part(measure=torch_budgets, rows=torch_rows, minutes=(10, 0)),
    "by_hand": Part(
        measure=beside_hand,
        rows=by_hand_rows,
        show=show_rivals,
        short=("--cases", "ode"),
        minutes=(5, 1),
    ),
    "policies": Part(
        measure=beside_policies,
        rows=policy_rows,
        show=show_rivals,
        short=("--cases", "mlp,gru"),
        minutes=(20, 3),
    ),
    "depth": Part(measure=plan_deep),
    "libraries": Part(measure=plan_libraries),
    "convolutions": time_cases(time_convolutions, compares=False),
}


def add_options(ask: argparse.ArgumentParser) -> None:
    ask.add_argument("--target", default="cpu", help="of the part policies")


if __name__ == "__main__":
    run("remat", PARTS, about=__doc__, options=add_options)
