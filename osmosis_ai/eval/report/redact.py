"""Secrets out of everything that a report shows: keys by their shape, values by their name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

REDACTED = "[redacted]"
SHORTEST = 8  # characters of an environment value that is taken for a secret: "1" is everywhere

SECRET_NAME = re.compile(r"(?i)(?:[_-]key|apikey|token|secret|passw(?:or)?d|credentials?|authorization)$")
# Text without any of these holds no shape below: a fifth of the time on text without secrets.
_HINTS = (
    "private key", "sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_",
    "github_pat_", "glpat-", "hf_", "npm_", "xox", "akia", "asia", "aiza", "eyj", "bearer", "basic", "://",
    "key", "token", "secret", "passw", "credential",
)  # fmt: skip
# What is kept stands in a group `keep_...`; the secret is what follows it. Whatever is tried at many places
# is bounded in length: text that a model made up for it must not take quadratic time.
_SHAPES = re.compile(
    r"""
      (?P<pem>-----BEGIN\ [A-Z ]*PRIVATE\ KEY-----[\s\S]*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z))
    | \b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}                             # OpenAI, Anthropic, Stripe
    | \b(?:gh[pousr]_|github_pat_|glpat-|hf_|npm_)[A-Za-z0-9_-]{16,}   # GitHub, GitLab, Hugging Face, npm
    | \bxox[abeoprs]-[A-Za-z0-9-]{10,}                                 # Slack
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b                                    # AWS
    | \bAIza[0-9A-Za-z_-]{30,}                                         # Google
    | \beyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{8,6000}\.[A-Za-z0-9_-]*        # JSON Web Token
    | (?P<keep_scheme>(?i:\b(?:bearer|basic)\s+))[A-Za-z0-9._~+/=-]{8,}
    | (?P<keep_url>://[^\s/:@]{1,64}:)[^\s/@]{1,256}(?=@)              # https://user:password@host
    | (?P<keep_env>\b[A-Z][A-Z0-9_]{0,60}(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)[A-Z0-9_]{0,60}
      \s*[=:]\s*["']?)[^\s"',;]{6,}                                    # OPENAI_API_KEY=...
    | (?P<keep_name>(?i:\b(?:api[_-]?key|secret|password|passwd|(?:access|auth|refresh)[_-]?token))
      \\?["']?\s*[=:]\s*\\?["']?)[^\s"',;\\]{6,}                       # "api_key": "..."
    """,
    re.VERBOSE,
)


class Redactor:
    """Call it with text; `count` says how many secrets were taken out."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.count = 0
        values = {v for k, v in (environment or {}).items() if SECRET_NAME.search(k) and len(v) >= SHORTEST}
        self._values = _any_of(values)

    def __call__(self, text: str) -> str:
        if self._values is not None:
            text, found = self._values.subn(REDACTED, text)
            self.count += found
        lowered = text.lower()
        if not any(hint in lowered for hint in _HINTS):
            return text
        return _SHAPES.sub(self._replace, text)

    def _replace(self, match: re.Match[str]) -> str:
        self.count += 1
        kept = match.lastgroup
        return (match[kept] if kept is not None and kept.startswith("keep") else "") + REDACTED

    def json(self, value: Any) -> Any:
        """A JSON value with every text redacted, and everything under a key that names a secret.

        {"api_key": "abc", "api_key_env": "HOME"}  ->  {"api_key": "[redacted]", "api_key_env": "HOME"}
        """
        if isinstance(value, str):
            return self(value)
        if isinstance(value, list):
            return [self.json(item) for item in value]
        if isinstance(value, dict):
            return {self(str(key)): self._under(str(key), item) for key, item in value.items()}
        return value

    def _under(self, key: str, value: Any) -> Any:
        if isinstance(value, str) and value and SECRET_NAME.search(key):
            self.count += 1
            return REDACTED
        return self.json(value)


def _any_of(values: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted(values, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
