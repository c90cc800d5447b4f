"""`mlrh fit --groups FILE`: groups of labels from a JSON file."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from mlrh.cli import app
from mlrh.data import MultilabelData, write
from mlrh.estimators import auto
from mlrh.persistence import load

FORM = r'a list such as \[\{"labels": \["red", "blue"\], "least": 1, "most": 1\}\]'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with things.csv: exactly one colour, at most one size, and a label of its own."""
    monkeypatch.setattr(auto, "LINEAR_C", (1.0,))
    monkeypatch.chdir(tmp_path)
    random = np.random.RandomState(0)
    X = random.normal(size=(60, 2))
    colour = (X[:, 0] + random.normal(size=60) > 0).astype(np.int8)
    small, new = (X + random.normal(size=(60, 2)) > 0.5).astype(np.int8).T
    Y = np.column_stack([1 - colour, colour, small, new])
    write(MultilabelData(X, Y, ("a", "b"), ("red", "blue", "small", "new"), "things"), tmp_path / "things.csv")
    return tmp_path


def fit(*options):
    command = [
        "fit",
        "things.csv",
        "--labels",
        "red,blue,small,new",
        "--kernel",
        "linear",
        "--folds",
        "2",
        "--jobs",
        "1",
    ]
    return CliRunner().invoke(app, [*command, *options])


def test_groups_of_a_file_are_the_label_space_of_the_model(folder):
    groups = [{"labels": ["red", "blue"], "least": 1, "most": 1}, {"labels": ["small"], "least": 0, "most": 1}]
    (folder / "groups.json").write_text(json.dumps(groups))
    result = fit("--groups", "groups.json")
    assert result.exit_code == 0, (result.output, result.exception)
    model = load("things.mlrh")
    assert model.classifier.best_estimator_[-1].label_space_.groups == [([0, 1], 1, 1), ([2], 0, 1)]
    assert model.settings["label_space"].startswith("groups: 1 label of 2, 0 to 1 labels of 1, 1 free")
    assert CliRunner().invoke(app, ["predict", "things.mlrh", "things.csv", "-o", "answers.csv"]).exit_code == 0
    lines = (folder / "answers.csv").read_text().splitlines()[1:]
    assert all(("red" in line) != ("blue" in line) for line in lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{", r"groups.json, line 1: is not JSON \(.*\); write " + FORM),
        ('{"labels": ["red"]}', "group 0 must have labels, least and most; write " + FORM),
        ('[{"labels": ["red"], "least": 0}]', "group 0 must have labels, least and most"),
        ('[{"labels": "red", "least": 0, "most": 1}]', "group 0 must have labels, least and most"),
        ('[{"labels": [1, 2], "least": 0, "most": 1}]', "the labels of group 0 must be names"),
        ('[{"labels": ["red"], "least": 0, "most": 2}]', "groups.json: The limits of a group must be integers"),
        ("[]", "at least one group; got none"),
        ('[{"labels": ["red", "pink"], "least": 0, "most": 1}]', "names the label 'pink', which y doesn't have"),
        (
            '[{"labels": ["red", "new"], "least": 1, "most": 1}]',
            r"Row \d+ of y has \d labels of group 0 \('red', 'new'\)",
        ),
    ],
)
def test_what_is_wrong_with_a_file_of_groups_is_said_in_one_sentence(folder, text, message):
    (folder / "groups.json").write_text(text)
    result = fit("--groups", "groups.json")
    assert result.exit_code != 0
    with pytest.raises(ValueError, match=message):
        raise result.exception


def test_groups_stand_alone_and_must_exist(folder):
    assert "no such file" in str(fit("--groups", "none.json").exception)
    (folder / "groups.json").write_text('[{"labels": ["red", "blue"], "least": 1, "most": 1}]')
    assert "leave out --label-space" in str(fit("--groups", "groups.json", "--label-space", "observed").exception)
