"""The target that drafters are made for, as the daemon would choose it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from respsd.settings import Settings


def training_target(settings: Settings) -> tuple[Path, torch.device, torch.dtype]:
    """The target's folder, device and dtype, as the daemon would choose them; sets the log up, too."""
    import torch

    from respsd.models.dtype import choose_device, choose_dtype, this_machine, torch_dtype
    from respsd.models.named import target_folder
    from respsd.telemetry.logging import configure_logging

    configure_logging(settings.log.level, settings.log.format)
    device = choose_device(settings.device)
    folder = target_folder(settings)
    return folder, torch.device(device), torch_dtype(choose_dtype(settings.dtype, this_machine(device)))
