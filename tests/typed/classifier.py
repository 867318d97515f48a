"""A user's program, for type checkers: `test_types.py` runs mypy --strict on it, and it runs."""

from pathlib import Path
from typing import assert_type

import gtensor as gt
from gtensor.nn import functional as F


class Classifier(gt.nn.Module):
    """Points (N, 2) -> logits (N, 2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = gt.nn.Linear(2, width)
        self.norm = gt.nn.LayerNorm(width)
        self.out = gt.nn.Linear(width, 2)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        """Logits."""
        return self.out(F.gelu(self.norm(self.hidden(x))))


def rings(count: int) -> gt.data.ArrayDataset:
    """Points, and whether they lie in a ring."""
    x = gt.random.normal((count, 2))
    squares = gt.sum(x * x, axis=1)
    return gt.data.ArrayDataset(x.numpy(), (squares < 1.4).astype(gt.int64).numpy())


def train(net: Classifier, folder: Path, epochs: int = 2) -> float:
    """The last loss; every epoch writes a checkpoint."""
    loader = gt.data.DataLoader(rings(64), batch_size=16, shuffle=True, seed=0)
    optimizer = gt.optim.Adam(net.parameters(), lr=0.01)
    schedule = gt.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    last = float("inf")
    for epoch in range(epochs):
        for points, labels in loader:
            loss = assert_type(F.cross_entropy(net(points), labels), gt.Tensor)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            last = float(loss.item())
        schedule.step()
        gt.checkpoint.save(folder / "last.safetensors", model=net, optimizer=optimizer, epoch=epoch)
    return last


def look(net: Classifier) -> int:
    """Bytes in use after some mathematics; what each call returns is stated."""
    x = assert_type(gt.ones((3, 2), requires_grad=True), gt.Tensor)
    with gt.no_grad():
        assert_type(net(x), gt.Tensor)
        assert_type(gt.nn.Sequential(net, gt.nn.ReLU())(x), gt.Tensor)
    assert_type(gt.exp(x) + gt.where(x > 0, x, 0.0), gt.Tensor)
    assert_type(gt.linalg.inv(x.T @ x + gt.eye(2)), gt.Tensor)
    assert_type(gt.fft.fft(x).real.sum().shape, tuple[int, ...])
    assert_type(gt.grad(lambda y: (y * y).sum())(x), gt.Tensor)
    assert_type(gt.topk(x, 2).indices, gt.Tensor)
    gt.testing.opcheck("softmax", seed=0, device="cpu", dtypes=[gt.float32])
    return assert_type(gt.memory.stats().allocated, int)
