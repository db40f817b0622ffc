"""A folder in which every mistake of mistakes.txt can be made: files, factories and runs."""

import json
import shutil
from pathlib import Path

from PIL import Image

from skipless.cli import main

DEEP = 100_000  # levels, where Python recurses a thousand times

MODULES = {
    "nets": """
import sys
import torch
from torch import nn

number = 5
made = nn.Linear(8, 8)

def net(): return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 9))
def wide(width=8): return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))
def exits(): sys.exit(3)
def raises(): raise RuntimeError("no weights\\ntoday")
def recurses(): return recurses()
def memory(): return torch.zeros(10**15)
def nothing_returned(): pass
def integer(): return 3
def triple(): return nn.Linear(3, 3), torch.zeros(2, 3), 5
def wrong_example(): return nn.Linear(3, 3), [1, 2]
def needs_arguments(depth, what): return nn.Linear(3, 3)
def gate(): return Gate()
def empty_model(): return nn.Sequential()
def linear_only(): return nn.Linear(8, 8)
def fails(): return Fails()
def exits_in_forward(): return Exits()
def double(): return nn.Linear(8, 8).double()
def two_outputs(): return TwoOutputs()
def fixed_batch(): return FixedBatch(), torch.zeros(2, 8)

class Gate(nn.Module):
    def forward(self, x): return x * torch.sigmoid(x.flip(1))

class Fails(nn.Module):
    def forward(self, x): raise KeyError("nothing here")

class Exits(nn.Module):
    def forward(self, x): sys.exit(4)

class TwoOutputs(nn.Module):
    def forward(self, x): return x, x

class FixedBatch(nn.Module):
    def forward(self, x): return x.view(2, 8).relu()
""",
    "odd": """
import torch
from torch import nn

class Silent(Exception):
    def __str__(self): raise RuntimeError("no words")

def silent(): raise Silent
def loud(): raise ValueError("one\\n\\n\\ttwo")
def base(): raise BaseException("base")
def stop(): raise GeneratorExit
def assertion(): assert False
async def later(): return nn.ReLU()
def yields(): yield nn.ReLU()
def a_class(): return nn.ReLU
def reversed_pair(): return torch.zeros(2, 8), nn.Linear(8, 8)
def half(): return nn.Sequential(nn.Linear(8, 8), nn.ReLU()).half(), torch.zeros(2, 8)
def branch(): return Branch()
def nothing(): return Nothing()
def indices(): return nn.Sequential(nn.Embedding(5, 8), nn.ReLU()), torch.zeros(2, 3).long()
def unready(): return Unready()

class Branch(nn.Module):
    def forward(self, x): return x if x.sum() > 0 else x.relu()

class Nothing(nn.Module):
    def forward(self, x): return None

class Unready(nn.Module):
    def __init__(self): self.layer = nn.Linear(3, 3)

class NeedsSize(nn.Module):
    def __init__(self, size): super().__init__()

class NoForward(nn.Module): pass
""",
    "pack/__init__": "",
    "pack/exits": "raise SystemExit",
    "pack/circle": "from pack import circle2",
    "pack/circle2": "from pack.circle import x",
    "zero_byte": "x = 1\0",
    "broken_module": "import no_such_package",
    "syntax_error": "def f(:",
    "exits_on_import": "import sys; sys.exit(5)",
}
CONFIGURATIONS: dict[str, str | bytes] = {
    "empty.json": "",
    "null.json": "null",
    "null.yaml": "",
    "list.json": "[]",
    "string.json": '"x"',
    "number.yaml": "3",
    "bad.toml": "lr = ",
    "bad.json": "{",
    "bad.yaml": "a: [",
    "deep.json": '{"a":' * DEEP + "1" + "}" * DEEP,
    "deep.toml": "a = " + "[" * DEEP + "]" * DEEP,
    "deep.yaml": "[" * 2000,  # PyYAML takes its time
    "latin.toml": b'model = "mlp\xe9"',
    "latin.json": b'{"model": "\xe9"}',
    "bom.json": b'\xef\xbb\xbf{"lr": -1}',
    "utf16.toml": "lr = 1".encode("utf-16"),
    "binary.yaml": bytes(range(256)),
    "tag.yaml": "!!python/object/apply:os.system [echo hi]",
    "anchors.yaml": "a: &a [*a]",
    "dates.yaml": "lr: 2020-01-01",
    "unknown.toml": "learning_rate = 1",
    "nested.toml": "[train]\nlr = 1",
    "string-epochs.toml": 'epochs = "9"',
    "bool-epochs.toml": "epochs = true",
    "float-epochs.toml": "epochs = 1.5",
    "null-epochs.json": '{"epochs": null}',
    "list-lr.json": '{"lr": [1]}',
    "bool-lr.toml": "lr = true",
    "float-seed.json": '{"seed": 1.0}',
    "nan.json": '{"lr": NaN}',
    "huge.json": '{"lr": 1' + "0" * 400 + "}",
    "hugest.json": '{"lr": 1' + "0" * 9000 + "}",
    "number-key.yaml": "3: 4",
    "output.toml": 'output = "x"',
    "empty-model.toml": 'model = ""',
    "nul-model.json": '{"model": "a\\u0000b"}',
    "nul-data.json": '{"data": "imagefolder:a\\u0000b"}',
    "surrogate.json": '{"model": "\\ud800"}',
    "contradiction.toml": "epochs = 3\nsteps = 5",
    "twice.toml": "lr = 1\nlr = 2",
    "two.yaml": "lr: 1\n---\nlr: 2",
    "tab.yaml": "lr:\t1",
    "octal.yaml": "seed: 0o17",
    "words.yaml": "augment: yes please",
    "bytes.yaml": "model: !!binary aGVsbG8=",
    "set.yaml": "lr: !!set {1, 2}",
    "null-key.yaml": "~: 1",
    "list-key.yaml": "? [1, 2]\n: 3",
    "inf.yaml": "lr: .inf",
    "large-seed.toml": "seed = 0xFFFFFFFFF",
    "date.toml": "seed = 2020-01-01T00:00:00Z",
    "tables.toml": "[[lr]]\nx = 1",
    "dotted.toml": "kfac.damping = 1",
    "list-marks.json": '{"marks": [0.5, 0.75], "schedule": "step"}',
    "empty-key.json": '{"": 1}',
    "resume.json": '{"resume": true}',
    "number-model.json": '{"model": 50}',
    "UPPER.JSON": '{"lr": -1}',
    "with a space.toml": "lr = -1",
    "naïve.toml": "lr = -1",
    "zeros.json": bytes(50),
    ".toml": "lr = 1",
}
IMAGES = {
    "good": ("train/a", "train/b", "val/a", "val/b"),
    "no-val": ("train/a",),
    "one-class": ("train/a", "val/a"),
    "other-classes": ("train/a", "train/b", "val/a", "val/c"),
    "empty-class": ("train/a", "val/a"),
}
RESULTS = {"empty": "", "text": "hello", "list": "[1]\n", "deep": "[" * DEEP, "unknown": "{}\n"}
# Values in run.json that are not those of the run's checkpoint.
OTHER_VALUES = {
    "other-model": {"model": "resnet18"},
    "other-depth": {"model": "mlp:15"},
    "other-width": {"width": 9.0},
    "other-optimizer": {"optimizer": "adamw"},
    "other-lr": {"lr": 0.5},
    "other-seed": {"seed": 7},
    "other-average": {"average": 0.9},
    "other-data": {"data": "synthetic:3x8x8"},
    "other-steps": {"steps": 1},
    "unknown-option": {"colour": "red"},
    "wrong-type": {"epochs": "many"},
    "other-kind": {"norm": "batch", "method": None, "eta": None},
    "other-precision": {"precision": "bfloat16"},
    "negative-seed": {"seed": -1},
    "null-model": {"model": None},
    "gone-teacher": {"teacher": "/no/such"},
    "nul-data": {"data": "imagefolder:a\0b"},
}


def fill(top: Path) -> None:
    """Make all files and runs in the current folder, `top`."""
    for name, text in MODULES.items():
        write(f"{name}.py", text)
    for name, text in CONFIGURATIONS.items():
        write(f"config/{name}", text)
    for name, text in RESULTS.items():
        write(f"results/{name}.jsonl", text)
    for name, folders in IMAGES.items():
        for folder in folders:
            (place := Path("images", name, folder)).mkdir(parents=True)
            Image.new("RGB", (9, 9)).save(place / "x.png")
    for name in ("empty", "folder.png", "folder.html", "home", "images/empty-class/train/b"):
        Path(name).mkdir()
    write("file.txt", "text\n")
    Path("full.png").symlink_to("/dev/full")
    Path("loop.png").symlink_to("loop.png")
    options = "--model mlp:14 --width 8 --steps 2 --method tat --eta 0.5 --clip none --device cpu"
    assert main(["train", *options.split(), "--output", "runs/good"]) == 0
    shutil.rmtree("runs/good/tensorboard")
    fill_states(json.loads(Path("runs/good/run.json").read_text()))


def fill_states(run: dict) -> None:
    """Copies of the good run, each spoilt in one way."""
    for name, values in OTHER_VALUES.items():
        state(name, json.dumps({**run, "configuration": run["configuration"] | values}))
    for name, text in {
        "damaged-json": '{"con',
        "empty-json": "",
        "list-json": "[]",
        "null-json": "null",
        "latin-json": b'{"a": "\xe9"}',
        "deep-json": '{"configuration":' * DEEP + "1" + "}" * DEEP,
        "no-configuration": json.dumps({"seed": 3}),
        "list-configuration": json.dumps({**run, "configuration": []}),
        "null-configuration": json.dumps({**run, "configuration": None}),
        "cut-json": json.dumps(run)[:200],
        "more-json": json.dumps(run) + "}",
        "no-classes": json.dumps({**run, "classes": -1}),
    }.items():
        state(name, text)
    (state("no-json") / "run.json").unlink()
    (state("no-metrics") / "metrics.jsonl").unlink()
    (folder := state("folder-json") / "run.json").unlink()
    folder.mkdir()
    shutil.rmtree(state("no-checkpoints") / "checkpoints")
    shutil.rmtree((folder := state("file-checkpoints")) / "checkpoints")
    (folder / "checkpoints").write_text("x")
    weights = next(state("damaged-weights").glob("checkpoints/*/model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-9])
    next(state("no-manifest").glob("checkpoints/*/manifest.json")).unlink()
    for name, text in {
        "null-sums": '{"sha256": null}', "list-manifest": "[]", "deep-manifest": "[" * DEEP,
    }.items():  # fmt: skip
        write(str(next(state(name).glob("checkpoints/*/manifest.json"))), text)
    next(state("other-names").glob("checkpoints/*")).rename(
        Path("states/other-names/checkpoints/step-x")
    )
    for name, text in {
        "bad-metrics": '{"kind": "train", "step": 1}\n3\n',
        "latin-metrics": b'{"kind": "\xe9"}\n',
    }.items():
        (state(name) / "metrics.jsonl").write_bytes(encoded(text))


def state(name: str, text: str | bytes | None = None) -> Path:
    """A copy of the good run, with another run.json if there is a `text`."""
    shutil.copytree("runs/good", folder := Path("states", name))
    if text is not None:
        write(str(folder / "run.json"), text)
    return folder


def write(name: str, text: str | bytes) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(encoded(text))


def encoded(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
