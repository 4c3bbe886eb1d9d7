from multiprocessing.reduction import dump as dump
