"""A variational autoencoder as PyTorch's examples write it; the noise is drawn by NumPy."""

import torch
import torch.nn.functional as F
from start import array, filled
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self):
        super(VAE, self).__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc21 = nn.Linear(32, 4)
        self.fc22 = nn.Linear(32, 4)
        self.fc3 = nn.Linear(4, 32)
        self.fc4 = nn.Linear(32, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar, eps):
        std = torch.exp(0.5 * logvar)
        return mu + eps.type_as(std) * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x, eps):
        mu, logvar = self.encode(x.view(-1, 64))
        z = self.reparameterize(mu, logvar, eps)
        return self.decode(z), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


images = torch.sigmoid(torch.from_numpy(array(30, 1, 8, 8, seed=0)))
labels = torch.arange(30) % 10
train_loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=False)
model = filled(torch, VAE(), seed=1)
optimizer = optim.Adam(model.parameters(), lr=1e-3)
losses = []
for epoch in range(1, 3):
    model.train()
    train_loss = 0
    for batch_idx, (data, _) in enumerate(train_loader):
        noise = torch.from_numpy(array(len(data), 4, seed=batch_idx))
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data, noise)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    losses.append(train_loss / len(train_loader.dataset))
model.eval()
with torch.no_grad():
    sample = model.decode(torch.from_numpy(array(3, 4, seed=9))).cpu()
    comparison = torch.cat([images[:3].view(3, 64), sample])
results = {"losses": losses, "comparison": comparison.numpy()}
