from pathlib import Path

import numpy as np
from numpy.typing import NDArray

class Encoding:
    ids: list[int]

class Tokenizer:
    def encode(self, sequence: str, *, add_special_tokens: bool = ...) -> Encoding: ...

class WordLlamaInference:
    embedding: NDArray[np.float32]
    tokenizer: Tokenizer
    def embed(self, texts: str | list[str], norm: bool = ...) -> NDArray[np.float32]: ...

class WordLlama:
    @classmethod
    def load(cls, *, cache_dir: Path | None = ..., disable_download: bool = ...) -> WordLlamaInference: ...
