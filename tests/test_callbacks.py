"""scikit-learn's callbacks hear of every iteration, see the model there, and can stop it."""

import numpy as np
import pytest
from samples import BOTH, make_multilabel
from sklearn.model_selection import GridSearchCV, KFold

from mlrh import MLRHClassifier, MLRHClassifierCV

callback = pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks from 1.9 on")
X, Y = make_multilabel()


class Listener:
    """Notes what the hooks get; asks to stop at the end of one iteration, if any."""

    def __init__(self, stop_at=None):
        self.stop_at, self.begun, self.ended, self.models, self.state = stop_at, [], [], [], []

    def setup(self, estimator, context):
        self.state.append("set up")

    def teardown(self, estimator, context):
        self.state.append("torn down")

    def on_fit_task_begin(self, estimator, context):
        self.begun.append(context.task_name)

    def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
        self.ended.append(context.task_name)
        if context.task_name == "iteration" and fitted_estimator is not None:
            self.models.append((fitted_estimator, fitted_estimator.predict_proba(X)))
        return context.task_name == "iteration" and len(self.models) == self.stop_at


@BOTH
@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "mm", "prox-newton"])
@pytest.mark.parametrize("options", [{"size_bias": True}, {"label_space": "observed"}])
def test_callbacks_see_the_model_after_every_iteration(classifier, solver, options):
    listener = Listener()
    model = classifier(solver=solver, tol=1e-4, **options).set_callbacks(listener).fit(X, Y)
    assert len(listener.models) == model.n_iter_
    assert listener.begun == ["fit"] + ["iteration"] * (model.n_iter_ + 1)
    assert listener.ended == ["iteration"] * (model.n_iter_ + 1) + ["fit"]
    assert listener.state == ["set up", "torn down"]
    plain = classifier(solver=solver, tol=1e-4, **options).fit(X, Y)
    np.testing.assert_array_equal(listener.models[-1][1], plain.predict_proba(X))
    assert np.abs(listener.models[0][1] - plain.predict_proba(X)).max() > 1e-3
    np.testing.assert_array_equal(model.predict_proba(X), plain.predict_proba(X))
    first, seen = listener.models[0]  # a model of its own, which later iterations leave alone
    assert first is not model
    np.testing.assert_array_equal(first.predict_proba(X), seen)


def test_a_callback_can_stop_a_fit_without_a_warning():
    listener = Listener(stop_at=3)
    model = MLRHClassifier().set_callbacks(listener).fit(X, Y)
    assert model.n_iter_ == 3
    np.testing.assert_array_equal(model.predict_proba(X), listener.models[-1][1])


def test_where_C_is_chosen_callbacks_hear_of_the_fit_to_all_rows():
    listener = Listener()
    model = MLRHClassifierCV(Cs=[0.1, 1.0], cv=2).set_callbacks(listener).fit(X, Y)
    assert listener.state == ["set up", "torn down"]
    assert len(listener.models) == model.n_iter_
    np.testing.assert_array_equal(listener.models[-1][1], model.predict_proba(X))


def test_an_interrupted_or_failed_fit_tears_its_callbacks_down():
    listener = Listener()
    model = MLRHClassifier(min_labels=4).set_callbacks(listener)
    with pytest.raises(ValueError, match="min_labels=4 excludes"):
        model.fit(X, Y)
    assert listener.state in ([], ["set up", "torn down"])


def test_the_progress_bar_runs_also_within_a_search(capsys):
    search = GridSearchCV(MLRHClassifier(), {"C": [0.1, 1.0]}, cv=KFold(2)).set_callbacks(callback.ProgressBar())
    assert search.fit(X, Y).best_estimator_.n_iter_ > 2
    assert "MLRHClassifier" in capsys.readouterr().out
