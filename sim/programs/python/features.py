"""The distinct words of a text's features, as FunctionBench's feature_reducer finds them: by scikit-learn's
TfidfVectorizer, each word a document. features.py WORDS"""

import hashlib
import random
import sys

from measured import called
from sklearn.feature_extraction.text import TfidfVectorizer

numbers = random.Random(1)
vocabulary = ["".join(numbers.choices("etaoinshrdlucm", k=numbers.randint(2, 10))) for _ in range(3000)]
weights = [1 / (rank + 1) for rank in range(len(vocabulary))]
# As feature_extractor leaves them: words in quotes, with commas between.
body = ",".join(f"'{word}'" for word in numbers.choices(vocabulary, weights, k=int(sys.argv[1])))


def handler():
    words = body.replace("'", "").split(",")
    fitted = TfidfVectorizer().fit(words)
    feature = str(list(fitted.get_feature_names_out()))
    return len(words), feature.lstrip("[").rstrip("]").replace(" ", "")


many, feature = called(handler)
print(f"features: {many} words, {hashlib.sha256(feature.encode()).hexdigest()}")
