"""The "vanilla CNN": two pairs of 3x3 convolutions, two fully connected layers."""

import math

import torch
from torch import nn

Tensor = torch.Tensor


class VanillaCNN(nn.Module):
    """Scores (n, classes) of images (n, h, w, channels) of bytes.

    Convolutions of width, width, 2 width and 2 width channels, each followed by ReLU,
    each pair by max pooling; then a hidden layer and the scores. Images are normalised
    by the mean and the standard deviation of each channel, in ``images``.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self, images: Tensor, classes: int, *, width: int = 32, hidden: int = 512
    ) -> None:
        super().__init__()
        _, height, across, channels = images.shape
        mean, deviation = moments(images)
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

        def pair(entering: int, leaving: int) -> list[nn.Module]:
            return [
                nn.Conv2d(entering, leaving, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(leaving, leaving, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]

        features = math.prod((height // 4, across // 4, 2 * width))
        self.layers = nn.Sequential(
            *pair(channels, width),
            *pair(width, 2 * width),
            nn.Flatten(),
            nn.Linear(features, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores."""
        x = (images.float() - self.mean) / self.deviation
        # Channels stay last in memory, where convolutions on a CPU are fastest.
        scores: Tensor = self.layers(x.permute(0, 3, 1, 2))
        return scores.float()


def moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each channel, (channels,).

    Counting the 256 values takes no copy of the images in floating point.
    """
    counts = torch.stack(
        [
            torch.bincount(channel, minlength=256)
            for channel in images.flatten(end_dim=-2).T
        ]
    ).double()
    shares = counts / counts.sum(dim=1, keepdim=True)
    values = torch.arange(256.0, dtype=torch.float64)
    mean = shares @ values
    variance = (shares * (values - mean[:, None]).square()).sum(dim=1)
    return mean.float(), variance.sqrt().float()
