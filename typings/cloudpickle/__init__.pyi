from collections import ChainMap
from collections.abc import Callable
from io import BytesIO
from types import ModuleType
from typing import Any, ClassVar

from cloudpickle import cloudpickle as cloudpickle

class Pickler:
    dispatch_table: ClassVar[ChainMap[type, Callable[[Any], str | tuple[Any, ...]]]]
    def __init__(self, file: BytesIO, protocol: int | None = ...) -> None: ...
    def dump(self, obj: object) -> None: ...
    def reducer_override(self, obj: object) -> object: ...

def register_pickle_by_value(module: ModuleType) -> None: ...
