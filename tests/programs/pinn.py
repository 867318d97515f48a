"""A network that satisfies Burgers' equation: second derivatives of its output in its loss."""

import numpy as np
import torch
import torch.nn as nn
from start import array, filled


class PINN(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(layers[i], layers[i + 1]) for i in range(len(layers) - 1)])
        self.activation = nn.Tanh()
        self.nu = nn.Parameter(torch.tensor([0.01 / np.pi], dtype=torch.float32))

    def forward(self, x, t):
        h = torch.cat([x, t], dim=1)
        for layer in self.layers[:-1]:
            h = self.activation(layer(h))
        return self.layers[-1](h)

    def residual(self, x, t):
        u = self(x, t)
        ones = torch.ones_like(u)
        u_t = torch.autograd.grad(u, t, grad_outputs=ones, create_graph=True, retain_graph=True)[0]
        u_x = torch.autograd.grad(u, x, grad_outputs=ones, create_graph=True, retain_graph=True)[0]
        u_xx = torch.autograd.grad(u_x, x, grad_outputs=torch.ones_like(u_x), create_graph=True)[0]
        return u_t + u * u_x - self.nu * u_xx


model = filled(torch, PINN([2, 16, 16, 1]), seed=1)
x = torch.tensor(np.tanh(array(24, 1, seed=2)), requires_grad=True)
t = torch.tensor(abs(np.tanh(array(24, 1, seed=3))), requires_grad=True)
x0 = torch.linspace(-1, 1, 12).unsqueeze(1)
u0 = -torch.sin(np.pi * x0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
losses = []
for it in range(4):
    optimizer.zero_grad()
    loss_u = torch.mean((model(x0, torch.zeros_like(x0)) - u0) ** 2)
    loss_f = (model.residual(x, t) ** 2).mean()
    loss = loss_u + loss_f
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append((loss_u.item(), loss_f.item(), scheduler.get_last_lr()[0]))
u = model(x, t).detach().numpy()
results = {"losses": losses, "u": u, "nu": model.nu.item()}
