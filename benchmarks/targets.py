"""Plans for devices that are not here: met, refused, and at what price?

    python -m benchmarks.targets nets --cases mlp24 --targets h100 --shares 0.5
    python -m benchmarks.targets decoders --cases decoder70b --targets h100x256

Each plan is compiled once more by the target's compiler. Beside the whole steps of
decoders stand JAX's own policies around each of their scanned layers.
"""

import argparse
import dataclasses
import resource
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax
from benchmarks.harness import Figures, Part, choose, run, say
from benchmarks.nets import NETS
from jax.sharding import PartitionSpec as P

from frugax import fit, measure, remat
from frugax.budget import MemoryBudget
from frugax.errors import InfeasibleBudgetError
from frugax.targets import Target

POLICIES = ("nothing_saveable", "dots_with_no_batch_dims_saveable", "dots_saveable")


@dataclasses.dataclass(frozen=True)
class Decoder:
    """A decoder-only transformer with grouped queries and gated feed-forward layers."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    sequence: int
    batch: int
    policy: str | None = None

    @property
    def head(self) -> int:
        return self.width // self.heads

    def weights(self) -> dict[str, Any]:
        n, d, f = self.layers, self.width, self.hidden
        kv = self.kv_heads * self.head
        shapes = {
            "embed": (self.vocabulary, d),
            "out": (d, self.vocabulary),
            "layers": {
                "q": (n, d, d), "k": (n, d, kv), "v": (n, d, kv), "o": (n, d, d),
                "gate": (n, d, f), "up": (n, d, f), "down": (n, f, d),
                "norm1": (n, d), "norm2": (n, d),
            },
        }  # fmt: skip
        is_shape = lambda x: isinstance(x, tuple)
        # float32 masters, as Adam wants them; layers compute in bfloat16.
        make = lambda s: jax.ShapeDtypeStruct(s, jnp.float32)
        return jax.tree.map(make, shapes, is_leaf=is_shape)

    def loss(self, weights: Any, tokens: Any) -> Any:
        low = lambda x: x.astype(jnp.bfloat16)
        x = low(weights["embed"])[tokens]
        layer = self.layer
        if self.policy:
            rule = getattr(jax.checkpoint_policies, self.policy)
            layer = jax.checkpoint(layer, policy=rule)
        x, _ = jax.lax.scan(
            lambda x, w: (layer(x, jax.tree.map(low, w)), None), x, weights["layers"]
        )
        logits = (x @ low(weights["out"])).astype(jnp.float32)
        picked = jnp.take_along_axis(logits[:, :-1], tokens[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits[:, :-1], -1) - picked)

    def layer(self, x: Any, w: Any) -> Any:
        b, t, _ = x.shape
        # Without it the compiler may split the activations by features, as the weights.
        x = jax.lax.with_sharding_constraint(x, P("data"))
        split = lambda y, n: y.reshape(b, t, n, self.head)
        y = _norm(x, w["norm1"])
        q, k = split(y @ w["q"], self.heads), split(y @ w["k"], self.kv_heads)
        v = split(y @ w["v"], self.kv_heads)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.reshape(b, t, -1) @ w["o"]
        y = _norm(x, w["norm2"])
        return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]

    def workload(self) -> fit.Workload:
        optimizer = optax.adam(1e-4)
        weights = self.weights()
        tokens = jax.ShapeDtypeStruct((self.batch, self.sequence), jnp.int32)

        def step(weights: Any, state: Any, tokens: Any) -> Any:
            value, grads = jax.value_and_grad(self.loss)(weights, tokens)
            updates, state = optimizer.update(grads, state, weights)
            return optax.apply_updates(weights, updates), state, value

        spread = lambda x: P(*[None] * (x.ndim - 1), "data") if x.ndim > 1 else P()
        state = jax.eval_shape(optimizer.init, weights)
        specs = (jax.tree.map(spread, weights), jax.tree.map(spread, state), P("data"))
        return fit.Workload.of(
            step, (weights, state, tokens), specs=specs, donate_argnums=(0, 1)
        )


def _norm(x: Any, scale: Any) -> Any:
    square = jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)
    return (x * jax.lax.rsqrt(square + 1e-5).astype(x.dtype)) * scale


DECODERS = {
    "decoder8b": Decoder(32, 4096, 32, 8, 14336, 128256, 4096, 8),
    "decoder70b": Decoder(80, 8192, 64, 8, 28672, 128256, 4096, 256),
}


def plan_nets(given: argparse.Namespace) -> Figures:
    """Plan nets within shares of their plain bytes, and compile each plan again.

    Each refusal is tried again at its `needed`.
    """
    found: Figures = {}
    for name in choose(NETS, given, 1):
        net = NETS[name]()
        for target in map(Target, given.targets.split(",")):
            args = target.place(tuple(net.shapes))
            grad = jax.jit(jax.value_and_grad(net.loss))
            plain = measure.program(target.compile(grad, *args)).temp_bytes
            for share in map(float, given.shares.split(",")):
                key = f"{name}, {target.name}, {share:g}"
                limit = int(share * plain)
                found[key] = {"plain_bytes": plain}
                # A TPU keeps a small net's temporaries on the chip.
                if limit:
                    found[key] |= plan_within(net.loss, args, limit, target, plain)
                say(f"{key}: {found[key]}")
    return found


def plan_within(
    loss: Any, args: Any, limit: int, target: Target, plain: int
) -> Figures:
    begun, row = time.process_time(), {"met": True}
    budget = MemoryBudget(limit_bytes=limit)
    try:
        plan = remat.plan(loss, budget, args, cache=False)
    except InfeasibleBudgetError as e:
        limit = int(e.needed)
        row = {"met": False, "needed": limit}
        enough = MemoryBudget(limit_bytes=limit)
        plan = remat.plan(loss, enough, args, cache=False)
    seconds = round(time.process_time() - begun, 1)
    # Answers on disk are not asked: this compilation is the proof.
    options: dict[str, Any] = {} if target.is_here else {"cache": False}
    program = target.compile(jax.jit(remat.apply(loss, plan)), *args, **options)
    again = measure.program(program).temp_bytes
    return row | {
        "cpu_seconds": seconds,
        "bytes_share": round(again / plain, 4),
        "extra_flops": round(plan.extra_share, 4),
        "over": again > limit,
    }


def plan_decoders(given: argparse.Namespace) -> Figures:
    """Plan the whole step within bytes of temporaries; then JAX's own policies."""
    found: Figures = {}
    for name in choose(DECODERS, given, 1):
        decoder = DECODERS[name]
        if given.quick:
            decoder = Decoder(2, 64, 4, 2, 128, 256, 32, 8)
        for target in map(Target, given.targets.split(",")):
            key = f"{name}, {target.name}"
            found[f"{key}, {given.budget}"] = plan_step(decoder, target, given)
            plain = 0
            for policy in (None, *POLICIES[: 0 if given.quick else None]):
                workload = dataclasses.replace(decoder, policy=policy).workload()
                unlimited = MemoryBudget(limit_bytes=2**62)
                row = fit.plan(workload, (), unlimited, target=target).rows[0]
                plain = plain or row.device_flops
                found[f"{key}, {policy or 'plain'}"] = {
                    "gib": round(row.predicted / 2**30, 2),
                    "extra_flops": round(row.device_flops / plain - 1, 4),
                }
    return found


def plan_step(decoder: Decoder, target: Target, given: argparse.Namespace) -> Figures:
    begun, cpu = time.perf_counter(), time.process_time()
    try:
        limit = MemoryBudget(given.budget)
        plan = fit.plan(decoder.workload(), (), limit, target=target)
    except InfeasibleBudgetError as e:
        return {"met": False, "needed": int(e.needed)}
    (answer,) = plan.rows
    return {
        "met": True,
        "budget": given.budget,
        "plain_gib": round(answer.unplanned_bytes / 2**30, 2),
        "planned_gib": round(answer.predicted / 2**30, 2),
        "extra_flops": round(answer.extra_share, 4),
        "moved_gib": round(answer.moved_bytes / 2**30, 1),
        "seconds": round(time.perf_counter() - begun, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "host_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }


PARTS = {"nets": Part(measure=plan_nets), "decoders": Part(measure=plan_decoders)}


def add_options(ask: argparse.ArgumentParser) -> None:
    ask.add_argument("--targets", default="cpu,h100")
    ask.add_argument("--shares", default="0.75,0.5,0.35,0.25", help="of nets")
    ask.add_argument("--budget", default="40GiB", help="of decoders' temporaries")


if __name__ == "__main__":
    run("targets", PARTS, about=__doc__, options=add_options)
