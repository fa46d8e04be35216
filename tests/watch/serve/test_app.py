"""The application, request by request: access, content, and refusals."""

import asyncio
import json
import math

import numpy as np
import pytest

from frugax.watch.journal import Journal
from frugax.watch.serve import RunCollection, own_host_names, page_app

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")


def _serving(folder, work, *, token=None, host="127.0.0.1"):
    """What `work(client, runs)` gives, with the run read."""
    runs = RunCollection(folder)
    runs.index(0)
    while runs.poll():
        pass
    app = page_app(runs, token=token, hosts=own_host_names(host))

    async def inside():
        transport = httpx.ASGITransport(app)
        url = "http://127.0.0.1:8765"
        async with httpx.AsyncClient(transport=transport, base_url=url) as client:
            return await work(client, runs)

    return asyncio.run(inside())


def _get(folder, path, **given):
    headers = given.pop("headers", {})
    method = given.pop("method", "GET")

    async def work(client, _):
        return await client.request(method, path, headers=headers)

    return _serving(folder, work, **given)


@pytest.mark.parametrize(
    "path", ["/", "/static/app.js", "/api/runs", "/favicon.ico", "/nothing"]
)
def test_every_response_has_a_strict_security_policy(folder, path):
    answer = _get(folder, path)
    assert answer.status_code == (404 if path == "/nothing" else 200)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in answer.headers


def test_the_page_has_no_inline_script_or_style_and_is_self_contained(folder):
    page = _get(folder, "/").text
    assert "style=" not in page
    assert "<style" not in page
    assert "onclick" not in page
    assert page.count("<script") == page.count("<script src=") + page.count(
        '<script type="module" src='
    )
    for part in page.split('src="')[1:] + page.split('href="')[1:]:
        assert part.startswith(("static/", "api/runs", "./", "#"))


def test_every_file_that_the_page_names_is_served(folder):
    page = _get(folder, "/").text
    names = {p.split('"')[0] for p in page.split('"static/')[1:]}

    async def work(client, _):
        scripts = [n for n in names if n.endswith(".js")]
        while scripts:
            text = (await client.get(f"/static/{scripts.pop()}")).text
            found = {p.split('"')[0] for p in text.split('from "./')[1:]} - names
            scripts += found
            names.update(found)
        return [(n, (await client.get(f"/static/{n}")).status_code) for n in names]

    served = _serving(folder, work)
    assert len(served) >= 9
    assert all(status == 200 for _, status in served)


RUNS = "/api/runs"
FOREIGN = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}


@pytest.mark.parametrize(
    ("path", "given", "status"),
    [
        # Names that are not ours are turned away; ours are answered through a tunnel.
        *(
            (RUNS, {"headers": {"host": host}}, 421)
            for host in ("evil.example", "127.0.0.1.evil.example", "", "a@127.0.0.1",
                         "localhost.evil.example:8765", "127.0.0.1:80:90")
        ),
        *(
            (RUNS, {"headers": {"host": host}}, 200)
            for host in ("localhost:9999", "127.0.0.1", "[::1]:8765")
        ),
        # Other sites may link here but not read.
        (RUNS, {"headers": FOREIGN}, 403),
        ("/", {"headers": FOREIGN | {"sec-fetch-mode": "navigate"}}, 200),
        # Nothing can be changed, and no other file be had.
        *(
            ("/", {"method": method}, 405)
            for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE")
        ),
        *(
            (path, {}, 404)
            for path in ("/static/../_app.py", "/static/%2e%2e/_app.py", "/config.yaml",
                         "/static/..%2f_app.py", "/static//etc/passwd",
                         "/static/index.html/../../x")
        ),
        # Without the token everything is refused; a script may send it as a header.
        *(
            (path, {"token": "secret"}, 401)
            for path in ("/", RUNS, "/static/app.js", "/api/runs?token=wrong")
        ),
        (RUNS, {"token": "k", "headers": {"authorization": "Bearer k"}}, 200),
    ],
)  # fmt: skip
def test_only_those_who_may_see_the_run_are_answered(folder, path, given, status):
    answer = _get(folder, path, **given)
    assert answer.status_code == status
    assert answer.is_success or "columns" not in answer.text
    assert answer.is_success or "set-cookie" not in answer.headers


def test_the_token_becomes_a_cookie_that_scripts_cannot_read(folder):
    async def work(client, _):
        first = await client.get("/?token=secret")
        cookie = first.headers["set-cookie"]
        pair = cookie.split(";")[0]
        again = await client.get("/api/runs", headers={"cookie": pair})
        forged = pair[:-1] + ("a" if pair[-1] != "a" else "b")
        client.cookies.clear()
        no = await client.get("/api/runs", headers={"cookie": forged})
        return first, cookie, again, no

    first, cookie, again, no = _serving(folder, work, token="secret")
    assert first.status_code == again.status_code == 200
    assert no.status_code == 401
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "secret" not in cookie


def test_a_page_is_told_news_alone(folder):
    async def work(client, runs):
        first = (await client.get("/api/run?run=0&known=-1")).json()
        ask = f"/api/run?run=0&known={first['changes']}"
        again = (await client.get(ask)).json()
        with Journal.append_to(folder / "journal") as journal:
            journal.write(101, {"loss": 0.25})
        while runs.poll():
            pass
        news = (await client.get(ask)).json()
        curves = await client.get("/api/curves?stream=&column=loss&stream=&column=no")
        return first, again, news, curves.json()

    first, again, news, curves = _serving(folder, work)
    assert first["streams"][""]["records"] == 100
    assert again == {"changes": first["changes"]}
    assert news["streams"][""]["records"] == 101
    assert curves[0]["0"]["x"] == list(range(1, 102))
    assert curves[1] == {}


def test_pages_that_ask_the_same_share_an_answer(folder):
    async def work(client, runs):
        made = []
        curves = runs.curves
        runs.curves = lambda *args, **given: made.append(1) or curves(*args, **given)
        ask = [client.get("/api/curves?stream=&column=loss") for _ in range(50)]
        answers = await asyncio.gather(*ask)
        return {answer.text for answer in answers}, made

    texts, made = _serving(folder, work)
    assert len(texts) == len(made) == 1


@pytest.mark.parametrize("shape", [(6, 3), (2, 4, 5), (4, 5, 3), (7,)])
def test_a_frame_of_any_shape_is_sent_whole_as_numbers(folder, shape):
    frames = np.arange(2 * math.prod(shape), dtype=np.int16).reshape(2, *shape)
    with Journal.append_to(folder / "journal") as journal:
        journal.write_many([1, 50], {"g": frames}, "shapes")
    answer = _get(folder, "/api/frame?run=0&stream=shapes&column=g&number=1")
    end = 4 + int.from_bytes(answer.content[:4], "little")
    about = json.loads(answer.content[4:end])
    assert about["step"] == 50
    assert end % 8 == 0
    sent = np.frombuffer(answer.content[end:], about["dtype"])
    np.testing.assert_array_equal(sent.reshape(about["shape"]), frames[1])


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/frame?run=0&stream=grid&column=grid&number=99", 404, "0 to 9 are held"),
        ("/api/frame?run=0&stream=no&column=grid", 404, "no"),
        ("/api/frame?run=0&stream=grid&column=grid&number=x", 400, "whole number"),
        ("/api/run", 400, "run must be"),
        ("/api/run?run=1", 404, "no run 1"),
        ("/api/curves?stream=&column=loss&run=1", 404, "no run 1"),
        ("/api/curves?stream=&column=loss&points=1", 400, "points"),
        ("/api/curves?stream=&column=loss&from=x", 400, "from must"),
        ("/api/rows?run=0&stream=episode_summary&count=9999", 400, "count must be"),
        ("/api/rows?run=0&stream=nothing", 404, "nothing"),
    ],
)
def test_a_wrong_query_is_answered_with_the_reason(folder, path, status, said):
    answer = _get(folder, path)
    assert answer.status_code == status
    assert said in answer.json()["error"]


def test_a_stretch_and_rows_can_be_requested(folder):
    answer = _get(folder, "/api/curves?stream=&column=loss&from=10&to=12&run=0")
    assert answer.json()[0]["0"]["x"] == [9, 10, 11, 12, 13]
    answer = _get(folder, "/api/rows?run=0&stream=episode_summary&count=1")
    assert answer.json()["steps"] == [5]
