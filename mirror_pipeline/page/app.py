"""This tool's own page, as an ASGI application behind the gate: what the watches know, and what may be done about it."""

from __future__ import annotations

import hmac
import re
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mirror_pipeline import __version__
from mirror_pipeline.errors import MirrorError, UsageError
from mirror_pipeline.exporter.watch import Watch, Watches
from mirror_pipeline.features.failover.report import FailoverOptions
from mirror_pipeline.host import signed_by
from mirror_pipeline.mirror import Mirror
from mirror_pipeline.page import view
from mirror_pipeline.page.edit import ConfigText, MirrorForm
from mirror_pipeline.page.gate import PAGE_PREFIX, USER, User, page_of
from mirror_pipeline.page.tasks import Tasks
from mirror_pipeline.text import clock, count, duration, plural, rate, size

MOST_BYTES = 200_000
_POLICY = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
Answer = Callable[[Request], Awaitable[Response]]


class MirrorPages:
    """The pages. ``dagster`` is whether Dagster's page is at ``/``."""

    def __init__(self, watches: Watches, *, dagster: bool) -> None:
        self._watches = watches
        self._tasks = Tasks()
        self._key = secrets.token_bytes(32)
        self._said: dict[str, list[str]] = defaultdict(list)
        self._dagster = dagster
        templates = Environment(
            loader=PackageLoader("mirror_pipeline.page"), autoescape=select_autoescape(), trim_blocks=True, lstrip_blocks=True
        )
        templates.filters.update(clock=clock, count=count, duration=duration, rate=rate, size=size, quote=lambda text: quote(text, safe=""))
        templates.filters["coded"] = _coded
        templates.globals.update(prefix=PAGE_PREFIX, version=__version__, dagster=dagster, plural=plural, unlimited=str(2**63 - 1))
        self._templates = templates

    def app(self) -> Starlette:
        """The application, for the addresses under ``PAGE_PREFIX``."""
        one = PAGE_PREFIX + "/m/{name}"
        pages = {
            PAGE_PREFIX: self._overview,
            PAGE_PREFIX + "/live": self._overview,
            PAGE_PREFIX + "/new": self._edit,
            one: self._mirror,
            one + "/live": self._mirror,
            one + "/actions/live": self._mirror,
            one + "/topics/live": self._mirror,
            one + "/points": self._points,
            one + "/edit": self._edit,
            one + "/failover": self._failover,
            one + "/failover/live": self._failover,
            one + "/remirror": self._fresh_copy,
        }
        forms = {
            PAGE_PREFIX + "/new": self._save,
            one + "/edit": self._save,
            one + "/pause": self._pause,
            one + "/resume": self._pause,
            one + "/accept": self._accept,
            one + "/failover": self._fail_over,
            one + "/remirror": self._remirror,
        }
        routes: list[Any] = [Route(path, self._guarded(answer), methods=["GET"]) for path, answer in pages.items()]
        routes += [Route(path, self._guarded(self._checked(answer)), methods=["POST"]) for path, answer in forms.items()]
        routes.append(Mount(PAGE_PREFIX + "/static", StaticFiles(directory=Path(__file__).parent / "static")))
        return Starlette(routes=routes)

    # Every answer: who asks, what was said, what went wrong.

    def _guarded(self, answer: Answer) -> Answer:
        async def guarded(request: Request) -> Response:
            try:
                response = await answer(request)
            except MirrorError as error:
                response = self._show(request, "message.html", status=400, error=error)
            response.headers["content-security-policy"] = _POLICY
            response.headers["cache-control"] = "no-store"
            return response

        return guarded

    def _checked(self, answer: Answer) -> Answer:
        """A form that this page gave to this user, from a browser; programs that bring a token in a header need none."""

        async def checked(request: Request) -> Response:
            body = b""
            async for part in request.stream():
                body += part
                if len(body) > MOST_BYTES:
                    raise UsageError(f"a form has at most {MOST_BYTES:,} bytes")
            request.state.form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
            mark = request.state.form.get("csrf", "")
            if "authorization" not in request.headers and not hmac.compare_digest(mark.encode(), self._mark(_user(request)).encode()):
                raise UsageError("this form is from before the page was started anew", hint="open it again, and send it then")
            return await answer(request)

        return checked

    def _mark(self, user: User) -> str:
        return hmac.new(self._key, user.name.encode(), sha256).hexdigest()

    def _show(self, request: Request, template: str, *, status: int = 200, **facts: Any) -> Response:
        user = _user(request)
        said = [] if request.url.path.endswith("/live") else self._said.pop(user.name, [])
        shown = {"user": user, "csrf": self._mark(user), "said": said, "problem": self._watches.problem, **facts}
        return HTMLResponse(self._templates.get_template(template).render(shown), status_code=status)

    def _say(self, request: Request, text: str) -> None:
        said = self._said[_user(request).name]
        said[:] = [*said[-4:], text]

    def _watch(self, request: Request) -> Watch:
        name = request.path_params["name"]
        watch = self._watches.get(name)
        if watch is None:
            self._watches.config.mirror(name)
            raise UsageError(f"mirror {name} is not watched here")
        return watch

    def _of(self, request: Request) -> Mirror:
        return Mirror(self._watches.config, self._watch(request).facts.mirror)

    # What is seen.

    async def _overview(self, request: Request) -> Response:
        rows = [view.mirror_row(watch, self._watches.config) for watch in self._watches.all]
        template = "_overview.html" if request.url.path.endswith("/live") else "overview.html"
        return self._show(request, template, mirrors=rows, picture=view.picture(rows))

    async def _mirror(self, request: Request) -> Response:
        watch = self._watch(request)
        query = request.query_params
        part = request.url.path.removeprefix(f"{PAGE_PREFIX}/m/{watch.facts.mirror}")
        template = {"/live": "_mirror.html", "/actions/live": "_actions.html", "/topics/live": "_topics.html"}.get(part, "mirror.html")
        facts: dict[str, Any] = {"mirror": view.mirror_row(watch, self._watches.config)}
        if part in ("", "/live"):
            facts |= {"halted": view.acceptable(watch), "causes": view.other_causes(watch)}
        if part in ("", "/topics/live"):
            find = query.get("find", "")
            facts |= {"topics": view.topics(watch, find=find, number=query.get("page", "1")), "find": find, "query": request.url.query}
        return self._show(request, template, **facts)

    async def _points(self, request: Request) -> Response:
        points = list(self._watch(request).history.points)
        return JSONResponse([[p.at for p in points], [p.lag_records for p in points], [round(p.bytes_per_second / 1e6, 3) for p in points]])

    # What is done.

    async def _pause(self, request: Request) -> Response:
        topic = request.state.form.get("topic") or None
        paused = request.url.path.endswith("/pause")
        mirror = self._of(request)
        await self._signed(request, lambda: (mirror.pause if paused else mirror.resume)(topic))
        self._say(request, f"{topic or mirror.name} {'is paused' if paused else 'continues'}; a running lane follows within half a minute")
        return self._back(request)

    async def _accept(self, request: Request) -> Response:
        form, mirror = request.state.form, self._of(request)
        done = await self._signed(request, lambda: mirror.resolve(form.get("topic", ""), form.get("code", "")))
        self._say(request, f"{done.topic}: accepted {done.accepted}. A running lane continues within half a minute, otherwise the next run")
        return self._back(request)

    def _back(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._watch(request).look_again()
        return _go_to(name)

    async def _signed(self, request: Request, act: Callable[[], Any]) -> Any:
        user = _user(request)

        def signed() -> Any:
            with signed_by(user.name):
                return act()

        return await run_in_threadpool(signed)

    # mirror.yaml.

    async def _edit(self, request: Request) -> Response:
        name = request.path_params.get("name")
        text = ConfigText.read(self._watches.config.path)
        form = text.form(name) if name else MirrorForm("", "", "", (".*",))
        return self._form(request, form, text, new=name is None)

    async def _save(self, request: Request) -> Response:
        given, name = request.state.form, request.path_params.get("name")
        form = MirrorForm.of({**given, **({"name": name} if name else {})})
        before = ConfigText.read(self._watches.config.path)
        try:
            if given.get("mark", "") != before.mark:
                raise UsageError(f"{before.path} was changed by somebody else meanwhile", hint="open the form again")
            if not {form.source, form.target} <= set(self._watches.config.clusters):
                raise UsageError("clusters are those of mirror.yaml", hint="add another one there")
            changed = before.with_mirror(form, new=name is None)
        except MirrorError as error:
            return self._form(request, form, before, new=name is None, error=error)
        if given.get("step") != "save":
            plan, why = await run_in_threadpool(view.planned, changed.load(), form.name)
            lines = view.changes(before.text, changed.text)
            return self._form(request, form, before, new=name is None, plan=plan, plan_error=why, changes=lines)
        version = await run_in_threadpool(changed.save, before)
        await run_in_threadpool(self._watches.follow)
        begins = "; Dagster starts the mirror within a minute or two" if name is None and self._dagster else ""
        self._say(request, f"{before.path.name} is saved{begins}; what it was before is in {version}")
        return _go_to(form.name)

    def _form(self, request: Request, form: MirrorForm, text: ConfigText, *, new: bool, **facts: Any) -> Response:
        return self._show(request, "form.html", form=form, mark=text.mark, new=new, clusters=list(self._watches.config.clusters), **facts)

    # A topic afresh.

    async def _fresh_copy(self, request: Request) -> Response:
        found = await run_in_threadpool(self._of(request).fresh_copy, request.query_params.get("topic", ""))
        return self._show(request, "remirror.html", found=found)

    async def _remirror(self, request: Request) -> Response:
        form, mirror = request.state.form, self._of(request)
        topic = form.get("topic", "")
        if form.get("sure") != topic:
            raise UsageError("a fresh copy is confirmed by the topic's name", hint="type it into the field beside the button")
        done = await self._signed(request, lambda: mirror.remirror(topic, accept_loss=form.get("loss") == "accept"))
        self._say(request, f"{done.topic} is copied afresh; a running lane begins within half a minute, otherwise the next run")
        return self._back(request)

    # Failover.

    async def _failover(self, request: Request) -> Response:
        watch = self._watch(request)
        template = "_failover.html" if request.url.path.endswith("/live") else "failover.html"
        return self._show(request, template, mirror=view.mirror_row(watch, self._watches.config), task=self._tasks.get(watch.facts.mirror))

    async def _fail_over(self, request: Request) -> Response:
        form, mirror, user = request.state.form, self._of(request), _user(request)
        dry = form.get("step") != "promote"
        if not dry and form.get("sure") != mirror.name:
            raise UsageError("a failover is confirmed by the mirror's name", hint="type it into the field beside the button")
        options = FailoverOptions(dry_run=dry, unplanned=form.get("mode") == "unplanned")

        def act() -> Any:
            with signed_by(user.name):
                return mirror.failover(options)

        self._tasks.start(mirror.name, "a look at what a failover would do" if dry else "the failover", act)
        return _go_to(mirror.name, "/failover")


def _go_to(mirror: str, page: str = "") -> Response:
    return RedirectResponse(page_of(mirror) + page, 303)


def _coded(text: str) -> Markup:
    """Text of this program, in which `...` is code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before


def _user(request: Request) -> User:
    user: User = request.scope[USER]
    return user
