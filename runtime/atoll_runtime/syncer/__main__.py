"""`python -m atoll_runtime.syncer`: one shard of a run's syncer, as its pod starts it."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from pathlib import Path

from atoll_runtime.checkpoint import GlobalStore, StoreError
from atoll_runtime.contract import (
    ENV_JOURNAL_DIR,
    ENV_SHARD,
    ENV_SYNCER,
    ENV_TLS_DIR,
    EXIT_OK,
    JOURNAL_DIR,
    TLS_DIR,
    RunContract,
    parse_syncer,
)
from atoll_runtime.interfaces import Bucket
from atoll_runtime.merge.rda import warm
from atoll_runtime.model import ModelError, along, check, describe, initial
from atoll_runtime.process import (
    EXIT_RETRY,
    Terminal,
    asked_to_end,
    fail,
    leave,
    log_to_stderr,
    outcome,
    run_contract,
    until,
)
from atoll_runtime.protocol.fragments import Layout, LayoutError, build_layout
from atoll_runtime.protocol.rules import COORDINATOR, Rules
from atoll_runtime.syncer.backoff import Backoff
from atoll_runtime.syncer.driver import Driver
from atoll_runtime.syncer.following import Following
from atoll_runtime.syncer.records import JournalError
from atoll_runtime.syncer.recovery import Start, recover
from atoll_runtime.syncer.service import Service
from atoll_runtime.syncer.status import Status, StatusServer, figures
from atoll_runtime.syncer.tape import Tape
from atoll_runtime.transport.sessions import SessionServer, TlsNetwork
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transfer_server import TransferServer

log = logging.getLogger("atoll.syncer")


def main() -> int:
    """Serves until SIGTERM. If it ends otherwise, the exit status tells the operator why."""
    log_to_stderr()
    try:
        run, layout, rules = contract()
        tls = Tls(os.environ.get(ENV_TLS_DIR, TLS_DIR))
        directory = Path(os.environ.get(ENV_JOURNAL_DIR, JOURNAL_DIR))
        # Not `asyncio.run`, which waits for threads: one may wait minutes for a bucket that does not answer.
        asyncio.new_event_loop().run_until_complete(serve(run, layout, rules, tls, directory))
    except JournalError as error:
        return fail(EXIT_RETRY, "JournalFailed", error)
    except OSError as error:
        return fail(EXIT_RETRY, "PortUnavailable", error)
    except Exception as error:
        return fail(*outcome(error), error)
    return EXIT_OK


def contract() -> tuple[RunContract, Layout, Rules]:
    """Reads the contract. Raises `Terminal` or `VersionMismatch`, which name the wrong field."""
    run = run_contract()
    try:
        layout = build_layout(describe(run.model), run.outer.fragments, len(run.shards))
        check(run.model, run.data.sequence_length, run.data.packing)
        batches = parse_syncer(os.environ.get(ENV_SYNCER, "{}")).batches
        return run, layout, Rules.of(run, int(os.environ.get(ENV_SHARD, "0")), batches)
    except (ModelError, LayoutError) as error:
        raise Terminal("ModelInvalid", str(error)) from error
    except ValueError as error:
        raise Terminal("ContractInvalid", str(error)) from error


async def serve(run: RunContract, layout: Layout, rules: Rules, tls: Tls, directory: Path) -> None:
    """Serves one shard until SIGTERM or a failure: its status at once, learners once the state is recovered."""
    ended = asked_to_end()
    status, address = Status(run, rules.shard), run.shards[rules.shard]
    web = StatusServer(status, tls.server_context(), address.status_port, address.health_port)
    await web.start()
    try:
        await until(ended, run_service(run, layout, rules, tls, directory, status))
    except Terminal as error:
        # For no other error, because the operator reads this phase as the end of the run.
        status.phase, status.message = "Failed", str(error)
        raise
    except JournalError as error:
        status.message = str(error)
        raise
    finally:
        await web.stop()


async def run_service(
    run: RunContract, layout: Layout, rules: Rules, tls: Tls, directory: Path, status: Status
) -> None:
    """Recovers, then serves learners until cancelled or failed."""
    store, start = await recovered(run, layout, rules, directory / "journal", status)
    await asyncio.to_thread(warm, run.outer.codec)
    driver = Driver(run, layout, start, store, Tape(directory / "tape", run.tape))
    service = status.service = Service(driver)
    address = run.shards[rules.shard]
    sessions = SessionServer(service, tls, address.port)
    transfers = TransferServer(service, tls, address.transfer_port)
    try:
        await sessions.start()
        driver.start()
        if rules.shard != COORDINATOR:
            network = TlsNetwork(run.shards[COORDINATOR], tls)
            driver.spawn(Following(driver, network, functools.partial(figures, service)).serve())
        await driver.failed
    finally:
        await driver.close()
        await transfers.stop()
        await sessions.stop()


async def recovered(
    run: RunContract, layout: Layout, rules: Rules, directory: Path, status: Status
) -> tuple[Bucket, Start]:
    """Retries while the bucket cannot be used; the status says why.

    Raises:
        Terminal: see `recover`; or the initial model cannot be built.
    """
    backoff = Backoff(0.5, 30.0)
    while True:
        try:
            store = await asyncio.to_thread(GlobalStore, run.checkpoint.uri, along(run.model))
            job = functools.partial(recover, run, rules, layout, directory, store, lambda: initial(run.model))
            start = await asyncio.to_thread(job)
        except StoreError as error:
            status.message = f"the bucket cannot be used yet: {error}"
            log.warning("%s", status.message)
            await backoff.wait()
        except ModelError as error:
            raise Terminal("ModelInvalid", str(error)) from error
        else:
            log.info("%s", start.message)
            return store, start


if __name__ == "__main__":
    leave(main())
