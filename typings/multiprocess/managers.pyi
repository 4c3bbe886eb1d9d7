from multiprocessing.managers import *
from multiprocessing.managers import DictProxy as DictProxy
