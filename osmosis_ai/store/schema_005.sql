-- Version 5. The bytes of each call as they came, for who needs more than its messages.

-- Older turns have none. The request's body is a difference to that of the sample's turn before it which
-- has one (store/native.py).
ALTER TABLE turn ADD COLUMN wire TEXT;      -- which API: chat, completions, responses, messages
ALTER TABLE turn ADD COLUMN sent BLOB;      -- the request's body
ALTER TABLE turn ADD COLUMN answered BLOB;  -- packed alike; what an external model answered, empty for the policy
