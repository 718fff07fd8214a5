"""`python deploy/release.py DIRECTORY --sbom PROGRAM`: the files of one release, and SHA256SUMS over them.

wheel and sdist; the Helm chart, as `helm package` lays it out; the hashed requirements; openapi.json, which must be the
committed one; an SBOM of the requirements by cyclonedx-py. The same checkout gives the same chart, byte for byte.
Run by `make release`, in the development environment.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

REPO = Path(__file__).parent.parent
CHART = REPO / "deploy" / "kubernetes" / "chart"
OPENAPI = REPO / "deploy" / "openapi.json"
REQUIREMENTS = REPO / "deploy" / "requirements.txt"
SUMS = "SHA256SUMS"


class ReleaseRefused(Exception):
    """The release cannot be made from this checkout; the message says why."""


def build_packages(directory: Path) -> None:
    """Wheel and sdist. The console must be built before: both carry it."""
    if not (REPO / "admin_ui" / "dist" / "index.html").exists():
        raise ReleaseRefused("the console is not built: make admin-ui")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(directory.resolve())]
    subprocess.run(command, cwd=REPO, check=True)


def package_chart(directory: Path, chart: Path = CHART) -> Path:
    """NAME-VERSION.tgz with the folder NAME, without owners and times, so that it depends on the contents alone."""
    head = (chart / "Chart.yaml").read_text()
    name, version = (_field(head, field) for field in ("name", "version"))
    path = directory / f"{name}-{version}.tgz"
    with tarfile.open(path, "w:gz", compresslevel=9) as archive:
        for file in sorted(file for file in chart.rglob("*") if file.is_file()):
            data = file.read_bytes()
            member = tarfile.TarInfo(f"{name}/{file.relative_to(chart).as_posix()}")
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    _clear_gzip_time(path)
    return path


def copy_openapi(directory: Path) -> None:
    """The description of this checkout's routes. Raises ReleaseRefused if it is not the committed one."""
    made = subprocess.run([sys.executable, "-m", "gateway.openapi"], cwd=REPO, capture_output=True, check=True).stdout
    if made != OPENAPI.read_bytes():
        raise ReleaseRefused(f"{OPENAPI.relative_to(REPO)} is of another release: make openapi, and commit it")
    (directory / "openapi.json").write_bytes(made)


def write_sbom(directory: Path, program: str) -> None:
    """Of what deploy/requirements.txt pins. torch is not in it: its file depends on the host's CUDA."""
    command = [
        program, "requirements", str(REQUIREMENTS), "--pyproject", str(REPO / "pyproject.toml"),
        "--output-reproducible", "--short-PURLs", "--of", "JSON", "-o", str(directory / "sbom.cdx.json"),
    ]  # fmt: skip
    subprocess.run(command, check=True)


def write_sums(directory: Path) -> None:
    """For `sha256sum --check SHA256SUMS`."""
    files = sorted(file for file in directory.iterdir() if file.name != SUMS)
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (directory / SUMS).write_text("".join(lines))


def _field(text: str, name: str) -> str:
    found = re.search(rf'^{name}: "?([^"\n]+)"?$', text, re.MULTILINE)
    if found is None:
        raise ReleaseRefused(f"Chart.yaml has no {name}")
    return found[1]


def _clear_gzip_time(path: Path) -> None:
    """Zero the modification time in the gzip header: bytes 4 to 8."""
    data = bytearray(path.read_bytes())
    data[4:8] = bytes(4)
    path.write_bytes(bytes(data))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the files of one release.")
    parser.add_argument("directory", type=Path, help="is emptied first")
    parser.add_argument("--sbom", required=True, metavar="PROGRAM", help="cyclonedx-py")
    arguments = parser.parse_args(argv)
    directory: Path = arguments.directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        copy_openapi(directory)
        build_packages(directory)
        package_chart(directory)
    except ReleaseRefused as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    shutil.copy(REQUIREMENTS, directory / "requirements.txt")
    write_sbom(directory, arguments.sbom)
    write_sums(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
