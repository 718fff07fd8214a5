"""`PYTHONPATH=.:tests python tests/programs/write_kustomize_base.py`: the chart's defaults become the Kustomize base.

tests/deploy/test_chart.py compares the file with the chart.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from support.deploy.helm import BASE_FILE, base_text, running_helm


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, running_helm(Path(directory)) as helm:
        BASE_FILE.write_text(base_text(helm))
    print(f"wrote {BASE_FILE}")


if __name__ == "__main__":
    main()
