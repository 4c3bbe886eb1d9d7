"""A process that sends the report that it is given, waits if it is told to, and ends with exit code 7."""

import socket


def main(settings: str) -> int:
    descriptor, _, report = settings.partition(" ")
    with socket.socket(fileno=int(descriptor)) as owner:
        if report == "wait":
            owner.recv(1)
        else:
            owner.sendall(report.encode())
    return 7
