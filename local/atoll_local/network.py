"""Addresses, the bridge, and one veth pair a node."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from atoll_local.controlplane import SERVICE_RANGE
from atoll_local.errors import ClusterError
from atoll_local.process import run


def sh(*command: str, check: bool = True, timeout: float = 30) -> str:
    """Runs a command of the host and returns its output. Raises `ClusterError` if it failed (with `check`) or took
    longer than `timeout` seconds."""
    return run(command, timeout, raises=ClusterError, name=repr(" ".join(command)), check=check)


@dataclass(frozen=True, slots=True)
class Network:
    """The cluster's addresses. They are fixed, so a machine has room for one cluster."""

    bridge: str = "atoll0"
    subnet: str = "10.250.0.0/24"
    """Host .1, nodes from .10 on."""
    pods: str = "10.244.0.0/16"
    """Each node has a /24 of it."""
    mtu: int = 1500
    """Bytes of a frame on its links."""

    @property
    def host(self) -> str:
        return str(next(ipaddress.ip_network(self.subnet).hosts()))

    @property
    def prefix(self) -> int:
        return ipaddress.ip_network(self.subnet).prefixlen

    def node(self, index: int) -> str:
        return str(ipaddress.ip_network(self.subnet)[10 + index])

    def pod_range(self, index: int) -> str:
        return str(list(ipaddress.ip_network(self.pods).subnets(new_prefix=24))[index])

    def link(self, index: int) -> str:
        """The host's end of a node's veth pair; the kernel allows 15 characters."""
        return f"{self.bridge}-n{index}"

    def up(self) -> None:
        sh("ip", "link", "add", self.bridge, "type", "bridge")
        sh("ip", "addr", "add", f"{self.host}/{self.prefix}", "dev", self.bridge)
        sh("ip", "link", "set", self.bridge, "up")

    def attach(self, index: int, pid: int, nodes: int) -> None:
        """Gives the network namespace of `pid` its address and the routes to every other node's pods."""
        link, peer = self.link(index), f"{self.bridge}-p{index}"
        inside = ("nsenter", "-t", str(pid), "-n", "ip")
        self.pair(link, peer)
        sh("ip", "link", "set", link, "master", self.bridge, "up")
        sh("ip", "link", "set", peer, "netns", str(pid))
        sh(*inside, "link", "set", peer, "name", "eth0")
        sh(*inside, "link", "set", "lo", "up")
        sh(*inside, "addr", "add", f"{self.node(index)}/{self.prefix}", "dev", "eth0")
        sh(*inside, "link", "set", "eth0", "up")
        for other in range(nodes):
            if other != index:
                sh(*inside, "route", "add", self.pod_range(other), "via", self.node(other))
        # Service addresses need a route before kube-proxy's rules rewrite them. There is no default route, so that
        # nothing leaves this machine.
        sh(*inside, "route", "add", SERVICE_RANGE, "via", self.host)
        sh("ip", "route", "replace", self.pod_range(index), "via", self.node(index))

    def pair(self, one: str, other: str) -> None:
        mtu = ("mtu", str(self.mtu))
        sh("ip", "link", "add", one, *mtu, "type", "veth", "peer", "name", other, *mtu)

    def route_services(self, index: int) -> None:
        """Lets the host reach ClusterIPs through one node's kube-proxy."""
        sh("ip", "route", "replace", SERVICE_RANGE, "via", self.node(index))

    def down(self) -> None:
        """Removes links and the bridge, and routes with it. Missing parts are not an error."""
        for line in sh("ip", "-o", "link", "show", check=False).splitlines():
            name = line.split(":")[1].strip().split("@")[0]
            if name.startswith(tuple(f"{self.bridge}-{end}" for end in "npr")):
                sh("ip", "link", "del", name, check=False)
        sh("ip", "link", "del", self.bridge, check=False)

    def taken(self, *ranges: str) -> str:
        """What has the bridge's name or address, or a route to pods or into one of `ranges`, as that of another cluster
        that ours would replace. Empty if nothing has."""
        if self.bridge in sh("ip", "-o", "link", "show"):
            return f"the bridge {self.bridge}"
        if f" {self.host}/" in sh("ip", "-o", "addr", "show"):
            return f"the address {self.host}"
        routes = "".join(sh("ip", "route", "show", "root", each) for each in (self.pods, *ranges))
        return f"the route {routes.splitlines()[0].strip()}" if routes else ""
