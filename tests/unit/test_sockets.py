"""
What the door needs of the kernel.
"""

from __future__ import annotations

import resource

from twisted.internet.endpoints import serverFromString
from twisted.internet.testing import MemoryReactor
from twisted.trial.unittest import SynchronousTestCase

from crq import sockets


class BacklogTests(SynchronousTestCase):
    """
    `sockets.backlogged`.
    """

    def test_an_endpoint_is_given_a_backlog(self) -> None:
        """
        Twisted understands what comes out, and listens with it.
        """
        reactor = MemoryReactor()
        description = sockets.backlogged("tcp:8080:interface=127.0.0.1")
        serverFromString(reactor, description).listen(None)
        self.assertEqual(reactor.tcpServers[0][2:], (sockets.BACKLOG, "127.0.0.1"))

    def test_what_is_said_is_not_overruled(self) -> None:
        """
        A backlog of the operator's stays, and a kind of endpoint that knows none is left alone.
        """
        for description in ("tcp:80:backlog=5", "systemd:domain=INET:index=0", "tls:443"):
            self.assertEqual(sockets.backlogged(description), description)


class DescriptorTests(SynchronousTestCase):
    """
    `sockets.provide`, on limits that only this test has.
    """

    def setUp(self) -> None:
        self.limits = (1024, 4096)
        self.patch(resource, "getrlimit", lambda _: self.limits)
        self.patch(resource, "setrlimit", self.set)

    def set(self, _what: int, limits: tuple[int, int]) -> None:
        """
        Take limits.
        """
        self.limits = limits

    def test_the_soft_limit_is_raised(self) -> None:
        """
        As far as the connections and their files need it, and never lowered.
        """
        sockets.provide(1000)
        self.assertEqual(self.limits, (2000 + sockets.OTHERS, 4096))
        sockets.provide(10)
        self.assertEqual(self.limits, (2000 + sockets.OTHERS, 4096))

    def test_the_hard_limit_is_named(self) -> None:
        """
        More than the process may have is an error that says what to do; nothing is changed.
        """
        with self.assertRaisesRegex(ValueError, r"web.connections: 5000 .* 10128 .* LimitNOFILE"):
            sockets.provide(5000)
        self.assertEqual(self.limits, (1024, 4096))

    def test_no_limit_is_no_obstacle(self) -> None:
        """
        Where the kernel has no limit, nothing is to be raised.
        """
        self.limits = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        sockets.provide(100_000)
        self.assertEqual(self.limits, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
