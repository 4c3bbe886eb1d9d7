from multiprocessing.context import *
from multiprocessing.context import BaseContext as BaseContext
from multiprocessing.context import SpawnContext as SpawnContext
from multiprocessing.context import SpawnProcess as SpawnProcess
from multiprocessing.context import set_spawning_popen as set_spawning_popen
