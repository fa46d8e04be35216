"""The nets in torch: eager, and by `torch.compile` (inductor)."""

from collections.abc import Callable
from typing import Any

import torch  # noqa: TID253
from torch import nn  # noqa: TID253
from torch.nn import functional  # noqa: TID253

from .contestant import Arrays, Contestant
from .nets import EPSILON, MLP, Conv, Encoder, Net


class Block(nn.Module):
    """One block of `Encoder`."""

    def __init__(self, net: Encoder):
        super().__init__()
        self.heads = net.heads
        self.norm1 = nn.LayerNorm(net.width, EPSILON)
        self.qkv = nn.Linear(net.width, 3 * net.width)
        self.out = nn.Linear(net.width, net.width)
        self.norm2 = nn.LayerNorm(net.width, EPSILON)
        self.up = nn.Linear(net.width, net.hidden)
        self.down = nn.Linear(net.hidden, net.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def module(net: Net) -> nn.Module:
    """Its parameters in the order of the net's own."""
    if isinstance(net, MLP):
        layers: list[nn.Module] = []
        for a, b in zip(net.sizes[:-1], net.sizes[1:], strict=True):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1])
    if isinstance(net, Encoder):
        return nn.Sequential(*(Block(net) for _ in range(net.layers)))
    assert isinstance(net, Conv)
    layers = []
    for a, b in zip(net.channels[:-1], net.channels[1:], strict=True):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    channels, height, width = net.last
    head = nn.Linear(channels * height * width, net.classes)
    return nn.Sequential(*layers, nn.Flatten(), head)


def loaded(net: Net, model: nn.Module) -> dict[str, nn.Parameter]:
    """The net's weights in the module; its parameters by the net's names."""
    weights = net.weights()
    names = list(weights)
    if isinstance(net, Encoder):
        named = dict(model.named_parameters())
    else:
        named = dict(zip(names, model.parameters(), strict=True))
    for name, parameter in named.items():
        parameter.data.copy_(torch.tensor(weights[name]))
    return named


def contestants(net: Net, *, compiled: bool) -> dict[str, Contestant]:
    """Eager ones, or the one of `torch.compile`."""
    if compiled:
        return {"torch.compile": contestant(net, torch.compile)}
    made = {"torch eager": contestant(net, lambda fn: fn)}
    if isinstance(net, Conv):
        last = torch.channels_last
        made["torch eager, channels_last"] = contestant(net, lambda fn: fn, last)
    return made


def contestant(
    net: Net, wrap: Callable[..., Any], layout: torch.memory_format | None = None
) -> Contestant:
    model, x = module(net), torch.tensor(net.data())
    if layout is not None:
        # The annotations of torch do not know that a module can.
        model = model.to(memory_format=layout)  # pyright: ignore[reportCallIssue]
        x = x.to(memory_format=layout)
    named = loaded(net, model)
    leaves = list(named.values())

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        out = model(x)
        return (out * out).mean()

    loss, run = wrap(loss_of), wrap(model)

    def step() -> Any:
        value = loss(x)
        return value, torch.autograd.grad(value, leaves)

    def forward() -> torch.Tensor:
        with torch.inference_mode():
            return run(x)

    def result() -> tuple[float, Arrays]:
        value, grads = step()
        arrays = {n: g.numpy() for n, g in zip(named, grads, strict=True)}
        return float(value.detach()), arrays

    return Contestant(step, forward, lambda _: None, result)
