"""A learner's process and its incarnation: claimed once, watched, and left to the kubelet and the next process."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime import process
from atoll_runtime.contract import (
    ENV_INCARNATION_FILE,
    ENV_RUN_FILE,
    ENV_UNIT,
    EXIT_RESTART,
    EXIT_TERMINAL,
    EXIT_VERSION,
    LastWords,
    UnitContract,
    dump,
)
from atoll_runtime.learner import __main__ as learner
from atoll_runtime.learner.incarnation import MESSAGE_LIMIT, Files, Incarnation, NotRestarted
from atoll_runtime.simulate.blank import unit_contract

UNIT = unit_contract("u", incarnation=3, coordinator="u-3-0:8476")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Files of a pod of incarnation 3. The kubelet makes an empty termination log for each container that it starts."""
    found = Files(tmp_path / "told", tmp_path / "memory", tmp_path / "log")
    found.told.write_text("3")
    found.termination.touch()
    return found


def restarted(files: Files) -> Incarnation:
    """Starts the next process of the container."""
    files.termination.write_text("")
    return Incarnation(files)


def test_contracts_incarnation_is_used_without_the_file(files) -> None:
    files.told.unlink()
    incarnation = Incarnation(files)
    assert incarnation.claim(UNIT) == UNIT
    incarnation.watch()
    incarnation.leave("OSError: no")
    assert LastWords.parse(files.termination.read_text()) == LastWords(3, "OSError: no")
    assert not files.memory.exists()


def test_process_takes_its_number_and_a_restarted_one_waits_for_a_greater_number(files, eventually) -> None:
    assert Incarnation(files).claim(UNIT) == UNIT
    assert LastWords.parse(files.termination.read_text()) == LastWords(3, "")
    found: list[UnitContract] = []
    second = restarted(files)
    waits = threading.Thread(target=lambda: found.append(second.claim(UNIT, wait=60, poll=0.01)))
    waits.start()
    eventually(files.termination.read_text)
    assert LastWords.parse(files.termination.read_text()).incarnation == 3, "it still speaks for the third"
    assert not found
    files.told.write_text("4")
    waits.join(30)
    assert (found[0].incarnation, found[0].coordinator) == (4, "u-3-0:8477")
    assert LastWords.parse(files.termination.read_text()) == LastWords(4, "")


def test_a_wait_in_vain_ends_with_the_last_words_of_the_one_that_failed(files) -> None:
    first = Incarnation(files)
    first.claim(UNIT)
    first.leave("OSError: the disk is full")
    for _ in range(2):
        waiting = restarted(files)
        with pytest.raises(NotRestarted, match="no incarnation after 3 within 0 s"):
            waiting.claim(UNIT, wait=0, poll=0.01)
        assert LastWords.parse(files.termination.read_text()) == LastWords(3, "OSError: the disk is full")


def test_partial_write_of_last_words_keeps_the_earlier_number(files) -> None:
    first = Incarnation(files)
    first.claim(UNIT)
    files.termination.unlink()  # only the memory file is written
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # like a full disk: no file may grow
    try:
        with pytest.raises(OSError):
            first.leave("OSError: no space")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(NotRestarted, match="no incarnation after 3"):
        Incarnation(files).claim(UNIT, wait=0, poll=0.01)


@pytest.fixture
def unasked(files, monkeypatch) -> Iterator[None]:
    """The surroundings of a learner's process without a `run.json`."""
    monkeypatch.setenv(ENV_INCARNATION_FILE, str(files.told))
    monkeypatch.setenv(ENV_UNIT, dump(UNIT))
    monkeypatch.setenv(ENV_RUN_FILE, str(files.told.with_name("run.json")))
    monkeypatch.setattr(learner, "MEMORY_FILE", str(files.memory))
    monkeypatch.setattr(learner, "TERMINATION_LOG", str(files.termination))
    monkeypatch.setattr(learner, "log_to_stderr", lambda: None)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_runs_contract_is_read_after_the_wait_for_a_number(files, unasked) -> None:
    """Else a host would ask for what the run was before the wait, and the other hosts for what it is now."""
    assert learner.main() == EXIT_TERMINAL
    words = LastWords.parse(files.termination.read_text())
    assert words.incarnation == 3 and words.text.startswith("ContractInvalid: ")


def test_a_full_disk_takes_no_exit_status(files, unasked, monkeypatch) -> None:
    monkeypatch.setenv(ENV_UNIT, "")
    monkeypatch.setattr(learner, "TERMINATION_LOG", "/dev/full")
    assert learner.main() == EXIT_VERSION
    monkeypatch.setattr(process, "TERMINATION_LOG", "/dev/full")
    assert process.fail(EXIT_TERMINAL, "DataInvalid", ValueError("no")) == EXIT_TERMINAL


def test_process_ends_itself_when_a_greater_number_appears(files, eventually) -> None:
    script = (
        "import sys, threading; from pathlib import Path\n"
        "from atoll_runtime.contract import parse_unit\n"
        "from atoll_runtime.learner.incarnation import Files, Incarnation\n"
        "incarnation = Incarnation(Files(*map(Path, sys.argv[2:])))\n"
        "incarnation.claim(parse_unit(sys.argv[1])); incarnation.watch(poll=0.01)\n"
        "threading.Event().wait(60)\n"  # like a collective with a peer that is gone
    )
    places = [str(files.told), str(files.memory), str(files.termination)]
    unit = UNIT.model_dump_json(by_alias=True)
    process = subprocess.Popen([sys.executable, "-c", script, unit, *places])
    try:
        eventually(files.memory.exists)
        files.told.write_text("4")
        assert process.wait(30) == EXIT_RESTART
    finally:
        process.kill()
        process.wait(30)
    assert LastWords.parse(files.termination.read_text()).incarnation == 3
    assert restarted(files).claim(UNIT).incarnation == 4


@given(st.integers(1, 999_999), st.text(max_size=6000))
def test_last_words_of_any_length_keep_the_number(tmp_path_factory, number, text) -> None:
    folder = tmp_path_factory.mktemp("pod")
    files = Files(folder / "told", folder / "memory", folder / "log")
    files.told.write_text(str(number))
    files.termination.touch()
    incarnation = Incarnation(files)
    incarnation.claim(UNIT.model_copy(update={"incarnation": number}))
    incarnation.leave(text)
    content = files.termination.read_bytes()
    words = LastWords.parse(content.decode())
    assert len(content) <= MESSAGE_LIMIT
    assert words.incarnation == number
    assert text.strip().startswith(words.text)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("incarnation 3", LastWords(3)),
        ("incarnation 3\n", LastWords(3)),
        ("incarnation 3\nOSError: no\n", LastWords(3, "OSError: no")),
        ("incarnation 33rd", LastWords(None, "incarnation 33rd")),
        ("", LastWords(None)),
    ],
)
def test_any_message_of_a_container_can_be_read(message, words) -> None:
    assert LastWords.parse(message) == words
