"""deploy/release.py: the chart's archive, the sums, and the description of the API."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from support.deploy.helm import CHART
from support.paths import REPO


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", REPO / "deploy" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_chart_s_archive_has_every_file_under_its_name_and_depends_on_nothing_else(
    release: ModuleType, tmp_path: Path
) -> None:
    archives = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        archives.append(release.package_chart(tmp_path / name))
    assert archives[0].name == "laneway-2026.1.0.tgz"
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as archive:
        found = {member.name: archive.extractfile(member) for member in archive}
        assert set(found) == {f"laneway/{file.relative_to(CHART)}" for file in CHART.rglob("*") if file.is_file()}
        for name, file in found.items():
            assert file is not None
            assert file.read() == (CHART / name.removeprefix("laneway/")).read_bytes()


def test_sha256sum_accepts_the_sums_and_finds_a_change(release: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"a")
    (tmp_path / "b.tgz").write_bytes(b"b")
    release.write_sums(tmp_path)
    first = (tmp_path / release.SUMS).read_text().splitlines()[0]
    assert first == f"{hashlib.sha256(b'a').hexdigest()}  a.whl"
    check = ["sha256sum", "--check", "--quiet", release.SUMS]
    assert subprocess.run(check, cwd=tmp_path, check=False).returncode == 0
    (tmp_path / "b.tgz").write_bytes(b"c")
    assert subprocess.run(check, cwd=tmp_path, check=False, capture_output=True).returncode == 1


def test_a_description_of_another_release_is_refused(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = REPO / "deploy" / "laneway.toml"
    monkeypatch.setattr(release, "OPENAPI", other)
    with pytest.raises(release.ReleaseRefused, match=r"deploy/laneway.toml is of another release: make openapi"):
        release.copy_openapi(tmp_path)


def test_without_the_console_no_package_is_built(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "REPO", tmp_path)
    with pytest.raises(release.ReleaseRefused, match="make admin-ui"):
        release.build_packages(tmp_path)
