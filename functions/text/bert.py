"""A BERT of 6 layers in NumPy: sentence-transformers/all-MiniLM-L6-v2, 23 million weights, 91 MB.

Each layer is attention and a feed-forward network of two steps, each added to its input and normalised
(Devlin et al., NAACL 2019). Names are those of the weights file.
"""

import numpy

HEADS = 12
LEAST = 1e-12  # against division by zero; the value of its training


class Bert:
    def __init__(self, weights):
        self.weights = weights
        self.layers = 1 + max(
            int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer.")
        )

    def embed(self, tokens):
        """A text's embedding, of length 1; `tokens` are numbers in the vocabulary."""
        of = "embeddings"
        x = self.weights[f"{of}.word_embeddings.weight"][tokens]
        x = x + self.weights[f"{of}.position_embeddings.weight"][: len(tokens)]
        x = self.normalised(x + self.weights[f"{of}.token_type_embeddings.weight"][0], f"{of}.LayerNorm")
        for number in range(self.layers):
            of = f"encoder.layer.{number}"
            x = self.normalised(x + self.attention(x, f"{of}.attention"), f"{of}.attention.output.LayerNorm")
            wide = gelu(self.dense(x, f"{of}.intermediate.dense"))
            x = self.normalised(x + self.dense(wide, f"{of}.output.dense"), f"{of}.output.LayerNorm")
        mean = x.mean(axis=0)
        return mean / numpy.linalg.norm(mean)

    def dense(self, x, name):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def normalised(self, x, name):
        x = x - x.mean(axis=1, keepdims=True)
        x /= numpy.sqrt((x * x).mean(axis=1, keepdims=True) + LEAST)
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attention(self, x, name):
        def per_head(part):
            return self.dense(x, f"{name}.self.{part}").reshape(len(x), HEADS, -1).transpose(1, 0, 2)

        query, key, value = per_head("query"), per_head("key"), per_head("value")
        score = query @ key.transpose(0, 2, 1) / numpy.float32(query.shape[2]) ** 0.5
        score = numpy.exp(score - score.max(axis=2, keepdims=True))
        attended = score / score.sum(axis=2, keepdims=True) @ value
        return self.dense(attended.transpose(1, 0, 2).reshape(len(x), -1), f"{name}.output.dense")


def gelu(x):
    """x times the normal distribution's share below x, by erf, which NumPy lacks: Abramowitz and Stegun
    7.1.26, at most 1.5e-7 off."""
    z = numpy.abs(x) * numpy.float32(0.5**0.5)
    t = 1 / (1 + numpy.float32(0.3275911) * z)
    sum_ = numpy.zeros_like(t)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        sum_ = (sum_ + numpy.float32(factor)) * t
    erf = numpy.copysign(1 - sum_ * numpy.exp(-z * z), x)
    return x * (1 + erf) / 2
