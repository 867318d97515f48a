"""Regression by a Gaussian process: Cholesky factors, triangular solves, learned scales."""

import math

import torch
from start import array

torch.set_default_dtype(torch.float64)
x = torch.linspace(0, 1, 20)
y = torch.sin(6 * x) + 0.1 * torch.as_tensor(array(20, seed=0)).double()
x_new = torch.linspace(0, 1.2, 7)
log_scale = torch.zeros(1, requires_grad=True)
log_length = torch.full((1,), -1.0, requires_grad=True)
log_noise = torch.full((1,), -2.0, requires_grad=True)


def kernel(a, b):
    d2 = (a[:, None] - b[None, :]).pow(2)
    return log_scale.exp() * torch.exp(-0.5 * d2 / log_length.exp().square())


def nll():
    K = kernel(x, x) + log_noise.exp() * torch.eye(len(x))
    L = torch.linalg.cholesky(K)
    z = torch.linalg.solve_triangular(L, y.unsqueeze(-1), upper=False).squeeze(-1)
    logdet = L.diagonal().log().sum()
    return 0.5 * z.dot(z) + logdet + 0.5 * len(x) * math.log(2 * math.pi)


optimizer = torch.optim.Adam([log_scale, log_length, log_noise], lr=0.1)
losses = []
for _ in range(6):
    optimizer.zero_grad()
    loss = nll()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with torch.no_grad():
    K = kernel(x, x) + log_noise.exp() * torch.eye(len(x))
    Ks = kernel(x_new, x)
    mean = Ks @ torch.linalg.solve(K, y)
    cov = kernel(x_new, x_new) - Ks @ torch.linalg.solve(K, Ks.T)
    std = cov.diagonal().clamp(min=0).sqrt()
results = {"losses": losses, "mean": mean.numpy(), "std": std.numpy(),
           "scales": [p.item() for p in (log_scale, log_length, log_noise)]}
