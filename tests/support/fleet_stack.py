"""A Laneway with two fake engines behind one gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.engine.process import EngineProcess
from support.stack import MODEL, Stack

NAMES = ("a", "b")


class TwoEngines(Stack):
    """The engines `a` and `b` instead of the stack's own. `fake` overrides settings of both."""

    processes: dict[str, EngineProcess]

    @classmethod
    def prepared(
        cls, directory: Path, model_dir: Path, *, toml: str = "", fake: dict[str, Any] | None = None
    ) -> TwoEngines:
        """A prepared stack that is not started. `toml` adds to laneway.toml."""
        listed = "".join(f'[[engines]]\nname = "{name}"\naddress = "unix:{directory}/{name}.sock"\n' for name in NAMES)
        url = f"sqlite:///{directory}/laneway.db"
        return cls(directory, url, model_dir, fake=fake or {}, toml=f"{listed}[fleet]\nresume_wait_s = 60\n{toml}")

    def start_engine(self) -> None:
        model = {"name": MODEL, "path": str(self.model_dir)}
        fake = {"step_ms": 5.0, "prefill_ms_per_1k_tokens": 1.0, **self.fake}
        config = {"models": [model], "fake": fake, **self.engine_json}
        self.processes = {name: EngineProcess(self.directory / f"{name}.sock", config, "--fake") for name in NAMES}

    def kill_named_engine(self, name: str) -> None:
        """`processes[name].start()` starts it again."""
        process = self.processes[name]
        process.process.kill()
        process.stop()

    def stop(self) -> None:
        for process in getattr(self, "processes", {}).values():
            process.stop()
        super().stop()
