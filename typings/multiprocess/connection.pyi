from multiprocessing.connection import *
from multiprocessing.connection import Connection as Connection
