"""The inputs of the draws of sequences beside their logits, in tables on the device: biases, penalties, masks.

A sequence that asks for penalties or biases has a slot. Its tables are built from its ids when it first draws, or draws
again after another sequence took its slot; each draw updates them on the device. So a step's host work depends on its
rows alone, not on the length of a prompt, and a preempted sequence draws as if it had never been interrupted. It must
never wait for the device.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.compute.masks import mask_words
from engine.compute.penalties import Draw, biases, changes_logits, has_penalties
from engine.models.config import ModelRefused
from engine.step import UNDRAWABLE, Sequence
from kernels.changes import (
    BIASES,
    BIASES_MAX,
    COUNT_MAX,
    FREQUENCY,
    HEAD_WORDS,
    IN_PROMPT,
    PENALIZED,
    PRESENCE,
    REPETITION,
    SETTINGS_WORDS,
    Changes,
)

_log = logging.getLogger(__name__)

# Rows of `tokens`, and the parts of a step's buffer, begin at multiples of ALIGN elements, so that one compiled
# kernel serves every vocabulary and number of slots.
ALIGN = 64


class DrawRow(NamedTuple):
    """A row that draws an id: its sequence, and its draw, whose output ids are known."""

    sequence: Sequence
    draw: Draw


@dataclass(slots=True)
class _Slot:
    index: int
    used: int  # number of the last draw that used the slot
    counted: int = -1  # output ids counted on the device; −1: none of its ids are
    holds_back: bool | None = None  # whether stop ids are among its biases; None: its settings were not sent


class DrawState:
    """Not thread-safe; uses one stream."""

    def __init__(self, device: torch.device, slots: int) -> None:
        """`slots`: at least the rows of a step, which is how many sequences draw at once."""
        self._device = device
        self._pinned = device.type == "cuda"
        self._count = slots
        self._stride = -(-slots // ALIGN) * ALIGN  # words of one column of a step's buffer
        self._draws = 0
        self._of: weakref.WeakKeyDictionary[Sequence, _Slot] = weakref.WeakKeyDictionary()
        self._owners: list[weakref.ref[Sequence] | None] = [None] * slots
        self._retired: list[Tensor] = []  # not freed: steps in flight read them; another stream allocated the new ones
        self._next: tuple[Tensor, Tensor] | None = None
        self._reserved = 0  # ids for which the newest tables have space
        self._tokens = torch.empty(slots, 0, dtype=torch.int16, device=device)
        self._settings = torch.zeros(slots, SETTINGS_WORDS, dtype=torch.int32, device=device)
        self._step = torch.empty(0, dtype=torch.int32, device=device)

    def reserve(self, vocab: int) -> None:
        """Reserve tables for models of up to `vocab` ids. May run beside the steps: `prepare` adopts the tables with
        the first step of such a model, before which the caller waits for the current stream. Raises ModelRefused."""
        if vocab <= self._reserved:
            return
        width = -(-vocab // ALIGN) * ALIGN
        try:
            tokens = torch.zeros(self._count, width, dtype=torch.int16, device=self._device)
            words = 2 * self._stride + self._count * mask_words(width)
            step = torch.zeros(words, dtype=torch.int32, device=self._device)
        except torch.OutOfMemoryError as error:
            raise ModelRefused(
                f"sequences_max: not enough device memory for penalties and masks of {self._count} sequences and a "
                f"vocabulary of {vocab}"
            ) from error
        self._next, self._reserved = (tokens, step), width
        size = sum(table.nbytes for table in (tokens, step, self._settings))
        _log.info("draws.memory", extra={"fields": {"slots": self._count, "vocab": vocab, "bytes": size}})

    def _adopt(self, vocab: int) -> None:
        """Use the reserved tables, if the model needs them; every sequence builds its own again."""
        if vocab <= self._tokens.shape[1]:
            return
        assert self._next is not None, "no tables were reserved for this model"
        self._retired += [self._tokens, self._step]
        self._tokens, self._step = self._next
        self._of.clear()
        self._owners = [None] * self._count

    def prepare(
        self, rows: Many[DrawRow | None], words: NDArray[Any] | None, word_rows: Many[int], vocab: int
    ) -> tuple[Changes | None, dict[int, str]]:
        """Send the inputs of the draw of these rows, without waiting. None in `rows`: a row whose id is not used.
        `words`: int32 [masks, mask_words(vocab)] or None; `word_rows` [rows]: each row's index there, or −1.

        Returns the changes, None if no row has any, and by place the errors of rows that cannot be prepared. The
        caller launches the draw next, which counts the ids of the rows with a slot."""
        self._adopt(vocab)
        self._draws += 1
        slots, bad = np.full(len(rows), -1, np.int32), dict[int, str]()
        for place, row in enumerate(rows):
            if row is None or not changes_logits(row.draw):
                continue
            try:
                slots[place] = self._slot_index(row.sequence, row.draw, vocab)
            except torch.AcceleratorError:
                raise
            except Exception as error:  # noqa: BLE001 - one row's edge: its request ends, its neighbours are drawn
                bad[place] = f"{UNDRAWABLE}: {type(error).__name__}: {error}"
        mask_rows, used = _masked_rows(words, word_rows)
        if not used.size and not (slots >= 0).any():
            return None, bad
        return self._send(slots, mask_rows, words, used, vocab), bad

    def idle_changes(self, vocab: int) -> Changes:
        """The changes of a row without penalties and biases, for compiling."""
        self._adopt(vocab)
        return self._send(np.full(1, -1, np.int32), np.full(1, -1, np.int32), None, np.zeros(0, np.int64), vocab)

    def _send(
        self,
        slots: NDArray[np.int32],
        mask_rows: NDArray[np.int32],
        words: NDArray[Any] | None,
        used: NDArray[np.int64],
        vocab: int,
    ) -> Changes:
        """Copy a step's rows and the `used` rows of `words` to the device, in one copy."""
        rows, width, start = len(slots), mask_words(vocab), 2 * self._stride
        host = torch.empty(start + used.size * width, dtype=torch.int32, pin_memory=self._pinned)
        numbers = host.numpy()
        numbers[:rows], numbers[self._stride : self._stride + rows] = slots, mask_rows
        if words is not None and used.size:
            np.take(words, used, axis=0, out=numbers[start:].reshape(used.size, width))
        step = self._step
        step[: len(host)].copy_(host, non_blocking=True)
        masks = step[start : start + max(1, used.size) * width].view(-1, width)
        return Changes(step[:rows], step[self._stride : self._stride + rows], self._tokens, self._settings, masks)

    def _slot_index(self, sequence: Sequence, draw: Draw, vocab: int) -> int:
        """The sequence's slot. Its tables fit `draw` once the device has executed the queued copies."""
        slot = self._of.get(sequence)
        if slot is None:
            slot = self._take_slot(sequence)
        slot.used = self._draws
        holds_back = len(draw.output_ids) < draw.sampling.min_tokens
        if slot.holds_back is not holds_back:
            slot.holds_back = None
            self._send_settings(slot.index, draw, vocab)
            slot.holds_back = holds_back
        if has_penalties(draw.sampling):
            if slot.counted != len(draw.output_ids):
                slot.counted = -1
                self._send_tokens(slot.index, draw, vocab)
            slot.counted = len(draw.output_ids) + 1  # the draw adds its id
        return slot.index

    def _take_slot(self, sequence: Sequence) -> _Slot:
        """The slot of an ended sequence, else the slot whose sequence drew least recently."""
        index, oldest = -1, self._draws
        for found, owner in enumerate(self._owners):
            before = owner() if owner is not None else None
            if before is None:
                index = found
                break
            used = self._of[before].used
            if used < oldest:
                index, oldest = found, used
        assert index >= 0, "more sequences draw at once than there are slots"
        owner = self._owners[index]
        if owner is not None and (before := owner()) is not None:
            del self._of[before]
        self._owners[index] = weakref.ref(sequence)
        slot = self._of[sequence] = _Slot(index, self._draws)
        return slot

    def _send_settings(self, index: int, draw: Draw, vocab: int) -> None:
        sampling, found = draw.sampling, sorted(biases(draw, vocab).items())
        if len(found) > BIASES_MAX:
            raise ValueError(f"{len(found)} biases and stop ids; {BIASES_MAX} at most")
        if found and not 0 <= found[0][0] <= found[-1][0] < vocab:
            raise IndexError(f"an id is outside the vocabulary of {vocab}")
        size = HEAD_WORDS.value + 2 * len(found)
        host = torch.zeros(size, dtype=torch.int32, pin_memory=self._pinned)
        whole = host.numpy()
        numbers = whole.view(np.float32)
        numbers[REPETITION.value] = sampling.repetition_penalty
        numbers[PRESENCE.value], numbers[FREQUENCY.value] = sampling.presence_penalty, sampling.frequency_penalty
        whole[BIASES.value], whole[PENALIZED.value] = len(found), has_penalties(sampling)
        whole[HEAD_WORDS.value :: 2] = [index for index, _ in found]
        numbers[HEAD_WORDS.value + 1 :: 2] = [value for _, value in found]
        self._settings[index, :size].copy_(host, non_blocking=True)

    def _send_tokens(self, index: int, draw: Draw, vocab: int) -> None:
        """Only this function's work grows with the number of ids; it runs once when a sequence joins or resumes."""
        host = torch.zeros(vocab, dtype=torch.int16, pin_memory=self._pinned)
        tokens = host.numpy()
        if draw.output_ids:
            counts = np.bincount(np.array(draw.output_ids, np.int64), minlength=vocab)
            tokens[:] = np.minimum(counts, COUNT_MAX.value)  # raises if an id is outside the vocabulary
        if draw.sampling.repetition_penalty != 1:
            tokens[np.array(draw.prompt_ids, np.int64)] |= IN_PROMPT
        self._tokens[index, :vocab].copy_(host, non_blocking=True)


def _masked_rows(words: NDArray[Any] | None, word_rows: Many[int]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """(each row's index among the masks to send, or −1; the rows of `words` to send)."""
    mask_rows = np.full(len(word_rows), -1, np.int32)
    if words is None:
        return mask_rows, np.zeros(0, np.int64)
    wanted = np.array(word_rows, np.int64)
    places = np.flatnonzero(wanted >= 0)
    mask_rows[places] = np.arange(len(places))
    return mask_rows, wanted[places]
