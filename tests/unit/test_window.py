"""Requests at a time: few after a rest, more with each answer, all in turn."""

from __future__ import annotations

import asyncio

import pytest

from atoll_operator.kube.window import Window


class Server:
    """Answers when it is told to."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.arrived: list[int] = []
        self._answers: dict[int, asyncio.Future[None]] = {}

    async def ask(self, number: int) -> None:
        async with self.window:
            self.arrived.append(number)
            self._answers[number] = asyncio.get_running_loop().create_future()
            await self._answers[number]

    async def answer(self, *numbers: int, error: Exception | None = None) -> None:
        for number in numbers:
            if error is None:
                self._answers[number].set_result(None)
            else:
                self._answers[number].set_exception(error)
        await settle()


async def settle() -> None:
    """Until nobody can go on."""
    for _ in range(20):
        await asyncio.sleep(0)


async def burst(server: Server, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(server.ask(number)) for number in range(count)]
    await settle()
    return tasks


async def test_a_burst_begins_with_few_requests_and_has_one_more_with_each_answer_up_to_the_most() -> None:
    server = Server(Window(least=2, most=4, rest=60.0))
    tasks = await burst(server, 10)
    assert server.arrived == [0, 1]
    await server.answer(0)
    assert server.arrived == [0, 1, 2, 3], "the answered one's place, and one more"
    await server.answer(1)
    assert server.arrived == [0, 1, 2, 3, 4, 5]
    await server.answer(2)
    assert server.arrived == [0, 1, 2, 3, 4, 5, 6], "four at a time are the most"
    for number in range(3, 10):
        await server.answer(number)
    await asyncio.gather(*tasks)
    assert server.arrived == list(range(10))


async def test_after_a_rest_it_begins_with_few_again() -> None:
    server = Server(Window(least=1, most=4, rest=0.0))
    for _ in range(3):
        server.arrived.clear()
        tasks = await burst(server, 3)
        assert server.arrived == [0]
        for number in range(3):
            await server.answer(number)
        await asyncio.gather(*tasks)


async def test_what_failed_makes_room_for_one_and_no_more() -> None:
    server = Server(Window(least=2, most=4, rest=60.0))
    tasks = await burst(server, 5)
    await server.answer(0, error=TimeoutError())
    assert server.arrived == [0, 1, 2]
    with pytest.raises(TimeoutError):
        await tasks[0]
    for number in range(1, 5):
        await server.answer(number)
    await asyncio.gather(*tasks[1:])


@pytest.mark.parametrize("later", range(6))
async def test_whoever_is_cancelled_takes_nobodys_place(later: int) -> None:
    """Also in the moment in which its turn comes."""
    server = Server(Window(least=1, most=1, rest=60.0))
    tasks = await burst(server, 4)
    tasks[1].cancel()
    await settle()
    await server.answer(0)
    answering = asyncio.create_task(server.answer(2))
    for _ in range(later):
        await asyncio.sleep(0)
    tasks[3].cancel()
    await answering
    assert server.arrived[:2] == [0, 2]
    last = asyncio.create_task(server.ask(4))
    await settle()
    assert server.arrived[-1] == 4
    await server.answer(4)
    await last
    assert [task.cancelled() for task in tasks] == [False, True, False, True]
