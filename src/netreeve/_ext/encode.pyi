from typing import Self, final

@final
class Batch:
    def __new__(cls, first_seq: int, max_bytes: int = 65536) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def first_seq(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def next_seq(self) -> int: ...
    def link_get(self, ifindex: int) -> int: ...
    def link_get_by_name(self, name: str) -> int: ...
    def link_get_by_altname(self, altname: str) -> int: ...
    def link_dump(self, kind: str | None = None) -> int: ...
    def link_create(
        self,
        kind: str,
        name: str,
        *,
        up: bool = False,
        echo: bool = False,
        mtu: int | None = None,
        mac: bytes | None = None,
        controller: int = 0,
        table: int | None = None,
        vlan_filtering: bool | None = None,
        vni: int | None = None,
        port: int | None = None,
        local: tuple[int, bytes] | None = None,
        ttl: int | None = None,
        learning: bool | None = None,
    ) -> int: ...
    def link_set(
        self,
        token: str,
        *,
        up: bool | None = None,
        mtu: int | None = None,
        mac: bytes | None = None,
        controller: int | None = None,
        group: int | None = None,
    ) -> int: ...
    def link_change(
        self,
        token: str,
        kind: str,
        *,
        vlan_filtering: bool | None = None,
        local: tuple[int, bytes] | None = None,
        ttl: int | None = None,
        learning: bool | None = None,
    ) -> int: ...
    def link_delete(self, token: str) -> int: ...
    def link_delete_group(self, group: int) -> int: ...
    def token_add(self, ifindex: int, token: str) -> int: ...
    def token_remove(self, token: str) -> int: ...
    def addr_dump(self, family: int, ifindex: int = 0) -> int: ...
    def addr_add(
        self, ifindex: int, family: int, address: bytes, prefix_len: int, proto: int
    ) -> int: ...
    def addr_delete(
        self, ifindex: int, name: str, family: int, address: bytes, prefix_len: int
    ) -> int: ...
    def route_dump(self, family: int, table: int = 0, protocol: int = 0) -> int: ...
    def route_add(
        self,
        family: int,
        dst: bytes,
        prefix_len: int,
        table: int,
        tos: int,
        metric: int,
        protocol: int,
        oif: int,
    ) -> int: ...
    def route_replace(
        self,
        family: int,
        dst: bytes,
        prefix_len: int,
        table: int,
        tos: int,
        metric: int,
        protocol: int,
        oif: int,
    ) -> int: ...
    def route_delete(
        self,
        family: int,
        dst: bytes,
        prefix_len: int,
        table: int,
        tos: int,
        metric: int,
        protocol: int,
        oif: int,
    ) -> int: ...
    def finish(self) -> bytes: ...
