"""`atoll simulate plan`: real TrainingRuns in, sensible figures out; what is wrong is one line."""

from __future__ import annotations

import datetime
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import blocks
from refusals import patched

from atoll_cli.__main__ import main
from atoll_cli.simulate.admission import faults
from atoll_cli.simulate.plan import too_small, uneven
from atoll_cli.simulate.planview import report
from atoll_cli.simulate.runfile import read_run
from atoll_operator.plan.pods.topology import GENERATIONS, chips_of, generation_of
from atoll_runtime.contract import TargetSpec
from atoll_runtime.simulate.planner.merging import on_their_links
from atoll_runtime.simulate.planner.needs import CHIPS, shard_need
from atoll_runtime.simulate.planner.run import Assumptions

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "manifests" / "samples"
OWN_TASK = SAMPLES / "flax-task.yaml"
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
RUNS = {path.name: path.read_text() for path in sorted(SAMPLES.glob("*.yaml")) if path != OWN_TASK}
RUNS |= {
    f"{path.name} {number}": text
    for path in PAGES
    for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", path.read_text(), re.DOTALL))
    if "kind: TrainingRun" in text and "uri: file:///tmp/" not in text
}
"""The samples, and the whole runs of the pages for a cluster; one of `file://` without a volume is for `atoll try`."""
MIXED, SHARDED = SAMPLES / "mixed-generations.yaml", SAMPLES / "sharded.yaml"


def keys(value: Any) -> Iterator[str]:
    """Of all objects in it."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    for inside in value if isinstance(value, list) else ():
        yield from keys(inside)


def changed(tmp_path: Path, patch: dict[str, Any], sample: Path = SHARDED) -> Path:
    """A file with the sample, changed at these paths."""
    written = tmp_path / "run.yaml"
    written.write_text(yaml.safe_dump(patched(yaml.safe_load(sample.read_text()), patch)))
    return written


def test_a_plan_has_the_keys_of_the_page_and_sensible_figures(ask: Any) -> None:
    plan = ask("plan", SHARDED, "--price", "v6e=2.7")[0]
    page = (ROOT / "docs" / "simulate.md").read_text()
    table = page.partition("With `--json` the plan is one object:")[2]
    first = "".join(re.findall(r"^\|([^|]*`[^|]*)\|", table, re.MULTILINE))
    assert sorted(plan) == sorted(re.findall(r"`(\w+)`", first))
    names = {pool["name"] for pool in plan["pools"]}
    explained = set(re.findall(r"`([A-Za-z0-9_]+)`", page))
    assert {*keys(plan)} - names - set(plan["lost_chip_hours_per_day"]) <= explained
    low, high = plan["interval"]
    assert 0.99 < low <= plan["goodput"] <= high <= 1.0
    assert plan["goodput"] <= plan["uptime"] <= 1.0
    assert 0.98 < plan["merged_share"] <= 1.0
    assert 0.01 <= plan["step_seconds"] < 10
    assert 0 < plan["gbps_peak"] <= plan["gbps_link"] < 100
    assert 0 < plan["gbps_mean"] <= plan["gbps_link"] == plan["syncer_gbps_link"] / plan["spec"]["M"]
    assert 600 < plan["heal_seconds"]["total"] < 900
    stages = sum(seconds for stage, seconds in plan["heal_seconds"].items() if stage != "total")
    assert stages == pytest.approx(plan["heal_seconds"]["total"])
    assert sum(pool["chips"] for pool in plan["pools"]) == plan["chips"]
    lost = sum(plan["lost_chip_hours_per_day"].values())
    assert lost == pytest.approx(24 * plan["chips"] * (1 - plan["goodput"]))
    assert 0 < plan["seconds_to_target"] < 86_400
    assert plan["cost"]["to_target"] == pytest.approx(
        plan["cost"]["per_day"] * plan["seconds_to_target"] / 86_400
    )
    assert [choice for choice in plan["choices"] if choice["best"]] == [plan["choice"]]
    assert plan["warnings"] == []


def too_small_of(path: Path) -> list[str]:
    spec, run = read_run(path)
    return too_small(spec.syncer, run)


@pytest.mark.parametrize("name", RUNS)
def test_every_run_of_a_page_or_sample_has_a_syncer_that_is_large_enough(name: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUNS[name])
    assert too_small_of(tmp_path / "run.yaml") == []


def test_the_command_of_the_page_on_simulation_plans_a_sample(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    [command] = blocks("simulate.md")
    assert main(shlex.split(command.replace("\\\n", ""))[1:]) == 0
    assert "goodput" in capsys.readouterr().out


def test_a_syncer_that_is_too_small_for_its_model_is_told_field_by_field(tmp_path: Path) -> None:
    small = {"storage": "10Gi", "resources": {"limits": {"memory": "32Gi"}}}
    assert too_small_of(changed(tmp_path, {"spec.syncer": small}, MIXED)) == [
        "spec.syncer.storage: 10Gi, and a shard comes to 16.1 GB: give it that much, or more shards",
        "spec.syncer.resources.limits.memory: 32Gi, and a shard comes to 58.4 GB: give it that much, or more shards",
    ]
    assert too_small_of(changed(tmp_path, {"spec.syncer": small | {"shards": 4}}, MIXED)) == []


@pytest.mark.parametrize(
    ("preset", "fragments", "shards", "ratio", "told"),
    [
        ("125m", 24, 2, 1.2, []),
        ("125m", 48, 8, 4.79, ["48 in each of 8 shards: the largest is 4.79 times the mean; 13 are even enough"]),
        ("1m", 8, 32, 12.4, ["8 in each of 32 shards: the largest is 12.4 times the mean; fewer shards are wanted"]),
    ],
)  # fmt: skip
def test_fragments_of_very_unequal_sizes_are_told_with_how_many_would_be_even(
    preset: str, fragments: int, shards: int, ratio: float, told: list[str], tmp_path: Path
) -> None:
    outer = {"fragments": fragments, "interval": 48}
    patch = {"spec.model.preset": preset, "spec.outer": outer, "spec.syncer.shards": shards}
    _, run = read_run(changed(tmp_path, patch, SHARDED))
    assert shard_need(run)["largest_fragment"] == pytest.approx(ratio, rel=0.01)
    assert uneven(run) == [f"spec.outer.fragments: {line}" for line in told]


def test_a_task_of_the_users_own_has_to_be_importable_here_too(refused: Any) -> None:
    error = refused("plan", OWN_TASK)
    assert "spec.model.task: 'flax_task:LanguageTask'" in error and "PYTHONPATH" in error


def test_more_shards_than_a_task_has_pieces_are_refused(
    tmp_path: Path, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small_task.py").write_text(
        "import numpy as np\n"
        "class Task:\n"
        "    def init(self, rng): return {'w': np.zeros((2, 2), np.float32)}\n"
        "    def loss(self, params, batch, rng): return params['w'].sum()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sharded = {"spec.model": {"task": "small_task:Task"}, "spec.outer.fragments": 1, "spec.syncer.shards": 8}
    assert "spec.syncer.shards: 8 does not fit" in refused("plan", changed(tmp_path, sharded))


def test_a_run_is_read_by_the_operators_own_models_and_shared_out_as_the_operator_does(
    tmp_path: Path,
) -> None:
    _, run = read_run(MIXED)
    assert [(pool.name, pool.generation, pool.units, pool.chips, pool.batch) for pool in run.pools] == [
        ("v5e", "v5e", 4, 16, 64),
        ("v5p", "v5p", 2, 16, 128),
        ("v6e", "v6e", 2, 16, 128),
    ]
    assert run.knobs == {"M": 8, "K": 4, "H": 24, "P": 24, "tau": 2, "codec": "bf16"}
    assert (run.checkpoint_steps, run.target) == (500, TargetSpec(tokens=20_000_000_000))
    assert read_run(SHARDED)[1].seed == "Peer"
    _, run = read_run(SAMPLES / "multislice.yaml")
    shapes = [(pool.generation, pool.units, pool.chips) for pool in run.pools]
    assert shapes == [("v6e", 2, 32), ("tpu7x", 1, 16), ("v5e", 2, 8)]  # the units of v6e have two slices
    assert all(pool.chips in pool.sizes for pool in run.pools)
    _, run = read_run(changed(tmp_path, {"spec.units": 7}, MIXED))
    assert [(pool.name, pool.units) for pool in run.pools] == [("v5e", 4), ("v5p", 2), ("v6e", 1)]


def test_every_accelerator_of_the_operator_has_figures() -> None:
    prefixes = {generation.prefix.replace("pod", "").replace("lite", "e") for generation in GENERATIONS}
    assert prefixes == set(CHIPS)


def test_the_table_has_pools_knobs_the_reason_and_what_is_assumed_of_spot_capacity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(tmp_path, {"spec.pools.0.capacity": "Spot"}, MIXED)
    assert main(["simulate", "plan", str(path), "--link-gbps", "0.9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mixed: 992.6 M parameters, 8 units, 128 chips"
    assert any(line.split()[:4] == ["v5p", "v5p", "2", "16"] for line in lines)
    assert any(re.match(r"\* +codec .* int8 ", line) for line in lines)
    assert any(line.startswith("* codec=int8: ") and "within the 0.9 Gbit/s" in line for line in lines)
    assert any(re.match(r"cost +-$", line) for line in lines)
    assert any("Pool v5e is Spot and counts as on-demand capacity: say " in line for line in lines)


def test_a_spot_pool_without_units_is_not_asked_for(tmp_path: Path, ask: Any) -> None:
    spot = {"spec.units": 4, **{f"spec.pools.{n}.capacity": "Spot" for n in range(3)}}
    plan = ask("plan", changed(tmp_path, spot, MIXED))[0]
    assert plan["assumed"]["spot_as_on_demand"] == [pool["name"] for pool in plan["pools"]] == ["v5e"]


def test_what_was_measured_replaces_what_is_computed(tmp_path: Path, ask: Any) -> None:
    path = changed(tmp_path, {"spec.pools.0.capacity": "Spot"}, MIXED)
    options = ("--mtbi", "v5e=1d", "--step-time", "2s", "--step-time", "v6e=1.5", "--seed", "1")
    plan = ask("plan", path, *options)[0]
    assert [(pool["step_seconds"], pool["step_source"]) for pool in plan["pools"]] == [
        (2.0, "given"),
        (2.0, "given"),
        (1.5, "given"),
    ]
    assert plan["step_seconds"] == 2.0
    v5e, v5p, _ = plan["pools"]
    assert v5e["interruptions_per_day"] == pytest.approx(64.0)
    assert v5p["interruptions_per_day"] == pytest.approx(32 / 365.25)
    assert v5e["goodput"] < 0.95 < v5p["goodput"]
    assert (plan["assumed"]["spot_as_on_demand"], plan["assumed"]["seed"]) == ([], 1)


def test_pools_whose_steps_are_far_apart_are_refused_before_hours_of_simulation(refused: Any) -> None:
    told = refused(
        "plan", MIXED, "--step-time", "v5e=0.001", "--step-time", "v5p=0.11", "--step-time", "v6e=0.05"
    )
    assert "a step takes 0.11 s in pool 'v5p' and 0.001 s in pool 'v5e'; at most 100 times" in told


def test_an_interval_that_takes_hours_to_simulate_on_its_links_is_refused(
    tmp_path: Path, refused: Any
) -> None:
    path = changed(tmp_path, {"spec.outer.interval": 10_000}, MIXED)
    told = refused("plan", path, "--link-gbps", "5", *(f"--step-time={pool}" for pool in ("1s", "v6e=0.1s")))
    assert "spec.outer.interval: 10000: 2,600,000 inner steps of all units" in told


def test_links_that_take_hours_to_simulate_or_carry_no_version_are_refused(
    tmp_path: Path, refused: Any
) -> None:
    many = changed(tmp_path, {"spec.pools.0.units": 12, "spec.outer.interval": 100}, MIXED)
    told = refused("plan", many, "--link-gbps", "0.0012", "--step-time", "1s")
    assert "562,456 inner steps of all units" in told and "spec.pools[].link or --link-gbps" in told
    told = refused("plan", MIXED, "--link-gbps", "0.001")
    assert "spec.pools[].link or --link-gbps '0.001': a whole version takes 662 s and is given up" in told


def test_a_link_that_carries_too_little_for_a_quorum_is_named_with_its_pool(
    tmp_path: Path, refused: Any
) -> None:
    path = changed(tmp_path, {"spec.pools.0.link": 0.001, "spec.outer": {"fragments": 4, "interval": 4}})
    told = refused("plan", path, status=1)
    assert "pool v6e: link: 0.001 Gbit/s carries too little of this model" in told


def test_a_pools_link_tells_its_share_of_rounds_and_the_codec_that_would_fit(
    tmp_path: Path, ask: Any
) -> None:
    run = {
        "spec.quorum": {"min": 1},
        "spec.pools.0.link": 0.6,
        **{f"spec.pools.{n}.units": 1 for n in range(3)},
    }
    plan = ask("plan", changed(tmp_path, run, MIXED))[0]
    slow, *others = [pool["link"] for pool in plan["pools"]]
    assert others == [None, None]
    assert slow["link_gbps"] == 0.6 and slow["codec"] in ("int8", "int4") and not slow["advice"]
    assert slow["member_share"] >= 0.9 and slow["period"] == 1.0 and slow["hidden_share"] > 0.99
    assert plan["choice"]["codec"] == "int8" and "within the 0.6 Gbit/s" in plan["choice"]["reason"]
    slow["advice"] = "communication.codec: int4"
    said = "\n".join(report(plan).above)
    assert "MEMBER SHARE" in said
    assert "v5e: its link does not carry every round. What would: communication.codec: int4" in said
    for one_codec, field in (
        ({"spec.communication.codec": "bf16"}, "communication.codec"),
        ({"spec.recovery.audit": 200}, "outer.codec"),
    ):
        _, planned = read_run(changed(tmp_path, run | one_codec, MIXED))
        links = on_their_links(planned, Assumptions(link_gbps=100.0))
        slow = links.pop("v5e")
        assert slow["link_gbps"] == 0.6  # a pool's own link counts
        rounds = math.ceil(
            slow["need_gbps"] / slow["link_gbps"]
        )  # a member of one in so many, docs/protocol.md
        assert slow["codec"] == "bf16" and rounds == 2
        assert 0.9 / rounds <= slow["member_share"] < 1.0
        assert 0.9 / rounds <= slow["merged_share"] <= 1.0
        assert slow["advice"].startswith(f"{field}: int")
        assert [link["member_share"] for link in links.values()] == [1.0, 1.0]


FLEX = {"topology": "2x2", "units": 32, "capacity": "FlexStart"}
WIDE = {"layers": 4, "width": 1024, "heads": 16, "kvHeads": 16, "hidden": 4096}


@pytest.mark.parametrize(
    ("patch", "options"),
    [
        ({"spec.communication.codec": "bf16"}, ("--step-time", "1s", "--link-gbps", "0.05")),
        ({f"spec.pools.0.{key}": value for key, value in FLEX.items()}, ()),
        ({"spec.model": {"dimensions": WIDE}, "spec.inner.mesh.tensor": 16}, ("--mtbi", "2h")),
    ],
    ids=["one codec for all", "FlexStart", "mesh"],
)
def test_the_best_choice_is_one_that_the_api_server_accepts(
    tmp_path: Path, ask: Any, patch: dict[str, Any], options: tuple[str, ...]
) -> None:
    path = changed(tmp_path, patch)
    best = ask("plan", path, *options)[0]["choice"]
    fields = {"interval": "H", "fragments": "P", "overlap": "tau", "codec": "codec"}
    chosen = {f"spec.outer.{field}": best[key] for field, key in fields.items()}
    chosen |= {"spec.quorum.min": best["K"], "spec.pools.0.units": best["M"]}
    generation = generation_of("tpu-v6e-slice")
    slices = [
        {"spec.pools.0.topology": topology, "spec.pools.0.machineType": machine.name}
        for topology in generation.topologies()
        for machine in generation.machines_of(topology)
        if chips_of(topology) == best["chips_per_unit"]["v6e"]
    ]
    manifest = patched(yaml.safe_load(path.read_text()), chosen)
    assert [] in [faults(patched(manifest, each)) for each in slices], best


def test_a_wrong_field_is_one_line_with_its_path(tmp_path: Path, refused: Any) -> None:
    """What the API server would refuse: tests/unit/test_cli_admission.py."""
    path = changed(tmp_path, {"spec.pools.0.units": -1})
    words = "spec.pools[0].units: -1: Input should be greater than or equal to "
    assert refused("plan", path).startswith(f"atoll: {path}: {words}")
    path = changed(tmp_path, {"spec.units": 0})
    assert refused("plan", path).startswith(f"atoll: {path}: spec.units: 0: nothing trains")
    path = changed(tmp_path, {"spec.units": 3}, MIXED)
    assert refused("plan", path).startswith(
        f"atoll: {path}: spec.quorum.min: 4: at most the 3 units of spec.units"
    )


def test_numbers_and_dates_are_read_as_kubectl_sends_them(tmp_path: Path, refused: Any) -> None:
    dated = {"spec.pools.0.units": 4.0, "spec.serviceAccountName": datetime.date(2026, 11, 22)}
    path = changed(tmp_path, dated)
    assert read_run(path)[1].units == 4
    path.write_text(re.sub("tokens: .*", "tokens: 2e9", path.read_text()))
    assert read_run(path)[1].target.tokens == 2_000_000_000
    path.write_text(path.read_text().replace("sequenceLength:", "? [a, b]\n    : 1\n    sequenceLength:"))
    assert refused("plan", path).startswith(f"atoll: {path}: not ")


def test_all_wrong_fields_are_told_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path, {"spec.model.dimensions": {"layers": 1}})
    assert main(["simulate", "plan", str(path)]) == 2
    head, *lines = capsys.readouterr().err.splitlines()
    assert head == f"atoll: {path}: the API server would refuse 4 things:"
    assert lines == [
        f"  spec.model.dimensions.{name}: Field required" for name in ("width", "heads", "kvHeads", "hidden")
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file or directory"),
        ("a: [", "not YAML: "),
        ("kind: TrainingRun\nmetadata: {name: 2026-13-45}\n", "not YAML: month must be in 1..12"),
        ("[" * 100_000, "not YAML: maximum recursion depth exceeded"),
        ("kind: TrainingRun\nspec: &all {model: *all}\n", "not an object of Kubernetes: Circular reference"),
        ("", "one document of kind TrainingRun is wanted; there are 0"),
        ("kind: TrainingRun\n---\nkind: TrainingRun\n", "there are 2"),
        ("- kind: TrainingRun\n", "there are 0"),
    ],
)
def test_a_file_that_is_no_run_is_one_line(
    text: str | None, words: str, tmp_path: Path, refused: Any
) -> None:
    path = tmp_path / "run.yaml"
    if text is not None:
        path.write_text(text)
    told = refused("plan", path)
    assert words in told and told.startswith(f"atoll: {path}: ")


def test_a_target_out_of_reach_is_null(tmp_path: Path, ask: Any) -> None:
    path = changed(tmp_path, {"spec.pools.0.units": 16, "spec.quorum": {"min": 16}})
    plan = ask("plan", path, "--repair", "1y", "--price", "v6e=1")[0]
    assert plan["seconds_to_target"] is plan["cost"]["to_target"] is None
