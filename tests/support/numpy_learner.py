"""One host of a unit that learns in numpy, as a process that can be killed. Arguments: RUN.JSON TLS UNIT INCARNATION
[STEP SECONDS]."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from protocol_parties import NumpyUnit

from atoll_runtime.contract import EXIT_FENCED, EXIT_OK, EXIT_TERMINAL, parse_run
from atoll_runtime.transport.messages import Fenced, Refused
from atoll_runtime.transport.sessions import TlsNetwork
from atoll_runtime.transport.tls import Tls


def main(file: str, folder: str, name: str, incarnation: str, step_seconds: str = "0.01") -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    run, tls = parse_run(Path(file).read_bytes()), Tls(folder)
    networks = [TlsNetwork(shard, tls) for shard in run.shards]
    unit = NumpyUnit(run, name, networks, int(incarnation), step_seconds=float(step_seconds))
    unit.hold_nothing()
    unit.start()
    while unit.running:
        time.sleep(0.05)
    word = unit.client.last_word()
    logging.info("ended: %s", word)
    return (
        EXIT_FENCED if isinstance(word, Fenced) else EXIT_TERMINAL if isinstance(word, Refused) else EXIT_OK
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
