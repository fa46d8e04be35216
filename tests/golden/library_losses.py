"""Eight losses that go through other people's libraries, each with its arguments."""

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Loss = tuple[Callable[..., Any], tuple[Any, ...]]


def normal(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    """Normal numbers from a seed."""
    return scale * jax.random.normal(jax.random.key(seed), shape)


def linen_transformer() -> Loss:
    """Pre-norm encoder blocks of flax linen with dropout."""
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            y = nn.LayerNorm()(x)
            y = nn.MultiHeadDotProductAttention(num_heads=4, deterministic=True)(y)
            x = x + nn.Dropout(0.1, deterministic=False)(y)
            y = nn.Dense(256)(nn.LayerNorm()(x))
            return x + nn.Dense(64)(nn.gelu(y))

    class Encoder(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            x = nn.Embed(128, 64)(tokens)
            for _ in range(6):
                x = Block()(x)
            return nn.Dense(128)(x)

    net = Encoder()
    tokens = jax.random.randint(jax.random.key(0), (8, 64), 0, 128)
    keys = {"params": jax.random.key(1), "dropout": jax.random.key(2)}
    params = net.init(keys, tokens)["params"]

    def loss(params: Any, tokens: Any, key: Any) -> Any:
        logits: Any = net.apply({"params": params}, tokens, rngs={"dropout": key})
        picked = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    return loss, (params, tokens, jax.random.key(3))


def nnx_transformer() -> Loss:
    """The same blocks as modules of flax nnx, which go in whole."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm1, self.norm2 = (nnx.LayerNorm(64, rngs=rngs) for _ in range(2))
            self.attention = nnx.MultiHeadAttention(4, 64, decode=False, rngs=rngs)
            self.up, self.down = (
                nnx.Linear(64, 256, rngs=rngs),
                nnx.Linear(256, 64, rngs=rngs),
            )

        def __call__(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.down(nnx.gelu(self.up(self.norm2(x))))

    class Encoder(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.blocks = nnx.List([Block(rngs) for _ in range(6)])

        def __call__(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return x

    def loss(net: Any, x: Any) -> Any:
        return jnp.mean(net(x) ** 2)

    return loss, (Encoder(nnx.Rngs(0)), normal(1, 8, 64, 64))


def haiku_evoformer() -> Loss:
    """Row attention, an outer product mean and a triangle update, in haiku's scan."""
    hk: Any = importlib.import_module("haiku")

    rows, length, wide, pair_wide = 8, 24, 32, 16

    def block(carry: Any) -> Any:
        msa, pair = carry
        norm = lambda x: hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)
        q, k, v = (hk.Linear(wide)(norm(msa)) for _ in range(3))
        bias = hk.Linear(1)(norm(pair))[..., 0]
        scores = jnp.einsum("rid,rjd->rij", q, k) / wide**0.5 + bias
        msa = msa + jnp.einsum("rij,rjd->rid", jax.nn.softmax(scores), v)
        msa = msa + hk.Linear(wide)(jax.nn.relu(hk.Linear(4 * wide)(norm(msa))))
        a, b = (hk.Linear(8)(norm(msa)) for _ in range(2))
        outer = jnp.einsum("ric,rjd->ijcd", a, b) / rows
        pair = pair + hk.Linear(pair_wide)(outer.reshape(length, length, 64))
        left, right = (
            jax.nn.sigmoid(hk.Linear(pair_wide)(norm(pair)))
            * hk.Linear(pair_wide)(norm(pair))
            for _ in range(2)
        )
        triangle = jnp.einsum("ikc,jkc->ijc", left, right)
        return msa, pair + hk.Linear(pair_wide)(norm(triangle))

    def network(msa: Any, pair: Any) -> Any:
        msa, pair = hk.experimental.layer_stack(6)(block)((msa, pair))
        return jnp.mean(msa**2) + jnp.mean(pair**2)

    net = hk.without_apply_rng(hk.transform(network))
    args = normal(0, rows, length, wide), normal(1, length, length, pair_wide)
    return net.apply, (net.init(jax.random.key(2), *args), *args)


def equinox_neural_ode() -> Loss:
    """A field of equinox in `diffrax.diffeqsolve`, by its default adjoint."""
    import equinox as eqx

    diffrax: Any = importlib.import_module("diffrax")

    def loss(net: Any, starts: Any) -> Any:
        def solve(y: Any) -> Any:
            term = diffrax.ODETerm(lambda t, y, net: net(y))
            solver = diffrax.Tsit5()
            found = diffrax.diffeqsolve(
                term, solver, 0.0, 1.0, 0.1, y, args=net, max_steps=16
            )
            assert found.ys is not None
            return found.ys[-1]

        return jnp.mean(jax.vmap(solve)(starts) ** 2)

    net = eqx.nn.MLP(16, 16, 64, 2, key=jax.random.key(0))
    return loss, (net, normal(1, 128, 16))


def state_space_scan() -> Loss:
    """Layers of a diagonal state space (S5), by an associative scan."""

    def layer(w: Any, x: Any) -> Any:
        decay = jnp.exp(-jnp.exp(w["rate"]))

        def join(a: Any, b: Any) -> Any:
            return a[0] * b[0], b[0] * a[1] + b[1]

        inputs = x @ w["in"]
        decays = jnp.broadcast_to(decay, inputs.shape)
        _, states = jax.lax.associative_scan(join, (decays, inputs), axis=1)
        return x + jax.nn.gelu(states @ w["out"])

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = layer(w, x)
        return jnp.mean(x**2)

    ws = [
        {
            "rate": normal(3 * i, 48),
            "in": normal(3 * i + 1, 32, 48, scale=0.2),
            "out": normal(3 * i + 2, 48, 32, scale=0.2),
        }
        for i in range(4)
    ]
    return loss, (ws, normal(99, 8, 128, 32))


def physics_informed_net() -> Loss:
    """Second derivatives of a net at sorted points, weighted by what came before."""

    def u(ws: Any, t: Any, x: Any) -> Any:
        h = jnp.stack([t, x])
        for w in ws[:-1]:
            h = jnp.tanh(h @ w)
        return (h @ ws[-1])[0]

    def residual(ws: Any, t: Any, x: Any) -> Any:
        second = jax.grad(jax.grad(u, 2), 2)(ws, t, x)
        return jax.grad(u, 1)(ws, t, x) - 1e-4 * second

    def loss(ws: Any, points: Any) -> Any:
        found = jax.vmap(residual, (None, 0, 0))(ws, points[:, 0].sort(), points[:, 1])
        each = jnp.mean(found.reshape(32, -1) ** 2, 1)
        return jnp.mean(each * jax.lax.stop_gradient(jnp.exp(-jnp.cumsum(each))))

    shapes = [(2, 64), (64, 64), (64, 64), (64, 1)]
    ws = [normal(i, *s, scale=s[0] ** -0.5) for i, s in enumerate(shapes)]
    return loss, (ws, jax.random.uniform(jax.random.key(9), (2048, 2)))


def recurrent_ppo() -> Loss:
    """The clipped objective of PPO for a recurrent policy, over scanned steps."""
    import optax

    def policy(w: Any, h: Any, seen: Any) -> Any:
        h = jnp.tanh(seen @ w["x"] + h @ w["h"])
        return h, (h @ w["pi"], (h @ w["v"])[..., 0])

    def loss(w: Any, batch: Any) -> Any:
        start = jnp.zeros((batch["seen"].shape[1], w["h"].shape[0]))
        _, (logits, values) = jax.lax.scan(
            lambda h, seen: policy(w, h, seen), start, batch["seen"]
        )
        chosen = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(chosen, batch["action"][..., None], -1)[..., 0]
        ratio = jnp.exp(chosen - batch["before"])
        gain = batch["advantage"]
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        clipped = jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain)
        value = optax.losses.huber_loss(values, batch["return"])
        entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1)
        return -clipped.mean() + 0.5 * value.mean() - 0.01 * entropy.mean()

    steps, envs, wide = 128, 32, 64
    w = {
        "x": normal(0, 16, wide, scale=0.2),
        "h": normal(1, wide, wide, scale=0.1),
        "pi": normal(2, wide, 6, scale=0.1),
        "v": normal(3, wide, 1, scale=0.1),
    }
    batch = {
        "seen": normal(4, steps, envs, 16),
        "action": jax.random.randint(jax.random.key(5), (steps, envs), 0, 6),
        "before": jnp.full((steps, envs), -1.8),
        "advantage": normal(6, steps, envs),
        "return": normal(7, steps, envs),
    }
    return loss, (w, batch)


def optax_losses() -> Loss:
    """CTC, triplet margin and focal losses of optax over one net."""
    import optax

    def loss(ws: Any, x: Any, labels: Any) -> Any:
        for w in ws:
            x = x + jax.nn.gelu(x @ w)
        blank = jnp.zeros(x.shape[:2])
        padded = jnp.zeros(labels.shape)
        ctc = optax.losses.ctc_loss(x, blank, labels, padded).mean()
        flat = x.mean(1)
        far = jnp.roll(flat, 1, 0)
        triplet = optax.losses.triplet_margin_loss(flat, flat + 0.1, far).mean()
        hot = jax.nn.one_hot(labels[:, 0], x.shape[-1])
        return ctc + triplet + optax.losses.sigmoid_focal_loss(flat, hot).mean()

    ws = [normal(i, 48, 48, scale=0.1) for i in range(6)]
    labels = jax.random.randint(jax.random.key(8), (16, 12), 1, 48)
    return loss, (ws, normal(9, 16, 64, 48), labels)


LOSSES: dict[str, Callable[[], Loss]] = {
    function.__name__.replace("_", " "): function
    for function in (
        linen_transformer,
        nnx_transformer,
        haiku_evoformer,
        equinox_neural_ode,
        state_space_scan,
        physics_informed_net,
        recurrent_ppo,
        optax_losses,
    )
}
