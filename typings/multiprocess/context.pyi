from multiprocessing.context import *
from multiprocessing.context import BaseContext as BaseContext
from multiprocessing.context import SpawnContext as SpawnContext
from multiprocessing.context import set_spawning_popen as set_spawning_popen
from multiprocessing.process import BaseProcess

class SpawnProcess(BaseProcess):
    _start_method: str | None  # forced in the child, unless it is None
