"""Programs of clusters, tests and `make lint`: their versions and Go modules."""

from __future__ import annotations

from dataclasses import dataclass

KUBERNETES = "1.36.3"
ETCD = "3.6.8"
COREDNS = "1.15.0"
HELM = "4.3.1"
KWOK = "0.8.0"
KUEUE = "0.19.2"
FAKE_GCS = "1.56.1"
ACTIONLINT = "1.7.12"
NETWORK_POLICIES = "0.8.0"
"""Version of Flux's cli-utils, which is the same in this Helm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    name: str
    version: str
    module: str
    """Its Go module."""
    package: str = ""
    """Its main package, in place of `cmd/NAME` of the module."""
    linker_flags: tuple[str, ...] = ()
    main: str = ""
    """A file of `manifests/go`: a main package of our own."""
    own_sums: bool = False
    """Whether to use the module's own go.sum, for a module that the checksum database may not know."""


def _kubernetes(name: str) -> Program:
    major, minor, _ = KUBERNETES.split(".")
    values = {
        "gitVersion": f"v{KUBERNETES}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "module",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    return Program(
        name=name,
        version=KUBERNETES,
        module="k8s.io/kubernetes",
        linker_flags=tuple(
            f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items()
        ),
    )


PROGRAMS: dict[str, Program] = {
    program.name: program
    for program in (
        _kubernetes("kube-apiserver"),
        _kubernetes("kubectl"),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kube-scheduler"),
        _kubernetes("kubelet"),
        _kubernetes("kube-proxy"),
        Program(
            name="etcd",
            version=ETCD,
            module="go.etcd.io/etcd/server/v3",
            package="go.etcd.io/etcd/server/v3",
        ),
        Program(
            name="coredns",
            version=COREDNS,
            module="github.com/coredns/coredns",
            package=".",
            main="coredns.go",
        ),
        Program(
            name="helm",
            version=HELM,
            module="helm.sh/helm/v4",
            linker_flags=(f"-X helm.sh/helm/v4/internal/version.version=v{HELM}",),
        ),
        Program(
            name="kwok",
            version=KWOK,
            module="sigs.k8s.io/kwok",
            linker_flags=(f"-X sigs.k8s.io/kwok/pkg/consts.Version=v{KWOK}",),
        ),
        Program(
            name="kueue",
            version=KUEUE,
            module="sigs.k8s.io/kueue",
            linker_flags=(f"-X sigs.k8s.io/kueue/pkg/version.GitVersion=v{KUEUE}",),
            own_sums=True,
        ),
        Program(
            name="actionlint",
            version=ACTIONLINT,
            module="github.com/rhysd/actionlint",
            linker_flags=(f"-X github.com/rhysd/actionlint.version={ACTIONLINT}",),
        ),
        Program(
            name="kube-network-policies",
            version=NETWORK_POLICIES,
            module="sigs.k8s.io/kube-network-policies",
            package="sigs.k8s.io/kube-network-policies/cmd",
        ),
        Program(
            name="fake-gcs-server",
            version=FAKE_GCS,
            module="github.com/fsouza/fake-gcs-server",
            package="github.com/fsouza/fake-gcs-server",
        ),
    )
}
