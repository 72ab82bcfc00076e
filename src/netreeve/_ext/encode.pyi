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
    def link_dump(self) -> int: ...
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
