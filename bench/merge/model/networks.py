"""The networks whose instances are measured: ResNet-50 and AlexNet in the shapes of their papers, with
seeded weights, and MiniLM (a BERT of 6 layers) with the weights that a package carries. Runs in the
environment that has PyTorch."""

import torch
from torch import nn
from torch.nn import functional


class Bottleneck(nn.Module):
    def __init__(self, taken: int, width: int, stride: int):
        super().__init__()
        given = width * 4
        self.body = nn.Sequential(
            nn.Conv2d(taken, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, given, 1, bias=False),
            nn.BatchNorm2d(given),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or taken != given:
            self.shortcut = nn.Sequential(
                nn.Conv2d(taken, given, 1, stride, bias=False), nn.BatchNorm2d(given)
            )

    def forward(self, x):
        return functional.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """25.6 million parameters, 102 MB."""

    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        taken = 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(count):
                layers.append(Bottleneck(taken, width, stride if number == 0 else 1))
                taken = width * 4
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(taken, 1000)

    def forward(self, x):
        return self.classifier(self.features(x))


class AlexNet(nn.Module):
    """61.1 million parameters, 244 MB."""

    def __init__(self):
        super().__init__()
        layers, taken = [], 3
        for given, size, stride, padding, pool in (
            (64, 11, 4, 2, True),
            (192, 5, 1, 2, True),
            (384, 3, 1, 1, False),
            (256, 3, 1, 1, False),
            (256, 3, 1, 1, True),
        ):
            layers += [nn.Conv2d(taken, given, size, stride, padding), nn.ReLU()]
            if pool:
                layers.append(nn.MaxPool2d(3, 2))
            taken = given
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(6), nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Linear(256 * 36, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)
        )

    def forward(self, x):
        return self.classifier(self.features(x))


class MiniLM(nn.Module):
    """sentence-transformers/all-MiniLM-L6-v2: 22.7 million parameters, 91 MB. The names are those in its
    file."""

    HEADS = 12

    def __init__(self):
        super().__init__()
        wide, layers = 384, 6
        self.embeddings = nn.ModuleDict(
            {
                # from_pretrained: on the meta device, drawing random numbers would take most of a second
                "word_embeddings": nn.Embedding.from_pretrained(torch.empty(30522, wide)),
                "position_embeddings": nn.Embedding.from_pretrained(torch.empty(512, wide)),
                "token_type_embeddings": nn.Embedding.from_pretrained(torch.empty(2, wide)),
                "LayerNorm": nn.LayerNorm(wide, eps=1e-12),
            }
        )
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(self.layer(wide) for _ in range(layers))})

    @staticmethod
    def layer(wide: int) -> nn.ModuleDict:
        def norm() -> nn.LayerNorm:
            return nn.LayerNorm(wide, eps=1e-12)

        looked_up = nn.ModuleDict({name: nn.Linear(wide, wide) for name in ("query", "key", "value")})
        attention_out = nn.ModuleDict({"dense": nn.Linear(wide, wide), "LayerNorm": norm()})
        return nn.ModuleDict(
            {
                "attention": nn.ModuleDict({"self": looked_up, "output": attention_out}),
                "intermediate": nn.ModuleDict({"dense": nn.Linear(wide, 4 * wide)}),
                "output": nn.ModuleDict({"dense": nn.Linear(4 * wide, wide), "LayerNorm": norm()}),
            }
        )

    def forward(self, tokens):
        emb = self.embeddings
        x = emb["word_embeddings"](tokens) + emb["token_type_embeddings"](torch.zeros_like(tokens))
        x = emb["LayerNorm"](x + emb["position_embeddings"](torch.arange(tokens.shape[1])))
        for layer in self.encoder["layer"]:
            parts = layer["attention"]["self"]
            asked, key, value = (
                parts[name](x).unflatten(2, (self.HEADS, -1)).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            seen = functional.scaled_dot_product_attention(asked, key, value).transpose(1, 2).flatten(2)
            out = layer["attention"]["output"]
            x = out["LayerNorm"](out["dense"](seen) + x)
            wide = functional.gelu(layer["intermediate"]["dense"](x))
            x = layer["output"]["LayerNorm"](layer["output"]["dense"](wide) + x)
        return functional.normalize(x.mean(dim=1))


NETWORKS = {"resnet50": ResNet50, "alexnet": AlexNet, "minilm": MiniLM}


def request(name: str, seed: int) -> torch.Tensor:
    """What a client would send: an image, or a sentence's tokens, that differs from request to request."""
    generator = torch.Generator().manual_seed(seed)
    if name == "minilm":
        return torch.randint(1000, 30000, (1, 32), generator=generator)
    return torch.randn(1, 3, 224, 224, generator=generator)
