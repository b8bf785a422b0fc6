"""float16, rounded to the nearest: half the bytes of float32."""

from __future__ import annotations

import numpy as np

from common.wire.codings.coding import Blocks, Items, Scales

_HIGHEST = 15  # the largest value of a block comes to lie in [2¹⁴, 2¹⁵): float16 ends at 65,504
_MOST = 32_752  # the last float16 below 2¹⁵: what would be rounded to that could overflow when it is restored
_LEAST = -126  # exponent of the smallest normal float32


class Float16:
    """v ≈ s·h with h of 11 bits and s a power of two, so that no gradient is too small for float16.

    Off by at most 2⁻¹¹ of the value, or 2⁻³⁹ of the block's largest. Nothing is drawn.
    """

    name = "float16"
    gradient_mark, model_mark = b"\x96\x01\xa1h", b"\x96\x01\xa1H"
    item = np.dtype("<f2")
    random = False
    stretch = 1 + 2**-10

    def quantise(self, blocks: Blocks, rng: np.random.Generator | None) -> tuple[Scales, Items]:  # noqa: ARG002
        _, exponents = np.frexp(np.abs(blocks).max(axis=1, initial=0))
        scales = np.ldexp(np.float32(1), np.maximum(exponents - _HIGHEST, _LEAST)).astype(np.float32)
        return scales, np.clip(blocks / scales[:, None], -_MOST, _MOST).astype(self.item)

    def restore(self, scales: Scales, items: Items) -> Blocks:
        blocks: Blocks = items.astype(np.float32) * scales[:, None]
        return blocks
