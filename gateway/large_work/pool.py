"""Runs jobs (parsing large bodies, rendering and counting large prompts) in processes beside the event loop: a thread
that renders a template would hold the interpreter's lock.

Processes start on demand, up to PROCESSES. A tenant uses at most TENANT_PROCESSES at once and has a bounded queue;
tenants with waiting jobs are served in turn. A process whose job takes over JOB_S_MAX is killed and replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

import msgspec

from engine.text.grammar_process import cpu_seconds
from gateway import errors
from gateway.large_work.jobs import (
    TOO_LARGE_INTEGER,
    DecodeJob,
    GrammarJob,
    Job,
    JobRefusal,
    Reply,
    detach_body,
    refuse,
)
from gateway.large_work.process import HEADER

PROCESSES = 4
TENANT_PROCESSES = PROCESSES // 4  # used by one tenant at once
TENANT_WAITING_MAX = 16
WAITING_MAX = 256
JOB_S_MAX = 20.0
# llguidance's limits bound a grammar's states, but not the time of every regular expression. CPU seconds, since the
# processes are niced and the machine may be busy. The first grammar of a process loads the tokenizer.
GRAMMAR_CPU_S_MAX = 10.0
POLL_S = 0.5
START_S_MAX = 60.0  # long, since the processes are niced and the machine may be busy
PIECE_BYTES = 256 * 1024  # of a job, written at once
REPLY_BYTES_MAX = 256 * 1024 * 1024

_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode_pid = msgspec.msgpack.Decoder(int).decode
_decode = msgspec.msgpack.Decoder(Reply | str).decode


class GrammarTooSlow(Exception):
    """A grammar took more than GRAMMAR_CPU_S_MAX."""


class JobLost(Exception):
    """The process reported an error other than a refusal."""


@dataclass(slots=True, eq=False)
class _WaitingJob:
    tenant: str
    job: Job
    answer: asyncio.Future[Reply]


@dataclass(slots=True, eq=False)
class _JobProcess:
    """A process that runs jobs, and the socket to it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pid: int

    async def run(self, job: Job) -> bytes:
        """Run one job. Raises OSError, EOFError, TimeoutError; OverflowError, and nothing is sent, for a job with an
        integer that msgpack does not have."""
        job, body = detach_body(job)
        encoded = _encode(job)
        async with asyncio.timeout(JOB_S_MAX):
            for data in (encoded, body):
                self.writer.write(HEADER.pack(len(data)))
                for start in range(0, len(data), PIECE_BYTES):  # the transport copies bytes that the socket refuses
                    self.writer.write(data[start : start + PIECE_BYTES])
                    await self.writer.drain()
            if isinstance(job, GrammarJob):
                return await self._grammar_reply()
            return await _frame(self.reader)

    async def _grammar_reply(self) -> bytes:
        """The reply to a grammar. Raises GrammarTooSlow after GRAMMAR_CPU_S_MAX of the process's CPU time."""
        cpu_until = cpu_seconds(self.pid) + GRAMMAR_CPU_S_MAX
        reply = asyncio.ensure_future(_frame(self.reader))
        try:
            while not (await asyncio.wait([reply], timeout=POLL_S))[0]:
                if cpu_seconds(self.pid) > cpu_until:
                    raise GrammarTooSlow
            return await reply
        finally:
            reply.cancel()

    def kill(self) -> None:
        self.writer.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class LargeWork:
    """The processes of one gateway process and event loop."""

    def __init__(self, tokenizers: Callable[[], Sequence[tuple[str, str]]] = tuple) -> None:
        """`tokenizers`: directories and encodings that the processes load before the first job."""
        self._tokenizers = tokenizers
        self._waiting: dict[str, deque[_WaitingJob]] = {}  # by tenant; the next tenant is first
        self._waiting_count = 0
        self._running: dict[str, int] = {}
        self._idle: list[_JobProcess] = []
        self._process_count = 0  # processes that run or are being started
        self._adding = False
        self._forker: tuple[Process, socket.socket] | None = None
        self._starting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def do(self, tenant: str, job: Job) -> Reply:
        """Run the job. Raises the ApiError of a JobRefusal; RateLimited if TENANT_WAITING_MAX jobs of the tenant wait;
        Overloaded if WAITING_MAX jobs wait, or if the process fails."""
        queue = self._waiting.get(tenant)
        if queue is not None and len(queue) >= TENANT_WAITING_MAX:
            raise errors.RateLimited(
                f"Rate limit reached for the tenant's large prompts at once: limit "
                f"{TENANT_PROCESSES + TENANT_WAITING_MAX}.",
                retry_after_s=1.0,
                limit=errors.ReachedLimit("tenant_large_prompts", TENANT_PROCESSES + TENANT_WAITING_MAX),
            )
        if self._waiting_count >= WAITING_MAX or self._closed:
            raise errors.Overloaded("Too many large prompts of all tenants are being counted. Try again in a moment.")
        waiting = _WaitingJob(tenant, job, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(tenant, deque()).append(waiting)
        self._waiting_count += 1
        self._assign_jobs()
        try:
            reply = await waiting.answer
        except asyncio.CancelledError:
            self._remove_waiting(waiting)
            raise
        if isinstance(reply, JobRefusal):
            raise refuse(reply)
        return reply

    def start(self) -> None:
        """Start one process now, so that the first job does not wait for it."""
        self._add_if_none_idle()

    async def close(self) -> None:
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self._idle:
            process.writer.close()
            with contextlib.suppress(OSError):
                await process.writer.wait_closed()
        for queue in self._waiting.values():
            for waiting in queue:
                waiting.answer.cancel()
        self._waiting.clear()
        if self._forker is not None:
            forker, control = self._forker
            control.close()
            with contextlib.suppress(ProcessLookupError):
                forker.kill()
            await forker.wait()

    def _remove_waiting(self, waiting: _WaitingJob) -> None:
        """Remove the job of a cancelled request from its queue."""
        queue = self._waiting.get(waiting.tenant)
        if queue is not None and waiting in queue:
            queue.remove(waiting)
            self._waiting_count -= 1
            if not queue:
                del self._waiting[waiting.tenant]

    # ---- assigning jobs

    def _assign_jobs(self) -> None:
        """Give waiting jobs to idle processes, one tenant after another."""
        while not self._closed and (tenant := self._next_tenant()) is not None:
            if not self._idle:
                break
            queue = self._waiting.pop(tenant)
            waiting = queue.popleft()
            self._waiting_count -= 1
            if queue:
                self._waiting[tenant] = queue  # the tenant is last now
            if waiting.answer.done():  # the request was cancelled
                continue
            self._running[tenant] = self._running.get(tenant, 0) + 1
            self._spawn(self._run_job(self._idle.pop(), waiting))
        self._add_if_none_idle()

    def _add_if_none_idle(self) -> None:
        """Start a process if no process is idle or being started, so that the next tenant's job need not wait."""
        if not (self._idle or self._adding or self._closed) and self._process_count < PROCESSES:
            self._adding, self._process_count = True, self._process_count + 1
            self._spawn(self._add_process())

    def _next_tenant(self) -> str | None:
        """The next tenant that has a waiting job and may use another process."""
        return next((tenant for tenant in self._waiting if self._running.get(tenant, 0) < TENANT_PROCESSES), None)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="large-work")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_job(self, process: _JobProcess, waiting: _WaitingJob) -> None:
        try:
            data = await process.run(waiting.job)
            reply = _decode(data)
            if isinstance(reply, str):
                raise JobLost(reply)
            if not waiting.answer.done():
                waiting.answer.set_result(reply)
            self._idle.append(process)
        except OverflowError:  # of the encoder, before anything was sent
            self._idle.append(process)
            if not waiting.answer.done():
                waiting.answer.set_exception(errors.InvalidRequest(TOO_LARGE_INTEGER))
        except Exception as error:  # noqa: BLE001 - a job's edge: its request must not wait for ever
            self._drop_process(process, error)
            if not waiting.answer.done():
                waiting.answer.set_exception(_lost(waiting.job, error))
        except asyncio.CancelledError:
            process.kill()
            waiting.answer.cancel()
            raise
        finally:
            self._running[waiting.tenant] -= 1
            if not self._running[waiting.tenant]:
                del self._running[waiting.tenant]
            self._assign_jobs()

    def _drop_process(self, process: _JobProcess, error: Exception) -> None:
        _log.error("large_work.lost", extra={"fields": {"pid": process.pid, "reason": str(error) or repr(error)}})
        process.kill()
        self._process_count -= 1

    # ---- processes

    async def _add_process(self) -> None:
        ours, theirs = socket.socketpair()
        process: _JobProcess | None = None
        try:
            async with asyncio.timeout(START_S_MAX):
                control = await self._control()
                socket.send_fds(control, [b"+"], [theirs.fileno()])
                theirs.close()
                ours.setblocking(False)
                process = _JobProcess(*await asyncio.open_unix_connection(sock=ours), pid=0)
                process.pid = _decode_pid(await _frame(process.reader))
        except (OSError, EOFError, TimeoutError, msgspec.DecodeError) as error:
            _log.error("large_work.not_started", extra={"fields": {"reason": str(error) or repr(error)}})
            self._process_count -= 1
            if process is not None:
                process.writer.close()
            self._kill_forker()
            self._fail_waiting()
            return
        except asyncio.CancelledError:
            if process is not None:
                process.writer.close()
            raise
        finally:
            theirs.close()
            if process is None:
                ours.close()
            self._adding = False
        self._idle.append(process)
        self._assign_jobs()

    async def _control(self) -> socket.socket:
        """The socket to the process that forks the job processes; starts that process if needed. Raises OSError."""
        async with self._starting:
            if self._forker is None:
                ours, theirs = socket.socketpair()
                arguments = [f"{directory}={encoding}" for directory, encoding in self._tokenizers()]
                with theirs:
                    forker = await asyncio.create_subprocess_exec(
                        sys.executable,
                        "-m",
                        "gateway.large_work.process",
                        str(theirs.fileno()),
                        *arguments,
                        stdin=DEVNULL,
                        stdout=DEVNULL,
                        pass_fds=[theirs.fileno()],
                    )
                self._forker = forker, ours
            return self._forker[1]

    def _kill_forker(self) -> None:
        """Kill the forking process, which may be dead; the next job process starts another."""
        if self._forker is not None:
            forker, control = self._forker
            self._forker = None
            control.close()
            with contextlib.suppress(ProcessLookupError):
                forker.kill()

    def _fail_waiting(self) -> None:
        """Fail all waiting jobs if there is no process."""
        if self._process_count:
            return
        for queue in self._waiting.values():
            for waiting in queue:
                if not waiting.answer.done():
                    waiting.answer.set_exception(errors.Overloaded("Large prompts cannot be counted now."))
        self._waiting.clear()
        self._waiting_count = 0


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """The next frame. Raises OSError, EOFError."""
    (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    if size > REPLY_BYTES_MAX:
        raise OSError(f"a reply of {size} bytes")
    return await reader.readexactly(size)


def _lost(job: Job, error: Exception) -> errors.ApiError:
    """The caller's error for a job that ended its process, or took too long. A grammar that took too much CPU time or
    memory would do it again."""
    if isinstance(job, GrammarJob) and not isinstance(error, JobLost | TimeoutError):
        message = f"{job.param!r} cannot be served: its grammar takes too long or too much memory to compile."
        return errors.InvalidRequest(message, param=job.param)
    match job:
        case GrammarJob():
            what = "The grammar could not be compiled"
        case DecodeJob():
            what = "The ids could not be decoded"
        case _:
            what = "The prompt could not be counted"
    return errors.Overloaded(f"{what}. Try again.")
