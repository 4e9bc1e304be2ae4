"""Delays the Ethernet frames between two network interfaces, in both directions.

`python -m atoll_local.relay ONE OTHER SECONDS` runs until it is killed. It stands in for `netem`, which not every
kernel has. Frames keep their order.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence

ETH_P_ALL = 0x0003
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
"""Constants of linux/if_packet.h that `socket` does not have."""
FRAME = 65_550
"""Bytes that are read at a time: the largest frame that an interface delivers."""
QUEUE_BYTES = 64 * 2**20
"""The most bytes that wait in one direction. Further frames are dropped, as by a full router."""
IDLE_SECONDS = 1.0


class Direction:
    """Frames on their way from one interface to the other."""

    def __init__(self, source: socket.socket, target: socket.socket, delay: float) -> None:
        self._source, self._target, self._delay = source, target, delay
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._bytes = 0

    def take(self, now: float) -> None:
        """Reads what has arrived."""
        while True:
            try:
                frame = self._source.recv(FRAME)
            except BlockingIOError:
                return
            if self._bytes + len(frame) <= QUEUE_BYTES:
                self._waiting.append((now + self._delay, frame))
                self._bytes += len(frame)

    def give(self, now: float) -> float:
        """Sends frames that are due. Returns the seconds until the next one is due."""
        while self._waiting and self._waiting[0][0] <= now:
            _, frame = self._waiting.popleft()
            self._bytes -= len(frame)
            try:
                self._target.send(frame)
            except OSError:
                continue  # the interface is down or its queue is full: the frame is lost
        return self._waiting[0][0] - now if self._waiting else IDLE_SECONDS


def _interface(name: str) -> socket.socket:
    """A socket for every frame that arrives on this interface."""
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    link.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 2**20)
    link.bind((name, 0))
    link.setblocking(False)
    return link


def main(arguments: Sequence[str]) -> None:
    """Relays without end."""
    one, other = (_interface(name) for name in arguments[:2])
    delay = float(arguments[2])
    there, back = Direction(one, other, delay), Direction(other, one, delay)
    selector = selectors.DefaultSelector()
    selector.register(one, selectors.EVENT_READ, there)
    selector.register(other, selectors.EVENT_READ, back)
    wait = IDLE_SECONDS
    while True:
        for key, _ in selector.select(max(wait, 0.0)):
            key.data.take(time.monotonic())
        now = time.monotonic()
        wait = min(there.give(now), back.give(now))


if __name__ == "__main__":
    main(sys.argv[1:])
