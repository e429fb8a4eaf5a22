"""Many exchanges at once on one thread: a selector loop that starts each at its time and collects those that ended.

One loop and not one thread per stream: the kernel stamps the arrivals, so a loop that comes a little late
loses nothing, and it takes half the processor time of threads, which a small machine would take from the
server it measures.
"""

import selectors
import time
from collections.abc import Callable, Mapping

from helpers.errors import InputError
from helpers.measure.endpoint import Endpoint, tls_context
from helpers.measure.exchange import Exchange, Read
from helpers.measure.http import Connection, Pending, keep_stamping, post_bytes

GRACE_AFTER_DONE_S = 0.1
"""How long the end of the body is waited for after ``[DONE]``, so that the connection can be used again."""

MOST_TIMEOUT_S = 86_400
"""Seconds of the longest time limit: a day."""

_CONNECT_TIMEOUT_NS = 10_000_000_000

_NEVER = 2**63


class Job:
    """One request to send to the path `target`; `not_before_ns` is when (0: as soon as a connection is ready)."""

    def __init__(
        self,
        body: bytes,
        request: Mapping[str, object],
        target: str,
        *,
        not_before_ns: int = 0,
        on_read: Callable[[Read], None] | None = None,
        label: object = None,
    ) -> None:
        self.body, self.request, self.target = body, request, target
        self.not_before_ns, self.on_read, self.label = not_before_ns, on_read, label
        self.begun_ns = time.monotonic_ns()
        self.retried, self.fresh = False, True


class Driver:
    """Sends jobs to one endpoint and hands back their exchanges."""

    def __init__(
        self, endpoint: Endpoint, *, key: str | None = None, ca_file: str | None = None, timeout_s: float = 600.0
    ) -> None:
        if not 0 < timeout_s <= MOST_TIMEOUT_S:
            raise InputError(f"timeout_s must lie above 0 and at most at {MOST_TIMEOUT_S}, not {timeout_s}")
        self._endpoint, self._key, self._timeout_ns = endpoint, key, round(timeout_s * 1e9)
        self._tls = tls_context(ca_file) if endpoint.scheme == "https" else None
        self._addresses = endpoint.addresses()
        keep_stamping()
        self._selector = selectors.DefaultSelector()
        self._watched: dict[Connection, tuple[int, int, int]] = {}
        self._idle: list[Connection] = []
        self._jobs: dict[Connection, Job] = {}
        self._ended: list[tuple[Job, Exchange]] = []
        self._due_ns = _NEVER

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        for connection in [*self._jobs, *self._idle]:
            connection.close()
        self._selector.close()

    @property
    def running(self) -> int:
        return len(self._jobs)

    def start(self, job: Job) -> None:
        """Give the job a connection, an idle one or a new one; it is sent when its time has come."""
        while self._idle:
            connection = self._idle.pop()
            # What arrived while it was idle can only be the server's good-bye.
            connection.step(selectors.EVENT_READ)
            if connection.state == "ready":
                break
            self._watch(connection)
        else:
            connection = Connection(self._endpoint, self._addresses, self._tls)
        self._jobs[connection] = job
        self._advance(connection)

    def poll(self, until_ns: int) -> list[tuple[Job, Exchange]]:
        """Drive the connections until an exchange has ended or the time has come."""
        while not self._ended:
            now_ns = time.monotonic_ns()
            if now_ns >= self._due_ns:
                self._do_due(now_ns)
            if self._ended or now_ns >= until_ns:
                break
            self._wait(min(until_ns, self._due_ns) - now_ns)
        ended, self._ended = self._ended, []
        return ended

    def leave(self) -> list[tuple[Job, Exchange]]:
        """Go away from all exchanges under way and hand back what there is of them; what was not sent never is."""
        for connection in list(self._jobs):
            if connection.pending is None:
                del self._jobs[connection]
                connection.close()
                self._watch(connection)
            else:
                self._end(connection, "left", "the client left")
        ended, self._ended = self._ended, []
        return ended

    def _wait(self, nanoseconds: int) -> None:
        # The selector rounds up to a whole millisecond; what is left below one is slept, which is exact. What
        # arrives meanwhile is stamped by the kernel.
        if nanoseconds <= 0:
            timeout_s = 0.0
        elif nanoseconds < 1_000_000:
            time.sleep(nanoseconds / 1e9)
            timeout_s = 0.0
        else:
            timeout_s = (nanoseconds // 1_000_000) / 1e3
        if not self._watched:
            time.sleep(timeout_s)
            return
        for key, mask in self._selector.select(timeout_s):
            connection = key.data
            connection.step(mask)
            if mask != selectors.EVENT_READ or not connection.streaming:
                self._advance(connection)

    def _advance(self, connection: Connection) -> None:
        """What follows from the state the connection is in now."""
        job = self._jobs.get(connection)
        if job is None:
            if connection.state == "closed" and connection in self._idle:
                self._idle.remove(connection)
        elif connection.state == "ready" and connection.pending is None:
            if time.monotonic_ns() >= job.not_before_ns:
                self._send(connection, job)
        elif connection.pending is None and connection.state == "closed":
            self._end_unsent(connection, job)
        elif connection.pending is not None and connection.pending.end is not None:
            self._end(connection)
        if connection in self._jobs:
            self._due_ns = min(self._due_ns, self._due(connection)[0])
        self._watch(connection)

    def _send(self, connection: Connection, job: Job) -> None:
        intended_ns = job.not_before_ns or None
        pending = Pending(job.request, intended_ns=intended_ns, key=self._key, on_read=job.on_read)
        job.fresh = not connection.used
        connection.send(pending, *post_bytes(self._endpoint, job.target, job.body, self._key))

    def _end_unsent(self, connection: Connection, job: Job) -> None:
        if connection.used:
            # An idle connection that the server closed before the job's time came.
            del self._jobs[connection]
            self.start(job)
            return
        pending = Pending(job.request, intended_ns=job.not_before_ns or None, key=self._key)
        pending.finish("refused", f"no connection: {connection.why_closed}", time.monotonic_ns())
        self._ended.append((job, pending.exchange(True)))
        del self._jobs[connection]

    def _end(self, connection: Connection, end: str | None = None, detail: str = "") -> None:
        job, pending = self._jobs.pop(connection), connection.pending
        if pending is None:
            pending = Pending(job.request, intended_ns=job.not_before_ns or None, key=self._key)
        if end is not None:
            pending.finish(end, detail, pending.done_at_ns or time.monotonic_ns())
        if pending.end == "cut" and not pending.heard and not job.fresh and not job.retried:
            # A server may close a kept connection just as it is used again; no answer was begun, so ask once more.
            job.retried = True
            connection.release()
            self._watch(connection)
            self.start(job)
            return
        self._ended.append((job, pending.exchange(connection.stamps_hold())))
        if end is None and connection.release():
            self._idle.append(connection)
        else:
            connection.close()
        self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        """Keep the selector in step with what the connection wants (its socket may have changed)."""
        watched = self._watched.get(connection)
        wanted = None if connection.state == "closed" else (connection.fileno(), connection.wants, connection.sockets)
        if watched == wanted:
            return
        if watched is not None and (wanted is None or watched[2] != wanted[2]):
            self._selector.unregister(watched[0])
            del self._watched[connection]
            watched = None
        if wanted is not None:
            if watched is None:
                self._selector.register(wanted[0], wanted[1], connection)
            else:
                self._selector.modify(wanted[0], wanted[1], connection)
            self._watched[connection] = wanted

    def _do_due(self, now_ns: int) -> None:
        """Send what waits for its time, and end what has run out of it."""
        self._due_ns = _NEVER
        for connection in list(self._jobs):
            due_ns, end, why = self._due(connection)
            if now_ns >= due_ns and end:
                self._end(connection, end, why)
            else:
                self._advance(connection)

    def _due(self, connection: Connection) -> tuple[int, str, str]:
        """When something must happen to a connection unasked; how its exchange then ends, and why."""
        pending = connection.pending
        if pending is None and connection.state == "ready":
            return self._jobs[connection].not_before_ns, "", ""
        if pending is None:
            return connection.begun_ns + min(_CONNECT_TIMEOUT_NS, self._timeout_ns), "refused", "no connection in time"
        if pending.done_at_ns is not None:
            return pending.done_at_ns + round(GRACE_AFTER_DONE_S * 1e9), "done", ""
        return pending.start_ns + self._timeout_ns, "timeout", f"no end after {self._timeout_ns / 1e9:g} s"
