"""The journal's file: what was promised is there, what was torn is not, one writer, and a bound that is kept."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from billing.ledger import journal as journals
from billing.ledger.journal import READ_RECORDS_MAX, RECORD_BYTES_MAX, REJECTED, Journal, JournalFailed
from billing.ledger.messages import ASKED_CHARS_MAX, Recompute, Settlement, Void
from support.billing.books import settlement
from support.paths import REPO

ROOM = 256 * 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal" / "gw_1.journal"


def crashed(journal: Journal) -> None:
    """As SIGKILL leaves it: the lock gone, the file there."""
    os.close(journal._descriptor)


def read_all(journal: Journal) -> list[Settlement | Void]:
    found: list[Settlement | Void] = []
    at = 0
    while True:
        endings, at = journal.read(at)
        if not endings:
            return found
        found += endings


def test_what_is_kept_is_read_again(path: Path) -> None:
    kept: list[Settlement | Void] = [settlement("req_1", 7), Void("req_2", "refused"), settlement("req_3", 9)]
    journal = Journal.create(path, ROOM)
    journal.append(kept[:2])
    journal.append(kept[2:])
    assert read_all(journal) == kept
    crashed(journal)
    again = Journal.adopt(path)
    assert again is not None
    assert (read_all(again), again.used) == (kept, journal.used)


def test_many_are_read_in_bounded_groups(path: Path) -> None:
    kept: list[Settlement | Void] = [settlement(f"req_{number}", number) for number in range(READ_RECORDS_MAX + 10)]
    journal = Journal.create(path, 1024 * 1024)
    journal.append(kept)
    first, at = journal.read(0)
    assert (len(first), len(journal.read(at)[0])) == (READ_RECORDS_MAX, 10)
    assert read_all(journal) == kept
    journal.close()


@pytest.mark.parametrize("cut", [3, 4, 8, 9, 50])
def test_a_torn_tail_is_left_out_and_said(path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    """At every place where a write may stop: in the header, behind it, in the text."""
    journal = Journal.create(path, ROOM)
    journal.append([settlement("req_1", 7)])
    whole = journal.used
    journal.append([settlement("req_2", 8)])
    os.pwrite(journal._descriptor, bytes(journal.used - whole - cut), whole + cut)
    crashed(journal)
    again = Journal.adopt(path)
    assert again is not None
    assert [ending.request_id for ending in read_all(again)] == ["req_1"]
    assert again.used == whole
    assert "journal.torn" in caplog.text


def test_a_changed_byte_ends_what_is_trusted(path: Path) -> None:
    journal = Journal.create(path, ROOM)
    journal.append([settlement("req_1", 7)])
    whole = journal.used
    journal.append([settlement("req_2", 8)])
    byte = os.pread(journal._descriptor, 1, whole + 30)
    os.pwrite(journal._descriptor, bytes([byte[0] ^ 1]), whole + 30)
    crashed(journal)
    again = Journal.adopt(path)
    assert again is not None
    assert [ending.request_id for ending in read_all(again)] == ["req_1"]


def test_a_journal_cleared_is_empty_also_after_a_crash(path: Path) -> None:
    journal = Journal.create(path, ROOM)
    journal.append([settlement(f"req_{number}", number) for number in range(20)])
    seen = journal.used
    journal.append([settlement("req_late", 1)])
    assert not journal.clear(seen), "something came meanwhile"
    assert journal.clear(journal.used)
    journal.append([settlement("req_short", 1)])
    crashed(journal)
    again = Journal.adopt(path)
    assert again is not None
    assert [ending.request_id for ending in read_all(again)] == ["req_short"]


def test_its_room_is_taken_from_the_disk_at_once_and_never_passed(path: Path) -> None:
    journal = Journal.create(path, 64 * 1024)
    assert os.stat(path).st_blocks * 512 >= 64 * 1024
    count = 0
    with contextlib.suppress(JournalFailed):
        while True:
            journal.append([settlement(f"req_{count}", 7)])
            count += 1
    with pytest.raises(JournalFailed, match=r"is full: \d+ of 65536 bytes"):
        journal.append([settlement("req_more", 7)])
    assert count > 64 * 1024 // RECORD_BYTES_MAX, "each has its share, and most of it is spare"
    assert os.stat(path).st_size == 64 * 1024
    assert len(read_all(journal)) == count, "what did not fit took nothing away"
    assert journal.clear(journal.used)
    journal.append([settlement("req_again", 7)])


def test_the_longest_ending_fits_its_share() -> None:
    most = 2**63 - 1
    longest = Settlement(
        request_id="r" * 64, prompt_tokens=most, cached_tokens=most, completion_tokens=most, made_tokens=most,
        ending="e" * 64, discarded_tokens=most, discard_reason="d" * 64, queue_s=1 / 3e9, ttft_s=1 / 3e9,
        age_s=1 / 3e9, before_hold_s=1 / 3e9, device_s=1 / 3e9, preemptions=most, recomputed_tokens=most,
        finished_at=most,
        recomputed={f"{tier:032}": Recompute(most, 1 / 3e9) for tier in range(16)},
        trace_id="f" * 32, asked="a" * ASKED_CHARS_MAX, adapter_version=most,
    )  # fmt: skip
    assert len(journals._record(longest)) <= RECORD_BYTES_MAX


def test_one_that_could_not_be_written_is_never_trusted_again(path: Path) -> None:
    journal = Journal.create(path, ROOM)
    journal.append([settlement("req_1", 7)])
    good, journal._descriptor = journal._descriptor, os.open(path, os.O_RDONLY)
    with pytest.raises(JournalFailed, match="Bad file descriptor"):
        journal.append([settlement("req_2", 8)])
    os.close(journal._descriptor)
    journal._descriptor = good
    with pytest.raises(JournalFailed, match="Bad file descriptor"):
        journal.append([settlement("req_3", 9)])
    assert [ending.request_id for ending in read_all(journal)] == ["req_1"]


def test_one_that_was_not_promised_is_not_charged_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes reached the file, and the disk would not say that they are safe."""
    journal = Journal.create(path, ROOM)
    journal.append([settlement("req_1", 7)])

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises(JournalFailed, match="Input/output error"):
            journal.append([settlement("req_2", 8)])
    crashed(journal)
    again = Journal.adopt(path)
    assert again is not None
    assert [ending.request_id for ending in read_all(again)] == ["req_1"]


WRITER = """
import sys, time
from pathlib import Path
from billing.ledger.journal import Journal
journal = Journal.create(Path(sys.argv[1]), 65536)
print("made", flush=True)
time.sleep(60)
"""


def test_one_writer_until_its_process_is_gone(path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=REPO, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"made\n"
        assert journals.paths(path.parent) == [path]
        assert Journal.adopt(path) is None
        writer.kill()
    left = Journal.adopt(path)
    assert left is not None
    assert Journal.adopt(path) is None, "nor do two processes settle it"
    left.close()
    assert not path.exists()
    assert Journal.adopt(path) is None


def test_a_disk_without_room_for_it_is_told_at_the_start(path: Path) -> None:
    with pytest.raises(OSError, match=r"No space left|File too large"):
        Journal.create(path, 2**62)
    assert not path.exists()


def test_what_can_never_be_settled_is_put_away_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[tuple[Settlement | Void, str]] = [
        (settlement("req_1", 7), "HoldUnknown()"),
        (Void("req_2", "refused"), "AssertionError()"),
    ]
    journals.reject(tmp_path, refused)
    journals.reject(tmp_path, refused[:1])
    rows = [json.loads(line) for line in (tmp_path / REJECTED).read_text().splitlines()]
    assert [(row["ending"]["request_id"], row["reason"]) for row in rows] == [
        ("req_1", "HoldUnknown()"), ("req_2", "AssertionError()"), ("req_1", "HoldUnknown()")
    ]  # fmt: skip
    assert journals.paths(tmp_path) == []
    monkeypatch.setattr(journals, "REJECTED_BYTES_MAX", (tmp_path / REJECTED).stat().st_size)
    journals.reject(tmp_path, refused)
    assert len((tmp_path / REJECTED).read_text().splitlines()) == 3
    assert "journal.rejected_full" in caplog.text


def test_one_that_cannot_be_read_is_let_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whoever tries again, when the disk is well, finds it free."""
    journal = Journal.create(path, ROOM)
    journal.append([settlement("req_1", 7)])
    crashed(journal)

    def refuse(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", refuse)
        with pytest.raises(OSError, match="Input/output error"):
            Journal.adopt(path)
    again = Journal.adopt(path)
    assert again is not None
    assert len(read_all(again)) == 1
    again.close()
