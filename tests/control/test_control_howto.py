"""Every how-to of docs/, as it is written: against a real cluster without machines, and against a bucket."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from answering import LoopThread, answering
from apiserver import Api
from commands import ended
from pages import ROOT, Reader, blocks
from safetensors.numpy import load_file

from atoll_local.bucket import FakeGcs
from atoll_local.catalogue import PROGRAMS
from atoll_local.controlplane import ControlPlane
from atoll_local.gobuild import module_folder
from atoll_local.kubectl import ESTABLISHED
from atoll_local.kwok import Kwok, node
from atoll_local.process import wait_for
from atoll_local.programs import find
from atoll_operator.api.trainingrun import TrainingRunSpec

HOW_TO = {"try", "gke", "operations", "plugin", "monitoring", "kueue", "data", "models", "export", "simulate"}
NAMESPACE, RUN, UNIT = "training", "first", "first-v6e-0"
"""As the page on GKE calls them; other pages have words in capitals."""
NAMES = {
    "NAMESPACE": NAMESPACE, "RUN": RUN, "UNIT": UNIT, "REGISTRY": "registry.example/atoll", "NEW": "elsewhere",
}  # fmt: skip
NOW = "2026-11-24T12:00:00Z"
MONITORING = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
"""Kinds of the Prometheus operator, which the page takes for granted, as it does its namespace."""


def test_this_and_the_other_tests_of_pages_know_every_how_to() -> None:
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    [pages] = [pages for section in menu for title, pages in section.items() if title == "How to"]
    assert {page.removesuffix(".md") for page in pages} == HOW_TO


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Without Atoll, with the controllers and a node that runs what is bound to it."""
    folder = tmp_path_factory.mktemp("howto")
    with ControlPlane(folder, controllers=True, fast_failure=False) as plane, Kwok(plane) as kwok:
        kwok.add([node("cpu-0")])
        yield plane


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGcs]:
    with FakeGcs(tmp_path_factory.mktemp("gcs"), port=0) as server:
        yield server


@pytest.fixture
def reader(cluster: ControlPlane, bucket: FakeGcs, tmp_path: Path) -> Reader:
    bucket.create_bucket("my-bucket")
    environment = {**bucket.environment(), "KUBECONFIG": str(cluster.kubeconfig)}
    return Reader(tmp_path / "atoll", environment, kubectl=find("kubectl"), helm=find("helm"))


def played_run(api: Api) -> None:
    """What an operator would have made of the run: a unit that learns, its pod and that of the syncer."""
    [pool] = api.get("TrainingRun", NAMESPACE, RUN)["spec"]["pools"]
    shape = {key: pool[key] for key in ("accelerator", "topology")}
    spec = {"run": RUN, "pool": pool["name"], "batch": 64, "stream": 0, "streams": 2, **shape}
    meta = {"name": UNIT, "labels": {"atoll.dev/run": RUN}}
    unit = {"apiVersion": "atoll.dev/v1alpha1", "kind": "LearnerUnit", "metadata": meta, "spec": spec}
    ledger = {"fragments": 1, "trained": 10, "merged": 10, "inFlight": 0, "discarded": {}}
    told = {"ledger": ledger, "conditions": []}
    api.create(unit, NAMESPACE)
    own = {"status": {**told, "phase": "Learning", "incarnation": 1}}
    api.patch("LearnerUnit", NAMESPACE, UNIT, own, "/status")
    complete = {"type": "Complete", "status": "True", "reason": "TargetReached", "message": ""}
    told["conditions"] = [{**complete, "lastTransitionTime": NOW}]
    own = {"status": {**told, "phase": "Complete", "globalStep": 40}}
    api.patch("TrainingRun", NAMESPACE, RUN, own, "/status")
    for name, labels in (
        (f"{UNIT}-1-0", {"atoll.dev/unit": UNIT, "atoll.dev/host": "0"}),
        (f"{RUN}-syncer-0", {"atoll.dev/component": "syncer"}),
    ):
        container = {"name": "main", "image": "none"}
        meta = {"name": name, "labels": {"atoll.dev/run": RUN, **labels}}
        spec = {"nodeName": "cpu-0", "automountServiceAccountToken": False, "containers": [container]}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, NAMESPACE)


async def ready(request: web.Request) -> web.Response:
    """What an operator that is ready answers."""
    return web.Response(text="ok, leads", status=200 if request.path == "/readyz" else 404)


def played_probe(api: Api) -> None:
    """Run the command of the pod that `helm test` makes, and tell its end as a kubelet would."""
    where, name = "atoll-system", "atoll-operator-ready"
    wait_for("a pod", lambda: name in {pod["metadata"]["name"] for pod in api.list("Pod", where)}, 60)
    [container] = api.get("Pod", where, name)["spec"]["containers"]
    _, *arguments = container["command"]
    operator = LoopThread("operator")
    here = operator.enter(answering(ready)).removeprefix("http://")
    words = [word.replace("atoll-operator.atoll-system.svc:8080", here) for word in arguments]
    assert words != arguments
    done = ended(sys.executable, *words)
    operator.close()
    assert (done.returncode, done.stdout) == (0, "ok, leads\n"), done.stderr
    api.patch("Pod", where, name, {"status": {"phase": "Succeeded"}}, "/status")


def test_the_pages_for_a_cluster_install_run_look_change_upgrade_and_remove(
    cluster: ControlPlane, reader: Reader
) -> None:
    api = Api(cluster)
    lines = [line for block in blocks("try.md") for line in block.splitlines()]
    reader.type(*(line for line in lines if not line.startswith("atoll try ")))  # those: tests/learning
    [manifest] = blocks("gke.md", "yaml")
    reader.save("first.yaml", manifest)
    reader.save(
        "corpus/one.jsonl", "".join(json.dumps({"text": f"line {line}"}) + "\n" for line in range(99))
    )
    reader.type(*blocks("gke.md"))
    assert api.get("TrainingRun", NAMESPACE, RUN)["spec"]["pools"][0]["units"] == 2
    deployment = lambda: api.get("Deployment", "atoll-system", "atoll-operator")["spec"]  # noqa: E731
    [container] = deployment()["template"]["spec"]["containers"]
    assert container["image"].startswith("registry.example/atoll/operator:")
    builds = [note.split() for note in reader.notes if note.startswith("docker build")]
    assert builds and all((ROOT / words[words.index("-f") + 1]).is_file() for words in builds)

    with ThreadPoolExecutor() as pool:
        asked = pool.submit(reader.type, "helm test atoll --namespace atoll-system")
        played_probe(api)
        assert "Phase:          Succeeded" in asked.result()

    for kind in MONITORING:
        cluster.kubectl("apply", "-f", "-", body=definition(kind))
    cluster.kubectl("wait", ESTABLISHED, "crd", "--all", "--timeout=30s")
    cluster.kubectl("create", "namespace", "monitoring")
    reader.type(*blocks("monitoring.md"))
    assert cluster.kubectl("-n", "atoll-system", "get", ",".join(MONITORING), "-o", "name").count("\n") == 3

    played_run(api)
    said = reader.type(*blocks("plugin.md"), **NAMES)
    assert '"goodput"' in said
    annotations = api.get("LearnerUnit", NAMESPACE, UNIT)["metadata"]["annotations"]
    assert {annotations["atoll.dev/heal"], annotations["atoll.dev/drain"]} == {"1"}
    run = api.get("TrainingRun", NAMESPACE, RUN)
    assert run["spec"]["units"] == 3 and run["metadata"]["annotations"]["atoll.dev/checkpoint"] == "40"

    [overlay] = blocks("operations.md", "yaml")
    reader.save("overlay/kustomization.yaml", overlay, **NAMES)
    steps = blocks("operations.md")
    removal = next(place for place, step in enumerate(steps) if "helm uninstall" in step)
    said = reader.type(*steps[:removal], **NAMES)
    assert RUN in said and api.get("TrainingRun", NAMESPACE, RUN)["spec"]["image"].endswith("/runtime:0.2.0")
    uninstall, elsewhere, definitions, install, delete = steps[removal:]
    reader.type(uninstall, elsewhere, **NAMES)
    assert api.get("TrainingRun", NAMESPACE, RUN) and not api.list("Deployment", "atoll-system")
    reader.type(uninstall.replace("atoll-system", "elsewhere"), definitions)
    assert "atoll.dev" not in cluster.kubectl("get", "crd", "-o", "name")
    reader.type(install)
    assert deployment()["replicas"] == 1
    reader.type(delete)
    assert not api.list("Deployment", "atoll-system")
    assert "trainingruns.atoll.dev" in cluster.kubectl("get", "crd", "-o", "name")


def test_the_queue_of_the_page_is_one_that_kueue_defines_and_the_sample_names(
    cluster: ControlPlane, reader: Reader
) -> None:
    """What Kueue does with it: test_control_kueue."""
    bases = module_folder(PROGRAMS["kueue"]) / "config" / "components" / "crd" / "bases"
    kinds = [
        str(bases / f"kueue.x-k8s.io_{kind}.yaml")
        for kind in ("resourceflavors", "clusterqueues", "localqueues")
    ]
    apply = (
        "kubectl apply --server-side --force-conflicts",
        "kubectl wait --for=condition=Established crd --all",
    )
    reader.type(f"{apply[0]} -k crds/", f"{apply[0]} -f {' -f '.join(kinds)}", apply[1])
    fields, queues = blocks("kueue.md", "yaml")
    reader.save("queues.yaml", queues)
    reader.type("kubectl create namespace research", "kubectl apply -f queues.yaml")
    reader.type("kubectl apply -n research -f manifests/samples/queued.yaml")
    spec = Api(cluster).get("TrainingRun", "research", "queued")["spec"]
    [local] = [each for each in yaml.safe_load_all(queues) if each["kind"] == "LocalQueue"]
    assert spec["queueName"] == local["metadata"]["name"]
    assert (
        yaml.safe_load(fields)["spec"].keys()
        <= TrainingRunSpec.model_json_schema(by_alias=True)["properties"].keys()
    )


CHECKPOINT = """
import numpy as np
from atoll_runtime.checkpoint import Cut, GlobalStore
from atoll_runtime.contract import Dimensions, ModelSpec
from atoll_runtime.model import describe

spec = ModelSpec(dimensions=Dimensions(layers=2, width=16, heads=2, kv_heads=1, hidden=24, vocabulary=300))
theta = {info.name: np.ones(info.shape, np.float32) for info in describe(spec)}
meta = {"model": spec.model_dump(by_alias=True, exclude_none=True)}
GlobalStore("gs://bucket/runs/books").save(Cut(10, theta, theta, (10,), meta))
"""
TOKENIZER = """
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
tokenizer.train_from_iterator(["a book is a book"], trainer)
tokenizer.save("tokenizer.json")
"""


def python(code: str) -> str:
    """A command that runs it."""
    return f"python - <<'END'\n{code}\nEND"


def test_the_pages_on_data_and_export_fill_a_bucket_and_take_the_model_out_of_it(
    bucket: FakeGcs, tmp_path: Path
) -> None:
    bucket.create_bucket("bucket")
    reader = Reader(tmp_path / "atoll", bucket.environment())
    for name in range(40):
        reader.save(f"books/{name}.txt", f"Book {name} is a book. " * 99)
    reader.type(python(TOKENIZER), *blocks("data.md"))
    said = reader.type(python(CHECKPOINT), *blocks("export.md"), *map(python, blocks("export.md", "python")))
    assert "the same bits" in said
    tensors = load_file(reader.folder / "books-model" / "model.safetensors")
    assert sum(tensor.size for tensor in tensors.values()) > 300 * 16
    assert (reader.folder / "books-hf" / "tokenizer.json").is_file()


def definition(kind: str) -> dict[str, Any]:
    """Of a kind that takes anything."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    spec = {"group": "monitoring.coreos.com", "names": names, "scope": "Namespaced", "versions": [version]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": spec,
    }
