"""The controller: decides which rollout runs next and when to take a step. Read `loop.py`."""
