"""The syncer's optimiser: SGD with Nesterov momentum, float32."""

from __future__ import annotations

import numpy as np

from atoll_runtime.sync.fragments import Array
from atoll_runtime.sync.merge import BLOCK


def step(theta: Array, momentum: Array, delta: Array, rate: float, mu: float) -> tuple[Array, Array]:
    """b ← μ·b + Δ; Θ ← Θ − η·(Δ + μ·b). Gives new (Θ, b); the arguments stay as they are.

    New arrays, because the old version stays in use until the new one is on the disk.
    """
    new_theta, new_momentum = np.empty_like(theta), np.empty_like(momentum)
    rate32, mu32 = np.float32(rate), np.float32(mu)
    for start in range(0, theta.size, BLOCK):
        block = slice(start, start + BLOCK)
        b, out = new_momentum[block], new_theta[block]
        np.multiply(momentum[block], mu32, out=b)
        b += delta[block]
        np.multiply(b, mu32, out=out)
        out += delta[block]
        out *= -rate32
        out += theta[block]
    return new_theta, new_momentum
