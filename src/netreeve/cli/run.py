"""`netreeve run`: the agent, in the foreground."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable

from netreeve.config import logs, settings

HELP = "run the agent in the foreground; SIGTERM stops it, SIGHUP rereads and compares everything"

EPILOG = """\
Settings are environment variables: see `netreeve config`. Needs CAP_NET_ADMIN (exit code 77
without it). A stop leaves links and routes as they are.

example:
  NETREEVE_PLAN=dir:/etc/netreeve/plan.d netreeve run
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """There is nothing to choose: what can be set is a setting."""


def run(args: argparse.Namespace) -> int:
    # Loading the agent takes most of a start. Until it has handlers of its own there is nothing to
    # stop, and nothing to reread that it won't read anyway.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    found = settings.load(os.environ)
    logs.setup(found.log_level, found.log_format)
    for warning in found.warnings:
        logging.getLogger(__name__).warning(warning)
    # After the settings: a wrong one is told in a tenth of the time that the agent takes to load.
    import asyncio

    from netreeve.agent import Agent

    async def main() -> None:
        await Agent(found).run()

    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if found.event_loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            runner.run(main())
        finally:
            # The loop gives its signals back as it closes: from here on another SIGTERM would turn
            # an orderly end into a death by signal.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    return 0
