"""Imports: text, lines, JSON lines and parquet become a data set."""

import gzip
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import sentencepiece
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tokenizer_files import train_tokenizer

from atoll_cli.__main__ import main
from atoll_runtime.checkpoint import Bucket, StoreError
from atoll_runtime.data import DataError, Reader, open_catalogue
from atoll_runtime.data.check import check
from atoll_runtime.data.importer import Order, run_import, sources
from atoll_runtime.data.tokenizer import Bytes, from_path, of_data

TEXTS = [f"document {number}: " + "lorem ipsum dolor " * (number % 23) for number in range(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same texts in two jsonl files."""
    folder = tmp_path_factory.mktemp("source")
    for name, texts in (("a", TEXTS[:120]), ("b", TEXTS[120:])):
        lines = "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts)
        (folder / f"{name}.jsonl").write_text(lines)
    return folder


@pytest.fixture
def order(folder):
    return Order(sources.files([str(folder)], None, "text"), Bytes(), shard_bytes=8000)


def documents(uri, split):
    """The documents of a split, divided at separators and decoded by the tokenizer that is stored with them."""
    bucket = Bucket(uri)
    catalogue = open_catalogue(bucket)
    raw = b"".join(bucket.read(shard.file) for shard in catalogue.splits[split].shards)
    tokens = np.frombuffer(raw, catalogue.token_type)
    *found, rest = np.split(tokens, np.flatnonzero(tokens == catalogue.separator) + 1)
    assert not rest.size, "the last document ends too"
    tokenizer = of_data(bucket)
    return [tokenizer.decode(each[:-1]) for each in found]


def failing(patch, count):
    """Makes the bucket refuse writes from number `count` on."""
    whole, left = Bucket.write, count

    def write(self, path, data):
        nonlocal left
        left -= 1
        if left < 0:
            raise StoreError("refused")
        whole(self, path, data)

    patch.setattr(Bucket, "write", write)


def test_killed_import_leaves_no_data_set_and_can_be_repeated(order, tmp_path, monkeypatch):
    uri = f"file://{tmp_path}/set"
    run_import(f"file://{tmp_path}/whole", order)
    for writes in range(1, 5):
        failing(monkeypatch, writes)
        with pytest.raises(StoreError, match="refused"):
            run_import(uri, order)
        monkeypatch.undo()
        with pytest.raises(DataError, match=r"no data set here: meta\.json is missing"):
            open_catalogue(Bucket(uri))
    run_import(uri, order)
    repeated, whole = Bucket(uri), Bucket(f"file://{tmp_path}/whole")
    assert {name: repeated.read(name) for name in repeated.list()} == {
        name: whole.read(name) for name in whole.list()
    }


def test_data_set_is_never_overwritten(order, tmp_path):
    uri = f"file://{tmp_path}/set"
    run_import(uri, order)
    with pytest.raises(DataError, match=r"meta.json: a data set is here already; delete it, or"):
        run_import(uri, replace(order, shard_bytes=6000))
    assert check(uri)[1] == []


@settings(max_examples=15)
@given(
    texts=st.lists(
        st.text(max_size=40).filter(lambda text: "\0" not in text), min_size=3, max_size=40
    ).filter(any),
    shard=st.integers(1, 60),
)
def test_every_document_comes_once_in_its_order(tmp_path_factory, texts, shard):
    folder = tmp_path_factory.mktemp("property")
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    given = sources.files([str(folder / "in.jsonl")], None, "text")
    uri = f"file://{folder}/set"
    catalogue = run_import(uri, Order(given, Bytes(), held_out=0, shard_bytes=shard))
    assert all(each.tokens <= shard for each in catalogue.splits["train"].shards)
    assert documents(uri, "train") == [text for text in texts if text]
    assert check(uri)[1] == []


def test_document_is_held_out_by_its_text_alone(order, folder, tmp_path):
    run_import(f"file://{tmp_path}/all", order)
    run_import(f"file://{tmp_path}/half", replace(order, sources=order.sources[:1]))
    everywhere = {split: documents(f"file://{tmp_path}/all", split) for split in ("train", "heldout")}
    assert sorted(everywhere["train"] + everywhere["heldout"]) == sorted(TEXTS)
    assert 2 <= len(everywhere["heldout"]) <= 40, "5 % of 300"
    assert set(documents(f"file://{tmp_path}/half", "heldout")) <= set(everywhere["heldout"])


def write_parquet(path):
    parquet.write_table(pyarrow.table({"text": TEXTS, "n": range(300)}), path, row_group_size=70)


OBJECTS = "\n".join(json.dumps({"text": text}) for text in TEXTS).encode()
FILES = {
    "in.txt": lambda path: path.write_text(TEXTS[20]),
    "lines.txt": lambda path: path.write_text("\n\n".join(TEXTS)),
    "in.jsonl": lambda path: path.write_bytes(OBJECTS),
    "in.jsonl.gz": lambda path: path.write_bytes(gzip.compress(OBJECTS)),
    "in.parquet": write_parquet,
}


@pytest.mark.parametrize("name", FILES)
def test_each_kind_of_file_gives_its_documents(name, tmp_path):
    FILES[name](tmp_path / name)
    form = "lines" if name == "lines.txt" else None
    (source,) = sources.files([str(tmp_path / name)], form, "text")
    found = list(source.documents())
    assert [text for text, _ in found] == ([TEXTS[20]] if name == "in.txt" else TEXTS)
    assert found[-1][1] == (0.0 if name.endswith(".gz") else 1.0)


@pytest.fixture(scope="module")
def tokenizer_json(tmp_path_factory):
    """It is configured to truncate texts at eight tokens."""
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    train_tokenizer(path, TEXTS, 400, ["<pad>", "<|endoftext|>"], longest=8)
    return path


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("unigram") / "spm.model"
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS), model_writer=file, vocab_size=60, minloglevel=2
        )
    return path


@pytest.mark.parametrize("kind", ["tokenizer_json", "sentencepiece_model"])
def test_a_tokenizer_is_stored_beside_the_data_and_reads_it_again(kind, request, order, tmp_path):
    path = request.getfixturevalue(kind)
    uri = f"file://{tmp_path}/set"
    own = replace(order, tokenizer=from_path(str(path)), held_out=0, shard_bytes=2000)
    catalogue = run_import(uri, own)
    assert catalogue.dtype == ("uint16" if catalogue.vocabulary > 256 else "uint8")
    found = documents(uri, "train")
    assert [text.rstrip() for text in found] == [text.rstrip() for text in TEXTS], "texts are not cut off"
    Bucket(uri).write(catalogue.tokenizer_file.file, path.read_bytes() + b" ")
    with pytest.raises(DataError, match="sha256"):
        check(uri)


def test_separator_inside_a_text_does_not_end_it(tokenizer_json):
    tokenizer = from_path(str(tokenizer_json))
    (tokens,) = tokenizer.encode(["one<|endoftext|>two"])
    assert tokenizer.decode(tokens) == "onetwo"
    assert Bytes().decode(Bytes().encode(["one\0two"])[0]) == "onetwo"


def parquet_of(data):
    """A parquet file with one row of text that holds these bytes."""
    text = pyarrow.array([data]).view(pyarrow.string())
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table({"text": text}), sink)
    return sink.getvalue().to_pybytes()


BAD_SOURCES = {
    "type": ("a.jsonl", b'{"text": "x"}\n\n{"text": 3}\n', r"a.jsonl: line 3: field 'text'.*int"),
    "field": ("a.jsonl", b'{"body": "x"}', r"line 1: field 'text' is missing; there is 'body'"),
    "json": ("a.jsonl", b'{"text": "x"}\n{', r"a.jsonl: line 2: not JSON"),
    "utf8": ("a.txt", b"caf\xe9", r"a.txt: line 1: not UTF-8"),
    "utf8-later": ("a.txt", b"\xef\xbb\xbfa\n\ncaf\xe9", r"a.txt: line 3: not UTF-8"),
    "utf8-parquet": ("a.parquet", parquet_of(b"caf\xe9"), r"a.parquet: row 1: column 'text': not UTF-8"),
    "gzip": ("a.jsonl.gz", b"nothing", r"a.jsonl.gz: Not a gzipped file"),
    "parquet": ("a.parquet", b"nothing", r"a.parquet: "),
    "nested": ("a.jsonl", b"[" * 100_000, r"a.jsonl: line 1: its brackets are nested too"),
    "suffix": ("a.bin", b"x", r"a.bin: its name does not tell .* --format: text, lines"),
    "csv": ("a.csv", b"x", r"a.csv: its name .*; --format lines fits where each line is"),
    "array": ("a.json", b"x", r"a.json: its name .*; --format jsonl fits where each line"),
    "ndjson": ("a.ndjson.gz", b"x", r"a.ndjson.gz: its name .*; --format jsonl fits"),
    "empty": ("a.txt", b"", r"set: no document of the sources has any text"),
}


@pytest.mark.parametrize(("name", "content", "named"), BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_a_bad_source_is_named_by_file_line_and_field(name, content, named, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    assert main(["data", "import", f"file://{tmp_path}/set", str(tmp_path / name)]) == 2
    assert re.search(named, capsys.readouterr().err)
    assert not (tmp_path / "set" / "meta.json").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--tokenizer", "none.json"], "tokenizer none.json: No such file"),
        (["--tokenizer", "/dev/null"], "tokenizer /dev/null: the file is empty"),
        (["--tokenizer", "x.bin"], "tokenizer x.bin: "),
        (["--separator", "<eos>"], "bytes are separated by the byte 0"),
        (["--format", "parquet", "--field", "body"], "a.jsonl: "),
        (["--format", "lines", "--field", "body"], "--field 'body' goes with jsonl and parquet"),
    ],
)
def test_an_option_that_is_impossible_or_without_effect_is_named(options, named, tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}')
    assert main(["data", "import", f"file://{tmp_path}/set", str(tmp_path), *options]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("a.txt", b"\xef\xbb\xbfone", id="byte-order-mark"),
        pytest.param("a.jsonl", b'\xef\xbb\xbf{"text": "one"}', id="byte-order-mark-of-jsonl"),
        pytest.param("a.jsonl", f'{{"n": {"7" * 5000}, "text": "one"}}'.encode(), id="long-number"),
        pytest.param("a.jsonl", b'{"text": null}\n{"text": "one"}\n{"text": ""}', id="no-text"),
    ],
)
def test_what_is_no_part_of_a_text_does_not_matter(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    found = sources.files([str(tmp_path / name)], None, "text")
    run_import(f"file://{tmp_path}/set", Order(found, Bytes(), held_out=0))
    assert documents(f"file://{tmp_path}/set", "train") == ["one"]


@pytest.mark.parametrize(
    ("vocabulary", "named"),
    [({}, "no token '<eos>' to end"), ({"<eos>": 0, "x": 1}, "cannot encode a text: .*UNK")],
    ids=["empty", "a word without a token"],
)
def test_a_tokenizer_that_cannot_serve_is_named(vocabulary, named, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("y")
    file = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary)).save(str(file))
    given = ["data", "import", f"file://{tmp_path}/set", str(tmp_path / "a.txt"), "--separator", "<eos>"]
    assert main([*given, "--tokenizer", str(file)]) == 2
    assert re.search(f"tokenizer {file}: {named}", capsys.readouterr().err)


def test_import_with_an_empty_split_names_the_option_and_leaves_no_file(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "the same"}\n' * 1001)
    given = ["data", "import", f"file://{tmp_path}/set", str(tmp_path / "a.jsonl"), "--shard", "0.001"]
    assert main(given) == 2
    err = capsys.readouterr().err
    assert "--held-out 0.05: no document is held out" in err
    assert "--format" not in err, "each line is a document already"
    assert not [path for path in (tmp_path / "set").rglob("*") if path.is_file()]
    assert main([*given, "--held-out", "0"]) == 0


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "train/../../secret"])
def test_a_catalogue_that_names_what_lies_outside_the_data_set_is_refused(order, tmp_path, name):
    uri = f"file://{tmp_path}/set"
    run_import(uri, order)
    (tmp_path / "secret").write_bytes(b"secret")
    meta = json.loads(Bucket(uri).read("meta.json"))
    meta["splits"]["train"]["shards"][0]["file"] = name
    Bucket(uri).write("meta.json", json.dumps(meta).encode())
    with pytest.raises(
        DataError, match=rf"splits.train.shards.0.file: '{name}': .* below the data set's URI"
    ):
        Reader(uri, "train", 10)


def test_check_finds_every_object_that_is_not_what_it_was(order, tmp_path, capsys):
    uri = f"file://{tmp_path}/set"
    run_import(uri, order)
    assert main(["data", "check", uri]) == 0
    *splits, facts, verdict = capsys.readouterr().out.splitlines()
    assert splits[0].startswith("train: ") and splits[1].endswith("tokens in 1 shard")
    assert (facts, verdict) == (f"{uri}: bytes, vocabulary 256", "all is well")
    bucket = Bucket(uri)
    bucket.delete("train/00001.tokens")
    bucket.write("train/00002.tokens", bucket.read("train/00002.tokens")[:-1])
    bucket.write("train/00003.tokens", b"x" + bucket.read("train/00003.tokens")[1:])
    capsys.readouterr()
    assert main(["data", "check", uri, "--json"]) == 1
    wrong = json.loads(capsys.readouterr().out)["wrong"]
    assert [line.removeprefix(f"{uri}/train/") for line in wrong][:2] == [
        "00001.tokens: is missing",
        "00002.tokens: ends after 7999 bytes, meta.json has 8000",
    ]
    assert len(wrong) == 3
    assert main(["data", "check", uri]) == 1
    assert capsys.readouterr().out.endswith("\n3 faults\n")
    assert "00003.tokens: crc32c is" in wrong[2]


def test_the_command_imports_and_shows_an_example_as_text(folder, tmp_path, capsys):
    uri = f"file://{tmp_path}/set"
    assert main(["data", "import", uri, str(folder / "*.jsonl"), "--shard", "0.01", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert sum(facts["tokens"].values()) == sum(len(text) + 1 for text in TEXTS)
    assert main(["data", "show", uri, "--length", "20", "--example", "2"]) == 0
    expected = bytes(Reader(uri, "train", 20).example(2).astype(np.uint8)).decode()
    assert capsys.readouterr().out == expected + "\n"
    assert main(["data", "show", uri, "--example", "99999"]) == 2
    assert "--example 99999: there are" in capsys.readouterr().err


def test_files_are_taken_once_and_in_an_order_that_does_not_depend_on_where_they_lie(folder, tmp_path):
    (tmp_path / "other").symlink_to(folder)
    given = [str(folder / "b.jsonl"), str(folder), str(folder / "a*")]
    assert [source.path.name for source in sources.files(given, None, "text")] == ["b.jsonl", "a.jsonl"]
    names = [
        [each.path.name for each in sources.files([str(where)], None, "text")]
        for where in (folder, tmp_path / "other")
    ]
    assert names[0] == names[1] == ["a.jsonl", "b.jsonl"]
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.txt").write_text("b")
    (tmp_path / "deep" / "model.bin").write_text("c")
    found = sources.files([str(tmp_path / "**")], None, "text")
    assert [source.path.name for source in found] == ["b.txt", "a.jsonl", "b.jsonl"], "a glob is as a folder"
    with pytest.raises(
        DataError, match=r"m\*: no name of its files \(1\) tells a format; name it with --format"
    ):
        sources.files([str(tmp_path / "deep" / "m*")], None, "text")
    (tmp_path / "deep" / ".cache").mkdir()
    for hidden in (".b.txt", ".cache/c.txt"):
        (tmp_path / "deep" / hidden).write_text("left out")
    for deep in ("deep", "deep/**"):
        assert len(sources.files([str(tmp_path / deep)], "lines", "text")) == 2
    with pytest.raises(DataError, match="nothing: no such file"):
        sources.files([str(Path(tmp_path, "nothing"))], None, "text")


def test_a_folder_below_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "books" / "shut").mkdir(parents=True)
    (tmp_path / "books" / "a.txt").write_text("a")
    (tmp_path / "books" / "shut").chmod(0)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # a path that begins here needs no right on the folders above
    own = os.geteuid()
    os.seteuid(own or 65534)
    try:
        with pytest.raises(DataError, match="books/shut: Permission denied"):
            sources.files(["books"], None, "text")
    finally:
        os.seteuid(own)


def test_unwritable_target_is_named(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}')
    assert main(["data", "import", "file:///proc/none/set", str(tmp_path / "a.jsonl")]) == 1
    assert "file:///proc/none/set: cannot be written" in capsys.readouterr().err
