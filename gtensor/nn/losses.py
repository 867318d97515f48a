"""Losses and distances as modules.

    criterion = nn.CrossEntropyLoss()
    loss = criterion(outputs, targets)
"""

from __future__ import annotations

from collections.abc import Callable

from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn.module import Module


class _Loss(Module):
    """A loss of an input and a target, reduced by "mean", "sum" or "none".

    `reduction` is keyword-only, since PyTorch has deprecated arguments before it. The function's
    options are attributes of these names.
    """

    _function: Callable[..., Tensor]
    _options: tuple[str, ...] = ()

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The function of this name in `gtensor.nn.functional`."""
        options = {name: getattr(self, name) for name in self._options}
        return self._function(input, target, reduction=self.reduction, **options)

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class _WeightedLoss(_Loss):
    """A loss with weights in a buffer, so that they move with the module."""

    weight: Tensor | None

    _options: tuple[str, ...] = ("weight",)

    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.register_buffer("weight", weight)


class CrossEntropyLoss(_WeightedLoss):
    """Cross entropy of logits (N, C, ...) and class indices (N, ...) or probabilities.

    Arguments as for `gtensor.nn.functional.cross_entropy`, which says what is raised.
    """

    _function = staticmethod(F.cross_entropy)
    _options = ("weight", "ignore_index", "label_smoothing")

    def __init__(self, weight: Tensor | None = None, *, ignore_index: int = -100,
                 reduction: str = "mean", label_smoothing: float = 0.0) -> None:
        super().__init__(weight, reduction=reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing


class NLLLoss(_WeightedLoss):
    """Minus the log-probabilities (N, C, ...) at class indices (N, ...).

    Arguments as for `gtensor.nn.functional.cross_entropy`. Raises ValueError for a class index out
    of range; on a GPU see `gtensor.nn.functional.nll_loss`.
    """

    _function = staticmethod(F.nll_loss)
    _options = ("weight", "ignore_index")

    def __init__(self, weight: Tensor | None = None, *, ignore_index: int = -100,
                 reduction: str = "mean") -> None:
        super().__init__(weight, reduction=reduction)
        self.ignore_index = ignore_index


class BCELoss(_WeightedLoss):
    """Binary cross entropy of probabilities.

    Args:
        weight: broadcasts to the input's shape; None for 1.
        reduction: "mean" and "sum" give a scalar, "none" a loss per element.

    Called with probabilities and a target of one shape: see
    `gtensor.nn.functional.binary_cross_entropy`.
    """

    _function = staticmethod(F.binary_cross_entropy)


class BCEWithLogitsLoss(_WeightedLoss):
    """Binary cross entropy of logits, without overflow.

    Args:
        weight: broadcasts to the input's shape; None for 1.
        reduction: "mean" and "sum" give a scalar, "none" a loss per element.
        pos_weight: factors of the loss where the target is 1; broadcasts to the input's shape.

    Called with logits and a target of one shape: see
    `gtensor.nn.functional.binary_cross_entropy_with_logits`.
    """

    pos_weight: Tensor | None

    _function = staticmethod(F.binary_cross_entropy_with_logits)
    _options = ("weight", "pos_weight")

    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean",
                 pos_weight: Tensor | None = None) -> None:
        super().__init__(weight, reduction=reduction)
        self.register_buffer("pos_weight", pos_weight)


class MSELoss(_Loss):
    """(input - target)^2."""

    _function = staticmethod(F.mse_loss)


class L1Loss(_Loss):
    """|input - target|."""

    _function = staticmethod(F.l1_loss)


class HuberLoss(_Loss):
    """Squared within delta of the target, absolute beyond.

    Args:
        reduction: "mean" and "sum" give a scalar, "none" a loss per element.
        delta: where the loss goes on as a line, above 0.

    Called with input and target of one shape. Source: Huber, "Robust estimation of a location
    parameter", 1964.
    """

    _function = staticmethod(F.huber_loss)
    _options = ("delta",)

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta


class SmoothL1Loss(_Loss):
    """HuberLoss with delta = beta, over beta.

    Arguments as for `gtensor.nn.functional.smooth_l1_loss`, which says what is raised. Source:
    Girshick, "Fast R-CNN", 2015.
    """

    _function = staticmethod(F.smooth_l1_loss)
    _options = ("beta",)

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.beta = beta


class KLDivLoss(_Loss):
    """The Kullback-Leibler divergence of log-probabilities from a target; also "batchmean".

    Arguments as for `gtensor.nn.functional.kl_div`, which says what is raised.
    """

    _function = staticmethod(F.kl_div)
    _options = ("log_target",)

    def __init__(self, *, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.log_target = log_target


class HingeEmbeddingLoss(_Loss):
    """The input where the target is 1, max(0, margin - input) where it is -1."""

    _function = staticmethod(F.hinge_embedding_loss)
    _options = ("margin",)

    def __init__(self, margin: float = 1.0, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target * input)) for targets of 1 and -1."""

    _function = staticmethod(F.soft_margin_loss)


class PoissonNLLLoss(_Loss):
    """exp(input) - target * input: minus the log-likelihood of counts.

    Arguments as for `gtensor.nn.functional.poisson_nll_loss`.
    """

    _function = staticmethod(F.poisson_nll_loss)
    _options = ("log_input", "full", "eps")

    def __init__(self, log_input: bool = True, full: bool = False, *, eps: float = 1e-8,
                 reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.log_input = log_input
        self.full = full
        self.eps = eps


class _LossOfThree(_Loss):
    """A loss of two inputs and a target, or of three inputs."""

    def forward(  # type: ignore[override]
        self, first: Tensor, second: Tensor, third: Tensor
    ) -> Tensor:
        """The function of this name in `gtensor.nn.functional`."""
        options = {name: getattr(self, name) for name in self._options}
        return self._function(first, second, third, reduction=self.reduction, **options)


class GaussianNLLLoss(_LossOfThree):
    """Of means, a target and variances: minus a normal log-likelihood.

    Arguments as for `gtensor.nn.functional.gaussian_nll_loss`, which says what is raised.
    """

    _function = staticmethod(F.gaussian_nll_loss)
    _options = ("full", "eps")

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.full = full
        self.eps = eps


class MarginRankingLoss(_LossOfThree):
    """max(0, -target * (first - second) + margin)."""

    _function = staticmethod(F.margin_ranking_loss)
    _options = ("margin",)

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin


class CosineEmbeddingLoss(MarginRankingLoss):
    """1 - cos of rows where the target is 1, max(0, cos - margin) where it is -1.

    Arguments as for `gtensor.nn.functional.cosine_embedding_loss`, which says what is raised.
    """

    _function = staticmethod(F.cosine_embedding_loss)


class TripletMarginLoss(_LossOfThree):
    """Of anchors, positives and negatives: how much farther the negatives are to be.

    Arguments as for `gtensor.nn.functional.triplet_margin_loss`, which says what is raised.
    """

    _function = staticmethod(F.triplet_margin_loss)
    _options = ("margin", "p", "eps", "swap")

    def __init__(self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False,
                 *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin
        self.p = p
        self.eps = eps
        self.swap = swap


class CosineSimilarity(Module):
    """The cosine of the angle between vectors along `dim`: see `F.cosine_similarity`."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Shapes broadcast; the axis is left out of the result."""
        return F.cosine_similarity(x1, x2, self.dim, self.eps)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, eps={self.eps}"


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps along the last axis: see `F.pairwise_distance`."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.p = p
        self.eps = eps
        self.keepdim = keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """(..., D) and (..., D) -> (...)."""
        return F.pairwise_distance(x1, x2, self.p, self.eps, self.keepdim)

    def extra_repr(self) -> str:
        return f"p={self.p}, eps={self.eps}, keepdim={self.keepdim}"
