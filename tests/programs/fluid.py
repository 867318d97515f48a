"""A two-dimensional flow: bilinear advection by gathers, pressure by Jacobi's iteration."""

import torch
from start import array

n, dt = 12, 0.5
ys, xs = torch.meshgrid(torch.arange(n).float(), torch.arange(n).float(), indexing="ij")


def sample(field, y, x):
    y0, x0 = torch.floor(y), torch.floor(x)
    fy, fx = y - y0, x - x0
    y0, x0 = y0.long() % n, x0.long() % n
    y1, x1 = (y0 + 1) % n, (x0 + 1) % n
    top = field[y0, x0] * (1 - fx) + field[y0, x1] * fx
    bottom = field[y1, x0] * (1 - fx) + field[y1, x1] * fx
    return top * (1 - fy) + bottom * fy


def project(v, u):
    div = 0.5 * (torch.roll(u, -1, 1) - torch.roll(u, 1, 1)
                 + torch.roll(v, -1, 0) - torch.roll(v, 1, 0))
    p = torch.zeros_like(div)
    for _ in range(12):
        p = (p.roll(1, 0) + p.roll(-1, 0) + p.roll(1, 1) + p.roll(-1, 1) - div) / 4
    v = v - 0.5 * (torch.roll(p, -1, 0) - torch.roll(p, 1, 0))
    u = u - 0.5 * (torch.roll(p, -1, 1) - torch.roll(p, 1, 1))
    return v, u


velocity = torch.from_numpy(array(2, n, n, seed=0, scale=0.3)).requires_grad_()
smoke = torch.zeros(n, n)
smoke[4:8, 4:8] = 1.0
v, u = velocity.unbind(0)
density = smoke
for _ in range(3):
    back_y, back_x = ys - dt * v, xs - dt * u
    v, u = project(sample(v, back_y, back_x), sample(u, back_y, back_x))
    density = sample(density, back_y, back_x)
target = torch.roll(smoke, 2, dims=1)
loss = ((density - target) ** 2).mean()
loss.backward()
speed = torch.hypot(u, v).max()
results = {"loss": loss.item(), "density": density.detach().numpy(), "speed": speed.item(),
           "gradient": velocity.grad.numpy(), "norm": velocity.grad.norm().item()}
