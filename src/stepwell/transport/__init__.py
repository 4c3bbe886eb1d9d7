"""Frames and file descriptors over Unix sockets: one end for clients, one for the manager.

The package moves bytes. It knows frames and when a connection is broken; it does not know sessions, retries or
commands. Those belong to `client.session` and to `manager`.

Entry points:
- `address`: check, listen at and dial the path of a Unix socket. Only its own user can reach one.
- `connection.Connection`: a client's end for threads. It carries one request at a time and waits for the answer.
- `frame_socket.FrameSocket`: the part that a blocking connection shares with `aio.connection.AsyncConnection`.
- `peer.Peer`: the manager's end. It never waits and has bounded buffers.
- `busy_wait.Spin`: polls for a moment before a thread goes to sleep.

Imports: `protocol`, `errors` and `limits`; nothing of client or manager, because both ends use this package.

Invariants:
- A received descriptor is either handed to the reader of the frame that announces it, or closed here.
- `RuntimeLost` means that not all bytes of a message were sent, so it cannot have taken effect. `OutcomeUnknown` means
  that all were sent and no answer came.
- No buffer of the manager's end grows past a bound of `limits`, whatever a client does.
"""
