"""Drives our own links: takes steps from LinkEngine, has the kernel do them, brings answers back.

What a turn collects is independent of itself, so it goes out together: all changes in one sendmsg,
in the order of their ranks (what frees a name, a VNI or a table first), all questions about single
links in another. Dumps and taps follow one by one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING

from netreeve.errors import KernelError
from netreeve.io.netlink import LINKS_PER_BATCH, Kernel
from netreeve.io.waiting import wait_until
from netreeve.model import link_op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from netreeve._ext.encode import Batch
    from netreeve.model.link_op import Step
    from netreeve.reconcile.engine import LinkEngine

__all__ = ["LinkDriver"]

log = logging.getLogger(__name__)

SHORTEST_WAIT_S = 0.005

Outcome = tuple[int | None, str, object]
"""What LinkEngine.answer takes: errno (None = lost), the kernel's words, the result."""


class LinkDriver:
    """See the head of this file. `changed` is called after each turn.

    Counters, ever growing: `batches` (sendmsg calls), `steps`, `refused`. `idle` is set while
    there is nothing to do before the engine's deadline.
    """

    def __init__(
        self,
        kernel: Kernel,
        engine: LinkEngine,
        *,
        batch_ops: int,
        batch_delay_ms: int,
        changed: Callable[[], None],
    ) -> None:
        self.batches = 0
        self.steps = 0
        self.refused = 0
        self.idle = asyncio.Event()
        self._kernel = kernel
        self._engine = engine
        self._batch_ops = batch_ops
        self._batch_delay_s = batch_delay_ms / 1000
        self._changed = changed
        self._wanted = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Begins; returns the task, which ends only if it fails."""
        self._loop = asyncio.get_running_loop()
        self._wanted.set()
        self._task = self._loop.create_task(self._run(), name="links of ours")
        return self._task

    async def close(self) -> None:
        """Stops; the links stay as they are."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Something changed in the engine: look, after the batch delay."""
        self.idle.clear()
        if self._timer is None:
            self._timer = self._loop.call_later(self._batch_delay_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self._wanted.set()

    async def _run(self) -> None:
        while True:
            while steps := self._engine.collect(self._loop.time(), self._batch_ops):
                self.idle.clear()
                await self._take(steps)
                self._changed()
            if not self._wanted.is_set() and self._timer is None:
                self.idle.set()
            await wait_until(self._wanted, self._engine.deadline(), SHORTEST_WAIT_S)
            self._wanted.clear()

    # -- one turn

    async def _take(self, steps: Sequence[Step]) -> None:
        self.steps += len(steps)
        changes: list[Step] = []
        looks: list[Step] = []
        singles: list[Step] = []
        for step in steps:
            if isinstance(step, (link_op.Look, link_op.LookToken, link_op.LookIndex)):
                looks.append(step)
            elif step.reads or isinstance(step, link_op.CreateTap):
                singles.append(step)
            else:
                changes.append(step)
        if changes:
            await self._batch(changes)
        for step in singles:
            self._answer(step, await self._single(step))
        for start in range(0, len(looks), LINKS_PER_BATCH):
            await self._batch(looks[start : start + LINKS_PER_BATCH])

    async def _batch(self, steps: Sequence[Step]) -> None:
        numbers: list[int] = []
        outcomes: list[Outcome]
        self.batches += 1
        try:
            refused, links = await self._kernel.exchange(
                len(steps), lambda batch: numbers.extend(_put(batch, step) for step in steps)
            )
        except KernelError as error:
            log.error("changing links failed", extra={"fields": {"error": error}})
            outcomes = [(None, str(error), None) for _ in steps]
        else:
            outcomes = [
                (answer.errno, answer.text, None)
                if (answer := refused.get(number)) is not None
                else (0, "", links.get(number))
                for number in numbers
            ]
        for step, outcome in zip(steps, outcomes, strict=True):
            self._answer(step, outcome)

    async def _single(self, step: Step) -> Outcome:
        try:
            match step:
                case link_op.CreateTap(name):
                    await self._kernel.make_tap(name)
                    return 0, "", None
                case link_op.AddrLook(_, ifindex):
                    return 0, "", await self._kernel.dump_addresses(ifindex)
                case link_op.Survey() | link_op.GroupLook():
                    return 0, "", await self._kernel.dump_details()
                case link_op.FindHolder(name, real_kind, properties):
                    found = await self._kernel.dump_details(real_kind)
                    return (
                        0,
                        "",
                        [
                            link
                            for link in found
                            if link.kind == real_kind
                            and link.name != name
                            and all(getattr(link, key) == value for key, value in properties)
                        ],
                    )
                case _:
                    raise AssertionError(step)
        except KernelError as error:
            return error.errno, error.words, None
        except OSError as error:
            return error.errno or errno.EIO, error.strerror or str(error), None

    def _answer(self, step: Step, outcome: Outcome) -> None:
        number, words, result = outcome
        if number != 0 and not step.reads:
            self.refused += 1
        self._engine.answer(step, number, words, result, self._loop.time())


def _put(batch: Batch, step: Step) -> int:
    """Encodes one step; returns its sequence number."""
    match step:
        case link_op.Look(name):
            return batch.link_get_by_name(name)
        case link_op.LookToken(_, token):
            return batch.link_get_by_altname(token)
        case link_op.LookIndex(_, ifindex):
            return batch.link_get(ifindex)
        case link_op.TokenAdd(_, ifindex, token):
            return batch.token_add(ifindex, token)
        case link_op.TokenRemove(_, token):
            return batch.token_remove(token)
        case link_op.Delete(_, token):
            return batch.link_delete(token)
        case link_op.GroupSet(_, token, group):
            return batch.link_set(token, group=group)
        case link_op.GroupDelete(_, group):
            return batch.link_delete_group(group)
        case link_op.Set(_, token, real_kind=kind, data=data) if data:
            return batch.link_change(token, kind, **dict(data))  # type: ignore[arg-type]
        case link_op.Set(_, token, up, mtu, mac, controller):
            return batch.link_set(token, up=up, mtu=mtu, mac=mac, controller=controller)
        case link_op.Create(name, kind, properties, mtu, mac, controller):
            return batch.link_create(
                kind,
                name,
                up=True,
                echo=True,
                mtu=mtu,
                mac=mac,
                controller=controller,
                **dict(properties),  # type: ignore[arg-type]
            )
        case link_op.AddrAdd(_, ifindex, (family, address, length), protocol):
            return batch.addr_add(ifindex, family, address, length, protocol)
        case link_op.AddrDelete(name, ifindex, (family, address, length)):
            return batch.addr_delete(ifindex, name, family, address, length)
        case _:
            raise AssertionError(step)
