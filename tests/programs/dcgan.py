"""A generative adversarial network of convolutions as PyTorch's DCGAN tutorial writes it."""

import torch
import torch.nn as nn
import torch.optim as optim
from start import array, filled

nz, ngf, ndf, nc = 6, 4, 4, 1


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, input):
        return self.main(input)


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("BatchNorm") != -1:
        nn.init.constant_(m.weight, 1.0)
        nn.init.constant_(m.bias, 0)


netG, netD = filled(torch, Generator(), seed=1), filled(torch, Discriminator(), seed=2)
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
optimizerD = optim.Adam(netD.parameters(), lr=0.002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.002, betas=(0.5, 0.999))
real_label, fake_label = 1.0, 0.0
G_losses, D_losses = [], []
for i in range(3):
    netD.zero_grad()
    real = torch.tanh(torch.from_numpy(array(4, nc, 16, 16, seed=10 + i)))
    b_size = real.size(0)
    label = torch.full((b_size,), real_label, dtype=torch.float, device=real.device)
    output = netD(real).view(-1)
    errD_real = criterion(output, label)
    errD_real.backward()
    D_x = output.mean().item()
    noise = torch.from_numpy(array(b_size, nz, 1, 1, seed=20 + i))
    fake = netG(noise)
    label.fill_(fake_label)
    output = netD(fake.detach()).view(-1)
    errD_fake = criterion(output, label)
    errD_fake.backward()
    errD = errD_real + errD_fake
    optimizerD.step()
    netG.zero_grad()
    label.fill_(real_label)
    output = netD(fake).view(-1)
    errG = criterion(output, label)
    errG.backward()
    optimizerG.step()
    G_losses.append(errG.item())
    D_losses.append((errD.item(), D_x))
with torch.no_grad():
    fake = netG(torch.from_numpy(array(2, nz, 1, 1, seed=30))).detach().cpu()
results = {"G": G_losses, "D": D_losses, "fake": fake.numpy()}
