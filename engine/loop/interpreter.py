"""The interpreter's settings in a process whose main thread is an engine's loop."""

from __future__ import annotations

import gc
import sys

# A thread that needs the GIL asks its owner to release it after this long. The loop's thread releases the GIL in each
# call of the device, and must not wait Python's 5 ms to have it back from a thread that fills masks or reads frames.
SWITCH_INTERVAL_S = 0.0005


def tune_interpreter() -> None:
    """Call it once, when all long-lived objects are loaded.

    A full collection that looks through all of torch again would delay every step by over 100 ms (docs/LOG.md)."""
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
