"""ATIF: what the format does not say by itself."""

from store_nouns import rollout, turn

from osmosis_ai.store.export.atif import trajectories


def test_results_without_a_call_are_kept_beside_the_steps():
    lost = {"role": "tool", "tool_call_id": "gone", "content": "5"}
    one = rollout()
    one.turns = [turn(messages=[lost, {"role": "user", "content": "hi"}])]
    (trajectory,) = trajectories(one, None, "1.0")
    assert [step["source"] for step in trajectory["steps"]] == ["user", "agent"]
    assert trajectory["extra"]["osmosis"]["unmatched_tool_results"] == [lost]


def test_arguments_that_cannot_be_read_stay_as_they_came():
    calls = [
        {"id": "1", "function": {"name": "f", "arguments": "{broken"}},
        {"id": "2", "function": {"name": "f", "arguments": "[1]"}},
        {"id": "3", "function": {"name": "f", "arguments": '{"x": NaN}'}},
    ]
    one = rollout()
    one.turns = [turn(response={"role": "assistant", "content": None, "tool_calls": calls})]
    (trajectory,) = trajectories(one, None, "1.0")
    step = trajectory["steps"][-1]
    assert (step["message"], [call["arguments"] for call in step["tool_calls"]]) == (
        "",
        [{"_raw": "{broken"}, {"_raw": "[1]"}, {"x": None}],
    )


def test_branches_are_trajectories_of_their_own_with_the_tokens_of_their_turns_only():
    one = rollout()
    user = {"role": "user", "content": "again"}
    one.turns = [
        turn(),
        turn(ordinal=1, parent=0, messages=[*turn().messages, turn().response, user], prompt_tokens=6),
        turn(ordinal=2, messages=[user], completion_ids=[], prompt_ids=[], logprobs=[]),
    ]
    first, second = trajectories(one, None, "1.0")
    assert [first["trajectory_id"], second["trajectory_id"]] == ["r1.1", "r1.2"]
    assert first["final_metrics"] == {
        "total_prompt_tokens": 8,
        "total_completion_tokens": 4,
        "total_steps": 5,
    }
    assert [("metrics" in step) for step in first["steps"]] == [False, False, True, False, True]
    assert "prompt_token_ids" not in second["steps"][-1]["metrics"]


def test_text_parts_are_joined_and_other_content_is_json():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    one = rollout()
    one.turns = [turn(messages=[{"role": "user", "content": parts}, {"role": "user", "content": image}])]
    (trajectory,) = trajectories(one, None, "1.0")
    assert [step["message"] for step in trajectory["steps"][:2]] == [
        "a\nb",
        '[{"type": "image_url", "image_url": {"url": "x"}}]',
    ]


def test_a_rollout_without_turns_has_no_trajectory():
    assert list(trajectories(rollout(), None, "1.0")) == []
