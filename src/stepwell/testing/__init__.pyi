from .clock import Clock
from .faults import Fault, Faults
from .leaks import no_leaks
from .runtime import LocalRuntime

__all__ = ["Clock", "Fault", "Faults", "LocalRuntime", "no_leaks"]
