"""One host of a unit from its contracts to its end: join, seed, connect, train, leave."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import numpy as np

from atoll_runtime.checkpoint import Cut, GlobalStore
from atoll_runtime.contract import RunContract, UnitContract
from atoll_runtime.data import DataError, Prefetch, Reader, Stream
from atoll_runtime.learner import seed
from atoll_runtime.learner.agree import Agreement
from atoll_runtime.learner.errors import FencedOff, Terminal
from atoll_runtime.learner.exchange import Exchange
from atoll_runtime.learner.fragments import Fragments, wire_type
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.loop import Loop, Start
from atoll_runtime.learner.mesh import join, leave
from atoll_runtime.learner.proposal import Ending
from atoll_runtime.model import ModelError, describe, resolve
from atoll_runtime.sync.fragments import Layout, LayoutError, build_layout
from atoll_runtime.transport.messages import Refused
from atoll_runtime.transport.transport import Transport

WELCOME_TIMEOUT = 20.0
"""Seconds that a seeded unit waits for the syncer before it trains on from its checkpoint."""
CLOSE_TIMEOUT = 5.0
BYTE_VALUES = 256

log = logging.getLogger(__name__)


def train(
    run: RunContract,
    unit: UnitContract,
    transport: Transport,
    leave_cleanly: Callable[[], threading.Event],
) -> Ending:
    """Trains until the run's end, or until the event that `leave_cleanly` returns when training begins.

    Raises:
        Terminal: a restart cannot mend it.
        FencedOff: a newer incarnation took over.
        SeedUnavailable, StoreError, TimeoutError: worth a restart.
    """
    layout = _layout(run)
    try:
        reader = Reader(run.data.uri, "train", run.data.sequence_length)
        stream = Stream(reader.examples, run.data.seed, unit.stream, unit.streams)
    except (DataError, ValueError) as error:
        raise Terminal("DataInvalid", str(error)) from error
    mesh = join(unit)
    log.info("unit %s: %d devices on %d hosts", unit.unit, mesh.devices.size, unit.hosts)
    agreement: Agreement = Agreement(mesh)
    seeded = seed.find(GlobalStore(run.checkpoint.uri), layout, agreement)
    log.info("%s", seeded.message)
    inner = Inner(mesh, run.inner, seeded.cut.theta, unit.batch, run.data.sequence_length)
    fragments = Fragments(mesh, layout, wire_type(run.outer.codec), inner.theta)
    seeded.cut.theta.clear()  # the host's copy of the model is not needed any more

    exchange = Exchange(run, unit, layout, fragments.bounds, fragments.padded, transport)
    exchange.start(seeded.cut.versions, seeded.cut.step, seeded.message)
    start = _start(exchange, agreement, seeded.cut, unit.unit)
    log.info("global step %d, inner step %d, cursor %d", start.global_step, start.inner_step, start.cursor)
    batches = Prefetch(lambda at: reader.example(stream.index(at)), start.cursor, unit.batch, inner.rows)
    loop = Loop(run, inner, fragments, exchange, agreement, batches, start, leave_cleanly())
    try:
        ending = loop.until_end()
    except DataError as error:
        raise Terminal("DataInvalid", str(error)) from error
    finally:
        batches.close()
        exchange.close(CLOSE_TIMEOUT)
    if ending in (Ending.FENCED, Ending.REFUSED):
        raise _refusal(ending, exchange)
    leave()
    return ending


def _layout(run: RunContract) -> Layout:
    try:
        size = resolve(run.model)
        layout = build_layout(describe(run.model), run.outer.fragments)
    except (ModelError, LayoutError) as error:
        raise Terminal("ModelInvalid", str(error)) from error
    if size.vocabulary < BYTE_VALUES:
        raise Terminal(
            "ModelInvalid",
            f"model.dimensions.vocabulary: {size.vocabulary} must be 256 or more for tokenizer bytes",
        )
    return layout


def _start(exchange: Exchange, agreement: Agreement, cut: Cut, unit: str) -> Start:
    """What host 0 was told, on every host; without a syncer, what the checkpoint tells of this unit."""
    welcome = exchange.welcome(WELCOME_TIMEOUT)
    if welcome is None:
        log.warning("no answer from the syncer: training on from step %d, the link follows", cut.step)
        record = cut.meta.get("machine", {}).get("units", {}).get(unit, {})
        mine = [cut.step, record.get("merged_step", 0), record.get("merged_cursor", 0), *cut.versions]
    else:
        mine = [welcome.global_step, welcome.inner_step, welcome.cursor, *welcome.versions]
    global_step, inner_step, cursor, *targets = agreement.from_first(np.array(mine, np.int64)).tolist()
    return Start(cut.versions, tuple(targets), global_step, inner_step, cursor)


def _refusal(ending: Ending, exchange: Exchange) -> Exception:
    error = exchange.error()
    if ending is Ending.FENCED:
        return FencedOff("a newer incarnation of this unit is registered")
    return Terminal(
        "Refused", error.reason if isinstance(error, Refused) else "by the syncer, on another host"
    )
