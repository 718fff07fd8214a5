"""The processes of `large_work`: a parent that loads the tokenizers and forks the processes that run the jobs.

`python -m gateway.large_work.process FD DIRECTORY=ENCODING …`. For each socket received over FD it forks a process that
serves the socket. A process ends when the gateway closes its end of the socket.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
import struct
import sys

import msgspec

from gateway.large_work.jobs import TOO_LARGE_INTEGER, Job, JobRefusal, JobRunner, Reply, attach_body

NICE = 19  # below the event loop, and an engine on the same host
# A longer job ends its process, even if the gateway, which waits for pool.JOB_S_MAX only, has ended.
ALARM_S = 60
MEMORY_BYTES_MAX = 4 * 1024**3
HEADER = struct.Struct("<I")

_decode = msgspec.msgpack.Decoder(Job).decode
_encode = msgspec.msgpack.Encoder().encode


def main() -> None:
    """Fork job processes until the other end of FD is closed."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not survive a fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway handles Ctrl-C and ends this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    control = socket.socket(fileno=int(sys.argv[1]))
    runner = JobRunner()
    for argument in sys.argv[2:]:
        directory, _, encoding = argument.rpartition("=")
        with contextlib.suppress(OSError, ValueError):  # a job that needs this tokenizer reports the error
            runner.load_tokenizer(directory, encoding)
    gc.collect()
    gc.freeze()  # otherwise the garbage collector would write to shared pages, and so copy them
    while True:
        data, descriptors, _flags, _address = socket.recv_fds(control, 1, 1)
        if not data:
            return
        for descriptor in descriptors:
            if os.fork() == 0:
                control.close()
                _serve(socket.socket(fileno=descriptor), runner)
                os._exit(0)
            os.close(descriptor)


def _serve(connection: socket.socket, runner: JobRunner) -> None:
    """Run jobs until the stream ends. A frame is a length (HEADER) and as many bytes: msgpack, or the body in a job's
    second frame. The first frame is the process id."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    _send(connection, os.getpid())
    while (job := _receive_job(connection)) is not None:
        signal.alarm(ALARM_S)
        reply: Reply | str
        try:
            reply = runner.run_job(job)
        except (OSError, ValueError, MemoryError, RecursionError) as error:
            reply = f"{type(error).__name__}: {error}"
        try:
            _send(connection, reply)
        except OverflowError:  # of the encoder, before anything was sent
            _send(connection, JobRefusal("InvalidRequest", TOO_LARGE_INTEGER, None))
        del job, reply  # tens of megabytes, until the next job
        signal.alarm(0)


def _receive_job(connection: socket.socket) -> Job | None:
    """The next job; None at the end of the stream. Raises msgspec.DecodeError."""
    frame = _receive(connection)
    body = None if frame is None else _receive(connection)
    return None if frame is None or body is None else attach_body(_decode(frame), body)


def _send(connection: socket.socket, message: Reply | str | int) -> None:
    data = _encode(message)
    connection.sendall(HEADER.pack(len(data)) + data)


def _receive(connection: socket.socket) -> bytes | None:
    """The next frame; None at the end of the stream."""
    header = _exactly(connection, HEADER.size)
    return None if header is None else _exactly(connection, HEADER.unpack(header)[0])


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        received = connection.recv_into(view[filled:])
        if not received:
            return None
        filled += received
    view.release()
    return bytes(data)


if __name__ == "__main__":
    main()
