"""An image from half of its Fourier coefficients: gradient steps with total variation."""

import numpy as np
import torch
from start import array

size = 16
rows, cols = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
disk = ((rows - 8) ** 2 + (cols - 7) ** 2 < 25).float()
phantom = disk + 0.5 * (rows > 9).float() * disk
mask = torch.from_numpy(array(size, size, seed=1) > 0)
mask[:3, :3] = True
measured = torch.fft.fft2(phantom, norm="ortho") * mask
image = torch.zeros(size, size, requires_grad=True)


def total_variation(u):
    dx = u[1:, :] - u[:-1, :]
    dy = torch.diff(u, dim=1)
    return torch.sqrt(dx ** 2 + 1e-4).sum() + torch.sqrt(dy.square() + 1e-4).sum()


optimizer = torch.optim.SGD([image], lr=0.2, momentum=0.9)
losses = []
for _ in range(10):
    optimizer.zero_grad()
    residual = (torch.fft.fft2(image.to(torch.complex64), norm="ortho") - measured) * mask
    loss = 0.5 * residual.abs().pow(2).sum() + 0.01 * total_variation(image)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
error = torch.linalg.norm(image.detach() - phantom) / torch.linalg.norm(phantom)
shifted = torch.fft.fftshift(measured.abs())
results = {"losses": losses, "image": image.detach().numpy(), "error": error.item(),
           "centre": shifted[size // 2, size // 2].item(), "share": mask.float().mean().item(),
           "kept": int(np.asarray(mask).sum())}
