"""The client: members, certificates, passwords, and what each refusal is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from netreeve.io.etcd import client as client_module
from netreeve.io.etcd.access import Access, Login, Tls
from netreeve.io.etcd.client import EtcdClient, prefix_end
from netreeve.io.etcd.errors import (
    EtcdRefused,
    EtcdTooLarge,
    EtcdTooManyOps,
    EtcdUnavailable,
)
from netreeve.io.etcd.write import Write
from tests.support.etcd import VERSIONS, Etcd, free_port

pytestmark = pytest.mark.parametrize("version", list(VERSIONS))


@asynccontextmanager
async def connected(etcd: Etcd, access: Access | None = None) -> AsyncIterator[EtcdClient]:
    client = EtcdClient([etcd.endpoint], access or Access())
    await client.connect()
    try:
        yield client
    finally:
        await client.close()


async def test_guarded_writes_and_pages(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_PAGE", 3)
    with Etcd(version=version) as etcd:
        async with connected(etcd) as client:
            assert await client.get(b"g") is None
            assert not await client.write_if(b"g", b"x", [Write(b"p/0", b"no")])
            assert await client.write_if(b"g", None, [Write(b"g", b"1"), Write(b"p/0", b"v")])
            assert not await client.write_if(b"g", None, [Write(b"g", b"2")])
            many = [Write(b"p/%d" % n, b"%d" % n) for n in range(8)]
            assert await client.write_if(b"g", b"1", [*many, Write(b"q", b"other")])
            assert await client.write_if(b"g", b"1", [Write(b"p/3", None), Write(b"none", None)])
            pages = [page async for page in client.pages(b"p/")]
            assert [len(page) for page in pages] == [3, 3, 1]
            assert [key for page in pages for key, _ in page] == [
                b"p/%d" % n for n in range(8) if n != 3
            ]
            assert [page async for page in client.pages(b"absent")] == [[]]

            lease = await client.lease_grant(5)
            assert await client.lease_renew(lease)
            assert await client.write_if(b"g", b"1", [Write(b"leased", b"v", lease)])
            assert not await client.lease_renew(12345)


async def test_refusals(version: str) -> None:
    with Etcd("--max-request-bytes=10000", version=version) as etcd:
        async with connected(etcd) as client:
            with pytest.raises(EtcdTooManyOps):
                await client.write_if(b"g", None, [Write(b"%d" % n, b"") for n in range(129)])
            for size in (20_000, 2_000_000):  # what etcd refuses, and what its gRPC does
                with pytest.raises(EtcdTooLarge):
                    await client.write_if(b"g", None, [Write(b"k", b"x" * size)])
            with pytest.raises(EtcdRefused, match="duplicate key"):
                await client.write_if(b"g", None, [Write(b"k", b"1"), Write(b"k", b"2")])
            assert client.is_connected


async def test_the_next_member_is_tried(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CONNECT_S", 0.3)
    with Etcd(version=version) as etcd:
        away = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        client = EtcdClient([away[0], etcd.endpoint, away[1]], Access())
        for _ in range(3):
            await client.connect()
            assert await client.get(b"x") is None
        await client.close()
        assert not client.is_connected
        with pytest.raises(EtcdUnavailable, match="not connected"):
            await client.get(b"x")
        client = EtcdClient(away, Access())
        with pytest.raises(EtcdUnavailable, match=r"no connection within"):
            await client.connect()


async def test_certificates_of_both_sides(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CONNECT_S", 0.5)
    ours, other = trustme.CA(), trustme.CA()
    files: dict[str, Path] = {}
    for name, ca in (("ours", ours), ("other", other)):
        files[name] = tmp_path / f"{name}.pem"
        ca.cert_pem.write_to_path(str(files[name]))
        for side in ("server", "client"):
            issued = ca.issue_cert("127.0.0.1", "localhost", common_name=side)
            for kind, blob in (
                ("cert", issued.cert_chain_pems[0]),
                ("key", issued.private_key_pem),
            ):
                path = files[f"{name}-{side}-{kind}"] = tmp_path / f"{name}-{side}-{kind}.pem"
                blob.write_to_path(str(path))
    tls = {
        "ca": files["ours"], "cert": files["ours-server-cert"], "key": files["ours-server-key"],
        "client_cert": files["ours-client-cert"], "client_key": files["ours-client-key"],
    }  # fmt: skip

    def access(ca: str, client: str | None) -> Access:
        if client is None:
            return Access(tls=Tls(str(files[ca])))
        cert, key = files[f"{client}-client-cert"], files[f"{client}-client-key"]
        return Access(tls=Tls(str(files[ca]), str(cert), str(key)))

    with Etcd(version=version, tls=tls) as etcd:
        async with connected(etcd, access("ours", "ours")) as client:
            assert await client.write_if(b"g", None, [Write(b"g", b"1")])
        for wrong in (access("other", "ours"), access("ours", "other"), access("ours", None)):
            with pytest.raises(EtcdUnavailable):
                async with connected(etcd, wrong) as client:
                    await client.get(b"g")
        with pytest.raises(FileNotFoundError):
            await EtcdClient([etcd.endpoint], Access(tls=Tls("/nonexistent"))).connect()


async def test_passwords_and_tokens(version: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    login = Access(Login("agent", str(password)))
    password.write_text("secret\n")
    with Etcd("--auth-token-ttl=1", version=version) as etcd:
        # A login where none is needed is no mistake.
        async with connected(etcd, login) as client:
            assert await client.get(b"x") is None
        for command in (
            "user add root:root", "user grant-role root root", "user add agent:secret",
            "role add r", "user grant-role agent r",
            "role grant-permission r readwrite a b", "auth enable",
        ):  # fmt: skip
            etcd.ctl(*command.split())
        async with connected(etcd, login) as client:
            assert await client.write_if(b"a1", None, [Write(b"a1", b"1")])
            with pytest.raises(EtcdRefused, match="permission denied"):
                await client.write_if(b"a1", b"1", [Write(b"a1", b"2"), Write(b"c", b"1")])
            assert await client.get(b"a1") == b"1"
            await asyncio.sleep(2.5)  # the token is forgotten
            assert await client.write_if(b"a1", b"1", [Write(b"a1", b"2")])
            await asyncio.to_thread(etcd.kill)
            etcd.start()
            await asyncio.to_thread(etcd.wait_healthy)
            await client.connect()
            assert await client.get(b"a1") == b"2"
        async with connected(etcd) as client:
            with pytest.raises(EtcdRefused, match="user name is empty"):
                await client.get(b"a1")
        password.write_text("wrong")
        with pytest.raises(EtcdRefused, match="invalid user ID or password"):
            await EtcdClient([etcd.endpoint], login).connect()


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"a/", b"a0"), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"", b"\0")]
)
def test_prefix_end(version: str, prefix: bytes, end: bytes) -> None:
    assert prefix_end(prefix) == end
