"""What probes and Prometheus get, by real HTTP, from a real queue of which a worker is blocked."""

from __future__ import annotations

import asyncio
import json
import logging

import aiohttp

from atoll_operator.kube.logs import JsonFormatter
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.metrics.process import Metrics, serve


async def test_a_queue_whose_worker_hangs_is_not_alive_and_one_that_goes_on_is() -> None:
    release = asyncio.Event()

    async def handle(_: str) -> None:
        await release.wait()

    queue: WorkQueue[str] = WorkQueue(handle, workers=1)
    metrics, problem = Metrics(), "the watches have not started yet"
    server = await serve(
        0,
        metrics.registry,
        alive=lambda: (queue.oldest_seconds() <= 0.1, "ok"),
        ready=lambda: (not problem, problem or "ok, stands by"),
    )
    metrics.queue_depth.set_function(lambda: queue.depth)
    working = asyncio.create_task(queue.run())
    address = f"http://127.0.0.1:{server.addresses[0][1]}"

    async def page(path: str) -> tuple[int, str]:
        async with session.get(address + path) as answer:
            return answer.status, await answer.text()

    async def until(status: int) -> None:
        async with asyncio.timeout(30):
            while (await page("/healthz"))[0] != status:
                pass

    async with aiohttp.ClientSession() as session:
        assert await page("/healthz") == (200, "ok")
        assert await page("/readyz") == (503, problem)
        problem = ""
        assert await page("/readyz") == (200, "ok, stands by")
        queue.add("a")
        queue.add("b")
        await until(503)
        assert "atoll_queue_depth 1.0" in (await page("/metrics"))[1]
        release.set()
        await until(200)
        assert "atoll_queue_depth 0.0" in (await page("/metrics"))[1]
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await server.cleanup()


def test_a_line_of_the_log_names_its_object_or_says_that_it_has_none() -> None:
    record = logging.LogRecord("atoll", logging.INFO, "", 0, "%s pods", (3,), None)
    line = json.loads(JsonFormatter().format(record))
    assert (line["msg"], line["level"], line["object"]) == ("3 pods", "info", "")
    record.fields = {"object": "LearnerUnit n/u", "seconds": 1.5}
    line = json.loads(JsonFormatter().format(record))
    assert (line["object"], line["seconds"]) == ("LearnerUnit n/u", 1.5)
