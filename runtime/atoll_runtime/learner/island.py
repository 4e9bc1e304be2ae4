"""Runs one host of a unit, from its contracts to its end: join, seed, connect, train, leave."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from atoll_runtime.checkpoint import Cut, GlobalStore, Regions
from atoll_runtime.checkpoint.units import UnitStore
from atoll_runtime.contract import EXIT_FENCED, RunContract, UnitContract, VersionMismatch, brief, parse_run
from atoll_runtime.data import DataError, Prefetch, Reader, Stream
from atoll_runtime.learner import optimiser, seed
from atoll_runtime.learner.audit import Audit, evaluation, examples_of
from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.learner.compilation import CompilationStore, Programs
from atoll_runtime.learner.fragments import Fragments
from atoll_runtime.learner.host_consensus import Agreement
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.loop import Loop
from atoll_runtime.learner.mesh import join, leave
from atoll_runtime.learner.proposal import Ending
from atoll_runtime.learner.saver import Saver
from atoll_runtime.learner.serving import PeerServer
from atoll_runtime.learner.snapshot import Snapshots
from atoll_runtime.learner.start import start_of
from atoll_runtime.model import ModelError, axes_of, check, describe, fits, resolve
from atoll_runtime.model.axes import share
from atoll_runtime.process import Terminal
from atoll_runtime.protocol.fragments import Layout, LayoutError, build_layout
from atoll_runtime.protocol.messages import Beginning
from atoll_runtime.transport.messages import Refused, Welcome
from atoll_runtime.transport.sessions import TlsNetwork
from atoll_runtime.transport.tls import Tls

WELCOME_TIMEOUT = 20.0
"""Seconds that a seeded unit waits for the syncer."""
CLOSE_TIMEOUT = 5.0

log = logging.getLogger(__name__)


class FencedOff(Terminal):
    """A newer incarnation of this unit has taken over."""

    status = EXIT_FENCED


def train(
    run: RunContract,
    unit: UnitContract,
    tls: Tls,
    leave_cleanly: Callable[[], threading.Event],
) -> Ending:
    """Trains until the run's end, or until the event is set that `leave_cleanly` returns when training begins.

    Args:
        tls: this pod's identity.

    Raises:
        Terminal: a restart cannot fix it.
        VersionMismatch: the syncer speaks another protocol.
        FencedOff: a newer incarnation took over.
        SeedUnavailable, StoreError, TimeoutError: a restart may help.
    """
    layout = _layout(run)
    reader, stream = _data(run, unit)
    compiled = CompilationStore.of(run, unit)
    try:
        mesh = join(unit, run.inner.mesh)
        # Only after joining: a loss may ask for devices, and then the hosts could no longer join.
        check(run.model, run.data.sequence_length, run.data.packing)
    except ModelError as error:
        raise Terminal("ModelInvalid", str(error)) from error
    joined = time.time()
    log.info("unit %s: %d devices on %d hosts", unit.unit, mesh.devices.size, unit.hosts)
    agreement: Agreement = Agreement(mesh)
    run = of_first(run, agreement)
    programs = Programs(agreement, compiled)
    units = UnitStore(run.checkpoint.uri, run.uid, optimiser.saved(run.inner, layout.shapes))
    axes = axes_of(run.model)
    own = {name: share(mesh, axes[name], shape) for name, shape in layout.shapes.items()}
    networks = [TlsNetwork(shard, tls) for shard in run.shards]
    seeded = _seed(run, unit, units, layout, agreement, networks, tls, own)
    log.info("%s", seeded.message)
    inner = Inner(
        mesh,
        run.model,
        run.inner,
        seeded.cut.theta,
        unit.batch,
        run.data.sequence_length,
        seeded.moments,
        unit.stream,
        reader.catalogue.separator if run.data.packing == "Documents" else None,
        programs,
    )
    fragments = Fragments(mesh, layout, inner.theta, programs)
    if seeded.moments is not None and not inner.restorable:
        seeded = replace(seeded, message=f"{seeded.message}; not taken: this optimiser begins anew")
    cold = seeded.moments is None or not inner.restorable
    seeded.cut.theta.clear()  # the host's copies of the model are no longer needed
    if seeded.moments is not None:
        seeded.moments.mu.clear()
        seeded.moments.nu.clear()

    client = SyncerClient(run, unit, layout, fragments.bounds, fragments.padded, networks)
    lineages = seeded.cut.meta.get("lineages", [])
    client.start(seeded.cut.versions, seeded.cut.step, seeded.message, lineages)
    start = start_of(_welcome(client, unit, seeded.cut), agreement, seeded.cut, run.uid, unit.unit, cold)
    log.info("global step %d, inner step %d, cursor %d", start.global_step, start.inner_step, start.cursor)
    batches = Prefetch(
        lambda at: reader.example(stream.index(at)), start.cursor, unit.batch, inner.rows, reader.readers
    )
    saver = Saver(units, unit, layout)
    snapshots = Snapshots(fragments.bounds, start.targets, saver.put if inner.restorable else None)
    server = None
    if unit.address:
        port = int(unit.address.rpartition(":")[2])
        server = PeerServer(run, unit, layout, snapshots, tls, port)

    def begun() -> None:
        gc.freeze()  # modules and programs stay, so collections need not look at them
        gc.enable()
        programs.settle()
        client.begin(Beginning(joined, time.time(), programs.seconds, programs.compiled, programs.loaded))

    audit = None
    try:
        if run.audit is not None:
            evaluate = evaluation(inner, layout, examples_of(reader), programs)
            evaluate(fragments.anchors).block_until_ready()  # compiles before the first step
            audit = Audit(run, layout, inner, evaluate, start.targets)
        leaving = leave_cleanly()
        loop = Loop(
            run, inner, fragments, client, agreement, batches, start, leaving, snapshots, begun, audit=audit
        )
        ending = loop.until_end()
    except DataError as error:
        raise Terminal("DataInvalid", str(error)) from error
    finally:
        batches.close()
        snapshots.close()
        if server is not None:
            server.close()
        saver.close(CLOSE_TIMEOUT)
        client.close(CLOSE_TIMEOUT)
        if compiled is not None:
            compiled.close(CLOSE_TIMEOUT)
    if ending in (Ending.FENCED, Ending.REFUSED, Ending.MISMATCHED):
        raise _refusal(ending, client)
    leave()
    return ending


def of_first(run: RunContract, agreement: Agreement) -> RunContract:
    """The contract as host 0 has read it. The kubelets of the unit's nodes bring a change of the run at different
    times, and hosts with different targets would train at different rates."""
    text, _ = agreement.found_by_first(lambda: (brief(run), None), str)
    return parse_run(text)


def _seed(
    run: RunContract,
    unit: UnitContract,
    units: UnitStore,
    layout: Layout,
    agreement: Agreement,
    networks: Sequence[TlsNetwork],
    tls: Tls,
    own: Regions,
) -> seed.Seed:
    """Seeds from a peer if the run says so and one serves it, else from the bucket, of which this host reads `own`."""
    why = ""
    if run.seed == "Peer":
        # The other half of the time is for the checkpoint.
        found = seed.from_peer(unit, layout, agreement, networks, tls, run.startup_seconds / 2)
        if isinstance(found, seed.Seed):
            return found
        why = found
        log.info("%s", why)
    store = GlobalStore(run.checkpoint.uri)
    found = seed.from_checkpoint(store, units, unit.unit, layout, agreement, own)
    return replace(found, message="; ".join(filter(None, [found.message, why])))


def _welcome(client: SyncerClient, unit: UnitContract, cut: Cut) -> Welcome | None:
    """The syncer's answer. Without one, a unit trains on from its checkpoint, or is told to end.

    Raises:
        TimeoutError: there is no answer, and a peer has seeded the unit. It would read its data from the beginning.
    """
    answer = client.welcome(WELCOME_TIMEOUT)
    known = answer or client.last_word() or "machines" in cut.meta
    if not known and unit.host == 0:  # which speaks for all; the others end with it
        raise TimeoutError(
            "no answer from the syncer, and the peer's state does not say where the data continues"
        )
    return answer


def _layout(run: RunContract) -> Layout:
    try:
        tensors = describe(run.model)
        layout = build_layout(tensors, run.outer.fragments, len(run.shards))
        optimiser.build(run.inner, {tensor.name: len(tensor.shape) > 1 for tensor in tensors})
        if run.model.task is not None:
            return layout
        fits(resolve(run.model), run.inner.mesh)
    except (ModelError, LayoutError, optimiser.OptimiserError) as error:
        raise Terminal("ModelInvalid", str(error)) from error
    return layout


def _data(run: RunContract, unit: UnitContract) -> tuple[Reader, Stream]:
    """The unit's part of the data. Raises `Terminal` if it does not fit the model."""
    try:
        reader = Reader(run.data.uri, "train", run.data.sequence_length)
        stream = Stream(reader.examples, run.data.seed, unit.stream, unit.streams)
    except DataError as error:
        raise Terminal("DataInvalid", str(error)) from error
    except ValueError as error:
        raise Terminal("DataInvalid", f"{run.data.uri}: splits.train: {error}") from error
    held = reader.catalogue
    if run.data.tokenizer not in (None, held.tokenizer):
        raise Terminal(
            "DataInvalid", f"data.tokenizer: {run.data.tokenizer}, but {run.data.uri} has {held.tokenizer}"
        )
    size = None if run.model.task is not None else resolve(run.model)
    if size is not None and size.vocabulary < held.vocabulary:
        raise Terminal(
            "ModelInvalid",
            f"model.dimensions.vocabulary: {size.vocabulary} must be {held.vocabulary} or more, the vocabulary of "
            f"{run.data.uri} (tokenizer {held.tokenizer})",
        )
    return reader, stream


def _refusal(ending: Ending, client: SyncerClient) -> Exception:
    if ending is Ending.FENCED:
        return FencedOff("Fenced", "a newer incarnation of this unit is registered")
    word = client.last_word()
    why = word.reason if isinstance(word, Refused) else "by the syncer, on another host"
    return VersionMismatch(why) if ending is Ending.MISMATCHED else Terminal("Refused", why)
