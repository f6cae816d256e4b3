-- Version 3. What a gateway that was restarted needs to go on with the rollouts that it had.

-- A rollout that agents have a key of. The key itself is nowhere.
CREATE TABLE admission (
    rollout_id TEXT PRIMARY KEY REFERENCES rollout ON DELETE CASCADE,
    key_digest BLOB NOT NULL UNIQUE,    -- SHA-256 of the key
    gateway    TEXT NOT NULL,           -- the one that answers, where several share the database
    terms      TEXT NOT NULL,           -- JSON: seed, sampling, limits
    tools      TEXT,                    -- JSON: of calls that bring none; NULL: not known (yet)
    sealed     INTEGER NOT NULL DEFAULT 0   -- 1: no further call counts
) STRICT;

-- JSON: the request that the turn answered, so that a retry of it is known as one. Version 2 did not keep it.
ALTER TABLE turn ADD COLUMN call TEXT;
