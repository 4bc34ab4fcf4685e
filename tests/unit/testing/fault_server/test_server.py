"""Threads, sockets and time of the server: many clients, prompt ends, nothing left."""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stoker.testing.fault_server import Answer, FaultServer, First, Rule, Script, Stall, Trickle, script_to_json
from stoker.testing.fault_server.__main__ import main

MANY = 64


def descriptors():
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def test_a_connection_serves_many_requests(server, client):
    connection = client.connect()
    for number in range(20):
        assert client.request("PUT", f"/bucket/{number}", b"x" * number, connection=connection).status == 200
        assert client.request("GET", f"/bucket/{number}", connection=connection).body == b"x" * number
    assert server.connection_count == 1
    assert len(server.requests()) == 40
    connection.close()


def test_a_connection_ends_when_the_client_says_so(server, client):
    server.put("key", b"1")
    got, end = client.raw_get()
    assert (got.endswith(b"\r\n\r\n1"), end) == (True, "closed")
    assert client.raw(b"GET /bucket/key HTTP/1.0\r\n\r\n")[1] == "closed"


def test_requests_that_came_together_are_answered_in_order(server, client):
    server.put("1", b"one")
    server.put("2", b"two")
    text = b"GET /bucket/1 HTTP/1.1\r\n\r\nGET /bucket/2 HTTP/1.1\r\nConnection: close\r\n\r\n"
    got, _ = client.raw(text)
    assert got.index(b"one") < got.index(b"two")


def test_what_is_no_http_is_answered_with_400_and_not_recorded(server, client):
    got, end = client.raw(b"hello\r\n\r\n")
    assert (got.startswith(b"HTTP/1.1 400 "), end) == (True, "closed")
    assert server.requests() == []


def test_a_client_that_waits_for_leave_to_send_gets_it(server, client):
    with contextlib.closing(socket.create_connection(("127.0.0.1", server.port), timeout=5)) as connection:
        connection.sendall(b"PUT /bucket/key HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"abc")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")
    assert server.get("key") == b"abc"


def test_a_client_that_goes_away_is_recorded_and_its_thread_ends(server, client, play):
    server.put("key", bytes(8 << 20))
    play(Trickle(1e6))
    connection = client.connect()
    connection.request("GET", "/bucket/key")
    connection.getresponse()
    connection.close()
    wait_until(lambda: server.connection_count == 0)
    assert server.requests()[0].outcome == "gone"
    with contextlib.closing(socket.create_connection(("127.0.0.1", server.port))) as half:
        half.sendall(b"PUT /bucket/key HTTP/1.1\r\nContent-Length: 30\r\n\r\nabc")
    wait_until(lambda: [r.outcome for r in server.requests("PutObject")] == ["gone"])
    assert server.get("key") == bytes(8 << 20)


def wait_until(holds, within_s=5.0):
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_nothing_is_left_of_a_server_and_its_clients():
    gc.collect()
    before, threads = descriptors(), threading.active_count()
    with FaultServer(Script((Rule(Answer(), First(3)),))) as server:
        connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        for connection in connections:
            connection.sendall(b"GET /bucket/key HTTP/1.1\r\n\r\n")
            assert connection.recv(1000)
        assert server.connection_count == 20
        for connection in connections[:10]:
            connection.close()
        wait_until(lambda: server.connection_count == 10)
    for connection in connections:
        connection.close()
    assert threading.active_count() == threads
    assert descriptors() == before


@pytest.mark.alone
@pytest.mark.parametrize("fault", [Stall(60), Stall(60, 1000), Trickle(1)])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_closing_is_prompt_while_answers_and_uploads_are_stalled(fault, method):
    server = FaultServer(Script((Rule(fault),)))
    server.put("key", bytes(100_000))
    connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(MANY)]
    for connection in connections:
        connection.sendall(f"{method} /bucket/key HTTP/1.1\r\nContent-Length: 5000\r\n\r\n".encode() + bytes(5000))
    wait_until(lambda: len(server.requests()) == MANY)
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < 2
    assert {record.outcome for record in server.requests()} == {"gone"}
    server.close()
    for connection in connections:
        connection.close()


@pytest.mark.alone
def test_closing_is_prompt_while_a_client_does_not_read():
    server = FaultServer()
    server.put("key", bytes(64 << 20))
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(b"GET /bucket/key HTTP/1.1\r\n\r\n")
    assert connection.recv(10)
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < 2
    connection.close()


def test_a_closed_server_refuses_connections():
    server = FaultServer()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))


def timed_gets(client, count, turns=1):
    """Seconds that each of `turns` GETs took on each of `count` connections at once."""
    barrier = threading.Barrier(count)

    def work(_):
        connection = client.connect()
        connection.connect()
        barrier.wait()
        took = []
        for _ in range(turns):
            began = time.perf_counter()
            assert client.request("GET", "/bucket/key", connection=connection).status == 200
            took.append(time.perf_counter() - began)
        connection.close()
        return took

    with ThreadPoolExecutor(count) as pool:
        return [took for one in pool.map(work, range(count)) for took in one]


@pytest.mark.alone
def test_latency_is_right_with_64_connections_at_once(server, client, play):
    server.put("key", bytes(2000))
    play(latency_s=0.1)
    took = timed_gets(client, MANY, turns=3)
    assert min(took) >= 0.1
    assert statistics.median(took) < 0.13
    assert len(server.requests("GetObject")) == 3 * MANY


@pytest.mark.alone
def test_the_bandwidth_of_each_of_64_connections_is_right(server, client, play):
    server.put("key", bytes(200_000))
    play(bytes_per_s=500_000)
    took = timed_gets(client, MANY)
    assert min(took) >= 0.39
    assert statistics.median(took) < 0.48


@pytest.mark.alone
def test_64_connections_share_the_bandwidth_of_all(server, client, play):
    server.put("key", bytes(100_000))
    play(total_bytes_per_s=MANY * 100_000 / 0.4)
    began = time.perf_counter()
    took = timed_gets(client, MANY)
    assert 0.39 <= time.perf_counter() - began < 0.8
    assert statistics.median(took) > 0.1


def test_a_script_can_be_changed_while_requests_are_under_way(server, client, play):
    server.put("key", b"1")
    play(Stall(0.1))
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(client.get, "key")
        wait_until(lambda: len(server.requests()) == 1)
        play(Rule(Answer(), First(1)))
        assert client.get("key").status == 503
        assert slow.result().status == 200
    play(Rule(Answer(), First(1)))
    assert [client.get("key").status for _ in range(2)] == [503, 200]


@pytest.fixture
def process(tmp_path):
    """A server in a process of its own, as the line it prints says."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps(script_to_json(Script((Rule(Answer(), First(1)),)))))
    command = [sys.executable, "-m", "stoker.testing.fault_server", "--port", "0", "--script", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        process.said = json.loads(process.stdout.readline())
        yield process
        process.kill()


class Elsewhere:
    def __init__(self, port):
        self.port = port


def test_a_process_of_its_own_serves_plays_and_tells(process, client_of):
    client = client_of(Elsewhere(process.said["port"]))
    assert process.said["url"] == f"http://127.0.0.1:{process.said['port']}"
    assert [client.get("key").status for _ in range(2)] == [503, 404]
    records = [json.loads(line) for line in client.request("GET", "/-/requests").body.splitlines()]
    assert [(record["fault"], record["status"]) for record in records] == [("Answer", 503), ("", 404)]
    other = json.dumps(script_to_json(Script((Rule(Answer(500, "InternalError")),)))).encode()
    assert client.request("PUT", "/-/script", other).status == 204
    assert client.get("key").status == 500
    wrong = client.request("PUT", "/-/script", b'{"rules": 1}')
    assert (wrong.status, b"are a list" in wrong.body) == (400, True)
    assert client.request("PUT", "/-/script", b"{").status == 400
    assert client.request("DELETE", "/-/requests").status == 204
    assert client.request("GET", "/-/requests").body == b""
    assert client.request("GET", "/-/other").status == 404
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


def test_a_script_that_is_wrong_ends_the_process_with_2(tmp_path, capsys):
    script = tmp_path / "script.json"
    script.write_text('{"latency": 1}')
    with pytest.raises(SystemExit) as ended:
        main(["--script", str(script)], sys.stdout)
    assert ended.value.code == 2
    assert "unknown name 'latency'" in capsys.readouterr().err


def test_a_server_on_a_port_that_is_taken_is_an_error(server):
    with pytest.raises(OSError, match="in use"):
        FaultServer(port=server.port)
