-- Version 4. What a run was allowed to go on with although it had changed.

-- JSON: [{"at": seconds since the epoch, "changes": {key of the identity: [was, is]}}], oldest first.
ALTER TABLE run ADD COLUMN lineage TEXT NOT NULL DEFAULT '[]';
