"""How many of other people's models are converted, beside AnyInit; writes docs/coverage.md.

    python benchmarks/coverage.py [--zoo NAME]... [--only TEXT] [--seconds 300] [--results FILE]
    python benchmarks/coverage.py --page      # docs/coverage.md from the results there are

One model of each family, with random weights, as its zoo builds it. Each runs in a process of its
own with a limit of CPU time and memory. Results are rows of a JSONL file; families that it has are
not run again. The zoos, in an environment of their own:

    pip install torch anyinit transformers monai keras
    pip install --no-deps pytorchcv segmentation-models-pytorch

torchvision and timm have compiled parts; where a zoo only imports them, an empty module stands in.
A family takes 2 to 60 seconds of CPU time, all of them about an hour on one core.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import json
import logging
import os
import resource
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "coverage.jsonl"
MEMORY = 14 * 2**30  # bytes of address space

PYTORCHCV = (
    "alexnet", "zfnet", "vgg11", "bn_vgg11", "bninception", "resnet18", "resnet50",
    "resneta18", "resnetd50b", "preresnet18", "resnext14_16x4d", "seresnet18",
    "sepreresnet18", "seresnext50_32x4d", "senet16", "ibn_resnet50", "ibnb_resnet50",
    "ibn_densenet121", "airnet50_1x64d_r2", "airnext50_32x4d_r2", "bam_resnet18",
    "cbam_resnet18", "resattnet56", "sknet50", "scnet50", "regnetx002", "regnety002",
    "diaresnet18", "diapreresnet18", "pyramidnet110_a48_cifar10", "diracnet18v2",
    "sharesnet18", "densenet121", "condensenet74_c4_g4", "sparsenet121", "peleenet",
    "wrn16_10_cifar10", "drnc26", "drnd22", "dpn68", "darknet_tiny", "darknet_ref",
    "darknet19", "darknet53", "irevnet301", "bagnet9", "dla34", "msdnet22", "fishnet99",
    "espnetv2_wd2", "dicenet_wd5", "hrnet_w18_small_v1", "vovnet27s", "selecsls42b",
    "hardnet39ds", "xdensenet121_2", "squeezenet_v1_1", "squeezeresnet_v1_1", "sqnxt23_w1",
    "shufflenet_g1_wd4", "shufflenetv2_wd2", "shufflenetv2b_wd2", "menet108_8x1_g3",
    "mobilenet_wd4", "fdmobilenet_wd4", "mobilenetv2_wd4", "mobilenetv3_small_wd2",
    "igcv3_wd4", "ghostnet", "mnasnet_small", "darts", "proxylessnas_cpu", "fbnet_cb",
    "nasnet_4a1056", "pnasnet5large", "spnasnet", "efficientnet_b0", "efficientnet_b0b",
    "efficientnet_edge_small_b", "mixnet_s", "resnesta18", "tresnet_m", "isqrtcovresnet18",
    "inceptionv3", "inceptionv4", "inceptionresnetv1", "inceptionresnetv2", "polynet",
    "xception", "nin_cifar10", "resdropresnet20_cifar10", "fractalnet_cifar10",
    "shakeshakeresnet20_2x16d_cifar10", "shakedropresnet20_cifar10", "rir_cifar10",
    "ror3_56_cifar10", "revnet38", "octresnet10_ad2", "channelnet",
    "simplepose_resnet18_coco", "simplepose_mobile_resnet18_coco",
    "alphapose_fastseresnet101b_coco", "lwopenpose2d_mobilenet_cmupan_coco",
    "centernet_resnet18_voc", "lffd20x5s320v2_widerface", "pspnet_resnetd50b_voc",
    "deeplabv3_resnetd50b_voc", "fcn8sd_resnetd50b_voc", "icnet_resnetd50b_cityscapes",
    "fastscnn_cityscapes", "cgnet_cityscapes", "dabnet_cityscapes", "sinet_cityscapes",
    "bisenet_resnet18_celebamaskhq", "danet_resnetd50b_cityscapes", "lednet_cityscapes",
    "erfnet_cityscapes", "enet_cityscapes", "esnet_cityscapes", "edanet_cityscapes",
    "linknet_cityscapes", "segnet_cityscapes", "unet_cityscapes", "sqnet_cityscapes",
    "espcnet_cityscapes", "ctxnet_cityscapes", "fpenet_cityscapes", "superpointnet",
    "jasper5x3",
)  # fmt: skip

_3D = "spatial_dims=3, in_channels=1"
_2D = "spatial_dims=2, in_channels=1"
_LEVELS = "channels=(8, 16, 32, 64), strides=(2, 2, 2)"
MONAI = {  # the call in monai.networks.nets, and the shape of its input
    "AHNet": (f"AHNet({_3D.replace('in_channels', 'out_channels')})", (1, 128, 128, 128)),
    "AttentionUnet": (f"AttentionUnet({_2D}, out_channels=2, {_LEVELS})", (1, 64, 64)),
    "AutoEncoder": (f"AutoEncoder({_2D}, out_channels=1, {_LEVELS})", (1, 64, 64)),
    "AutoencoderKL": (
        f"AutoencoderKL({_2D}, out_channels=1, channels=(32, 64), attention_levels=(False, False),"
        " num_res_blocks=(1, 1), latent_channels=4)",
        (1, 32, 32),
    ),
    "BasicUNet": (f"BasicUNet({_3D}, features=(8, 8, 16, 32, 64, 8))", (1, 32, 32, 32)),
    "BasicUNetPlusPlus": (
        f"BasicUNetPlusPlus({_2D}, features=(8, 8, 16, 32, 64, 8))", (1, 64, 64)
    ),
    "Classifier": (f"Classifier((1, 64, 64), 10, {_LEVELS})", (1, 64, 64)),
    "DenseNet": (f"DenseNet121({_2D}, out_channels=10)", (1, 64, 64)),
    "DynUNet": (
        f"DynUNet({_2D}, out_channels=2, kernel_size=[3, 3, 3, 3], strides=[1, 2, 2, 2],"
        " upsample_kernel_size=[2, 2, 2], filters=[8, 16, 32, 64], res_block=True,"
        " deep_supervision=True)",
        (1, 64, 64),
    ),
    "EfficientNet": ("EfficientNetBN('efficientnet-b0', pretrained=False)", (3, 64, 64)),
    "FlexibleUNet": ("FlexibleUNet(3, 2, 'efficientnet-b0')", (3, 64, 64)),
    "FullyConnectedNet": ("FullyConnectedNet(20, 2, [32, 32, 32], dropout=0.1)", (20,)),
    "Generator": (
        "Generator((20,), (16, 8, 8), (16, 8, 1), (2, 2, 1))", (20,)
    ),
    "HighResNet": (f"HighResNet({_3D}, out_channels=2)", (1, 32, 32, 32)),
    "HoVerNet": ("HoVerNet()", (3, 256, 256)),
    "LocalNet": (
        f"LocalNet({_2D}, num_channel_initial=8, extract_levels=(0, 1, 2), out_channels=2)",
        (1, 64, 64),
    ),
    "MedNeXt": (f"MedNeXt({_2D}, init_filters=8)", (1, 64, 64)),
    "MultiScalePatchDiscriminator": (
        f"MultiScalePatchDiscriminator(2, 3, {_2D}, channels=8)", (1, 128, 128)
    ),
    "PatchDiscriminator": (f"PatchDiscriminator({_2D}, channels=8)", (1, 64, 64)),
    "Quicknat": ("Quicknat(num_classes=4, num_channels=1)", (1, 64, 64)),
    "RegUNet": (f"RegUNet({_2D}, num_channel_initial=8, depth=3)", (1, 64, 64)),
    "Regressor": (f"Regressor((1, 64, 64), (3,), {_LEVELS})", (1, 64, 64)),
    "ResNet": ("resnet18(n_input_channels=1, num_classes=10)", (1, 32, 32, 32)),
    "SEResNet": ("SEResNet50(spatial_dims=2, in_channels=3)", (3, 64, 64)),
    "SegResNet": (f"SegResNet({_3D})", (1, 32, 32, 32)),
    "SegResNetDS": (f"SegResNetDS({_2D}, init_filters=8, dsdepth=3)", (1, 64, 64)),
    "SwinUNETR": ("SwinUNETR(1, 2, feature_size=12, spatial_dims=2)", (1, 64, 64)),
    "UNETR": (
        "UNETR(1, 2, 64, hidden_size=48, mlp_dim=96, num_heads=4, spatial_dims=2)", (1, 64, 64)
    ),
    "UNet": (f"UNet({_2D}, out_channels=2, {_LEVELS}, num_res_units=2)", (1, 64, 64)),
    "VNet": ("VNet()", (1, 32, 32, 32)),
    "VQVAE": (f"VQVAE({_2D}, out_channels=1)", (1, 64, 64)),
    "VarAutoEncoder": (
        "VarAutoEncoder(spatial_dims=2, in_shape=(1, 64, 64), out_channels=1, latent_size=4,"
        f" {_LEVELS})",
        (1, 64, 64),
    ),
    "ViT": (
        "ViT(1, (64, 64), (8, 8), 48, 96, 4, 4, spatial_dims=2, classification=True)", (1, 64, 64)
    ),
    "VoxelMorphUNet": (
        f"VoxelMorphUNet({_2D}, unet_out_channels=8, channels=(8, 8, 8, 8, 8, 8),"
        " final_conv_channels=(8, 8))",
        (1, 64, 64),
    ),
}  # fmt: skip
_ENCODERS = {"Segformer": "mit_b0"}  # of segmentation-models-pytorch
SEGMENTATION = (
    "Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "DeepLabV3", "DeepLabV3Plus",
    "PAN", "UPerNet", "Segformer",
)  # fmt: skip
ENCODERS = ("mobileone_s0", "dpn68", "inceptionv4", "se_resnet50", "xception", "mit_b0")
_SMALL = "hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96"
_STAGES = "hidden_sizes=[16, 24, 32, 48]"
TRANSFORMERS = {  # the configuration and the class, and the shape of its input; () means tokens
    "resnet": (f"ResNetConfig(embedding_size=16, {_STAGES})", "ResNetModel", (3, 64, 64)),
    "regnet": (f"RegNetConfig(embedding_size=16, {_STAGES}, groups_width=8)", "RegNetModel",
               (3, 64, 64)),
    "bit": ("BitConfig(embedding_size=32, hidden_sizes=[128, 256, 384, 512])", "BitModel",
            (3, 64, 64)),
    "convnext": (f"ConvNextConfig({_STAGES})", "ConvNextModel", (3, 64, 64)),
    "convnextv2": (f"ConvNextV2Config({_STAGES})", "ConvNextV2Model", (3, 64, 64)),
    "mobilenet_v1": ("MobileNetV1Config()", "MobileNetV1Model", (3, 64, 64)),
    "mobilenet_v2": ("MobileNetV2Config()", "MobileNetV2Model", (3, 64, 64)),
    "efficientnet": ("EfficientNetConfig(width_coefficient=0.5, depth_coefficient=1.0,"
                     " hidden_dim=640)", "EfficientNetModel", (3, 64, 64)),
    "focalnet": ("FocalNetConfig(embed_dim=16, depths=[2, 2, 2, 2])", "FocalNetModel",
                 (3, 64, 64)),
    "poolformer": (f"PoolFormerConfig({_STAGES})", "PoolFormerModel", (3, 64, 64)),
    "mobilevit": ("MobileViTConfig()", "MobileViTModel", (3, 64, 64)),
    "mobilevitv2": ("MobileViTV2Config()", "MobileViTV2Model", (3, 64, 64)),
    "swiftformer": ("SwiftFormerConfig()", "SwiftFormerModel", (3, 64, 64)),
    "levit": ("LevitConfig(image_size=64)", "LevitModel", (3, 64, 64)),
    "cvt": ("CvtConfig()", "CvtModel",
            (3, 64, 64)),
    "pvt": ("PvtConfig(image_size=64)", "PvtModel", (3, 64, 64)),
    "vit": (f"ViTConfig({_SMALL}, image_size=64)", "ViTModel", (3, 64, 64)),
    "deit": (f"DeiTConfig({_SMALL}, image_size=64)", "DeiTModel", (3, 64, 64)),
    "beit": (f"BeitConfig({_SMALL}, image_size=64)", "BeitModel", (3, 64, 64)),
    "swin": ("SwinConfig(embed_dim=24, image_size=64, depths=[2, 2], num_heads=[2, 4],"
             " window_size=4)", "SwinModel", (3, 64, 64)),
    "segformer": ("SegformerConfig()", "SegformerModel", (3, 64, 64)),
    "dinov2": ("Dinov2Config(hidden_size=48, num_hidden_layers=3, num_attention_heads=4,"
               " image_size=56)", "Dinov2Model", (3, 56, 56)),
    "hiera": ("HieraConfig(embed_dim=24, image_size=[64, 64], depths=[1, 1, 2, 1])", "HieraModel",
              (3, 64, 64)),
    "bert": (f"BertConfig({_SMALL}, vocab_size=100)", "BertModel", ()),
    "distilbert": ("DistilBertConfig(dim=48, n_layers=3, n_heads=4, hidden_dim=96,"
                   " vocab_size=100)", "DistilBertModel", ()),
    "roberta": (f"RobertaConfig({_SMALL}, vocab_size=100)", "RobertaModel", ()),
    "gpt2": ("GPT2Config(n_embd=48, n_layer=3, n_head=4, vocab_size=100)", "GPT2Model", ()),
    "llama": (f"LlamaConfig({_SMALL}, vocab_size=100)", "LlamaModel", ()),
    "mistral": (f"MistralConfig({_SMALL}, num_key_value_heads=2, vocab_size=100)", "MistralModel",
                ()),
    "t5": ("T5Config(d_model=48, d_ff=96, d_kv=12, num_heads=4, num_layers=3, vocab_size=100)",
           "T5EncoderModel", ()),
    "wav2vec2": (f"Wav2Vec2Config({_SMALL})", "Wav2Vec2Model", (4000,)),
    "mamba": ("MambaConfig(hidden_size=48, num_hidden_layers=3, vocab_size=100)", "MambaModel",
              ()),
}  # fmt: skip
KERAS = (
    "ConvNeXtTiny", "DenseNet121", "EfficientNetB0", "EfficientNetV2B0", "InceptionResNetV2",
    "InceptionV3", "MobileNet", "MobileNetV2", "MobileNetV3Small", "NASNetMobile", "ResNet50",
    "ResNet50V2", "VGG16", "Xception",
)  # fmt: skip
ZOOS: dict[str, Sequence[str]] = {
    "pytorchcv": PYTORCHCV,
    "monai": list(MONAI),
    "segmentation-models-pytorch": [
        *SEGMENTATION, *(f"Unet {encoder}" for encoder in ENCODERS)
    ],
    "transformers": list(TRANSFORMERS),
    "keras.applications": KERAS,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What became of one model; `reason` says why not, of the first thing that failed."""

    zoo: str
    family: str
    read: bool = False
    default: bool = False  # converted with nothing but the example
    converted: bool = False  # perhaps at the nearest target within reach
    checked: bool | None = None  # whether the kernel agrees
    derived: int = 0  # nodes of the graph, by how their maps are known
    approximate: int = 0  # notes
    measured: int = 0
    form: str = ""  # the report's line on what kind of model came out
    seconds: float = 0.0  # of CPU time, of the conversion
    reason: str = ""
    anyinit: bool | None = None
    anyinit_seconds: float = 0.0
    anyinit_reason: str = ""


def build(zoo: str, family: str) -> tuple[Any, Any]:
    """A model of the family, and an example of its input."""
    if zoo == "keras.applications":
        import keras
        import numpy as np

        model = getattr(keras.applications, family)(weights=None)
        return model, np.random.default_rng(0).normal(size=(2, *model.input_shape[1:]))
    import torch

    torch.manual_seed(0)
    if zoo == "pytorchcv":
        model: Any = import_module("pytorchcv.model_provider").get_model(family)
        size = getattr(model, "in_size", None) or (224, 224)
        channels = getattr(model, "in_channels", 3)
        return model, torch.randn(2, channels, *size)
    if zoo == "monai":
        call, shape = MONAI[family]
        nets = dict(vars(import_module("monai.networks.nets")))
        return eval(call, nets), torch.randn(2, *shape)
    if zoo == "transformers":
        transformers: Any = import_module("transformers")
        configuration, kind, shape = TRANSFORMERS[family]
        config = eval(configuration, {n: getattr(transformers, n) for n in dir(transformers)
                                      if configuration.startswith(n)})  # fmt: skip
        model = getattr(transformers, kind)(config)
        return model, torch.randn(2, *shape) if shape else torch.randint(0, 99, (2, 16))
    smp: Any = import_module("segmentation_models_pytorch")
    kind, _, encoder = family.partition(" ")
    encoder = encoder or _ENCODERS.get(kind, "efficientnet-b0")
    model = getattr(smp, kind)(encoder_name=encoder, encoder_weights=None, classes=4)
    return model, torch.randn(2, 3, 128, 128)


def run(zoo: str, family: str, *, check: bool, beside: bool) -> Row:
    """Try one model; whatever a library raises is its answer."""
    import skipless as sk

    model, example = build(zoo, family)
    row: dict[str, Any] = {"zoo": zoo, "family": family}

    def tried(action: Callable[[], Any], key: str = "reason") -> Any:
        try:
            return action()
        except Exception as error:
            ours = type(error).__module__.startswith("skipless") or isinstance(error, ValueError)
            name = "" if ours else f"{type(error).__name__}: "
            row["error"] = error
            row[key] = row.get(key) or f"{name}{error}".splitlines()[0]
            return None

    begin = time.process_time()
    converted = tried(lambda: sk.convert(model, example))
    row["seconds"] = round(time.process_time() - begin, 2)
    row["default"] = converted is not None
    if converted is None and isinstance(row["error"], sk.UnreachableTargetError):
        converted = tried(lambda: sk.convert(model, example, clamp=True), "clamped")
    row["converted"] = row["read"] = converted is not None
    if converted is None:  # the theory may have no answer for a network that it reads
        row["read"] = tried(lambda: sk.trace(model, example), "trace") is not None
    if converted is not None:
        report = converted.skipless_report
        row["approximate"] = len(report.approximate)
        row["measured"] = sum(part.is_measured for part in report.measured.values())
        row["derived"] = len(report.graph.nodes) - row["measured"]
        row["form"] = report.form
        if check:
            found = tried(lambda: sk.check(converted, example, seeds=1, pairs=2), "check")
            row["checked"] = None if found is None else bool(found.ok)
    if beside:
        anyinit: Any = import_module("anyinit")
        model, example = build(zoo, family)
        begin = time.process_time()
        report = tried(lambda: anyinit.initialize(model, input_spec=example), "anyinit_reason")
        row["anyinit_seconds"] = round(time.process_time() - begin, 2)
        row["anyinit"] = report is not None
    return Row(**{key: value for key, value in row.items() if key in Row.__annotations__})


def in_child(zoo: str, family: str, seconds: int, arguments: Sequence[str]) -> Row:
    """The row that a process of its own prints, or why it printed none."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    command = [sys.executable, __file__, "--one", zoo, family, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=limit, timeout=20 * seconds
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith('{"zoo"')]
    if rows:
        return Row(**json.loads(rows[-1]))
    last = (done.stderr.strip().splitlines() or [""])[-1]
    why = f"more than {seconds} s" if done.returncode in (-24, -9) else f"crash: {last}"
    return Row(zoo, family, seconds=float(seconds) if "more" in why else 0.0, reason=why)


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules for packages that zoos import for a few of their models."""

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if name.partition(".")[0] in ("torchvision", "timm"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module: Any = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: _absent_class(name)
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...


def _absent_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


def rows_of(path: Path) -> Iterator[Row]:
    if path.exists():
        for line in path.read_text().splitlines():
            yield Row(**json.loads(line))


def page(rows: Sequence[Row]) -> str:
    """docs/coverage.md: a summary by zoo, then every family."""
    packages = ("torch", "pytorchcv", "monai", "segmentation-models-pytorch", "transformers",
                "keras", "anyinit")  # fmt: skip
    found = [(name, _version(name)) for name in packages]
    parts = [_INTRODUCTION, "Versions: " + ", ".join(f"{n} {v}" for n, v in found if v) + ".\n"]
    heads = ["zoo", "families", "read", "default call", "or nearest target", "nothing measured",
             "own class", "median s", "largest s", "AnyInit", "median s"]  # fmt: skip
    parts += ["## By zoo\n", _row(heads), _row(["---", *["---:"] * (len(heads) - 1)])]
    for zoo in ZOOS:
        if own := [row for row in rows if row.zoo == zoo]:
            parts.append(_row([zoo, *_summary(own)]))
    parts.append(_row(["all", *_summary(rows)]) + "\n")
    parts += ["## By family\n", _row(_COLUMNS), _row(["---"] * len(_COLUMNS))]
    parts += [_row(_cells(row)) for row in rows]
    return "\n".join(parts) + "\n"


_INTRODUCTION = """# Coverage

What becomes of models that nobody here wrote: one of each family of five zoos, with random weights,
in training mode as its zoo builds it, given to `sk.convert(model, example)` and nothing else.
`benchmarks/coverage.py` runs each in a process of its own and writes this page;
[What cannot be converted](limits.md) explains the reasons. Families that have not been run are not
listed.

- *default call*: converted with nothing but the example. A network that is too shallow for the
  default target is *read*, and converted at the nearest target within reach.
- *nothing measured*: every node of its graph is derived or approximate. *Notes* counts what the
  theory only approximates, such as a maximum over places.
- *own class*: the result is an instance of the model's own class, not a graph.
- CPU seconds are those of the conversion, on a core that other processes share; they include about
  a second in which PyTorch's exporter is imported.
- *AnyInit* is `anyinit.initialize(model, input_spec=example)` in the same process. It scales
  weights and leaves the network as it is, so that it has nothing to refuse; it sets no kernel.
"""
_COLUMNS = ["zoo", "family", "result", "notes", "measured", "checked", "CPU s", "AnyInit", "reason"]


def _summary(rows: Sequence[Row]) -> list[str]:
    converted = [row for row in rows if row.converted]
    seconds = [row.seconds for row in converted] or [0.0]
    beside = [row for row in rows if row.anyinit is not None]
    took = [row.anyinit_seconds for row in beside if row.anyinit] or [0.0]
    return [
        str(len(rows)),
        str(sum(row.read for row in rows)),
        str(sum(row.default for row in rows)),
        str(len(converted)),
        str(sum(not row.measured for row in converted)),
        str(sum("still" in row.form for row in converted)),
        f"{median(seconds):.1f}",
        f"{max(seconds):.1f}",
        f"{sum(bool(row.anyinit) for row in beside)} of {len(beside)}",
        f"{median(took):.1f}",
    ]


def _cells(row: Row) -> list[str]:
    outcome = "refused"
    if row.read:
        outcome = "converted" if row.default else "nearest target" if row.converted else "read"
    mark = {True: "yes", False: "no", None: "–"}
    beside = f"{row.anyinit_seconds:.1f} s" if row.anyinit else mark[row.anyinit]
    reason = row.reason.replace("|", "/")
    short = reason if len(reason) <= 120 else reason[:119] + "…"
    return [row.zoo, row.family, outcome, str(row.approximate), str(row.measured),
            mark[row.checked], f"{row.seconds:.1f}", beside, short]  # fmt: skip


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _version(package: str) -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--zoo", action="append", choices=ZOOS)
    parser.add_argument("--only", default="", help="families whose name contains this")
    parser.add_argument("--seconds", type=int, default=300, help="CPU time for one family")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--no-anyinit", action="store_true")
    parser.add_argument("--page", action="store_true", help="write docs/coverage.md")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    flags = [f for f in ("--no-check", "--no-anyinit") if getattr(options, f[2:].replace("-", "_"))]
    if options.one:
        if options.one[0] in ("pytorchcv", "segmentation-models-pytorch"):
            sys.meta_path.append(_Absent())
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        row = run(*options.one, check=not options.no_check, beside=not options.no_anyinit)
        print(json.dumps(asdict(row)), flush=True)
        return
    if options.page:
        (HERE.parent / "docs" / "coverage.md").write_text(page(list(rows_of(options.results))))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("KERAS_BACKEND", "torch")
    known = {(row.zoo, row.family) for row in rows_of(options.results)}
    options.results.parent.mkdir(exist_ok=True)
    for zoo in options.zoo or ZOOS:
        for family in ZOOS[zoo]:
            if (zoo, family) in known or options.only not in family:
                continue
            row = in_child(zoo, family, options.seconds, flags)
            with options.results.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
            print(
                zoo,
                family,
                row.read,
                row.default,
                row.converted,
                row.seconds,
                row.reason,
                row.anyinit,
                row.anyinit_seconds,
                row.anyinit_reason,
                flush=True,
            )


if __name__ == "__main__":
    main()
