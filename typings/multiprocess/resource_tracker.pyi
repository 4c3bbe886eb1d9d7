from multiprocessing.resource_tracker import *
