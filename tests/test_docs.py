"""The pages say what is true: code blocks run, every setting and request code is named, links lead somewhere."""

from __future__ import annotations

import ast
import os
import re
import shlex
import time
from pathlib import Path

import click
import pytest

from penstock import Admin
from penstock.cli.main import main
from penstock.config import BrokerConfig, RegistryConfig, defaults, meanings
from penstock.testing import Broker
from polling import eventually

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python( [a-z]+)?\n(.*?)^```", re.DOTALL | re.MULTILINE)


# In an order in which each finds what it needs: the last one adds messages.
PAGES = (
    "archive",
    "stats",
    "audit",
    "search",
    "reindex",
    "replay",
    "exactly-once",
    "bulk",
    "cluster",
    "declarative",
    "redrive",
)


# Pages whose commands are for a real installation: tests/test_deploy.py reads each by its command's own options.
OPERATION = ("production", "three-machines", "from-nsqd", "from-rocketmq", "from-celery", "troubleshooting")


def blocks(page: str) -> list[tuple[str, str]]:
    return [(kind.strip(), code) for kind, code in BLOCK.findall((ROOT / page).read_text())]


def test_the_readme_runs() -> None:
    """Its Python blocks, in order, in one program, with the registry's address put in."""
    with Broker() as broker:
        names: dict[str, object] = {}
        for kind, code in blocks("README.md"):
            if "spark" not in code and kind != "spark":
                exec(compile(code.replace("127.0.0.1:9876", broker.registry), "README.md", "exec"), names)
        assert names["delivery"].message.body == b'{"id": 42}'  # type: ignore[attr-defined]


def test_the_tutorial_runs() -> None:
    names: dict[str, object] = {}
    for kind, code in blocks("docs/tutorial.md"):
        if kind != "spark":
            exec(compile(code, "docs/tutorial.md", "exec"), names)
    assert names["seen"] == 66


def test_the_page_for_celerys_users_runs() -> None:
    with Broker() as broker:
        names: dict[str, object] = {}
        for _, code in blocks("docs/howto/from-celery.md"):
            exec(compile(code.replace("127.0.0.1:9876", broker.registry), "from-celery.md", "exec"), names)
        with Admin(broker.registry) as admin:
            eventually(lambda: "%DLQ%resizers" in admin.topics(system=True))


@pytest.mark.spark
def test_the_spark_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.chdir(tmp_path)  # where Spark keeps its tables
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"), prepend=os.pathsep)  # Spark's processes start elsewhere
    import penstock

    with Broker() as broker:
        with penstock.Producer(broker.registry) as producer:
            for number in range(100):
                producer.send(penstock.Message("orders", b"%d" % number, tags="paid" if number % 3 else "open"))
        names: dict[str, object] = {"broker": broker}
        for page in ("README.md", "docs/tutorial.md"):
            for kind, code in blocks(page):
                if "spark" in code or kind == "spark":
                    exec(compile(code.replace("127.0.0.1:9876", broker.registry), page, "exec"), names)
        assert names["orders"].count() == 100  # type: ignore[attr-defined]
        sold = {row["tags"]: row["count"] for row in names["spark"].table("sales").collect()}  # type: ignore[attr-defined]
    assert sold == {"paid": 66, "open": 34}
    (first, *_) = [code for _, code in blocks("README.md") if "spark" in code]
    assert "readStream" in first
    assert len(first.splitlines()) <= 15


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_the_how_to_pages_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their commands and their Python, page by page, against one broker whose folder is /data/store."""
    pytest.importorskip("pyspark")
    monkeypatch.chdir(tmp_path)  # where Spark keeps its tables
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"), prepend=os.pathsep)  # Spark's processes start elsewhere
    with Broker(tmp_path / "store") as broker:
        fill(broker.registry)
        places = {"127.0.0.1:9876": broker.registry, "/data/": f"{tmp_path}/"}
        for page in PAGES:
            names: dict[str, object] = {}
            for language, kind, code in re.findall(
                r"^```(sh|python)( [a-z]+)?\n(.*?)^```", (ROOT / f"docs/howto/{page}.md").read_text(), re.DOTALL | re.M
            ):
                for old, new in places.items():
                    code = code.replace(old, new)
                if language == "python" and kind == " spark":
                    exec(compile(code, page, "exec"), names)
                elif language == "sh" and not kind:
                    for line in code.splitlines():
                        command(line, broker.registry)
    for line in ("penstock spark reindex {} --swap", "penstock spark audit {}"):  # with the broker stopped
        command(line.format(tmp_path / "store"), "")
    assert {page.stem for page in ROOT.glob("docs/howto/*.md")} == {"README", *PAGES, *OPERATION}


def fill(registry: str) -> None:
    """A topic of 100 messages, and a consumer group that gave up on some."""
    import penstock
    from penstock.client.reader import LogReader

    with penstock.Producer(registry) as producer:
        for number in range(100):
            producer.send(
                penstock.Message("orders", b"%d" % number, tags="paid" if number % 3 else "open", keys=(f"k{number}",))
            )
        for number in range(6):
            properties = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": f"id{number}"}
            producer.send(
                penstock.Message("%DLQ%shop-consumers", b"%d" % number, tags="paid" if number % 3 else "open",
                                 properties=properties)
            )  # fmt: skip
    with LogReader(registry) as reader:  # Spark reads what is flushed
        queues = [queue for topic in ("orders", "%DLQ%shop-consumers") for queue in reader.queues(topic)]
        while any(reader.offsets(queue)[1] < reader.offsets(queue, durable=False)[1] for queue in queues):
            time.sleep(0.02)


def command(line: str, registry: str) -> None:
    """One line of a page, with the broker's address where the command takes one."""
    from click.testing import CliRunner

    from penstock.cli.spark import spark

    program, group, name, *words = shlex.split(line)
    assert (program, group) == ("penstock", "spark"), line
    if any("--registry" in option.opts for option in spark.commands[name].params):
        words += ["--registry", registry]
    done = CliRunner().invoke(spark, [name, *words])
    assert done.exit_code == 0, (line, done.output)


def test_every_setting_is_described() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    for kind in (BrokerConfig, RegistryConfig):
        about = meanings(kind)
        for name, default in defaults(kind).items():
            assert f"| `{name}` | {default} | {about[name]} |" in page, (
                f"{name}: run `python -m penstock.cli settings --markdown > docs/settings.md`"
            )


def test_every_request_code_is_listed() -> None:
    from penstock.fronts.requests import CODES

    page = (ROOT / "docs/protocol.md").read_text()
    for code in CODES:
        assert f"{int(code)} {code.name}" in page


def test_every_http_path_is_listed() -> None:
    from penstock.fronts.http.nsqd import NsqHttp
    from penstock.fronts.lookupd import Lookupd, LookupHttp
    from penstock.registry.producers import ProducerTables

    _, api, lookup = re.split(r"^## (?:NSQ over HTTP|nsqlookupd)$", (ROOT / "docs/protocol.md").read_text(), flags=re.M)
    with Broker(lookup_port=-1, lookup_http_port=-1) as broker:
        routes = broker.call(lambda server: NsqHttp(server.broker).routes)
    for page, table in ((api, routes), (lookup, LookupHttp(Lookupd(ProducerTables())).routes)):
        for path in table:
            assert re.search(rf"`{re.escape(path)}[`?]", page), path


@pytest.mark.parametrize(
    "page", sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
)
def test_links(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_ports_named_in_the_readme_are_the_defaults() -> None:
    text = (ROOT / "README.md").read_text()
    assert str(BrokerConfig().remoting_port) in text
    assert str(RegistryConfig().registry_port) in text


def test_ports_named_in_the_operators_page_are_the_defaults() -> None:
    text = (ROOT / "docs/operate.md").read_text()
    for kind in (BrokerConfig, RegistryConfig):
        for name, default in defaults(kind).items():
            if name.endswith("_port") and not name.startswith("broadcast") and default is not True:
                assert str(default) in text, name


def test_every_verb_is_explained() -> None:
    """The verbs of `run` stand in its first lines and in CONTRIBUTING.md."""
    run = (ROOT / "run").read_text()
    named = set(re.search(r"^# One word each: \./run (.*?)  ", run, re.M)[1].split(" | "))  # type: ignore[index]
    assert named == set(re.findall(r"^    (\w+)\)", run, re.M))
    told = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    for verb in named:
        assert f"./run {verb}" in told, verb


def test_every_command_that_a_page_names_is_there() -> None:
    """With its options, in a sentence or on a line of its own."""
    seen = 0
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for line in re.findall(r"(?:`|^(?: {4})?)penstock ([a-z][^`\n#|]*)", path.read_text(), re.M):
            words = re.sub(r"[][(]", "", line).split()
            if words[0] == "history":  # of a file, not of ours
                continue
            command: click.Command = main
            while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
                found = command.get_command(click.Context(command), words.pop(0))
                assert found is not None, f"{path.name}: penstock {line}"
                command = found
            options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
            for word in words if not isinstance(command, click.Group) else ():
                option = re.match(r"--?[a-zA-Z][a-zA-Z-]*", word)
                assert option is None or option[0] in {"--help", *options}, f"{path.name}: penstock {line}"
            seen += 1
    assert seen > 200


def test_what_comments_cite_is_there() -> None:
    """`rocketmq.md §9.6` in a source or a test is a heading of docs/reference/rocketmq.md."""
    pages, number = "rocketmq|nsq|reliability|spark|performance|replication|style|house", r"\d+(?:\.\d+)?"
    cited = re.compile(rf"\b({pages})\.md[ ,]+(?:§ ?)?({number})((?:, §{number}| to §{number})*)")
    seen = 0
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.pxd"), *(ROOT / "tests").rglob("*.py")]:
        for found in cited.finditer(path.read_text() if path != Path(__file__) else ""):
            page = ROOT / "docs" / "reference" / f"{found[1]}.md"
            assert page.exists(), f"{path.name} cites {found[0]}"
            headings = set(re.findall(rf"^#+ ({number})", page.read_text(), re.M))
            for section in [found[2], *re.findall(number, found[3])]:
                assert section in headings, f"{path.name} cites {found[0]}"
            seen += 1
    assert seen > 20


# Words that say little, with how many identifiers say them: this table only ever shrinks. A `hold` is a long poll.
TO_BE_PARTED = {"show": 2, "shown": 3, "held": 4, "moment": 2}


def identifiers() -> dict[str, set[str]]:
    """The words that identifiers of the source are made of, each with those identifiers."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ""
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = node.name
            elif isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.attr
            for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name):
                found.setdefault(word.lower(), set()).add(name)
    return found


def test_the_glossary_is_what_the_code_says() -> None:
    page = (ROOT / "docs/glossary.md").read_text()
    rows = re.findall(r"^\| (?!word |--)([^|]+) \| ([^|]+) \|([^|]*)\|$", page, re.M)
    assert len(rows) > 50
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "glossary.md"]
    texts = [path.read_text() for path in (*(ROOT / "src").rglob("*.py"), *pages)]
    said = re.sub(r"[\s_#]+", " ", " ".join(texts)).lower()
    for terms, _, _ in rows:
        for term in terms.split(", "):
            assert re.search(rf"\b{re.escape(term.lower())}", said), f"nobody says {term!r}"
    used = identifiers()
    forbidden = re.findall(r"`(\w+)`", "".join(no for _, _, no in rows) + page.rpartition("No module, class")[2])
    assert {"shard", "utils"} <= set(forbidden)
    for word in forbidden:
        assert word not in used, f"{word}: {used[word]}"
    for word, most in TO_BE_PARTED.items():
        assert len(used.get(word, ())) <= most, f"{word}: {used[word]}"
