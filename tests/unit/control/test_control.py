"""The control socket on real Unix sockets, under both loops, with peers that mean no good."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from netreeve.control import client, server
from netreeve.errors import NetreeveError

NOBODY = 65534
STATUS = {"node": "n1", "in_sync": True, "names": ["tap\udcff"]}


@pytest.fixture
def path(tmp_path: Path) -> str:
    # Short, whatever pytest's own directory is called: a socket's path has 107 bytes.
    return str(tmp_path / "c.sock")


def there(path: str) -> bool:
    return os.path.lexists(path)


def put(kind: str, path: str) -> None:
    if kind == "file":
        Path(path).write_text("precious")
    elif kind == "directory":
        Path(path).mkdir()
    else:
        Path(path).symlink_to("nowhere")


@asynccontextmanager
async def serving(
    path: str, status: Callable[[], Mapping[str, Any]] = lambda: STATUS
) -> AsyncIterator[server.ControlServer]:
    made = server.ControlServer(path, status)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def ask(path: str, resource: str = "/v1/status", timeout_s: float = 5.0) -> dict[str, Any]:
    return await asyncio.to_thread(client.get, path, resource, timeout_s)


async def ask_as(uid: int, path: str) -> tuple[int, str]:
    """The exit code and standard error of a client of another user (root's own modules in hand)."""
    script = (
        "import os, sys\n"
        "from netreeve.control import client\n"
        "from netreeve.errors import NetreeveError\n"
        f"os.setgroups([]); os.setgid({uid}); os.setuid({uid})\n"
        "try: print(client.get(sys.argv[1], '/v1/status'))\n"
        "except NetreeveError as error: print(error, file=sys.stderr); sys.exit(error.exit_code)\n"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    _, err = await child.communicate()
    assert child.returncode is not None
    return child.returncode, err.decode()


async def test_the_status_arrives_as_it_was_given(path: str) -> None:
    async with serving(path):
        assert await ask(path) == STATUS
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
    assert not there(path)


async def test_the_mode_is_never_wider_whatever_the_umask(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    bind = socket.socket.bind

    def watched(self: socket.socket, address: str) -> None:
        bind(self, address)
        modes.append(stat.S_IMODE(os.lstat(address).st_mode))

    monkeypatch.setattr(socket.socket, "bind", watched)
    before = os.umask(0)
    try:
        async with serving(path):
            pass
    finally:
        os.umask(before)
    assert modes == [0o600]


async def test_directories_are_made_and_are_not_for_everybody(tmp_path: Path) -> None:
    path = str(tmp_path / "run" / "netreeve" / "c.sock")
    before = os.umask(0)
    try:
        async with serving(path):
            assert await ask(path) == STATUS
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.lstat(tmp_path / "run" / "netreeve").st_mode) == 0o755


async def test_another_user_is_kept_out_by_the_mode(path: str) -> None:
    open_the_way(path)
    async with serving(path):
        code, text = await ask_as(NOBODY, path)
        assert code == 77
        assert text.startswith(f"no permission to use the control socket {path}: run this as root")


async def test_another_user_is_kept_out_by_its_id_where_the_mode_was_opened(path: str) -> None:
    open_the_way(path)
    async with serving(path):
        os.chmod(path, 0o777)
        code, text = await ask_as(NOBODY, path)
        assert (code, text.startswith("no permission")) == (77, True)
        assert await ask(path) == STATUS


def open_the_way(path: str) -> None:
    """Let everybody reach the socket's directory, which pytest keeps to root."""
    for parent in Path(path).parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
        if parent == Path("/tmp"):
            break


async def test_what_a_dead_agent_left_is_replaced(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
        dead.listen()
    async with serving(path):
        assert await ask(path) == STATUS


async def test_a_living_agent_keeps_its_socket(path: str) -> None:
    async with serving(path):
        with pytest.raises(NetreeveError, match=r"NETREEVE_CONTROL_SOCKET\): an agent that runs"):
            await server.ControlServer(path, dict).start()
        assert await ask(path) == STATUS


async def test_an_agent_that_is_stopped_and_has_a_full_backlog_lives(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as stopped, socket.socket(socket.AF_UNIX) as waiting:
        stopped.bind(path)
        stopped.listen(0)
        waiting.connect(path)
        with pytest.raises(NetreeveError, match="an agent that runs already has it"):
            await server.ControlServer(path, dict).start()
        assert there(path)


async def test_of_many_that_start_at_once_on_a_dead_socket_one_gets_it(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    servers = [server.ControlServer(path, lambda: STATUS) for _ in range(10)]
    ends = await asyncio.gather(*(s.start() for s in servers), return_exceptions=True)
    try:
        assert sum(end is None for end in ends) == 1
        assert all(end is None or type(end) is NetreeveError for end in ends)
        assert await ask(path) == STATUS
    finally:
        for each in servers:
            await each.stop()
    assert not there(path)


@pytest.mark.parametrize("kind", ["file", "directory", "dangling symlink"])
async def test_what_is_no_socket_is_left_alone(path: str, kind: str) -> None:
    put(kind, path)
    with pytest.raises(NetreeveError, match="something that is no socket is there"):
        await server.ControlServer(path, dict).start()
    assert there(path)


@pytest.mark.parametrize("path", ["/proc/netreeve/c.sock", "/dev/null/c.sock", "/tmp/" + "x" * 200])
async def test_a_path_that_cannot_be_is_an_error_that_names_the_variable(path: str) -> None:
    with pytest.raises(NetreeveError, match="NETREEVE_CONTROL_SOCKET"):
        await server.ControlServer(path, dict).start()


async def test_stop_leaves_the_socket_of_a_successor(path: str) -> None:
    async with serving(path):
        os.unlink(path)
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(path)
    assert there(path)


async def test_stop_does_not_wait_for_a_client_that_dawdles(path: str) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as half, socket.socket(socket.AF_UNIX) as idle:
        async with serving(path):
            half.connect(path)
            half.sendall(b"GET /v1/status HT")
            idle.connect(path)
            assert await ask(path) == STATUS
            begun = loop.time()
        assert loop.time() - begun < 2.5


async def test_stop_twice_and_without_start(path: str) -> None:
    made = server.ControlServer(path, dict)
    await made.stop()
    await made.start()
    await made.stop()
    await made.stop()


async def test_a_status_that_fails_is_500_and_the_next_one_is_well(path: str) -> None:
    answers: list[Mapping[str, Any] | None] = [STATUS, None]

    def status() -> Mapping[str, Any]:
        answer = answers.pop()
        if answer is None:
            raise RuntimeError("broken")
        return answer

    async with serving(path, status):
        with pytest.raises(NetreeveError, match="answered 500 Internal Server Error"):
            await ask(path)
        assert await ask(path) == STATUS


async def test_an_unknown_resource_is_404(path: str) -> None:
    async with serving(path):
        with pytest.raises(NetreeveError, match="answered 404 Not Found to /v2"):
            await ask(path, "/v2")


async def test_no_agent(path: str) -> None:
    with pytest.raises(NetreeveError, match=r"there is no control socket .* `netreeve run`"):
        await ask(path)
    with pytest.raises(NetreeveError, match="NETREEVE_CONTROL_SOCKET is empty"):
        client.get(None, "/v1/status")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with pytest.raises(NetreeveError, match=r"no agent answers on .* NETREEVE_CONTROL_SOCKET"):
        await ask(path)


async def test_an_agent_that_is_stopped_does_not_hold_the_client_up(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(path)
        stopped.listen()
        with pytest.raises(NetreeveError, match=r"did not answer within 0\.2 seconds"):
            await ask(path, timeout_s=0.2)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "failed: RemoteDisconnected"),
        (b"SSH-2.0\r\n", "failed: BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "failed: IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "gave no JSON object"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{x", "gave no JSON object"),
    ],
)
async def test_something_else_that_listens(path: str, answer: bytes, words: str) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    other = await asyncio.start_unix_server(speak, path)
    try:
        with pytest.raises(NetreeveError, match=words):
            await ask(path)
    finally:
        other.close()
        await other.wait_closed()


def test_a_client_of_another_user_who_cannot_search_the_directory(tmp_path: Path) -> None:
    """EACCES comes from the path as well as from the socket itself; the words are the same."""
    tmp_path.chmod(0o700)
    code, text = asyncio.run(ask_as(NOBODY, str(tmp_path / "c.sock")))
    assert (code, text.startswith("no permission")) == (77, True)


# -- questions and orders -------------------------------------------------------------------------


async def echo(given: Mapping[str, Any]) -> dict[str, Any]:
    if "bad" in given:
        raise server.Misunderstood("it is bad")
    return {"given": dict(given)}


@asynccontextmanager
async def echoing(path: str) -> AsyncIterator[None]:
    made = server.ControlServer(
        path, lambda: STATUS, questions={"/v1/ask": echo}, orders={"/v1/do": echo}
    )
    await made.start()
    try:
        yield
    finally:
        await made.stop()


@pytest.mark.parametrize("subject", ["cali1", "10.65.0.2/32", "a b&c=d?é%2F", "tap\udcff", ""])
async def test_a_question_arrives_as_it_was_put(path: str, subject: str) -> None:
    async with echoing(path):
        query = {"subject": subject}
        answer = await asyncio.to_thread(client.get, path, "/v1/ask", 5.0, query)
        assert answer == {"given": query}


async def test_an_order_arrives_as_it_was_given(path: str) -> None:
    async with echoing(path):
        order = {"release_brake": True, "name": "tap\udcff"}
        assert await asyncio.to_thread(client.post, path, "/v1/do", order) == {"given": order}
        for resource, given in (("/v1/do", {"bad": 1}), ("/v1/do", {"x": "y" * 70_000})):
            with pytest.raises(NetreeveError, match=r"answered 4\d\d"):
                await asyncio.to_thread(client.post, path, resource, given)
        # What asks changes nothing, and what changes is not done by asking.
        with pytest.raises(NetreeveError, match="405"):
            await ask(path, "/v1/do")
        with pytest.raises(NetreeveError, match="405"):
            await asyncio.to_thread(client.post, path, "/v1/ask", {})
        assert await ask(path) == STATUS


async def test_no_agent_is_told_apart_from_one_that_fails(path: str) -> None:
    with pytest.raises(client.NoAgent):
        await ask(path)
    async with echoing(path):
        with pytest.raises(NetreeveError) as caught:
            await ask(path, "/v1/nothing")
        assert not isinstance(caught.value, client.NoAgent)
