from multiprocessing.popen_spawn_posix import Popen as _Popen

from multiprocess.util import Finalize

class Popen(_Popen):
    _fds: list[int]
    finalizer: Finalize[None]
    def _send_signal(self, sig: int) -> None: ...
