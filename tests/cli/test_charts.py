"""Terminal charts, character by character, and the picture as far as a test can see."""

import re

import pytest

from osmosis_ai.cli.charts import curve, moving_average, save_curve_png, smoothing_window, sparkline

RISING = [step / 59 for step in range(60)]


def test_a_sparkline_has_one_character_per_value():
    assert sparkline([0, 0.25, 0.5, None, 1], encoding="utf-8") == "▁▃▅ █"
    assert sparkline([0, 0.25, 0.5, None, 1], encoding="ascii") == "_-= #"
    assert sparkline([], encoding="utf-8") == ""


def test_a_sparkline_of_other_ranges_uses_its_own_scale():
    assert sparkline([-5, 0, 5], encoding="utf-8") == "▁▅█"
    assert sparkline([7, 7], encoding="utf-8") == "▅▅"
    assert sparkline([float("nan"), 1], encoding="utf-8") == " █"


def test_a_moving_average_leaves_out_steps_without_a_reward():
    assert moving_average([0, 1, None, 1], 2) == [0, 0.5, 1, 1]
    assert moving_average([None, None, 3], 2) == [None, None, 3]
    assert [smoothing_window(count) for count in (1, 5, 6, 30, 60)] == [1, 1, 3, 3, 6]


def test_a_straight_line_is_drawn_from_corner_to_corner():
    assert curve([0, 0.5, 1], width=16, height=7, encoding="utf-8").splitlines() == [
        "reward by step",
        "1.00 ┤        ⡠⠊",
        "     │     ⢀⠔⠉",
        "     │  ⢀⡠⠒⠁",
        "0.00 ┤⡠⠔⠁",
        "     └──────────",
        "      1   2    3",
    ]


def test_every_line_fits_the_width_and_height():
    for width, height, values in (
        (72, 12, RISING),
        (30, 8, [5.0]),
        (40, 20, [-100, 1e6]),
        (20, 6, [1e-5, 2e-5, 3]),
    ):
        lines = curve(values, width=width, height=height, encoding="utf-8").splitlines()
        assert len(lines) == height
        assert max(map(len, lines)) <= width


def test_the_axes_carry_numbers_and_the_legend_says_what_is_drawn():
    lines = curve(RISING, encoding="utf-8", label="held-out reward").splitlines()
    assert lines[0] == "held-out reward by step   · each step   ⠒⠒ mean of the last 6"
    assert [line[:4] for line in lines if "┤" in line] == ["1.00", "0.75", "0.50", "0.25", "0.00"]
    assert re.findall(r"\d+", lines[-1]) == ["1", "30", "60"]
    assert re.findall(r"\d+", curve(RISING[:3], first_step=41, encoding="utf-8").splitlines()[-1]) == [
        "41",
        "42",
        "43",
    ]


def test_without_unicode_the_chart_is_plain_ascii():
    chart = curve([0, 1, 0, 1, 0, 1, 0, 1], encoding="ascii", width=40)
    assert chart.isascii()
    assert "*" in chart
    assert "." in chart


def test_values_of_any_range_get_their_own_axis():
    lines = curve([-12, 900], width=40, height=8, encoding="utf-8").splitlines()
    assert lines[1].startswith("900 ┤")
    assert lines[5].startswith("-12 ┤")


def test_gaps_and_nothing_at_all_are_drawn_as_such():
    assert curve([], label="reward") == "reward: no step has a value yet"
    assert curve([None, float("nan")]) == "reward: no step has a value yet"
    chart = curve([0, None, 1, 1], width=30, height=7, encoding="utf-8")
    assert re.findall(r"\d+", chart.splitlines()[-1]) == ["1", "2", "4"]


def test_the_picture_is_a_png_of_a_useful_size(tmp_path):
    path = tmp_path / "pictures" / "curve.png"
    save_curve_png(
        path,
        list(range(1, 61)),
        [*RISING[:-1], None],
        title="calculator",
        eval_points=[(0, 0.4, 0.35, 0.45), (60, 0.95, None, None)],
    )
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (1280, 720)


def test_steps_and_rewards_must_pair_up(tmp_path):
    with pytest.raises(ValueError, match="of one length, got 2 and 1"):
        save_curve_png(tmp_path / "a.png", [1, 2], [0.5])
