"""The heat equation by finite differences; its conductivity is found from the last state."""

import torch
import torch.nn.functional as F

n, steps, dt = 12, 10, 0.2
stencil = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]]).view(1, 1, 3, 3)


def simulate(u, k):
    for _ in range(steps):
        padded = F.pad(u[None, None], (1, 1, 1, 1), mode="replicate")
        u = u + dt * k * F.conv2d(padded, stencil)[0, 0]
    return u


start = torch.zeros(n, n)
start[3:6, 4:8] = 1.0
true_k = torch.full((n, n), 0.5)
true_k[:, n // 2:] = 1.0
with torch.no_grad():
    target = simulate(start.clone(), true_k)
k = torch.full((n, n), 0.7, requires_grad=True)
losses = []
for epoch in range(5):
    loss = F.mse_loss(simulate(start, k), target, reduction="sum")
    (grad,) = torch.autograd.grad(loss, [k])
    with torch.no_grad():
        k -= 0.5 * grad
        k.clamp_(min=0.0, max=1.2)
    losses.append(loss.item())
results = {"losses": losses, "k": k.detach().numpy(), "target": target.numpy(),
           "mass": (start.sum() - target.sum()).item()}
