"""What travels between client and manager, pure: messages, their encoding, and frames. No I/O in here."""
