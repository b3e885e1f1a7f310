"""The first five layers of ResNet18, and what turns them into costs.

As in Vlastelica et al. (2019): a 7x7 convolution, batch normalisation, ReLU, max
pooling and the first residual stage; then max pooling to the grid and the mean over
channels. Costs are nonnegative.
"""

import torch
from torch import nn

Tensor = torch.Tensor


class Residual(nn.Module):
    """Two convolutions and a way around them: ResNet18's basic block."""

    def __init__(self, channels: int) -> None:
        super().__init__()

        def convolve() -> nn.Module:
            return nn.Conv2d(channels, channels, 3, padding=1, bias=False)

        self.inner = nn.Sequential(
            convolve(),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            convolve(),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the input's shape."""
        return torch.relu(x + self.inner(x))


class CostNetwork(nn.Module):
    """Costs (n, cells, cells) of the cells of maps (n, 3, pixels, pixels)."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, cells: int, channels: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            # The ReLU of maxima is the maximum of ReLUs, at a quarter of the pixels.
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.ReLU(),
            Residual(channels),
            Residual(channels),
            nn.AdaptiveMaxPool2d((cells, cells)),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
        self.register_buffer("mean", torch.zeros(3, 1, 1))
        self.register_buffer("deviation", torch.ones(3, 1, 1))

    def measure_colours(self, x: Tensor) -> None:
        """Take the mean and the deviation of colours, to normalise them, from maps."""
        self.mean.copy_(x.mean(dim=(0, 2, 3))[:, None, None])
        self.deviation.copy_(x.std(dim=(0, 2, 3))[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        """Return the costs."""
        costs: Tensor = self.layers((x - self.mean) / self.deviation)
        return costs.to(x.dtype).mean(dim=1)
