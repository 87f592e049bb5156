"""What is told of videos that a GPU's engine leaves to the CPU."""

from __future__ import annotations

import logging

logger = logging.getLogger("reelpool")

_told: set[tuple[str, str]] = set()  # of this process


def tell(notices: list[tuple[str, int, int, str]]) -> None:
    """Warn of `Engine.notices()`: (codec, width, height, why), once of each codec and reason."""
    for codec, width, height, why in notices:
        if (codec, why) not in _told:
            _told.add((codec, why))
            logger.warning(
                "device='cuda': the CPU decodes %s of %dx%d: %s", codec, width, height, why
            )
