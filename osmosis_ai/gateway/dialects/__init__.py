"""The wire APIs, one per file: bytes <-> `gateway.call.ModelCall` and `gateway.call.Reply`."""
