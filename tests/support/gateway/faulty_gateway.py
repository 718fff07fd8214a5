"""`python faulty_gateway.py --config FILE`: a gateway in which choosing a model raises for the seeds below. The
message of LEAK_SEED quotes the request, as no message may.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

ERROR_SEED, LEAK_SEED, CRASH_SEED = 7771, 7772, 7773


def crash(asked: Any) -> None:
    raise KeyboardInterrupt(f"a planted crash at {len(str(asked))} characters")


def main() -> int:
    # In the process alone: in a test the framework's warnings are errors.
    from gateway.__main__ import main as run_gateway
    from gateway.generation.selector import Selector

    choose = Selector.first

    async def choose_or_raise(self: Selector, caller: Any, asked: Any, *more: Any) -> Any:
        seed = asked.sampling.seed
        if seed == ERROR_SEED:
            raise RuntimeError("a planted error")
        if seed == LEAK_SEED:
            raise RuntimeError(f"a planted leak: {asked!r}")
        if seed == CRASH_SEED:  # outside of any task, so that nothing catches it
            asyncio.get_running_loop().call_soon(crash, asked)
        return await choose(self, caller, asked, *more)

    Selector.first = choose_or_raise  # type: ignore[method-assign, assignment]
    return run_gateway()


if __name__ == "__main__":
    sys.exit(main())
