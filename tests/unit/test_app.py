"""The registry of agents."""

import functools
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runyard import Client
from runyard.app import AgentOptions, App, load_app, name_of
from runyard.errors import AgentNotFoundError, InvalidInputError
from runyard.execution.context import RunContext
from runyard.execution.retries import backoff, effective_options
from runyard.models import RetryPolicy, RunOptions
from runyard.support import agent_adapters
from runyard.worker.worker import Worker


async def one(ctx: object) -> None: ...


async def two(ctx: object) -> None: ...


def test_a_run_without_an_agent_gets_the_first_one() -> None:
    """L1."""
    app = App({"one": one, "two": two})
    assert app.default is app[None] and app[None].function is one
    assert app["two"].function is two
    assert app.find("default") is None and App().default is None


def test_an_app_of_one_agent_needs_no_map() -> None:
    """The agent has the name of its function, or of the framework's agent."""
    assert list(App(one).agents) == ["one"]

    class Named:
        name = "clerk"

        async def __call__(self, ctx: object) -> None: ...

    class Unnamed:
        async def __call__(self, ctx: object) -> None: ...

    assert list(App(Named()).agents) == ["clerk"] and list(App(Unnamed()).agents) == ["default"]


def test_the_agents_of_a_namespace_have_its_name() -> None:
    """L4: the namespace is also the queue of the agents."""
    app = App({"one": one}, namespace="shop")
    app.agent("second", queue="gpu")(two)
    assert app.queue_of == {"shop/one": "shop", "shop/second": "gpu"} and app.queues == ["shop", "gpu"]
    assert app["one"] is app["shop/one"] and app["shop/"] is app[None] is app["one"]
    assert app.find("blog/one") is None and app.find("blog/") is None
    assert App({"one": one}, namespace="shop", default_queue="gpu").queues == ["gpu", "shop"]
    for wrong in ("a/b", "x" * 256, "\n"):
        with pytest.raises(InvalidInputError):
            App(namespace=wrong)
        with pytest.raises(InvalidInputError):
            App({wrong: one})
    with pytest.raises(InvalidInputError, match="255"):
        App({"x" * 255: one}, namespace="shop")


def test_the_environment_and_the_env_file_name_the_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L4: an argument has precedence, also the empty one."""
    monkeypatch.chdir(tmp_path)
    assert App({"one": one}).namespace == ""
    (tmp_path / ".env").write_text("RUNYARD_NAMESPACE=file\n")
    assert App({"one": one}).namespace == "file"
    monkeypatch.setenv("RUNYARD_NAMESPACE", "shop")
    assert list(App({"one": one}).agents) == ["shop/one"]
    assert App({"one": one}, namespace="").namespace == ""


def test_an_env_file_that_is_refused_does_not_leave_the_program_without_its_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L4: the error names the variable. A file without a namespace does not matter, whoever can change it."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / ".env"
    file.write_text("RUNYARD_NAMESPACE=shop\n")
    file.chmod(0o664)
    with pytest.raises(InvalidInputError, match=r"can be changed by others .* or set RUNYARD_NAMESPACE"):
        App({"one": one})
    assert App({"one": one}, namespace="blog").namespace == "blog"
    file.write_bytes(b"RUNYARD_NAMESPACE=shop\nOTHER=\xff\n")
    with pytest.raises(InvalidInputError, match="not UTF-8"):
        App({"one": one})
    monkeypatch.setenv("RUNYARD_NAMESPACE", "")
    assert App({"one": one}).namespace == ""
    monkeypatch.delenv("RUNYARD_NAMESPACE")
    for content in (b"OTHER=\xff\n", b"RUNYARD_POSTGRES_URL=https://api\nOTHER=\xff\n"):
        file.write_bytes(content)
        assert App({"one": one}).namespace == ""


def sync(ctx: object) -> None: ...


async def generator(ctx: object) -> AsyncIterator[None]:
    yield


class Sync:
    def __call__(self, ctx: object) -> None: ...


@pytest.mark.parametrize("agent", [sync, generator, Sync(), lambda ctx: None, partial(sync)])
def test_an_agent_that_is_not_async_is_refused_at_registration(agent: Any) -> None:
    """L6: it could await nothing, and its run would fail."""
    with pytest.raises(InvalidInputError, match=r"is not an async function; write `async def`.*message_agent"):
        App({"a": agent})
    with pytest.raises(InvalidInputError, match="async def"):
        App().agent(agent)


async def test_a_wrapper_of_an_async_agent_is_registered() -> None:
    """L6: a wrapper that does not return what it wraps is named when it is called."""

    @functools.wraps(one)
    def wrapper(ctx: object) -> object:
        return one(ctx)

    class Agent:
        async def __call__(self, ctx: object) -> None: ...

    @functools.wraps(one)
    def silent(ctx: object) -> None: ...

    with pytest.raises(InvalidInputError, match=r"silent.*wrapper"):
        nothing: Any = None
        await App({"silent": silent})["silent"].execute(nothing)
    app = App({"wrapper": wrapper, "partial": partial(one), "object": Agent(), "method": Agent().__call__})
    assert len(app.agents) == 4


def test_an_agent_named_default_is_the_default() -> None:
    assert App({"one": one, "default": two})[None].function is two


def test_an_unknown_agent_is_told_with_those_that_exist() -> None:
    app = App({"one": one})
    assert app.find("three") is None
    with pytest.raises(AgentNotFoundError, match="one") as caught:
        app["three"]
    assert caught.value.details["agents"] == ["one"]


def test_the_decorator_registers_under_the_functions_name_or_another() -> None:
    app = App(default_queue="q")
    assert app.agent(one) is one
    app.agent("second", queue="gpu", timeout=5, max_attempts=3, hitl=True)(two)
    assert app.queue_of == {"one": "q", "second": "gpu"}
    assert app.queues == ["q", "gpu"]
    assert app["second"].hitl
    with pytest.raises(InvalidInputError, match="twice"):
        app.agent("second")(one)


def test_the_default_queue_is_served_even_if_no_agent_has_it() -> None:
    """Fork jobs wait there."""
    app = App()
    app.agent(queue="gpu")(one)
    assert app.queues == ["gpu", "default"]


@pytest.mark.parametrize("options", [{"one": {"queue": "gpu"}}, {"queue": "gpu"}, 60, "gpu", [AgentOptions()]])
def test_options_of_another_kind_are_refused(options: Any) -> None:
    """A dict of options, or a value that is no option at all, is not left out silently."""
    with pytest.raises(InvalidInputError, match="options") as refused:
        App({"one": one}, options=options)
    assert refused.value.details["field"] == "options"


def test_a_runs_own_options_win_over_its_agents() -> None:
    app = App()
    app.agent(timeout=5, max_attempts=3, retry=RetryPolicy(initial=9))(one)
    spec = app["one"]
    assert effective_options(RunOptions(), spec) == RunOptions(timeout=5, max_attempts=3, retry=RetryPolicy(initial=9))
    own = RunOptions(timeout=1, max_attempts=2, retry=RetryPolicy(initial=7))
    assert effective_options(own, spec) == own


def test_backoff_grows_to_its_maximum() -> None:
    """R11."""
    policy = RetryPolicy(initial=1, factor=2, maximum=10, jitter=0)
    assert [backoff(policy, n) for n in (0, 1, 2, 3, 4, 999)] == [1, 2, 4, 8, 10, 10]
    jittered = RetryPolicy(initial=10, maximum=10, jitter=0.5)
    assert all(5 <= backoff(jittered, 0) <= 15 for _ in range(100))


def test_load_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "its_app.py").write_text("from runyard.app import App\napp = App(version='3')\nother = 1\n")
    assert load_app("its_app:app").version == "3"
    for wrong in ("its_app", "its_app:none", "its_app:other", "no_such_module:app"):
        with pytest.raises(InvalidInputError):
            load_app(wrong)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("mod_9", "module:attribute, for example main:app"),
        ("mod_9:absent", "the module 'mod_9' has no attribute 'absent'; its Apps: app, other"),
        ("mod_9:make", r"mod_9:make has the type function and is not an App; make one from your agents: app = App\(agents\)"),
        ("mod_9:agents", "mod_9:agents has the type dict and is not an App"),
        ("empty_9:app", r"the module 'empty_9' has no attribute 'app'; write `app = App\(…\)` in it"),
        ("package_9:app", "it is a package: name the module in it that has the App, for example package_9.main:app"),
        ("folder_9:app", "it is a package: name the module in it that has the App, for example folder_9.main:app"),
        ("package_9:main", "package_9:main is a module; name the App in it, for example package_9.main:app"),
        ("package_9/main:app", "'package_9/main' is a path; name the module as in an import"),
        (".mod_9:app", "'.mod_9' is a path"),
        ("mod_9.py:app", "there is no module 'mod_9.py' to load the app from; name it without .py"),
    ],
)
def test_what_is_no_app_is_refused_with_the_remedy(
    path: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    for name in ("mod_9", "empty_9", "package_9", "package_9.main", "folder_9", "folder_9.main"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "mod_9.py").write_text("from runyard import App\napp = other = App()\nagents = {}\ndef make(): return App()\n")
    (tmp_path / "empty_9.py").touch()
    for folder in ("package_9", "folder_9"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "main.py").write_text("from runyard import App\napp = App()\n")
    (tmp_path / "package_9" / "__init__.py").touch()
    assert load_app("package_9.main:app").agents == {}
    with pytest.raises(InvalidInputError, match=words):
        load_app(path)


async def test_a_worker_refuses_what_is_no_app() -> None:
    backend = (await Client.connect("memory://")).backend
    with pytest.raises(InvalidInputError, match="the app has the type function and is not an App"):
        Worker(one, backend)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a/b", "a\n", 5, None])
def test_a_name_that_no_agent_can_have_is_refused_with_the_remedy(name: Any) -> None:
    with pytest.raises(InvalidInputError, match=r'register it under another name: App\(\{"name": agent\}\)'):
        App({name: one})


def test_agents_without_names_are_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidInputError, match=r'give several agents as a map: App\(\{"name": agent'):
        App([one])


def test_an_unknown_version_policy_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="run, wait, fail"):
        App(on_version_mismatch="hope")  # type: ignore[arg-type]


def test_an_app_is_named_by_the_module_that_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poison: the child imports the app under that name; the main module cannot be imported once more."""
    app = App()
    assert name_of(app) is None
    monkeypatch.setattr(sys.modules["__main__"], "held", app, raising=False)
    assert name_of(app) is None
    monkeypatch.setattr("runyard.testing.scripted_agent.held", app, raising=False)
    assert name_of(app) == "runyard.testing.scripted_agent:held"
    assert load_app("runyard.testing.scripted_agent:held") is app


class ForeignAgent:
    """An agent of a framework that has an adapter in this test only."""


def test_an_adapter_serves_agents_of_its_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that no adapter knows is refused; a registered adapter is asked in processes that imported its framework."""

    async def served(ctx: RunContext) -> None: ...

    with pytest.raises(InvalidInputError, match="framework with an adapter"):
        App({"a": ForeignAgent()})
    monkeypatch.setitem(agent_adapters._registered, "no_such_framework", lambda _: pytest.fail("loaded without its framework"))
    monkeypatch.setitem(agent_adapters._registered, "tests", lambda agent: served if isinstance(agent, ForeignAgent) else None)
    monkeypatch.setitem(sys.modules, "tests", sys)
    assert App({"a": ForeignAgent()})["a"].function is served
    assert App({"b": served})["b"].function is served
