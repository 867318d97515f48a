"""Small networks written as public ones are: one text for PyTorch and, its imports apart, gtensor.

Each class has `inputs(rng)`, NumPy arrays, and `loss(*inputs)`, tensors. What `tests/programs` has
(GPT, LSTM, a GAN and a VAE) is not here.
"""

import math
from collections import OrderedDict
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F


def picture(rng, size=16, batch=2):
    return rng.standard_normal((batch, 3, size, size)), rng.integers(0, 4, batch)


class Residual(nn.Module):
    """A bottleneck whose sum is written in place, and whose activations are."""

    expansion = 2

    def __init__(self, inplanes, planes, stride=1, norm_layer=None):
        super().__init__()
        norm_layer = norm_layer or nn.BatchNorm2d
        out = planes * self.expansion
        self.conv1 = nn.Conv2d(inplanes, planes, kernel_size=1, bias=False)
        self.bn1 = norm_layer(planes)
        self.conv2 = nn.Conv2d(planes, out, 3, stride=stride, padding=1, bias=False)
        self.bn2 = norm_layer(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inplanes != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(inplanes, out, kernel_size=1, stride=stride, bias=False),
                norm_layer(out))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    inputs = staticmethod(picture)

    def __init__(self, num_classes=4):
        super().__init__()
        self.stem = nn.Sequential(OrderedDict([
            ("conv", nn.Conv2d(3, 4, kernel_size=7, stride=2, padding=3, bias=False)),
            ("norm", nn.BatchNorm2d(4)), ("relu", nn.ReLU(inplace=True)),
            ("pool", nn.MaxPool2d(kernel_size=3, stride=2, padding=1))]))
        self.layer = nn.Sequential(*[Residual(i, 4, s) for i, s in ((4, 1), (8, 2), (8, 1))])
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, (nn.BatchNorm2d, nn.GroupNorm)):
                nn.init.constant_(m.weight, 1)
                nn.init.constant_(m.bias, 0)

    def loss(self, x, target):
        x = torch.flatten(self.avgpool(self.layer(self.stem(x))), 1)
        return nn.CrossEntropyLoss(label_smoothing=0.1)(self.fc(x), target)


class VGG(nn.Module):
    inputs = staticmethod(picture)

    def __init__(self, cfg=(4, "M", 6, "M")):
        super().__init__()
        layers, channels = [], 3
        for v in cfg:
            if v == "M":
                layers += [nn.MaxPool2d(kernel_size=2, stride=2)]
            else:
                layers += [nn.Conv2d(channels, v, kernel_size=3, padding=1), nn.ReLU(inplace=True)]
                channels = v
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(nn.Linear(24, 8), nn.ReLU(True), nn.Dropout(p=0.0),
                                        nn.Linear(8, 4))

    def loss(self, x, target):
        x = self.avgpool(self.features(x)).view(x.size(0), -1)
        return F.cross_entropy(self.classifier(x), target)


class Squeeze(nn.Module):
    def __init__(self, channels, gate=nn.Hardsigmoid):
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Conv2d(channels, channels, 1)
        self.gate = gate(inplace=True)

    def forward(self, input):
        return self.gate(self.fc(self.avgpool(input))) * input


class MobileNet(nn.Module):
    """Depthwise convolutions, every activation in place."""

    inputs = staticmethod(picture)

    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8, eps=1e-3, momentum=0.01)]
        for act in (nn.ReLU6, nn.Hardswish, nn.SiLU, partial(nn.LeakyReLU, 0.1), nn.ELU, nn.Mish):
            layers += [act(inplace=True), nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
                       nn.BatchNorm2d(8)]
        self.features = nn.Sequential(*layers, Squeeze(8))
        self.classifier = nn.Sequential(nn.Linear(8, 8), nn.Hardswish(inplace=True),
                                        nn.Dropout(p=0.0, inplace=True), nn.Linear(8, 4))

    def loss(self, x, target):
        x = F.adaptive_avg_pool2d(self.features(x), (1, 1)).flatten(1)
        return F.cross_entropy(self.classifier(x), target)


class DenseNet(nn.Module):
    inputs = staticmethod(picture)

    def __init__(self):
        super().__init__()
        self.block = nn.ModuleDict()
        for i in range(3):
            self.block.add_module(f"layer{i}", nn.Sequential(
                nn.BatchNorm2d(3 + 2 * i), nn.ReLU(inplace=True),
                nn.Conv2d(3 + 2 * i, 2, kernel_size=3, padding=1, bias=False)))
        self.norm = nn.BatchNorm2d(9)
        self.classifier = nn.Linear(9, 4)

    def loss(self, x, target):
        features = [x]
        for _name, layer in self.block.items():
            features.append(layer(torch.cat(features, 1)))
        out = F.relu(self.norm(torch.cat(features, dim=1)), inplace=True)
        out = F.adaptive_avg_pool2d(out, (1, 1))
        return F.nll_loss(F.log_softmax(self.classifier(torch.flatten(out, 1)), dim=1), target)


class UNet(nn.Module):
    @staticmethod
    def inputs(rng):
        return rng.standard_normal((2, 3, 10, 14)), rng.integers(0, 2, (2, 10, 14))

    def __init__(self):
        super().__init__()

        def double(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o),
                                 nn.ReLU(inplace=True), nn.Conv2d(o, o, 3, padding=1, bias=False),
                                 nn.BatchNorm2d(o), nn.ReLU(inplace=True))

        self.inc, self.down = double(3, 4), nn.Sequential(nn.MaxPool2d(2), double(4, 8))
        self.deep = nn.Sequential(nn.MaxPool2d(2), double(8, 8))
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.up2 = nn.ConvTranspose2d(8, 4, kernel_size=2, stride=2)
        self.conv1, self.conv2 = double(16, 8), double(8, 4)
        self.outc = nn.Conv2d(4, 2, kernel_size=1)

    def joined(self, x1, x2):
        dy, dx = x2.size()[2] - x1.size()[2], x2.size(3) - x1.size(3)
        x1 = F.pad(x1, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return torch.cat([x2, x1], dim=1)

    def loss(self, x, target):
        x1 = self.inc(x)
        x2 = self.down(x1)
        x = self.conv1(self.joined(self.up1(self.deep(x2)), x2))
        out = self.outc(self.conv2(self.joined(self.up2(x), x1)))
        chosen = F.one_hot(target, 2).permute(0, 3, 1, 2).double()
        shared = (F.softmax(out, dim=1) * chosen).sum(dim=(-1, -2))
        loss = nn.CrossEntropyLoss()(out, target)
        loss += 1 - (shared / chosen.sum(dim=(-1, -2)).clamp(min=1)).mean()
        return loss


class Attention(nn.Module):
    def __init__(self, dim, heads, causal=None):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=True)
        self.proj = nn.Linear(dim, dim)
        if causal:
            mask = torch.tril(torch.ones(causal, causal)).view(1, 1, causal, causal)
            self.register_buffer("mask", mask)
        self.causal = causal

    def forward(self, x):
        B, N, C = x.shape
        shape = (B, N, 3, self.heads, C // self.heads)
        q, k, v = self.qkv(x).reshape(*shape).permute(2, 0, 3, 1, 4).unbind(0)
        att = (q @ k.transpose(-2, -1)) * self.scale
        if self.causal:
            att = att.masked_fill(self.mask[:, :, :N, :N] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        return self.proj((att @ v).transpose(1, 2).contiguous().view(B, N, C))


class Block(nn.Module):
    def __init__(self, dim, heads, causal=None, norm_layer=nn.LayerNorm, act_layer=nn.GELU):
        super().__init__()
        self.norm1, self.norm2 = norm_layer(dim), norm_layer(dim)
        self.attn = Attention(dim, heads, causal)
        self.gamma = nn.Parameter(0.1 * torch.ones(dim))
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), act_layer(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x)).mul_(self.gamma)
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    inputs = staticmethod(picture)

    def __init__(self, dim=8):
        super().__init__()
        norm_layer = partial(nn.LayerNorm, eps=1e-6)
        self.proj = nn.Conv2d(3, dim, kernel_size=4, stride=4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, 17, dim) * .02)
        self.blocks = nn.Sequential(*[Block(dim, 2, norm_layer=norm_layer) for _ in range(2)])
        self.norm, self.head = norm_layer(dim), nn.Linear(dim, 4)
        nn.init.trunc_normal_(self.pos_embed, std=.02)
        self.apply(self._init_weights)

    def _init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.trunc_normal_(m.weight, std=.02)
            if m.bias is not None:
                nn.init.zeros_(m.bias)

    def loss(self, x, target):
        x = self.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        return F.cross_entropy(self.head(self.norm(self.blocks(x + self.pos_embed))[:, 0]), target)


class Diffusion(nn.Module):
    @staticmethod
    def inputs(rng):
        return (rng.standard_normal((2, 3, 8, 8)), rng.integers(0, 20, 2),
                rng.standard_normal((2, 3, 8, 8)))

    def __init__(self, dim=8, timesteps=20):
        super().__init__()
        betas = torch.linspace(1e-4, 0.02, steps=timesteps, dtype=torch.float64)
        alphas = torch.cumprod(1. - betas, dim=0)
        self.register_buffer("signal", torch.sqrt(alphas), persistent=False)
        self.register_buffer("noise", torch.sqrt(1. - alphas), persistent=False)
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(inplace=True),
                                  nn.Linear(dim, 2 * dim))
        self.conv1 = nn.Conv2d(3, dim, 7, padding=3)
        self.norm1, self.norm2 = nn.GroupNorm(4, dim), nn.GroupNorm(4, dim, eps=1e-6)
        self.act, self.conv2 = nn.SiLU(inplace=True), nn.Conv2d(dim, dim, 3, padding=1)
        self.qkv = nn.Conv2d(dim, dim * 3, 1, bias=False)
        self.out = nn.Conv2d(dim, 3, 1)

    def embedded(self, t, half=4):
        freqs = torch.exp(torch.arange(half, dtype=torch.float64) * -(math.log(10000) / (half - 1)))
        args = t[:, None].double() * freqs[None, :]
        return torch.cat((args.sin(), args.cos()), dim=-1)

    def extract(self, a, t, x_shape):
        b, *_ = t.shape
        return a.gather(-1, t).reshape(b, *((1,) * (len(x_shape) - 1)))

    def loss(self, x, t, noise):
        x = self.extract(self.signal, t, x.shape) * x + self.extract(
            self.noise, t, x.shape) * noise
        scale, shift = self.time(self.embedded(t))[:, :, None, None].chunk(2, dim=1)
        x = self.conv1(x)
        r = x.clone()
        h = self.act(self.norm1(x))
        h = self.conv2(self.act(self.norm2(h) * (scale + 1) + shift)) + r
        b, c, height, width = h.shape
        q, k, v = (u.reshape(b, 2, -1, height * width) for u in self.qkv(h).chunk(3, dim=1))
        context = torch.einsum("bhdn,bhen->bhde", k.softmax(dim=-1), v)
        out = torch.einsum("bhde,bhdn->bhen", context, q.softmax(dim=-2))
        loss = F.mse_loss(self.out(h + out.reshape(b, c, height, width)), noise, reduction="none")
        return loss.mean(dim=(1, 2, 3)).mean()


NETWORKS = [ResNet, VGG, MobileNet, DenseNet, UNet, ViT, Diffusion]
