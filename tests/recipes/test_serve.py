"""The server of predictions: every request gets an answer that the schema describes, whatever the clients do."""

import http.client
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import torch
from untrained import FILES, from_file, parser, tagger

from polymax_recipes.serve.batches import Batcher
from polymax_recipes.serve.errors import Refused
from polymax_recipes.serve.outputs import outputs_of
from polymax_recipes.serve.predictions import Served, checked, routes
from polymax_recipes.serve.schema import INPUTS, OUTPUTS, schema
from polymax_recipes.serve.server import Limits, Server
from polymax_recipes.training.task import Trained

LIMITS = Limits(body=20_000, arrival=20.0, computing=20.0, inputs=8, characters=2_000, connections=220)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    torch.manual_seed(0)
    runs = [tagger(), parser(tmp_path_factory.mktemp("trees"))]
    served = [Served.of(Path(run.task.name), run) for run in runs]
    with Server(("127.0.0.1", 0), routes(served, LIMITS), limits=LIMITS) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, method, path, body=None, headers=None):
    """The status and the JSON of an answer."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=30)
    try:
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, sent, {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def predict(server, *inputs, **fields):
    return ask(server, "POST", "/api/predict", {"inputs": list(inputs), **fields})


@pytest.mark.parametrize("run", [0, 1])
@pytest.mark.parametrize("alternatives", [False, True])
def test_answers_are_as_the_schema_says(server, run, alternatives):
    document = ask(server, "GET", "/api/schema")[1]
    request = {"inputs": ["Anna sings.", ["in", "Rome"]], "run": run, "alternatives": alternatives}
    kept = {"$schema": "https://json-schema.org/draft/2020-12/schema", "components": document["components"]}
    jsonschema.validate(request, {**kept, "$ref": "#/components/schemas/Request"})
    status, answer = ask(server, "POST", "/api/predict", request)
    assert status == 200, answer
    jsonschema.validate(answer, {**kept, "$ref": "#/components/schemas/Response"})
    assert [len(one["tokens"]) for one in answer["outputs"]] == [3, 2]
    if alternatives:
        total = sum(row["probability"] for row in answer["outputs"][1]["alternatives"])
        assert total == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", FILES)
def test_outputs_of_every_task_are_as_the_schema_says(name, tmp_path):
    trained, inputs = from_file(name, tmp_path)
    kept = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema([name], LIMITS)}
    jsonschema.validate({"inputs": inputs}, {**kept, "$ref": "#/components/schemas/Request"})
    outputs = json.loads(json.dumps(outputs_of(trained, inputs), allow_nan=False))
    jsonschema.validate({"task": name, "outputs": outputs}, {**kept, "$ref": "#/components/schemas/Response"})
    served = [Served(name, trained, None)]
    assert checked(served, LIMITS, {"inputs": inputs})[1] == inputs
    with pytest.raises(ValueError, match=re.escape("inputs[1] must be")):
        checked(served, LIMITS, {"inputs": [inputs[0], {"file": "/etc/passwd"}]})


def test_tasks_of_others_are_served_as_they_are():
    kept = schema(["mine"], LIMITS)["components"]["schemas"]
    assert kept["Mine"] == {"type": "object"}
    served = [Served("mine", Trained(type("Mine", (), {"name": "mine"})(), None, {}, None), None)]
    assert checked(served, LIMITS, {"inputs": [{"any": 1}]})[1] == [{"any": 1}]


def test_every_task_is_in_the_schema():
    from polymax_recipes.training.task import MODULES

    assert set(INPUTS) == set(OUTPUTS) == set(MODULES) == {*FILES, "tag", "parse"}
    jsonschema.Draft202012Validator.check_schema(schema(list(MODULES), LIMITS)["components"]["schemas"]["Response"])


REFUSED = [
    (b"{", 400, "not JSON"),
    (b"[" * 15_000, 400, "not JSON"),
    (b"\xff", 400, "not JSON"),
    (b"[]", 400, "must be an object"),
    (b"{}", 400, "inputs must be a list"),
    (b'{"inputs": "a"}', 400, "inputs must be a list"),
    (b'{"inputs": [3]}', 400, "inputs[0] must be a sentence"),
    (b'{"inputs": [" "]}', 400, "inputs[0] must be a sentence"),
    (b'{"inputs": ["a"], "run": 7}', 400, "run must be the number of a run"),
    (b'{"inputs": ["a"], "run": true}', 400, "run must be"),
    (b'{"inputs": ["a"], "file": "/etc/passwd"}', 400, "has no field 'file'"),
    (b'{"inputs": ["a"], "alternatives": 1}', 400, "must be true or false"),
    (json.dumps({"inputs": ["a"] * 9}).encode(), 413, "8 inputs; got 9"),
    (json.dumps({"inputs": ["a" * 2_001]}).encode(), 413, "2000 characters"),
    (b" " * 20_001, 413, "20000 bytes; got 20001"),
]


@pytest.mark.parametrize(("body", "status", "message"), REFUSED)
def test_what_is_wrong_is_said(server, body, status, message):
    found, answer = ask(server, "POST", "/api/predict", body)
    assert found == status
    assert message in answer["error"]


def test_a_large_body_gets_its_answer(server):
    status, answer = ask(server, "POST", "/api/predict", b" " * 5_000_000)
    assert (status, answer["error"]) == (413, "a body may have 20000 bytes; got 5000000")
    assert predict(server, "Anna sings.")[0] == 200


def test_paths_methods_types_and_hosts(server):
    assert ask(server, "GET", "/../../etc/passwd")[0] == 404
    assert ask(server, "GET", "/api/predict")[0] == 405
    assert ask(server, "DELETE", "/api/predict")[0] == 501
    assert ask(server, "POST", "/api/predict", b"{}", {"Content-Type": "text/plain"})[0] == 415
    assert ask(server, "POST", "/api/predict", b"{}", {"Host": "evil.example"})[0] == 403
    assert ask(server, "GET", "/api/health", None, {"Host": "localhost:1"}) == (200, {"status": "ok"})


def test_two_hundred_at_once(server):
    with ThreadPoolExecutor(200) as pool:
        found = list(pool.map(lambda k: predict(server, f"Anna sings {k}"), range(200)))
    assert [status for status, _ in found] == [200] * 200, [answer for status, answer in found if status != 200][:3]
    assert [answer["outputs"][0]["tokens"][-1] for _, answer in found] == [str(k) for k in range(200)]


def test_one_at_fault_fails_alone():
    def halves(numbers):
        if any(number % 2 for number in numbers):
            raise ValueError("odd")
        return [number // 2 for number in numbers]

    batcher = Batcher(halves, most=64, wait=0.2)
    try:
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(batcher, [number], 5.0) for number in (2, 3, 8)]
        assert jobs[0].result() == [1]
        assert jobs[2].result() == [4]
        with pytest.raises(ValueError, match="odd"):
            jobs[1].result()
    finally:
        batcher.close()


def test_waiting_is_limited_in_number_and_time():
    gate = threading.Event()
    batcher = Batcher(lambda items: [gate.wait(10) for _ in items], most=1, wait=0.0, waiting=1)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(batcher, [0], 10.0)
        time.sleep(0.05)
        second = pool.submit(batcher, [0], 10.0)
        time.sleep(0.05)
        with pytest.raises(Refused, match="too many") as full:
            batcher([0], 10.0)
        gate.set()
        assert first.result() == second.result() == [True]
    gate.clear()
    with pytest.raises(Refused, match="longer than") as late:
        batcher([0], 0.05)
    gate.set()
    batcher.close()
    assert (full.value.status, late.value.status) == (503, 504)


def test_slow_and_killed_clients_hold_up_nobody(server, monkeypatch):
    monkeypatch.setattr(server, "limits", replace(LIMITS, arrival=1.5))
    slow = []
    for sent in (
        b"",
        b"POST /api/pre",
        b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{",
    ):
        client = socket.create_connection(server.server_address[:2])
        client.sendall(sent)
        slow.append(client)
    body = json.dumps({"inputs": ["Anna sings."]}).encode()
    about = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    head = f"POST /api/predict HTTP/1.1\r\n{about}\r\n\r\n"
    for _ in range(20):
        # gone before the answer comes, without a word
        killed = socket.create_connection(server.server_address[:2])
        killed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        killed.sendall(head.encode() + body)
        killed.close()
    assert predict(server, "Anna sings.")[0] == 200
    for client in slow:
        # what does not arrive in time is closed
        client.settimeout(20)
        assert client.recv(100) == b""
        client.close()
    assert predict(server, "Anna sings.")[0] == 200


def test_a_dripping_client_is_let_go(server, monkeypatch):
    monkeypatch.setattr(server, "limits", replace(LIMITS, arrival=1.5))
    client = socket.create_connection(server.server_address[:2])
    start = time.monotonic()
    while time.monotonic() - start < 20:
        try:
            client.sendall(b"x")
        except OSError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the server still listens")
    client.close()


def test_too_many_connections_are_told_so(server, monkeypatch):
    monkeypatch.setattr(server, "_slots", threading.BoundedSemaphore(1))
    held = socket.create_connection(server.server_address[:2])
    time.sleep(0.1)
    status, answer = ask(server, "GET", "/api/health")
    assert (status, answer["error"]) == (503, "too many connections; try again later")
    held.close()
    time.sleep(0.1)


def test_a_connection_brings_several_requests(server):
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    for _ in range(3):
        connection.request("POST", "/api/predict", b"{", {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 400
        answer.read()
        connection.request("GET", "/api/health")
        assert json.loads(connection.getresponse().read()) == {"status": "ok"}
    connection.close()


def test_an_address_that_cannot_be_had_is_named(server):
    _, port = server.server_address[:2]
    with pytest.raises(OSError, match="in use") as caught:
        Server(("127.0.0.1", port), {})
    assert caught.value.filename == f"127.0.0.1:{port}"
