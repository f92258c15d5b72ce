"""Tiling of the Triton kernels that read a row again and again, one program a row."""

import dataclasses

import triton


@dataclasses.dataclass(frozen=True)
class Config:
    """Slots a step while sixteen thresholds are tried, slots a step elsewhere, warps a program."""

    block: int = 512
    wide: int = 2048
    warps: int = 8

    def of(self, n: int) -> dict:
        """No step is wider than a row."""
        most = max(64, triton.next_power_of_2(n))
        return dict(BLOCK=min(self.block, most), WIDE=min(self.wide, most), num_warps=self.warps)
