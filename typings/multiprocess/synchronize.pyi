from multiprocessing.synchronize import *
