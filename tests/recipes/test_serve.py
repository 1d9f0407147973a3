"""The server of predictions: every request gets an answer that the schema describes, whatever the clients do."""

import http.client
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
import torch
from polls import until
from raw_requests import CORPUS, HEALTH, MARK, fuzzed, replies
from slow_work import LoadSlow
from untrained import FILES, from_file, parser, tagger

from polymax_recipes.serve.errors import Refused
from polymax_recipes.serve.limits import WORK, Limits, Share, share_of, words_of
from polymax_recipes.serve.models import Given, LoadModels, Source
from polymax_recipes.serve.outputs import outputs_of, plain_result
from polymax_recipes.serve.predictions import Served, checked, routes, shares_of
from polymax_recipes.serve.process import outcomes
from polymax_recipes.serve.schema import EXAMPLES, INPUTS, OUTPUTS, schema
from polymax_recipes.serve.server import Server, is_loopback
from polymax_recipes.serve.workers import Pool

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'polymax[serve]'")
jsonschema = pytest.importorskip("jsonschema")

LIMITS = Limits(body=20_000, arrival=20.0, computing=60.0, inputs=8, characters=2_000, connections=220)


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    torch.manual_seed(0)
    models = [tagger(), parser(tmp_path_factory.mktemp("trees"))]
    made = Pool(LoadModels(tuple(Given(model.task.name, model) for model in models)), 2, memory=2 << 30)
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(pool):
    served = [Served(**about) for about in pool.about]
    with Server(("127.0.0.1", 0), routes(pool, served, LIMITS), limits=LIMITS) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def slow():
    """Processes whose work waits, fails or ends the process, as its inputs say."""
    made = Pool(LoadSlow(), 2, wait=0.1)
    yield made
    made.close()


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


def test_digits_of_outputs():
    """Numbers in lists and objects too; tensors have five."""

    @dataclass
    class Found:
        share: float
        each: list
        named: dict
        weights: torch.Tensor

    third = 1 / 3
    found = plain_result(Found(third, [third, (2e-9 * third,)], {1: third}, torch.tensor([third], dtype=torch.float64)))
    assert found == {
        "share": 0.333333,
        "each": [0.333333, [6.66667e-10]],
        "named": {"1": 0.333333},
        "weights": [0.33333],
    }


@pytest.mark.parametrize("name", FILES)
def test_outputs_of_every_task_are_as_the_schema_says(name, tmp_path):
    trained, inputs = from_file(name, tmp_path)
    kept = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema([name], LIMITS)}
    jsonschema.validate({"inputs": inputs}, {**kept, "$ref": "#/components/schemas/Request"})
    outputs = json.loads(json.dumps(outputs_of(trained, inputs), allow_nan=False))
    jsonschema.validate({"task": name, "outputs": outputs}, {**kept, "$ref": "#/components/schemas/Response"})
    served = [Served(name, name)]
    assert checked(served, LIMITS, {"inputs": inputs})[1] == inputs
    assert 0 < shares_of(name, inputs, LIMITS)[0].size <= 1 or inputs == [""]
    if name in EXAMPLES:
        assert len(outputs_of(trained, [EXAMPLES[name]])) == 1
    with pytest.raises(ValueError, match=re.escape("inputs[1] must be")):
        checked(served, LIMITS, {"inputs": [inputs[0], {"file": "/etc/passwd"}]})


def test_tasks_of_others_are_served_as_they_are():
    kept = schema(["mine"], LIMITS)["components"]["schemas"]
    assert kept["Mine"] == {"type": "object"}
    assert checked([Served("mine", "mine")], LIMITS, {"inputs": [{"any": 1}]})[1] == [{"any": 1}]
    assert shares_of("mine", [{"any": 1}], LIMITS)[0].light


def test_every_task_is_in_the_schema():
    from polymax_recipes.training.task import MODULES

    assert set(INPUTS) == set(OUTPUTS) == set(WORK) == set(MODULES) == {*FILES, "tag", "parse"}
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
    (json.dumps({"inputs": ["a " * 201], "run": 1}).encode(), 413, "200 words for parse; got 201"),
    (b'{"inputs": NaN}', 400, "NaN is not a number"),
    (b'{"inputs": ' + b"[" * 40 + b"]" * 40 + b"}", 400, "32 deep"),
    (b'{"inputs": ["a"], "run": ' + b"1" * 5000 + b"}", 400, "not JSON"),
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
    assert ask(server, "DELETE", "/api/predict")[0] == 405
    assert ask(server, "POST", "/api/predict", b"{}", {"Content-Type": "text/plain"})[0] == 415
    assert ask(server, "POST", "/api/predict", b"{}", {"Host": "evil.example"})[0] == 403
    for host in ("localhost:1", "LOCALHOST", "127.0.0.1", "[::1]:8750", "[::1]"):
        assert ask(server, "GET", "/api/health", None, {"Host": host}) == (200, {"status": "ok"})
    for host in ("", "localhost.evil.example", "[::2]", "127.0.0.1.evil.example", "evil@localhost"):
        assert ask(server, "GET", "/api/health", None, {"Host": host})[0] == 403


def test_the_root_lists_end_points(server):
    status, listed = ask(server, "GET", "/")
    assert (status, listed["polymax"]) == (200, ["tag: tag", "parse: parse"])
    documented = ask(server, "GET", "/api/schema")[1]["paths"]
    assert {end.split(" ")[1] for end in listed["endpoints"]} == set(documented)
    for end in listed["endpoints"]:
        method, path = end.split(" ")
        assert ask(server, method, path, {"inputs": []} if method == "POST" else None)[0] == 200


def test_two_hundred_at_once(server):
    with ThreadPoolExecutor(200) as pool:
        found = list(pool.map(lambda k: predict(server, f"Anna sings {k}"), range(200)))
    assert [status for status, _ in found] == [200] * 200, [answer for status, answer in found if status != 200][:3]
    assert [answer["outputs"][0]["tokens"][-1] for _, answer in found] == [str(k) for k in range(200)]


LIGHT, HEAVY = Share(0.01, True), Share(1.0, False)


def said(error):
    return error.status, str(error)


def test_one_at_fault_fails_alone(slow):
    items = slow.submit("slow", ["a", "odd", "memory", "bug", "b", "broken"], [LIGHT] * 6, 30.0)
    assert items[0].result.result(30) == items[4].result.result(30) == b"0.0"
    faults = [items[k].result.exception(30) for k in (1, 2, 3, 5)]
    assert said(faults[0]) == (400, "odd")
    assert faults[1].status == 413
    assert "more memory" in str(faults[1])
    assert [fault.status for fault in faults[2:]] == [500, 500]


def test_inputs_that_fail_together_are_computed_one_by_one():
    seen = []

    def together(kind, given):
        seen.append(len(given))
        if len(given) > 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return [f"{given[0]}".encode()]

    assert outcomes(together, "any", [1, 2]) == [b"1", b"2"]
    assert seen == [2, 1, 1]


def test_waiting_is_limited_in_number():
    pool = Pool(LoadSlow(), 1, waiting=1, wait=0.0)
    try:
        first = pool.submit("slow", [0.5], [LIGHT], 30.0)
        until(lambda: not pool._queue)
        second = pool.submit("slow", [0.0], [LIGHT], 30.0)
        with pytest.raises(Refused, match="too many") as full:
            pool.submit("slow", [0.0], [LIGHT], 30.0)
        assert full.value.status == 503
        assert [item.result.result(30) for item in (*first, *second)] == [b"0.5", b"0.0"]
    finally:
        pool.close()


def test_work_that_takes_too_long_is_stopped(slow):
    """Its process ends, the next input is computed by another, and light inputs never waited."""
    before, pids = slow.ended, {process.process.pid for process in slow._processes}
    late = slow.submit("slow", [600.0], [HEAVY], 0.5)
    light = slow.submit("slow", [0.0], [LIGHT], 30.0)
    start = time.monotonic()
    assert light[0].result.result(30) == b"0.0"
    assert said(late[0].result.exception(30)) == (504, "the result took too long")
    assert time.monotonic() - start < 20
    assert slow.submit("slow", [0.1], [HEAVY], 30.0)[0].result.result(30) == b"0.1"
    assert slow.ended == before + 1
    assert len(pids & {process.process.pid for process in slow._processes}) == 1


def test_those_in_a_batch_with_a_late_or_deadly_input_get_their_results(slow):
    for fault, status in ((600.0, 504), ("end", 500)):
        items = slow.submit("slow", [0.0, fault, "a"], [LIGHT] * 3, 6.0)
        assert [items[k].result.result(30) for k in (0, 2)] == [b"0.0"] * 2
        assert items[1].result.exception(30).status == status


def test_abandoned_inputs_are_not_computed(slow):
    before = slow.ended
    item = slow.submit("slow", [600.0], [HEAVY], 100.0)[0]
    until(lambda: item not in slow._queue)
    item.result.cancel()
    until(lambda: slow.ended == before + 1)


def test_a_run_that_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a run"):
        Pool(LoadModels((Source(tmp_path),)), 1)


def test_memory_is_bounded():
    pool = Pool(LoadSlow(), 1, memory=256 << 20)
    try:
        fault = pool.submit("slow", ["large"], [LIGHT], 60.0)[0].result.exception(60)
        assert said(fault)[0] == 413
        assert pool.submit("slow", [0.0], [LIGHT], 60.0)[0].result.result(60) == b"0.0"
        assert pool.ended == 0
    finally:
        pool.close()


def test_the_work_of_an_input_is_known():
    half, whole = (share_of("parse", ["a"] * n, 0) for n in (100, 200))
    assert (half.size, whole.size, whole.light) == (0.125, 1.0, False)
    assert share_of("parse", "Anna sings.", 0).light
    assert words_of("protein-align", ["ACG", "AG"]) == 3
    # one long word is many pieces of a tokenizer
    assert words_of("seq2seq", "a" * 8_000) == 1_000
    with pytest.raises(Refused, match=re.escape("inputs[3] may have 10 words for tag; got 11")):
        share_of("tag", ["a"] * 11, 3, words=10)
    assert share_of("tag", ["a"] * 10, 3, words=10).size == 1
    with pytest.raises(Refused, match=r"too much work for one request; send fewer at once: 16 of 200 words"):
        shares_of("parse", [["a"] * 200] * 17, LIMITS)
    assert len(shares_of("parse", [["a"] * 200] * 16, LIMITS)) == 16
    assert len(shares_of("parse", [["a"] * 100] * 100, LIMITS)) == 100


def test_slow_and_killed_clients_do_not_delay_others(server, monkeypatch):
    monkeypatch.setattr(server, "limits", replace(LIMITS, arrival=1.5))
    slow = []
    for sent in (
        b"",
        b"POST /api/pre",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{",
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


def test_too_many_connections_get_an_error(server, monkeypatch):
    monkeypatch.setattr(server, "limits", replace(LIMITS, connections=1))
    with socket.create_connection(server.server_address[:2]):
        until(lambda: ask(server, "GET", "/api/health")[0] == 503)
        assert ask(server, "GET", "/api/health")[1]["error"] == "too many connections; try again later"
    until(lambda: ask(server, "GET", "/api/health")[0] == 200)


def test_bodies_in_memory_are_bounded(server, monkeypatch):
    monkeypatch.setattr(server, "limits", replace(LIMITS, waiting=10))
    status, answer = predict(server, "Anna sings.")
    assert (status, answer["error"]) == (503, "too many requests wait already; try again later")
    assert server.held == 0


def test_a_client_that_does_not_read_is_let_go(server, monkeypatch):
    monkeypatch.setattr(server, "limits", replace(LIMITS, arrival=1.0))
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(server.server_address[:2])
    client.sendall(b"GET /api/schema HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3000)
    connections = server._server.server_state.connections
    until(lambda: not any(one.client == client.getsockname() for one in connections))
    client.close()


@pytest.mark.parametrize("name", CORPUS)
def test_no_byte_of_a_body_is_read_as_a_request(server, name):
    raw, refused = CORPUS[name]
    found = replies(server.server_address[:2], raw)
    assert MARK not in found, found[:400]
    statuses = re.findall(rb"HTTP/1\.1 (\d+)", found)
    # one answer at most, and none that looks like a success where it is to be refused
    assert len(statuses) <= 1, found[:400]
    assert not (refused and statuses and statuses[0].startswith(b"2")), found[:400]
    assert ask(server, "GET", "/api/health")[0] == 200


def test_a_request_may_come_byte_by_byte(server):
    with socket.create_connection(server.server_address[:2]) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for k in range(len(HEALTH)):
            client.sendall(HEALTH[k : k + 1])
            time.sleep(0.002)
        assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_fuzzed_requests_are_answered_or_closed(server):
    for seed in range(150):
        found = replies(server.server_address[:2], fuzzed(seed), patience=0.3)
        assert MARK not in found, (seed, found[:400])
        assert b"HTTP/1.1 500" not in found, (seed, found[:400])
    assert predict(server, "Anna sings.")[0] == 200


@pytest.mark.parametrize(
    "host", ["999.1.1.1", "nowhere.invalid", "a" * 300, "a\0b", "1.2.3.4", "::g", "127.0.0.1:80", "--", "é" * 70]
)
def test_hosts_that_are_no_address_are_named(host):
    with pytest.raises(OSError) as caught:
        Server((host, 0), {})
    assert "Error" not in str(caught.value)
    assert host in str(caught.value) or repr(host) in str(caught.value)


def test_hosts_of_this_machine():
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "LocalHost", "127.9.9.9")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "", "10.0.0.1", "localhost.example")] == [False] * 5
    for host, local in (("0.0.0.0", False), ("", False), ("localhost", True)):
        with Server((host, 0), {}) as opened:
            assert opened.is_local is local


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
