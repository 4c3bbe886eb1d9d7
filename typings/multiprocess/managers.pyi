from multiprocessing.managers import *
