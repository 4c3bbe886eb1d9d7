from multiprocessing.spawn import get_executable as get_executable
from multiprocessing.spawn import set_executable as set_executable
