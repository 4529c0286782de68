"""The code of docs/client.md runs, in order, in one program."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


def test_the_page_runs(registry: str) -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    assert code.count("127.0.0.1:9876") == 1
    names: dict[str, object] = {}
    exec(compile(code.replace("127.0.0.1:9876", registry), "docs/client.md", "exec"), names)
    assert len(names["done"]) >= 14  # type: ignore[arg-type]
