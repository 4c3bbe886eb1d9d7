# A fork of the standard library's package with the same interface, and no types of its own.
from multiprocessing import *
