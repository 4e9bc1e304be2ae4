"""`atoll export`: what is on the disk, what is read back, and what is refused."""

import json
import os
import resource
import signal
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tokenizers
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tokenizer_files import train_tokenizer

from atoll_cli.__main__ import main
from atoll_runtime.checkpoint import GlobalStore, Part, Slice
from atoll_runtime.contract import Dimensions, ModelSpec
from atoll_runtime.data.importer import Order, run_import, sources
from atoll_runtime.data.tokenizer import from_path
from atoll_runtime.export import Export, ExportError, Theta, read_back
from atoll_runtime.model import describe

SMALL = ModelSpec(dimensions=Dimensions(layers=2, width=16, heads=2, kv_heads=1, hidden=24))
"""Bytes of Θ: 16 k for the embedding, 14 k for the rest."""
TASK = ModelSpec(task="my.tasks:Mine")


def random_theta(spec=SMALL, seed=0):
    random = np.random.default_rng(seed)
    return {info.name: random.standard_normal(info.shape, np.float32) for info in describe(spec)}


def save(uri, step, theta, spec=SMALL):
    """Saves Θ by two shards: each has one layer of stacked tensors, and every other one of the other tensors."""
    store, stacked = GlobalStore(uri), {name for name in theta if name.startswith("layers/")}
    for shard in (0, 1):
        own = {name: Slice(theta[name][[shard]], -theta[name][[shard]], (shard,)) for name in stacked}
        own |= {name: Slice(theta[name], -theta[name]) for name in sorted(theta.keys() - stacked)[shard::2]}
        store.save_part(Part(step, shard, 2, own, (step,), {}))
    store.complete(step, 2, {"model": spec.model_dump(by_alias=True, exclude_none=True)})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with the checkpoints of steps 10 and 20."""
    uri = f"file://{tmp_path_factory.mktemp('run')}"
    for step in (10, 20):
        save(uri, step, random_theta(seed=step))
    return uri


def export(*arguments):
    return main(["export", *map(str, arguments)])


def assert_same_bits(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def refused(capsys, *arguments):
    """The only line that an export prints."""
    assert export(*arguments) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


@pytest.mark.parametrize("layout", ["atoll", "llama"])
@pytest.mark.parametrize("size", ["5GB", "9kB"])
def test_export_is_read_back_bit_for_bit(run, tmp_path, layout, size):
    assert export(run, "--out", tmp_path / "out", "--layout", layout, "--max-shard-size", size) == 0
    assert_same_bits(read_back(tmp_path / "out"), random_theta(seed=20))
    assert export("--check", tmp_path / "out", run) == 0


def test_the_atoll_layout_is_theta_by_flat_name_with_its_origin(run, tmp_path):
    out = tmp_path / "out"
    assert export(run, "--step", 10, "--out", out) == 0
    assert_same_bits(load_file(out / "model.safetensors"), random_theta(seed=10))
    facts = Export.open(out).facts
    assert (facts.step, facts.model, facts.layout, facts.dtype) == (10, SMALL, "atoll", "float32")
    assert facts.checkpoint == f"sha256:{Theta(run, 10).digest}"
    assert facts.checkpoint != f"sha256:{Theta(run, 20).digest}"
    keys = ("version", "step", "model", "checkpoint", "layout", "dtype")
    with safe_open(out / "model.safetensors", "np") as file:
        assert file.metadata().keys() == {f"atoll.{key}" for key in keys}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_bf16_is_rounded_to_nearest_and_checked_as_such(run, tmp_path):
    assert export(run, "--out", tmp_path / "out", "--dtype", "bf16") == 0
    rounded = {name: value.astype(ml_dtypes.bfloat16) for name, value in random_theta(seed=20).items()}
    assert_same_bits(load_file(tmp_path / "out" / "model.safetensors"), rounded)
    assert export("--check", tmp_path / "out", run) == 0


def test_shards_hold_no_more_than_asked_and_the_index_names_the_file_of_each_tensor(run, tmp_path):
    out = tmp_path / "out"
    assert export(run, "--out", out, "--layout", "llama", "--max-shard-size", "5kB") == 0
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert files == [f"model-{n:05d}-of-{len(files):05d}.safetensors" for n in range(1, len(files) + 1)]
    held = {file: load_file(out / file) for file in files}
    assert index["weight_map"] == {name: file for file in files for name in held[file]}
    sizes = {file: sum(value.nbytes for value in held[file].values()) for file in files}
    assert index["metadata"]["total_size"] == sum(sizes.values())
    assert sum(value.nbytes for value in random_theta().values()) == sum(sizes.values())
    over = [file for file in files if sizes[file] > 5000]
    assert [list(held[file]) for file in over] == [["model.embed_tokens.weight"]]
    assert len(files) > 3


def test_hugging_face_layout_has_a_config_file(run, tmp_path):
    out = tmp_path / "out"
    assert export(run, "--out", out, "--layout", "llama", "--dtype", "bf16", "--context", "128") == 0
    config = json.loads((out / "config.json").read_text())
    wanted = {"architectures": ["LlamaForCausalLM"], "hidden_size": 16, "num_key_value_heads": 1}
    wanted |= {"tie_word_embeddings": True, "rms_norm_eps": 1e-6, "max_position_embeddings": 128}
    assert config.items() >= (wanted | {"torch_dtype": "bfloat16"}).items()
    with safe_open(out / "model.safetensors", "np") as file:
        assert file.metadata()["format"] == "pt"  # without this `transformers` refuses it


def test_a_task_of_the_users_own_is_exported_without_its_code(tmp_path):
    theta = {"scale": np.array(3.5, np.float32), "a/0/kernel": np.ones((3, 2), np.float32)}
    uri = f"file://{tmp_path}/run"
    save(uri, 4, theta, TASK)
    assert export(uri, "--out", tmp_path / "out") == 0
    assert_same_bits(read_back(tmp_path / "out"), theta)
    assert export("--check", tmp_path / "out", uri) == 0


def test_check_names_the_first_tensor_that_differs_and_where(run, tmp_path, capsys):
    out = tmp_path / "out"
    export(run, "--out", out)
    file = out / "model.safetensors"
    with safe_open(file, "np") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    tensors["layers/mlp/up"][1, 2, 3] = np.nextafter(tensors["layers/mlp/up"][1, 2, 3], np.float32(9))
    save_file(tensors, file, metadata)
    assert export("--check", out, run) == 1
    assert "differs from step 20: layers/mlp/up: is " in (told := capsys.readouterr().out)
    assert " at (1, 2, 3), where the checkpoint has " in told
    del tensors["layers/mlp/up"]
    save_file(tensors, file, metadata)
    assert export("--check", out, run) == 1
    assert "layers/mlp/up: is missing" in capsys.readouterr().out
    with pytest.raises(ExportError, match=r"layers/mlp/up of shape \(2, 16, 24\) is missing"):
        read_back(out)
    tensors["layers/mlp/up"] = np.zeros((2, 3), np.float32)
    save_file(tensors, file, metadata)
    assert export("--check", out, run, "--json") == 1
    assert "has shape (2, 3), not (2, 16, 24)" in json.loads(capsys.readouterr().out)["difference"]
    save_file(tensors | {"more": np.zeros(1)}, file, metadata)
    assert export("--check", out, run) == 1
    assert "more: the checkpoint's model has no such tensor" in capsys.readouterr().out


def test_nothing_that_exists_is_replaced(run, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    assert export(run, "--step", 10, "--out", out) == 0, "an empty folder holds nothing to lose"
    capsys.readouterr()
    assert "exists; delete it, or export to another folder" in refused(capsys, run, "--out", out)
    assert export("--check", out, run, "--step", 10) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_cannot_be_replaced_is_refused_before_anything_is_written(run, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    for out in (tmp_path / "link", Path("/proc")):
        words = f"{out}: a link or a mount point; export to a new folder in it"
        assert words in refused(capsys, run, "--out", out)


def test_an_export_is_durable_before_it_has_its_name(run, tmp_path, monkeypatch):
    done, fsync, rename = [], os.fsync, Path.rename

    def synced(handle):
        done.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def renamed(self, target):
        assert {self, *self.iterdir()} == set(done)
        done.clear()
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    assert export(run, "--out", tmp_path / "out", "--layout", "llama", "--max-shard-size", "9kB") == 0
    assert done == [tmp_path]


def test_a_disk_that_is_full_is_named_and_nothing_is_left(run, tmp_path, capsys):
    size = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, size[1]))
    try:
        status = export(run, "--out", tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, size)
        signal.signal(signal.SIGXFSZ, ignored)
    assert status == 1
    assert f"{tmp_path}/out: " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_export_of_a_damaged_checkpoint_leaves_no_file(tmp_path, capsys):
    uri = f"file://{tmp_path}/run"
    save(uri, 10, random_theta())
    part = tmp_path / "run/global/10/shard-1-of-2.json"
    content = json.loads(part.read_text())
    content["tensors"]["final/norm"]["theta"][0] ^= 1
    part.write_text(json.dumps(content))
    assert export(uri, "--out", tmp_path / "out") == 1
    assert "theta final/norm: checksum" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


IMPOSSIBLE = {
    "no-such-step": (["{run}", "--step", "15", "--out", "{here}/x"], "step 15: file://"),
    "no-checkpoint": (["file://{here}", "--out", "{here}/x"], "no complete checkpoint here"),
    "no-parent": (["{run}", "--out", "{here}/no/x"], "there is no folder {here}/no"),
    "layout": (["{run}", "--out", "{here}/x", "--layout", "qwen2-moe"], "this model is dense; llama"),
    "nothing-to-check": (["--check", "{here}/x", "{run}"], "no export here"),
    "no-folder": (["--check", "{here}/file", "{run}"], "{here}/file: no export here"),
}


@pytest.mark.parametrize(("arguments", "words"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_command_is_one_sentence_and_status_2(run, tmp_path, capsys, arguments, words):
    (tmp_path / "file").write_text("some text")
    filled = [each.format(run=run, here=tmp_path) for each in arguments]
    assert words.format(here=tmp_path) in refused(capsys, *filled)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_shard_that_is_missing_or_cut_short_is_named(run, tmp_path, capsys):
    export(run, "--out", tmp_path / "out", "--max-shard-size", "9kB")
    capsys.readouterr()
    second = sorted((tmp_path / "out").glob("*.safetensors"))[1]
    second.write_bytes(second.read_bytes()[:-1])
    for _ in range(2):
        message = refused(capsys, "--check", tmp_path / "out", run)
        assert f"{second}: not a whole safetensors file" in message
        second.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("[]", "index.json: not an index"),
        ('{"weight_map": {"w": 3}}', "index.json: not an index"),
        ('{"weight_map": {}}', "model.safetensors: not a whole safetensors file"),
    ],
)
def test_invalid_index_is_named(run, tmp_path, capsys, index, words):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert words in refused(capsys, "--check", tmp_path, run)


def test_file_of_another_program_is_not_an_export(run, tmp_path, capsys):
    file = tmp_path / "model.safetensors"
    save_file({"w": np.zeros(3)}, file, {"format": "pt"})
    assert f"{file}: not written by atoll export" in refused(capsys, "--check", tmp_path, run)
    header = {"version": "9", "step": "1", "checkpoint": "", "layout": "float32", "dtype": "float32"}
    header["model"] = SMALL.model_dump_json(by_alias=True, exclude_none=True)
    save_file({"w": np.zeros(3)}, file, {f"atoll.{key}": value for key, value in header.items()})
    words = "atoll.layout: 'float32': Input should be 'atoll', 'llama' or 'qwen2-moe'"
    assert words in refused(capsys, "--check", tmp_path, run)


def make_data(folder, tokenizer):
    (folder / "text").mkdir()
    for number in range(20):
        (folder / "text" / f"{number}.txt").write_text(f"document {number}\n" * 20)
    uri = f"file://{folder}/data"
    run_import(uri, Order(sources.files([str(folder / "text")], None, "text"), tokenizer, held_out=0.3))
    return uri


@pytest.mark.parametrize(
    ("separator", "special"), [("<|endoftext|>", True), ("Ċ", False)], ids=["usual", "a line's end"]
)
def test_the_tokenizer_of_the_data_set_goes_beside_the_weights(run, tmp_path, separator, special):
    """Its separator is given by name, not by the text that it represents. It adds no special tokens, as the import did
    not, though its file says that each text begins with one."""
    file, out = tmp_path / "tokenizer.json", tmp_path / "out"
    trained = train_tokenizer(file, ["a document"], 256, [separator] * special, whole=not special)
    number = trained.token_to_id(separator)
    trained.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{separator} $A", special_tokens=[(separator, number)]
    )
    trained.save(str(file))
    uri = make_data(tmp_path, from_path(str(file), separator))
    assert export(run, "--out", out, "--layout", "llama", "--data", uri) == 0
    written = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    assert written.encode("a document").ids == trained.encode("a document", add_special_tokens=False).ids
    assert json.loads((out / "tokenizer_config.json").read_text())["eos_token"] == separator
    assert json.loads((out / "config.json").read_text())["eos_token_id"] == number
    assert export(run, "--out", tmp_path / "plain", "--data", uri) == 0
    assert not (tmp_path / "plain" / "config.json").exists()


def test_bytes_bring_the_number_of_their_separator_and_no_file(run, tmp_path):
    uri = make_data(tmp_path, from_path("bytes"))
    assert export(run, "--out", tmp_path / "out", "--layout", "llama", "--data", uri) == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]


def test_data_set_of_another_model_is_refused(tmp_path, capsys):
    uri = make_data(tmp_path, from_path("bytes"))
    spec = ModelSpec(dimensions=SMALL.dimensions.model_copy(update={"vocabulary": 100}))
    save(f"file://{tmp_path}/run", 1, random_theta(spec), spec)
    words = [f"file://{tmp_path}/run", "--out", tmp_path / "out", "--layout", "llama", "--data", uri]
    assert "a vocabulary of 256, the model has 100" in refused(capsys, *words)
