from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from netreeve.cli.main import main
from netreeve.io.journal import Journal
from netreeve.model.backoff import Backoff
from netreeve.status.transition import Transition, encode
from tests.support.transitions import closing, flap

COMMAND = [sys.executable, "-c", "import sys; from netreeve.cli.main import main; sys.exit(main())"]


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NETREEVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETREEVE_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")


@contextmanager
def journal_at(path: Path) -> Iterator[Journal]:
    journal = Journal.open(
        path, sinks=(), max_bytes=1 << 30, retention_s=86400, retry=Backoff(1, 2), where="here"
    )
    try:
        yield journal
    finally:
        asyncio.run(journal.close())


def fill(path: Path, *transitions: Transition) -> None:
    with journal_at(path) as journal:
        journal.append(transitions)


@contextmanager
def following(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*COMMAND, "log", "--json", "--follow", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def next_record(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    record = json.loads(process.stdout.readline())
    assert isinstance(record, dict)
    return record


def test_json_is_the_record_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, *map(flap, range(1, 4)))
    assert main(["log", "--json"]) == 0
    assert capsys.readouterr().out.encode() == b"".join(
        encode(flap(seq)) + b"\n" for seq in range(1, 4)
    )


def test_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Transition(
        2, "k8s/default%2Fweb-0/eth0", None, "down", None, "link-down", "tap\x1b1", None, True,
        "2026-01-02T03:04:05.678Z", flaps=3,
    )  # fmt: skip
    fill(tmp_path, flap(1), other)
    with journal_at(tmp_path) as journal:
        journal.append(closing_of(journal))
    assert main(["log"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "      1  2026-01-02 03:04:05.678  k8s/web/eth0     down → up       cali1 (12)",
        "      2  2026-01-02 03:04:05.678  k8s/default%2Fweb-0/eth0        - → down"
        "     tap\\x1b1                link-down, inferred, 3 times",
        "      3  2026-01-02 03:04:05.678  gap: 9 transitions since 2026-01-02 03:04:05.678"
        " not recorded: no \\x07room",
        "      4  2026-01-02 03:04:05.678  k8s/web/eth0                    - → up       cali1 (12)",
    ]


def closing_of(journal: Journal) -> list[Transition]:
    from netreeve.status.transition import Gap

    return closing(Gap(9, "2026-01-02T03:04:05.678Z", "no \x07room"), {}, journal.next_seq)


@pytest.mark.parametrize(
    ("arguments", "seqs"),
    [
        ([], [1, 2, 3, 4, 5, 6]),
        (["--since-seq", "3"], [3, 4, 5, 6]),
        (["-n", "2"], [5, 6]),
        (["-n", "0"], []),
        (["--endpoint", "k8s/b/eth0"], [2, 4, 6]),
        (["--endpoint", "k8s/b/eth0", "-n", "2"], [4, 6]),
        (["--endpoint", "k8s/b/eth0", "--since-seq", "3"], [4, 6]),
        (["--endpoint", "k8s/other/eth0"], []),
        (["--since-seq", "7"], []),
    ],
)
def test_what_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], seqs: list[int]
) -> None:
    fill(tmp_path, *(flap(seq, f"k8s/{'ab'[seq % 2 == 0]}/eth0") for seq in range(1, 7)))
    assert main(["log", "--json", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == seqs


@pytest.mark.parametrize("arguments", [["--endpoint", "web"], ["--endpoint", "a/b%zz/c"]])
def test_an_id_that_is_none_is_bad_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["log", *arguments]) == 64
    assert "--endpoint: " in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["-n", "x"], ["--since-seq", "-1"], ["-n", "1", "--since-seq", "1"]])  # fmt: skip  # noqa: E501
def test_other_bad_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["log", *arguments])
    assert caught.value.code == 64


def test_no_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["log"]) == 1
    assert "there is no journal" in capsys.readouterr().err
    (tmp_path / "journal.sqlite").write_text("something else, and long enough for sqlite" * 50)
    assert main(["log"]) == 1
    assert "can't be read" in capsys.readouterr().err
    monkeypatch.setenv("NETREEVE_STATE_DIR", "")
    assert main(["log"]) == 1
    assert "in memory" in capsys.readouterr().err


def test_follow(tmp_path: Path) -> None:
    with journal_at(tmp_path) as journal, following(cwd=tmp_path) as process:
        journal.append(list(map(flap, range(1, 21))))
        while next_record(process)["seq"] < 20:
            pass
        journal.append([flap(21)])
        assert next_record(process)["seq"] == 21
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_follow_begins_with_the_last_ten(tmp_path: Path) -> None:
    fill(tmp_path, *map(flap, range(1, 31)))
    with following(cwd=tmp_path) as process:
        assert next_record(process)["seq"] == 21


def test_follow_survives_a_restart_and_another_journal(tmp_path: Path) -> None:
    fill(tmp_path, *map(flap, range(1, 6)))
    with following("--since-seq", "5", cwd=tmp_path) as process:
        assert next_record(process)["seq"] == 5
        fill(tmp_path, flap(6))
        assert next_record(process)["seq"] == 6
        for file in tmp_path.glob("journal.sqlite*"):
            file.unlink()
        fill(tmp_path, flap(1), flap(2))
        assert [next_record(process)["seq"] for _ in range(2)] == [1, 2]


def test_a_reader_that_leaves_ends_it_quietly(tmp_path: Path) -> None:
    fill(tmp_path, *map(flap, range(1, 3_001)))
    process = subprocess.Popen(
        [*COMMAND, "log"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    assert process.stdout is not None
    process.stdout.read(100)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(10) in (0, 128 + signal.SIGPIPE)
    process.stderr.close()


def test_a_journal_that_its_reader_may_not_write_beside(tmp_path: Path) -> None:
    """Neither root nor running agent: sqlite can't make its WAL, and need not."""
    fill(tmp_path, flap(1))
    os.chmod(tmp_path, 0o755)
    for parent in tmp_path.parents:
        if parent != Path("/tmp") and str(parent).startswith("/tmp/"):
            os.chmod(parent, 0o755)
    # A rehearsal as root loads everything: an interpreter below /root can't be read by others.
    rehearsal = tmp_path / "rehearsal"
    rehearsal.mkdir()
    fill(rehearsal, flap(1))
    code = (
        "import contextlib, io, os, sys\n"
        "from netreeve.cli.main import main\n"
        "there, os.environ['NETREEVE_STATE_DIR'] = os.environ['NETREEVE_STATE_DIR'], sys.argv[1]\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    main(['log', '--json'])\n"
        "os.environ['NETREEVE_STATE_DIR'] = there\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "sys.exit(main(['log', '--json']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(rehearsal)], capture_output=True)
    assert (done.stderr, done.stdout) == (b"", encode(flap(1)) + b"\n")
