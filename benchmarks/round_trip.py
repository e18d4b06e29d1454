"""A request and its reply through a worker's handle, beside a blocking pipe that carries the same bytes.

    python -m benchmarks.round_trip [--blocks 10] [--calls 2000]

On each event loop, blocks of calls alternate between three peers, each a process of its own:
  handle    `ProcessWorker.call`: encoded, numbered, checked, with its deadline and the watch over the process's death
  streams   bare asyncio streams on a socket, four bytes of length and the message, nothing decoded
  blocking  a `multiprocessing` pipe on both ends, without an event loop
The processes are pinned: where the kernel puts them is worth a factor of three, and it is not the same for all of a
run. `two cores` is how a run's processes lie, so the bars are on it; `one core` has both ends on the same one, where a
message costs least and what is in Python weighs most. Each figure is a block's median. Half a minute.
"""

import asyncio
import multiprocessing
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from statistics import median

import uvloop

from aiorl.protocol import Message, Publish, Published, Ready, Request, encode
from aiorl.runtime.process import ProcessWorker, start_context
from aiorl.runtime.worker import Start
from aiorl.service import Assignment
from aiorl.settings import RunSettings, load_settings
from aiorl.telemetry.log import RunLog
from benchmarks.measuring import Row, Table, parser_of, ratios, report

LENGTH = struct.Struct("!i")
REQUEST, REPLY = Publish(1), Published(1)
LOOPS: dict[str, tuple[Callable[[], asyncio.AbstractEventLoop], float]] = {
    "uvloop": (uvloop.new_event_loop, 2.0),
    "asyncio": (asyncio.new_event_loop, 2.5),
}
"""Each with what a call may cost at most, in round trips of a blocking pipe."""


class Echo:
    """A service that does nothing but answer."""

    def __init__(self, assignment: Assignment) -> None:
        pass

    def ready(self) -> Ready:
        return Ready(pid=os.getpid())

    def handle(self, request: Request) -> Message:
        return REPLY

    def close(self) -> None:
        pass


def answer(connection: Connection) -> None:
    """Answer whatever comes on a blocking pipe, until it closes."""
    data = encode(REPLY)
    try:
        while True:
            connection.recv_bytes()
            connection.send_bytes(data)
    except EOFError:
        pass


class Peer:
    """A process at the other end of a blocking pipe."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=answer, args=(theirs,))
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def close(self) -> None:
        self.connection.close()
        self._process.join()
        self._process.close()


async def timed(call: Callable[[], Awaitable[object]], count: int) -> float:
    """Return the median of so many calls, in µs."""
    times = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        await call()
        times.append(time.perf_counter_ns() - begin)
    return median(times) / 1e3


def timed_blocking(connection: Connection, count: int) -> float:
    data, times = encode(REQUEST), []
    for _ in range(count):
        begin = time.perf_counter_ns()
        connection.send_bytes(data)
        connection.recv_bytes()
        times.append(time.perf_counter_ns() - begin)
    return median(times) / 1e3


async def on_this_loop(blocks: int, calls: int, theirs: int) -> dict[str, list[float]]:
    """Measure all three, block by block, their processes on core `theirs`."""
    settings: RunSettings = load_settings("sac/pendulum", environ={})
    start = Start("collector", 0, "benchmarks.round_trip:Echo", settings.model_dump_json(), 1, None, None)
    frame = LENGTH.pack(len(encode(REQUEST))) + encode(REQUEST)

    found: dict[str, list[float]] = {"handle": [], "streams": [], "blocking": []}
    with ThreadPoolExecutor(1) as executor:
        # The worker first: it brings up the fork server as a run does, and the peers come from the same one.
        worker = ProcessWorker(start, settings.runtime, RunLog(), start_context(settings.runtime), executor)
        try:
            await worker.start()
            blocking, streamed = Peer(), Peer()
            sock = socket.socket(fileno=os.dup(streamed.connection.fileno()))
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            for pid in (worker.pid, blocking.pid, streamed.pid):
                assert pid is not None
                os.sched_setaffinity(pid, {theirs})
            reader, writer = await asyncio.open_unix_connection(sock=sock)

            async def stream() -> None:
                writer.write(frame)
                await writer.drain()
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                await reader.readexactly(length)

            for block in range(blocks + 1):
                one = {
                    "handle": await timed(lambda: worker.call(REQUEST), calls),
                    "blocking": timed_blocking(blocking.connection, calls),
                    "streams": await timed(stream, calls),
                }
                if block:  # the first one warms up
                    for name, value in one.items():
                        found[name].append(value)
            writer.close()
            await writer.wait_closed()
            blocking.close()
            streamed.close()
        finally:
            await worker.stop()
    return found


def measure(blocks: int = 10, calls: int = 2000) -> Table:
    cores = sorted(os.sched_getaffinity(0))
    rows: list[Row] = []
    for name, (factory, at_most) in LOOPS.items():
        for placement, theirs in {"two cores": cores[-1], "one core": cores[0]}.items():
            os.sched_setaffinity(0, cores)
            with asyncio.Runner(loop_factory=factory) as runner:
                found = runner.run(on_this_loop(blocks, calls, theirs))
            called, blocking = found["handle"], found["blocking"]
            where, bar = f"{name}, {placement}", at_most if placement == "two cores" else None
            rows += [
                Row(f"{where}: call of a worker / blocking pipe", ratios(called, blocking), "×", at_most=bar),
                Row(f"{where}: bare streams / blocking pipe", ratios(found["streams"], blocking), "×"),
                Row(f"{where}: call of a worker", tuple(called), "µs"),
                Row(f"{where}: blocking pipe", tuple(blocking), "µs"),
            ]
    os.sched_setaffinity(0, cores)
    return Table("Request and reply between two processes, median of each block", tuple(rows))


def main() -> None:
    parser = parser_of("round_trip", __doc__)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--calls", type=int, default=2000)
    arguments = parser.parse_args()
    report(measure(arguments.blocks, arguments.calls), arguments.json)


if __name__ == "__main__":
    main()
