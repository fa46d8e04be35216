"""Plans for devices that are not here: met, refused, and at what price?

    python -m benchmarks.targets                      all nets on all targets
    python -m benchmarks.targets mlp24 --targets h100 --shares 0.5
    python -m benchmarks.targets decoder70b           70 B on 256 H100s

Each plan is compiled once more by the target's compiler, and each refusal is tried
again at its `needed`. Beside them stand JAX's own policies where the net has scanned
layers. Results are added to benchmarks/results/targets.json.
"""

import argparse
import dataclasses
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from benchmarks.nets import NETS
from jax.sharding import PartitionSpec as P

from frugax import fit, measure, remat
from frugax.budget import MemoryBudget
from frugax.errors import InfeasibleBudgetError
from frugax.jaxprs import flops
from frugax.targets import Target

SHARES = (0.75, 0.5, 0.35, 0.25)
RESULTS = Path(__file__).parent / "results" / "targets.json"
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

        def make(value_and_grad: Any) -> Any:
            def step(weights: Any, state: Any, tokens: Any) -> Any:
                value, grads = value_and_grad(self.loss)(weights, tokens)
                updates, state = optimizer.update(grads, state, weights)
                return optax.apply_updates(weights, updates), state, value

            return step

        spread = lambda x: P(*[None] * (x.ndim - 1), "data") if x.ndim > 1 else P()
        state = jax.eval_shape(optimizer.init, weights)
        specs = (jax.tree.map(spread, weights), jax.tree.map(spread, state), P("data"))
        return fit.Workload.of(
            make, (weights, state, tokens), specs=specs, donate_argnums=(0, 1)
        )


def _norm(x: Any, scale: Any) -> Any:
    square = jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)
    return (x * jax.lax.rsqrt(square + 1e-5).astype(x.dtype)) * scale


DECODERS = {
    "decoder8b": Decoder(32, 4096, 32, 8, 14336, 128256, 4096, 8),
    "decoder70b": Decoder(80, 8192, 64, 8, 28672, 128256, 4096, 256),
}


def judge(name: str, target: Target, share: float) -> dict[str, Any]:
    """Plan one net within a share of its plain bytes, and compile the plan again."""
    net = NETS[name]()
    args = target.place(tuple(net.shapes))
    grad = jax.jit(jax.value_and_grad(net.loss))
    plain = measure.program(target.compile(grad, *args))
    limit = int(share * plain.temp_bytes)
    begun = time.process_time()
    row: dict[str, Any] = {"net": name, "target": target.name, "share": share}
    row["plain_bytes"] = plain.temp_bytes
    if limit == 0:  # a TPU keeps a small net's temporaries on the chip
        return row | {"met": None}
    try:
        plan = remat.plan(net.loss, MemoryBudget(limit_bytes=limit), args, cache=False)
    except InfeasibleBudgetError as e:
        row |= {"met": False, "needed": int(e.needed)}
        enough = MemoryBudget(limit_bytes=int(e.needed))
        plan = remat.plan(net.loss, enough, args, cache=False)
        limit = int(e.needed)
    else:
        row["met"] = True
    row["cpu_seconds"] = round(time.process_time() - begun, 1)
    planned = remat.apply(net.loss, plan)
    # Answers on disk are not asked: this compilation is the proof.
    options = {} if target.is_here else {"cache": False}
    again = measure.program(target.compile(jax.jit(planned), *args, **options))
    row["bytes_share"] = round(again.temp_bytes / plain.temp_bytes, 4)
    row["extra_flops"] = round(plan.extra_share, 4)
    row["over"] = again.temp_bytes > limit
    return row


def judge_decoder(name: str, target: Target, budget: str) -> list[dict[str, Any]]:
    """Plan the whole step within bytes of temporaries; then JAX's policies."""
    decoder = DECODERS[name]
    begun, cpu = time.perf_counter(), time.process_time()
    limit = MemoryBudget(budget)
    row: dict[str, Any] = {"net": name, "target": target.name, "budget": budget}
    try:
        plan = fit.plan(decoder.workload(), (), limit, target=target)
    except InfeasibleBudgetError as e:
        return [row | {"met": False, "needed": int(e.needed)}]
    (answer,) = plan.rows
    row |= {
        "met": True,
        "plain_gib": round(answer.unplanned_bytes / 2**30, 2),
        "planned_gib": round(answer.predicted / 2**30, 2),
        "extra_flops": round(answer.extra_share, 4),
        "moved_gib": round(answer.moved_bytes / 2**30, 1),
        "seconds": round(time.perf_counter() - begun, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "host_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }
    rows = [row]
    plain = None
    for policy in (None, *POLICIES):
        workload = dataclasses.replace(decoder, policy=policy).workload()
        placed = workload.place(target)
        plain_step = workload.plain(placed)
        jitted = jax.jit(plain_step, donate_argnums=(0, 1))
        count = flops(jax.make_jaxpr(plain_step)(*placed).jaxpr)
        plain = plain or count
        size = measure.program(target.compile(jitted, *placed)).temp_bytes
        rows.append(
            {
                "net": name,
                "target": target.name,
                "policy": policy or "plain",
                "gib": round(size / 2**30, 2),
                "extra_flops": round(count / plain - 1, 4),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", default=[*NETS])
    parser.add_argument("--targets", default="cpu,h100")
    parser.add_argument("--shares", default=",".join(map(str, SHARES)))
    parser.add_argument(
        "--budget", default="40GiB", help="of temporaries, for decoders"
    )
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if RESULTS.is_file():
        rows = json.loads(RESULTS.read_text())["rows"]
    for name in asked.nets:
        for target in map(Target, asked.targets.split(",")):
            if name in DECODERS:
                new = judge_decoder(name, target, asked.budget)
            else:
                shares = map(float, asked.shares.split(","))
                new = [judge(name, target, share) for share in shares]
            for row in new:
                print(row, file=sys.stderr, flush=True)
            key = ("net", "target", "share", "policy", "budget")
            names = [tuple(r.get(k) for k in key) for r in new]
            rows = [r for r in rows if tuple(r.get(k) for k in key) not in names] + new
            versions = {"jax": jax.__version__}
            text = json.dumps({"versions": versions, "rows": rows}, indent=1)
            RESULTS.write_text(text + "\n")


if __name__ == "__main__":
    main()
