"""Accelerate, one process and two: a prepared Loader is left alone; a prepared DataLoader over the
streaming class is shared out once, by Accelerate."""

import json
import sys
from pathlib import Path

import pytest
from demo_sets import FRAMES, ROOT
from samples import check

pytest.importorskip("torch", reason="needs the extra `torch`")
pytest.importorskip("accelerate", reason="needs accelerate beside torch")

ISOLATED = Path(__file__).resolve().parents[1] / "isolated"
sys.path.append(str(ISOLATED))

import reelpool  # noqa: E402
from _watchdog import finish, start  # noqa: E402

WATCHDOG_S = 90
BATCH = 6
SCRIPT = ISOLATED / "_accelerated.py"
CASES = ["none0", "none2", "false0", "false2", "true0", "true2"]
CLEAN = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_STEP_ID"))


def expected(size):
    """Indices of each global batch of two epochs."""
    dataset = reelpool.StreamingLeRobotDataset(
        "reelpool/demo", root=ROOT, return_uint8=True, seed=9, batch_size=BATCH
    )
    with reelpool.Loader(dataset, size, rank=0, world_size=1) as loader:
        return [[batch["index"].tolist() for batch in loader] for _ in range(2)]


def flat(lists):
    return [one for part in lists for one in part]


def run_job(out, world):
    """What each rank found, per case."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", world]
    finish(start(*(launcher if world > 1 else ()), SCRIPT, out, **CLEAN, OMP_NUM_THREADS=1),
           WATCHDOG_S)  # fmt: skip
    found = {}
    for case in ["stream", *CASES]:
        ranks = [json.loads(path.read_text()) for path in sorted(out.glob(f"{case}-*.json"))]
        assert [(one["rank"], one["world"]) for one in ranks] == [(r, world) for r in range(world)]
        for one in ranks:
            check([tuple(sample) for sample in flat(flat(one["epochs"]))])
            one["ids"] = [[[i for i, _ in batch] for batch in epoch] for epoch in one["epochs"]]
        found[case] = ranks
    return found


def joined(ranks, epoch):
    """The ranks' batches of each step, one behind the other; equally many steps."""
    assert len({len(one["ids"][epoch]) for one in ranks}) == 1
    return [flat(parts) for parts in zip(*(one["ids"][epoch] for one in ranks))]


def check_each_frame_once(ranks, epoch, filled):
    """filled: Accelerate fills the last batches with samples of the first ones."""
    steps = joined(ranks, epoch)
    ids = flat(steps)
    assert set(ids) == set(range(FRAMES))
    again = list(ids)
    for index in range(FRAMES):
        again.remove(index)
    assert set(again) <= set(flat(steps[:2]) if filled else ())
    assert len(again) < 2 * len(steps[0])


@pytest.mark.parametrize("world", [1, 2])
def test_what_accelerate_prepares(tmp_path, world):
    found = run_job(tmp_path, world)

    # A Loader is left alone: it shares out by itself.
    assert [joined(found["stream"], epoch) for epoch in (0, 1)] == expected(world * BATCH)
    assert not any(one["warnings"] for one in found["stream"])

    # A DataLoader is shared out by Accelerate, which takes a lone reader's batches in turn.
    lone = [flat(epoch) for epoch in expected(BATCH)]
    for case in CASES:
        sharded = world > 1 and case.startswith("false")
        for epoch in (0, 1):
            check_each_frame_once(found[case], epoch, filled=sharded)
            if not (sharded and case == "false2"):  # there each worker's samples are cut
                assert flat(joined(found[case], epoch))[:FRAMES] == lone[epoch], case

    kinds = {case: found[case][0]["kind"] for case in found}
    assert kinds["stream"] == "Loader" and kinds["false0"] == "DataLoaderShard"
    assert kinds["none0"] == kinds["true0"] == "DataLoaderDispatcher"

    # Two that share out: said once.
    for case in ("none0", "false0", "true0"):
        texts = found[case][0]["warnings"]
        assert len(texts) == (world > 1), texts
        assert all("Accelerate" in text and "prepare" in text for text in texts)
