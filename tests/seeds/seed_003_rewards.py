# ruff: noqa
# fmt: off
# Code blocks of seed document 003, as they stand there.
from osmosis_ai import osmosis_reward

@osmosis_reward
def compute_reward(
    solution_str: str,
    ground_truth: str,
    extra_info: dict = None,
    **kwargs  # Required for platform compatibility
) -> float:
    """Compare solution to ground truth."""
    if solution_str.strip() == ground_truth.strip():
        return 1.0
    return 0.0

from typing import List, Dict, Any, Optional

def get_last_assistant_content(messages: List[Dict[str, Any]]) -> Optional[str]:
    """Get the content of the last assistant message.
    
    NOTE: This is a helper function for logging/debugging purposes only.
    It is NOT required by the SDK.
    """
    for message in reversed(messages):
        if message.get("role") == "assistant":
            return message.get("content", "")
    return None


def compute_reward_from_messages(
    messages: List[Dict[str, Any]], 
    ground_truth: Optional[str]
) -> Optional[float]:
    """Compute reward from messages if ground_truth is available.
    
    NOTE: This function is only needed if the platform is configured to 
    compute rewards in the remote rollout server. If not, you can skip 
    this entirely and return None for reward.
    """
    if not ground_truth:
        return None

    solution_str = get_last_assistant_content(messages)
    if not solution_str:
        return 0.0

    # Your reward logic here
    return compute_reward(solution_str, ground_truth)

import re

def extract_answer(text: str) -> str | None:
    """Extract answer after #### marker."""
    match = re.search(r"####\s*(.+)", text)
    return match.group(1).strip() if match else None
