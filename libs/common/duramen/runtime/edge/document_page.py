"""An OpenAPI document as one page to read, at `/docs`: no script, nothing from elsewhere.

The framework's own page loads its script from a content delivery network: it is empty on a machine
without internet, and runs whatever comes from there beside a port that can stop the service. This
page is plain HTML, and its policy lets a browser load nothing. It shows calls, the verbs they need,
parameters, bodies, answers and schemas; it cannot make a call.

Called by `runtime.admin` and `runtime.public.serving`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from html import escape
from typing import Any, Final

import orjson
from fastapi import Request, Response

from duramen.runtime.rights.route_verbs import FIELD as VERB_FIELD

DOCS_PATH: Final = "/docs"

_METHODS: Final = ("get", "put", "post", "patch", "delete")
_STYLE: Final = (
    "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "pre,code{font:14px/1.4 monospace}pre{white-space:pre-wrap}"
    "h2{border-top:1px solid;padding-top:.5em}"
)
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"

Document = Mapping[str, Any]


def make_page_endpoint(
    document: Document, json_path: str
) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of DOCS_PATH.

    Args:
        json_path: where the document itself is served.
    """
    body = format_page(document, json_path).encode()

    async def give_page(_request: Request) -> Response:
        policy = {"Content-Security-Policy": _POLICY}
        return Response(body, media_type="text/html; charset=utf-8", headers=policy)

    return give_page


def make_document_endpoint(document: Document) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of the document itself, as JSON."""
    body = orjson.dumps(document)

    async def give_document(_request: Request) -> Response:
        return Response(body, media_type="application/json")

    return give_document


def format_page(document: Document, json_path: str) -> str:
    """The page."""
    info = document["info"]
    parts = [
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info.get('description', ''))}</p>",
        f'<p>For programs: <a href="{escape(json_path)}">{escape(json_path)}</a></p><ul>',
    ]
    calls = list(_list_calls(document))
    parts += [f'<li><a href="#{anchor}"><code>{name}</code></a></li>' for anchor, name, _ in calls]
    parts.append("</ul>")
    for anchor, name, call in calls:
        parts += [f'<h2 id="{anchor}"><code>{name}</code></h2>', *_format_call(call)]
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        parts += [f'<h3 id="{escape(name)}">{escape(name)}</h3>', _format_json(schema)]
    title = escape(info["title"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _list_calls(document: Document) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Anchor, method with path, and description of each call."""
    parameters = document.get("components", {}).get("parameters", {})
    for path, item in document["paths"].items():
        for method in (one for one in _METHODS if one in item):
            found = [*item.get("parameters", ()), *item[method].get("parameters", ())]
            resolved = [
                parameters.get(str(one.get("$ref")).rpartition("/")[2], one) for one in found
            ]
            anchor = escape(f"{method}-{path}")
            yield (
                anchor,
                f"{method.upper()} {escape(path)}",
                {**item[method], "parameters": resolved},
            )


def _format_call(call: Mapping[str, Any]) -> Iterator[str]:
    yield f"<p>{escape(call.get('summary', ''))}. {escape(call.get('description', ''))}</p>"
    yield f"<p>needs <code>{escape(call[VERB_FIELD])}</code></p>"
    if call["parameters"]:
        yield "<ul>"
        for one in call["parameters"]:
            said = escape(one.get("description", ""))
            yield f"<li><code>{escape(one['name'])}</code> ({escape(one['in'])}) {said}</li>"
        yield "</ul>"
    if "requestBody" in call:
        yield f"<p>takes</p>{_format_json(call['requestBody'].get('content', {}))}"
    for status, answer in call.get("responses", {}).items():
        forms = ", ".join(answer.get("content", {})) or "no body"
        said = escape(answer.get("description", ""))
        yield f"<p><b>{escape(str(status))}</b> {said} <code>{escape(forms)}</code></p>"


def _format_json(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2, ensure_ascii=False))}</pre>"
