"""The protocol: messages between a peer (client or worker) and the manager, their encoding, and frames. It does no I/O.

Entry points

- `messages`: the messages, and a picture of who sends what. Read this first.
- `codec`: `encode_frame`, `decode_from_client`, `decode_from_manager`. The only place that decodes bytes of a peer.
- `framing`: `Framer`, which cuts a stream of bytes into payloads.
- `handles`: the places of bodies in shared memory, and the records of catalogues.

It may import `domain`, `errors` and `limits`, and no module that does I/O. `transport` moves the frames; `manager` and
`client` act on the messages.

Invariants

- Whatever bytes arrive, decoding returns a valid message or raises a `StepwellError`.
- A message is a frozen Struct in a closed union (`ClientMessage`, `ManagerMessage`); every field is bounded by its
type.
- No frame is larger than `limits.FRAME_BYTES_MAX`. Larger bodies travel beside the frames, as raw bytes.
- Peers with different values of `messages.VERSION` never talk past `Hello`.
"""
