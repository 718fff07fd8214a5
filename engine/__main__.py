"""`python -m engine --socket PATH --config FILE.json [--fake]`: one engine process, from start to clean stop.

With `--listen HOST:PORT` it serves gateways of other hosts too, over mutual TLS. It writes its progress to stderr as
JSON lines, and one {"event":"ready",…} line to stdout. It ends on SIGTERM or SIGINT, and when its parent process has
ended. With --fake it must never load a tensor library.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import logging
import os
import secrets
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec

from engine import log
from engine.contents.fetcher import ContentFetcher
from engine.contents.sources import FleetContexts
from engine.contents.store import ContentStore
from engine.fake.runner import FakeRunner, build_fake_runner
from engine.loop.interpreter import tune_interpreter
from engine.loop.probe import (
    impossible_targets,
    shortest_step_s,
    shortest_target_s,
    unreachable_targets,
    with_raised_targets,
)
from engine.loop.worker import EngineLoop
from engine.memory.arena import Arena
from engine.memory.eviction import EVICTION_VALUES
from engine.protocol.addresses import parse_host_port
from engine.protocol.config import EngineConfig, EngineConfigError, load_engine_config
from engine.protocol.frames import PROTOCOL_OLDEST, PROTOCOL_VERSION, Hello, ModelInfo, RaisedTargets
from engine.protocol.inbox import Inbox, LoopProgress, Stop
from engine.protocol.listeners import STREAMS_MAX, SocketInUse, TlsListener
from engine.protocol.server import Server
from engine.protocol.tiers import Tier
from engine.protocol.tls import CertificateFiles, CertificatesUnusable
from engine.scheduler.scheduler import ModelLimits, Scheduler
from engine.step import Runner
from engine.text.grammars import GrammarTokenizer

# From a signal to the exit of the process, whatever the loop is doing. The kernel's work after the exit (unpinning host
# memory, destroying the device's context) is not included: gateway.host.supervisor.STOP_ENGINE_ON_GPU_S allows for it.
STOP_S_MAX = 1.5
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
LEASE_S = 5.0

_log = logging.getLogger("engine.main")


class ServedRunner(Runner, Protocol):
    """A runner, with the models it serves and the arena that they share."""

    models: dict[str, ModelInfo]
    refused: dict[str, str]  # configured models that are not served, and why
    pages: int
    page_bytes: int


class Stopper:
    """Turns the first reason to stop into a Stop for the loop, and ends the process if the loop does not obey."""

    def __init__(self) -> None:
        self.inbox: Inbox | None = None  # None while the models load: no gateway is connected then
        self.asked_at = 0.0  # time.monotonic() of the first reason
        self._once = threading.Lock()

    def listen(self) -> None:
        """Wait for the stop signals on a separate thread: a handler would wait for the step to end. The signals are
        blocked here, and so in every thread that is started later."""
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        threading.Thread(target=self._wait, name="engine-signals", daemon=True).start()

    def ask(self, why: str) -> None:
        """From any thread; only the first counts."""
        if not self._once.acquire(blocking=False):
            return
        self.asked_at = time.monotonic()
        if self.inbox is None:
            os._exit(0)
        self.inbox.put(Stop(why))
        timer = threading.Timer(STOP_S_MAX, self._give_up)
        timer.daemon = True
        timer.start()

    def _wait(self) -> None:
        while True:
            self.ask(signal.Signals(signal.sigwait(STOP_SIGNALS)).name)

    def _give_up(self) -> None:
        _log.error("engine.stop_forced", extra={"fields": {"after_s": STOP_S_MAX}})
        os._exit(1)


def build(config: EngineConfig, fake: bool) -> ServedRunner:
    """Raises EngineConfigError when a model cannot be served."""
    if fake:
        try:
            return build_fake_runner(config)
        except ValueError as error:
            raise EngineConfigError(str(error)) from error
    # Read once, when torch loads: a thread that waits for another must sleep, not spin. On a small machine the gateway
    # needs the same cores, and spinning made steps several times as long (docs/LOG.md).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Only here is torch loaded.
    from engine.models.config import ModelRefused

    try:
        if config.device == "cuda":
            # And only here are triton and the kernels.
            from engine.gpu.build import build_gpu_runner

            return build_gpu_runner(config)
        from engine.cpu.runner import build_runner

        return build_runner(config)
    except (ModelRefused, OSError) as error:
        raise EngineConfigError(str(error)) from error


def note_refused(runner: ServedRunner) -> None:
    for name, why in runner.refused.items():
        _log.error("model.refused", extra={"fields": {"model": name, "reason": why}})


def serve(
    socket_path: Path,
    configured: EngineConfig,
    runner: ServedRunner,
    stopper: Stopper,
    parent: int | None,
    *,
    raise_targets: bool = False,
    tls: TlsListener | None = None,
    lease_s: float = LEASE_S,
    streams_max: int = STREAMS_MAX,
    fetcher: ContentFetcher | None = None,
) -> None:
    """Serve until the stopper ends it. Raises SocketInUse, EngineConfigError."""
    config = configured
    tiers = [tier.name for tier in config.tiers]
    note_refused(runner)
    late: list[str] = []
    targets: dict[str, RaisedTargets] = {}
    if not isinstance(runner, FakeRunner):
        config, late = check_speed(config, runner, raise_targets=raise_targets)
        targets = raised_targets(configured.tiers, config.tiers)
    scheduler = build_scheduler(config, runner)
    models = [pinned_or_not(scheduler, info) for info in runner.models.values()]
    epoch = secrets.token_hex(16)
    hello = Hello(
        PROTOCOL_VERSION, epoch, models, tiers, runner.refused, targets, PROTOCOL_OLDEST, lease_s, installed_version()
    )
    if not isinstance(runner, FakeRunner):
        # Before the first snapshot, and not at the top: numpy starts threads, which must find the signals blocked. The
        # fake imports it at its first snapshot.
        import engine.loop.snapshot  # noqa: F401

        read_grammar_tokenizers(config, runner)
    inbox, progress = Inbox(), LoopProgress()
    server = Server(
        socket_path, hello, inbox, progress, parent=parent, ended=stopper.ask, tls=tls, streams_max=streams_max
    )
    worker = EngineLoop(
        hello=hello,
        scheduler=scheduler,
        runner=runner,
        inbox=inbox,
        progress=progress,
        send=server.send,
        tell_models=server.tell_models,
        configs=config.models,
        targets_out_of_reach=len(late),
        fetcher=fetcher,
    )
    stopper.inbox = inbox
    server.start()
    ready = {
        "event": "ready",
        "epoch": hello.epoch,
        "socket": str(socket_path),
        "listen": "" if tls is None else tls.address,
        "pid": os.getpid(),
        "models": sorted(runner.models),
        "refused": runner.refused,
        "warnings": late,
    }
    sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
    sys.stdout.flush()
    tune_interpreter()
    try:
        worker.run()
    finally:
        ended_at = time.monotonic()
        server.stop()
    now = time.monotonic()
    seconds = {"requests": ended_at - stopper.asked_at, "flush": now - ended_at, "all": now - stopper.asked_at}
    _log.info("engine.stopped", extra={"fields": {f"{part}_s": round(took, 3) for part, took in seconds.items()}})


def build_fetcher(arguments: argparse.Namespace, config: EngineConfig) -> ContentFetcher:
    """Raises CertificatesUnusable."""
    files = (arguments.certificate, arguments.key, arguments.authority)
    store = ContentStore(
        arguments.store or arguments.socket.parent / "store",
        bytes_max=config.store_bytes_max,
        free_min_bytes=config.store_free_min_bytes,
    )
    return ContentFetcher(store, None if None in files else FleetContexts(CertificateFiles(*files)))


def installed_version() -> str:
    """The version of the package; "" if its code runs without being installed."""
    try:
        return importlib.metadata.version("laneway")
    except importlib.metadata.PackageNotFoundError:
        return ""


def read_grammar_tokenizers(config: EngineConfig, runner: ServedRunner) -> None:
    """Read tokenizers before the first request: reading one holds the GIL for about a second, which would block
    steps."""
    for model in config.models:
        info = runner.models.get(model.name)
        if info is not None and model.path and (Path(model.path) / "tokenizer.json").exists():
            try:
                GrammarTokenizer.load(Path(model.path), info.vocab_size)
            except (OSError, ValueError) as error:
                fields = {"model": model.name, "reason": str(error)}
                _log.warning("model.without_grammars", extra={"fields": fields})


def build_scheduler(config: EngineConfig, runner: ServedRunner) -> Scheduler:
    """Raises EngineConfigError when the limits contradict each other."""
    limits = {info.name: ModelLimits.of(info) for info in runner.models.values()}
    try:
        return Scheduler(
            config.tiers,
            limits,
            Arena(runner.pages, runner.page_bytes),
            runner.adapters,
            time.monotonic,
            step_tokens_max=config.step_tokens_max,
            prefill_tokens_min=config.prefill_tokens_min,
            sequences_max=config.sequences_max,
            steps_ahead=runner.steps_ahead,
            host_pool=runner.host_pool,
            weights=runner.weights,
            weights_residence_s=config.weights_residence_s,
            eviction_value=EVICTION_VALUES[config.weights_policy],
            probe_after_s=config.probe_after_s,
        )
    except ValueError as error:
        raise EngineConfigError(str(error)) from error


def pinned_or_not(scheduler: Scheduler, model: ModelInfo) -> ModelInfo:
    """Pin a model whose configuration requests it. If pinning is impossible, the model is served unpinned. Returns the
    model with `pinned` as it is."""
    why = scheduler.pin_model(model.name, model.pinned)
    if why:
        _log.warning("model.not_pinned", extra={"fields": {"model": model.name, "reason": why}})
    return msgspec.structs.replace(model, pinned=model.pinned and not why)


def check_speed(
    config: EngineConfig, runner: ServedRunner, *, raise_targets: bool = False
) -> tuple[EngineConfig, list[str]]:
    """Measure the shortest step of the resident models. Returns the configuration to serve with, and a sentence for
    each target below that step, which is logged as a warning: the machine may be busy now, and meet the target later.
    With `raise_targets` these targets are raised to values that the machine meets; without it, raises EngineConfigError
    when a target is so far below that load does not explain it. (Not for the fake, whose speed is configured.)"""
    enough_s = shortest_target_s(config.tiers)
    resident = {name: info for name, info in runner.models.items() if runner.weights.weights_location(name) == "device"}
    if not resident:
        return config, []
    step_s = shortest_step_s(runner, resident, runner.pages, runner.page_bytes, enough_s)
    _log.info("engine.probed", extra={"fields": {"shortest_step_ms": round(step_s * 1000, 2)}})
    if not raise_targets and (hopeless := impossible_targets(config.tiers, step_s)):
        raise EngineConfigError(hopeless[0])
    late = unreachable_targets(config.tiers, step_s)
    if raise_targets and late:
        tiers = with_raised_targets(config.tiers, step_s)
        late = [
            f"this machine cannot keep the targets of tier {name!r} now: until the next start they are "
            f"{targets.inter_token_ms:g} ms between tokens and {targets.ttft_base_ms:g} ms to the first token"
            for name, targets in raised_targets(config.tiers, tiers).items()
        ]
        config = msgspec.structs.replace(config, tiers=tiers)
    for reason in late:
        _log.warning("tier.target_out_of_reach", extra={"fields": {"reason": reason}})
    return config, late


def raised_targets(configured: tuple[Tier, ...], tiers: tuple[Tier, ...]) -> dict[str, RaisedTargets]:
    """The targets of `tiers` that differ from the configured ones, by name."""
    return {
        tier.name: RaisedTargets(tier.inter_token_ms, tier.ttft_base_ms, tier.queue_target_ms)
        for tier, before in zip(tiers, configured, strict=True)
        if tier != before
    }


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Ends the process with status 2 and a sentence for arguments that do not fit together."""
    parser = argparse.ArgumentParser(prog="python -m engine", description="One Laneway engine process.")
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket to listen on")
    parser.add_argument("--config", type=Path, required=True, help="JSON file, see engine/protocol/config.py")
    parser.add_argument("--fake", action="store_true", help="no model: deterministic ids at the configured speed")
    parser.add_argument("--raise-targets", action="store_true", help="raise targets that this machine cannot keep")
    parser.add_argument("--listen", type=host_port, metavar="HOST:PORT", help="listen there too, over mutual TLS")
    parser.add_argument(
        "--certificate", type=Path, metavar="FILE", help="PEM: this engine's certificate, and its chain"
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="PEM: the certificate's key, without a passphrase")
    parser.add_argument("--authority", type=Path, metavar="FILE", help="PEM: who signs the certificates of gateways")
    parser.add_argument(
        "--store", type=Path, metavar="DIR", help="adapters and models of other hosts; default: store beside the socket"
    )
    parser.add_argument("--detached", action="store_true", help="run on when the process that started it has ended")
    parser.add_argument("--lease-s", type=float, default=LEASE_S, help="close streams of silent gateways; 0: never")
    parser.add_argument("--streams-max", type=int, default=STREAMS_MAX, help="streams of gateways, of both kinds")
    arguments = parser.parse_args(argv)
    if arguments.listen is not None and None in (arguments.certificate, arguments.key, arguments.authority):
        parser.error("--listen needs --certificate, --key and --authority")
    if arguments.lease_s < 0 or arguments.streams_max < 1:
        parser.error("--lease-s must be at least 0, --streams-max at least 1")
    return arguments


def main(argv: list[str] | None = None) -> int:
    """The process's exit status: 0 after a clean stop, 1 after a failure, 2 for a configuration that cannot be
    served."""
    parent = os.getppid()  # read first: the parent may die while the models load
    arguments = parse_arguments(argv)
    log.configure()
    stopper = Stopper()
    stopper.listen()
    try:
        tls = None
        if arguments.listen is not None:
            host, port = arguments.listen
            tls = TlsListener(host, port, CertificateFiles(arguments.certificate, arguments.key, arguments.authority))
        config = load_engine_config(arguments.config)
        names = [model.name for model in config.models]
        _log.info("engine.loading", extra={"fields": {"models": names, "fake": arguments.fake}})
        runner = build(config, arguments.fake)
        serve(
            arguments.socket,
            config,
            runner,
            stopper,
            None if arguments.detached else parent,
            raise_targets=arguments.raise_targets,
            tls=tls,
            lease_s=arguments.lease_s,
            streams_max=arguments.streams_max,
            fetcher=build_fetcher(arguments, config),
        )
    except (EngineConfigError, SocketInUse, CertificatesUnusable) as error:
        _log.error("engine.cannot_start", extra={"fields": {"reason": str(error)}})
        return 2
    except Exception:  # noqa: BLE001 - the process's edge: logged, and reported by the exit status
        _log.exception("engine.failed")
        return 1
    return 0


def host_port(text: str) -> tuple[str, int]:
    """A type for argparse, whose error has the reason."""
    try:
        return parse_host_port(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def leave(status: int) -> NoReturn:
    """Exit without interpreter shutdown. Endings were sent, streams flushed and closed, and the socket removed before.
    Destroying CUDA graphs and freeing pinned memory one by one would take seconds, and the supervisor would kill the
    process meanwhile; the kernel frees everything at once."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    leave(main())
