"""The gateway: the OpenAI-compatible endpoint that routes and records every LLM call."""
