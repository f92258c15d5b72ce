"""Key re-rotation: kept keys are turned to the positions they would have if nothing else had been there."""

import numpy as np
from jaxtyping import Float, Int

from .rotary import rotate


def rerotate(k: Float[np.ndarray, "n d"], kept: Int[np.ndarray, "k"], omega: Float[np.ndarray, "f"]) -> Float[np.ndarray, "k d"]:
    """Rows of the rotated keys at `kept`, ascending, each turned by (rank - position) omega: positions 0 .. k - 1.

    The next query stands at position k. A frequency scale (llama3) is in omega; a rotary attention scale cancels out.
    """
    kept = np.sort(kept)
    return rotate(k[kept], np.arange(len(kept)) - kept, omega)
