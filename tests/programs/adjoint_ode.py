"""A neural ODE whose gradient is found by integrating the adjoint equation backwards."""

import torch
import torch.nn as nn
from start import array, filled


class Field(nn.Module):
    def __init__(self, dim=2, hidden=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, dim))

    def forward(self, t, y):
        return self.net(y ** 3) * torch.cos(t)


def rk4(f, t, dt, y):
    k1 = f(t, y)
    k2 = f(t + dt / 2, y + dt / 2 * k1)
    k3 = f(t + dt / 2, y + dt / 2 * k2)
    k4 = f(t + dt, y + dt * k3)
    return y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def odeint(f, y, ts):
    ys = [y]
    for t0, t1 in zip(ts[:-1], ts[1:]):
        ys.append(rk4(f, t0, t1 - t0, ys[-1]))
    return torch.stack(ys, dim=0)


def adjoint(f, y, a, ts):
    params = tuple(f.parameters())
    grads = [torch.zeros_like(p) for p in params]
    for t1, t0 in zip(ts.flip(0)[:-1], ts.flip(0)[1:]):
        with torch.enable_grad():
            y0 = rk4(f, t1, t0 - t1, y).detach().requires_grad_(True)
            y1 = rk4(f, t0, t1 - t0, y0)
            found = torch.autograd.grad(y1, (y0,) + params, a)
        y, a = y0.detach(), found[0]
        for total, part in zip(grads, found[1:]):
            total.add_(part)
    return a, grads


func = filled(torch, Field(), seed=1)
ts = torch.linspace(0.0, 1.0, 6)
y0 = torch.from_numpy(array(3, 2, seed=2)).requires_grad_()
target = torch.from_numpy(array(3, 2, seed=3))
path = odeint(func, y0, ts)
loss = (path[-1] - target).abs().mean()
loss.backward()
direct = [p.grad.clone() for p in func.parameters()]
with torch.no_grad():
    last = path[-1].detach()
    a = torch.sign(last - target) / last.numel()
    gy, grads = adjoint(func, last, a, ts)
worst = max((g - d).abs().max().item() for g, d in zip(grads, direct))
assert worst < 1e-2, worst
results = {"loss": loss.item(), "path": path.detach().numpy(), "y0": y0.grad.numpy(),
           "adjoint": gy.numpy(), "weights": torch.cat([g.flatten() for g in grads]).numpy()}
