"""One process of a job under Accelerate: _accelerated.py OUT. Writes OUT/CASE-RANK.json per case.

`stream`: a Loader, prepared. `none`, `false`, `true`: a prepared DataLoader over the streaming
class, by Accelerate's `dispatch_batches`; with the number of workers behind it.
"""

import json
import logging
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "py"))

import reelpool
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from demo_sets import ROOT
from samples import samples
from torch.utils.data import DataLoader

BATCH = 6
DISPATCH = {"none": None, "false": False, "true": True}


class Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def tensors_only(items):
    """Accelerate sends tensors between processes, no texts."""
    batch = reelpool.collate(items)
    return {key: value for key, value in batch.items() if not isinstance(value, list)}


def open_stream(**options):
    return reelpool.StreamingLeRobotDataset(
        "reelpool/demo", root=ROOT, return_uint8=True, seed=9, batch_size=BATCH, num_threads=1,
        **options,
    )  # fmt: skip


def prepared(case, **options):
    """(accelerator, what it made of the loader)"""
    config = DataLoaderConfiguration()
    if case != "stream":
        config.dispatch_batches = DISPATCH[case[:-1]]
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    if case == "stream":
        loader = reelpool.Loader(open_stream(), BATCH)
        assert accelerator.prepare(loader) is loader
        return accelerator, loader
    loader = DataLoader(
        open_stream(**options), batch_size=BATCH, num_workers=int(case[-1]),
        collate_fn=tensors_only, persistent_workers=case[-1] == "2",
    )  # fmt: skip
    return accelerator, accelerator.prepare(loader)


def main(out):
    log = Warnings()
    logging.getLogger("reelpool").addHandler(log)
    for case in ("stream", *(f"{name}{workers}" for name in DISPATCH for workers in (0, 2))):
        del log.texts[:]
        accelerator, loader = prepared(case)
        epochs = [[samples(batch) for batch in loader] for _ in range(2)]
        found = {
            "rank": accelerator.process_index, "world": accelerator.num_processes,
            "kind": type(loader).__name__, "epochs": epochs, "warnings": log.texts,
        }  # fmt: skip
        (out / f"{case}-{accelerator.process_index}.json").write_text(json.dumps(found))
    if accelerator.num_processes > 1:
        _, loader = prepared("false0", rank=accelerator.process_index, world_size=2)
        try:
            next(iter(loader))
        except ValueError as error:
            assert "Accelerate" in str(error), error
        else:
            raise AssertionError("shared out twice, and nobody said so")
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
