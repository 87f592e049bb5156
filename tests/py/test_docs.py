"""The documents: their Python blocks run, their links lead somewhere.

The blocks of one file share a namespace, in which DEMO is the embedded data set and SCRATCH an
empty folder. In README.md only blocks that begin with ```python run are run.
"""

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
DEMO = REPO / "python/reelpool/_demo/dataset"
PAGES = [*sorted((REPO / "docs").glob("*.md")), REPO / "README.md", REPO / "CONTRIBUTING.md"]
PAGES = [page for page in PAGES if page.exists()]
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def python_blocks(page):
    """The page as Python source, line numbers kept: all but the code of its blocks is blank."""
    marks = ("```python run",) if page.name == "README.md" else ("```python", "```python run")
    inside, source = False, []
    for line in page.read_text().splitlines():
        if not inside and line in marks:
            inside = True
            source.append("")
            continue
        inside = inside and line != "```"
        source.append(line if inside else "")
    return "\n".join(source) if any(source) else None


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if python_blocks(page)], ids=lambda page: page.name
)
def test_examples_run(page, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs the extra `torch`")
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    namespace = {"DEMO": DEMO, "SCRATCH": tmp_path, "__name__": "example"}
    exec(compile(python_blocks(page), str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    targets = [target for target, _ in LINK.findall(page.read_text()) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_every_page_is_in_the_index():
    index = (REPO / "docs/README.md").read_text()
    missing = [p.name for p in PAGES if p.parent.name == "docs" and f"({p.name})" not in index]
    assert missing == ["README.md"]


def test_errors_page_names_every_class():
    from reelpool import errors

    text = (REPO / "docs/errors.md").read_text()
    classes = [name for name in errors.__all__ if name[0].isupper()]
    assert [name for name in classes if f"`{name}`" not in text] == []


def test_design_page_names_every_key_of_stats():
    import reelpool

    dataset = reelpool.LeRobotDataset("you/your_dataset", root=DEMO, num_threads=0)
    loader = reelpool.Loader(dataset, 8, num_threads=0, output="numpy")
    next(iter(loader))
    keys = {*loader.stats(), *dataset.stats()}
    text = (REPO / "docs/design.md").read_text().partition("## `stats()`")[2]
    table = set(re.findall(r"`(\w+)`", text.partition("\n```")[0]))
    assert keys <= table
