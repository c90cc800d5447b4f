"""What the linear and the kernel classifier share: validation of y, the label space, the solver, predictions.

A subclass says how X becomes features for the design, and how their coefficients are stored and give scores.
"""

import warnings
from abc import abstractmethod
from copy import copy
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning

from mlrh import _sklearn, decisions
from mlrh._indicators import UNKNOWN
from mlrh._sklearn import Interval, StrOptions
from mlrh.estimators import _admissible, _targets
from mlrh.fitting import solvers
from mlrh.fitting.objective import Objective
from mlrh.fitting.solvers.prox_newton import prox_newton
from mlrh.spaces import CardinalitySpace, LabelSetDistribution
from mlrh.spaces.independent import SeparateLabels


@dataclass(frozen=True)
class _Problem:
    """Training rows of positive weight, what y looked like, and the label space; the rest is C and the solver."""

    X: Any
    Y: np.ndarray
    weights: np.ndarray
    support: np.ndarray
    form: Any
    sizes: tuple[int, int]
    space: Any
    noted: dict[str, Any]
    fitted_as: tuple


NOTED_OF_X = ("n_features_in_", "feature_names_in_")
OF_PARTS = ("_kept", "n_samples_seen_", "n_samples_kept_")
PROX_NEWTON = "prox-newton"
MAX_SHARE = 8.0  # of one fit in where a path points to; evenly spaced values of C have 3 at most
SOLVERS = {"mm": solvers.mm, "lbfgs": solvers.lbfgs, "newton-cg": solvers.newton_cg, PROX_NEWTON: prox_newton}


class MLRHBase(_sklearn.CallbackSupportMixin, ClassifierMixin, BaseEstimator):
    """Everything of the classifiers that does not depend on how scores come from X."""

    intercept_: np.ndarray
    label_space_: Any

    _parameter_constraints: dict = {
        "label_space": [StrOptions({"cardinality", "observed"})],
        "min_labels": [StrOptions({"auto"}), Interval(Integral, 0, None, closed="left")],
        "max_labels": [StrOptions({"auto"}), Interval(Integral, 0, None, closed="left")],
        "size_bias": ["boolean"],
        "C": [Interval(Real, 0, None, closed="right")],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
        "fit_intercept": ["boolean"],
        "solver": [StrOptions({"auto", *SOLVERS})],
        "mm_step": [StrOptions({"safe", "paper"})],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "warm_start": ["boolean"],
        "decision": [StrOptions(set(decisions.BY_NAME)), tuple, callable],
        "answer_sizes": [None, tuple, list],
        "n_jobs": [Integral, None],
        "verbose": ["verbose"],
    }

    @_sklearn.fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Fit to X (n_samples, n_features) and y in any of the forms the class documents.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_samples, n_features)
        y : indicator matrix, list of label sets, or classes of shape (n_samples,)
            An indicator matrix may hold NaN (or be masked) where nobody looked; see the class.
        sample_weight : array of shape (n_samples,), optional
            A row of weight 2 counts as the row twice, one of weight 0 as absent.

        Returns
        -------
        self
        """
        problem = self._pose(X, y, sample_weight)
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        with _sklearn.telling_of_fit(self, max_iter=self.max_iter, X=X, y=y, metadata=metadata) as tell:
            self._solve(problem, warm=self.warm_start, tell=tell)
        return self

    def _solve(self, problem, *, warm, tell=None):
        """Keep the fit to a problem, from the last fit on if that is warm and has the same features and labels."""
        is_warm = warm and getattr(self, "_fitted_as", None) == problem.fitted_as
        earlier = self._earlier_scores(problem.X) if is_warm else None
        prepared = self._prepare(problem.X, problem.weights, self.C)
        starts = () if earlier is None else ((*self._project(prepared, earlier), self.label_space_),)
        self._settle(problem, prepared, starts, tell=tell)

    def _fit_path(self, X, y, Cs, sample_weight=None):
        """Yields self fitted at each C in turn; what doesn't depend on C is done once.

        Each starts where the last two or three point to along log C, whichever is better.
        """
        problem = self._pose(X, y, sample_weight)
        prepared = self._prepare(problem.X, problem.weights, max(Cs))
        prepared.design.keeps_gram = True
        is_convex = not (problem.Y == UNKNOWN).any()  # elsewhere another start may lead to another optimum
        reached: list[tuple] = []
        metric = solvers.MetricOfPath()
        for i, C in enumerate(Cs):
            self.C = C
            starts = _extrapolated(reached, Cs[: i + 1]) if is_convex else ()
            metric_at = metric if len(starts) > 0 and Cs[i - 1] <= C else None
            reached = [*reached[-2:], self._settle(problem, prepared, starts, metric_at=metric_at)]
            yield self

    def _pose(self, X, y, sample_weight):
        """The checked training rows and their label space."""
        self._check_penalty()
        noting = copy(self)  # so that a fit that fails leaves what is known of the X of the last one
        X = noting._validate_X(X, reset=True)
        form, Y = _targets.encode(y, partly_known=True)
        _targets.check_same_length(X, Y)
        weights = _sklearn.check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        check_strength(self.C, weights)
        support = np.flatnonzero((weights > 0) & (Y != UNKNOWN).any(axis=1))
        if len(support) < len(weights):
            _admissible.check_any(support)
            X, Y, weights = self._rows(X, support), Y[support], weights[support]
            form, Y = form.seen_in(Y)
        _admissible.check_every_label_known(form.classes, Y)
        problem = self._problem(X, Y, weights, support, form, noting)
        self._warn_where_undetermined(form, Y, problem.sizes)
        return problem

    def _problem(self, X, Y, weights, support, form, noting):
        """The problem of checked rows; noting is a copy of this estimator that has seen their X."""
        sizes = _admissible.ONE_CLASS[Y.shape[1] == 1]
        if not form.is_one_class_per_row:
            sizes = _admissible.sizes(Y, support, self.min_labels, self.max_labels)
        all_sets = CardinalitySpace(Y.shape[1], *sizes, n_jobs=self.n_jobs)
        space = _admissible.observed_space(Y, support) if self.label_space == "observed" else all_sets
        if not form.is_one_class_per_row:
            decisions.check(self.decision, self.answer_sizes, space)
        noted = {name: vars(noting)[name] for name in NOTED_OF_X if name in vars(noting)}
        fitted_as = (noting.n_features_in_, form.classes.tolist(), *self._form_of_scores(support))
        return _Problem(X, Y, weights, support, form, sizes, space, noted, fitted_as)

    def _settle(self, problem, prepared, starts, *, metric_at=None, tell=None):
        """Solve and keep the fit; a fit that fails before leaves the one that was. Returns the start for another C.

        Starts are as for `_start`, metric_at as for `lbfgs`. An interrupted fit is kept for a warm start; the interrupt
        goes on either way. With tell, from `telling_of_fit`, callbacks hear of every iteration.
        """
        self._warn_of_rounding(prepared)
        objective = Objective(
            prepared.design, problem.space, problem.Y, learn_bias=self._learns_bias, **self._strengths
        )
        begin, is_interrupted = self._start(objective, problem, starts)
        iterations = None
        if tell is not None:
            attributes_at = partial(self._attributes_at, problem, prepared, objective)
            iterations = _sklearn.Iterations(self, tell, attributes_at)
        max_iter = 0 if is_interrupted else self.max_iter
        solution = self._minimise(objective, begin, max_iter, iterations, metric_at=metric_at)
        coef, mean_score = self._store(problem, prepared, objective, solution.parameters)
        self.n_iter_, self.objective_, self.history_ = solution.n_iter, solution.value, np.array(solution.history)
        if is_interrupted or solution.interrupted:
            raise KeyboardInterrupt
        return coef, mean_score, self.label_space_

    def _store(self, problem, prepared, objective, parameters):
        """Keep all that predictions need of a solver's parameters; returns coefficients and mean scores."""
        coef, mean_score, bias = objective.split(objective.canonical(parameters))
        for name in (*NOTED_OF_X, *OF_PARTS):
            self.__dict__.pop(name, None)
        self.__dict__.update(problem.noted)
        self._keep_biases(problem.space, bias, prepared.design.X.dtype)
        self._keep(prepared, coef, mean_score)
        self._targets, self.classes_, self._fitted_as = problem.form, problem.form.classes, problem.fitted_as
        self.support_, (self.min_labels_, self.max_labels_) = problem.support, problem.sizes
        return coef, mean_score

    def _attributes_at(self, problem, prepared, objective, parameters):
        """The attributes that a fit which ended at these parameters would have."""
        other = copy(self)
        other._store(problem, prepared, objective, parameters)
        return {name: value for name, value in vars(other).items() if value is not vars(self).get(name, other)}

    def predict(self, X):
        """Label sets for the rows of X by the `decision`, in the form of the y of training."""
        sets = self._decide(X)
        return self._targets.decode(sets, X)

    def predict_proba(self, X) -> np.ndarray:
        """Marginals P(y_k = 1 | x) (n_samples, n_labels); for classes as y, P(class | x) (n_samples, n_classes)."""
        distribution = self.distribution(X)
        if self._targets.is_one_class_per_row and len(self.classes_) == 2:
            return distribution.cardinality_pmf()
        return distribution.marginals()

    def predict_log_proba(self, X) -> np.ndarray:
        """Logarithms of predict_proba."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def decision_function(self, X) -> np.ndarray:
        """Scores (n_samples, n_labels); for two classes as y, (n_samples,), positive for the second class."""
        scores = self._scores(X)
        return scores[:, 0] if self._targets.is_one_class_per_row and len(self.classes_) == 2 else scores

    def distribution(self, X) -> LabelSetDistribution:
        """The distribution of the label set of each row of X, a LabelSetDistribution."""
        scores = self._scores(X)
        return self.label_space_.with_jobs(self.n_jobs).distribution(scores)

    def score(self, X, y, sample_weight=None) -> float:
        """Share of rows whose predicted set is exactly right."""
        predicted = self._decide(X)  # first, so that what isn't fitted says so
        return self._targets.share_right(predicted, y, sample_weight)

    def __sklearn_is_fitted__(self):
        """Not yet where a fit has failed after it looked at X."""
        return hasattr(self, "_targets")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = False
        tags.input_tags.sparse = True
        return tags

    def _decide(self, X):
        """Predicted sets as an indicator matrix; one class per row is always the most probable one."""
        distribution = self.distribution(X)
        if self._targets.is_one_class_per_row:
            return decisions.exact_match(distribution)
        return decisions.resolve(self.decision, self.answer_sizes)(distribution)

    @abstractmethod
    def _validate_X(self, X, *, reset): ...

    @abstractmethod
    def _rows(self, X, support): ...

    @abstractmethod
    def _prepare(self, X, weights, C):
        """What fits at any C up to this one share: an object whose `design` the solver works on."""

    def _warn_of_rounding(self, prepared):
        """Say what rounding hides of the features at this C."""

    def _share_kernel(self):
        """Compute kernel values of the same rows once for all C of a path, where there is a kernel."""

    @abstractmethod
    def _earlier_scores(self, X):
        """What `_project` needs of the earlier fit, in units of the scores of X."""

    @abstractmethod
    def _project(self, prepared, earlier):
        """Coefficients of the design's features and mean scores that come nearest to the earlier fit."""

    @abstractmethod
    def _keep(self, prepared, coef, mean_score):
        """Store coefficients of the design's features as the fitted attributes."""

    @abstractmethod
    def _form_of_scores(self, support):
        """What must not have changed for a warm start, besides features and labels."""

    @abstractmethod
    def _scores(self, X): ...

    def _warn_where_undetermined(self, form, Y, sizes):
        """Say once what the rows leave without a finite optimum; the objective's rules keep it finite."""
        if form.is_one_class_per_row:
            return
        learns_sizes = self.size_bias and self.label_space == "cardinality"
        problems = _admissible.undetermined(form.classes, Y, sizes, learns_sizes=learns_sizes)
        if problems:
            warnings.warn(
                f"The training rows don't determine the model in full ({'; '.join(problems)}); a tiny penalty keeps it "
                "finite, and what they don't show is hardly ever predicted. Add rows that show it, or leave it out.",
                UserWarning,
                stacklevel=5,
            )

    def _start(self, objective, problem, starts):
        """Where the solver begins, and whether finding that was interrupted.

        A start is coefficients, mean scores and the space of an earlier fit; of several the best is taken.
        """
        if len(starts):
            return self._best_start(objective, starts), False
        if not (problem.Y == UNKNOWN).any():
            return objective.start(), False
        coef, mean_score, is_interrupted = self._separate_fits(objective.design, problem.Y)
        return objective.start_from(coef, mean_score, np.zeros(objective.n_biases)), is_interrupted

    @staticmethod
    def _best_start(objective, starts):
        space, best, lowest = objective.space, None, np.inf
        for coef, mean_score, earlier_space in starts:
            bias = earlier_space.bias if space.has_sets_of(earlier_space) else np.zeros(space.n_biases)
            parameters = objective.start_from(coef, mean_score, bias)
            value = objective.penalised_value(parameters) if len(starts) > 1 else 0.0
            if best is None or value < lowest:
                best, lowest = parameters, value
        return best

    def _separate_fits(self, design, Y):
        """Coefficients and mean scores of one logistic regression per label, fitted to its known entries."""
        objective = Objective(design, SeparateLabels(Y.shape[1]), Y, learn_bias=False, **self._strengths)
        name, report, tol = self._default_solver, self._report("separate labels"), max(self.tol, 1e-5)
        options = self._options_of(name)
        solution = SOLVERS[name](objective, objective.start(), tol=tol, max_iter=200, report=report, **options)
        self._raise_unless_kept(solution)
        coef, mean_score, _ = objective.split(solution.parameters)
        return coef, mean_score, solution.interrupted

    def _minimise(self, objective, start, max_iter, iterations, *, metric_at=None):
        """The solver's solution; warns where it hasn't converged."""
        name = self._default_solver if self.solver == "auto" else self.solver
        if iterations is not None:
            iterations.begin(start)
        report = self._report(name, iterations)
        options = self._options_of(name, metric_at=metric_at)
        solution = SOLVERS[name](objective, start, tol=self.tol, max_iter=max_iter, report=report, **options)
        if iterations is not None:
            iterations.close()
        self._raise_unless_kept(solution)
        if not (solution.converged or solution.interrupted or solution.stopped) and max_iter == self.max_iter:
            remedy = "Increase max_iter, scale the features (for example with StandardScaler), or lower C."
            if solution.n_iter < self.max_iter:
                remedy = "Rounding errors allow no further decrease; increase tol."
            stop = f"solver {name!r} stopped after {solution.n_iter} iterations before reaching tol={self.tol:g}."
            warnings.warn(f"{stop} {remedy}", ConvergenceWarning, stacklevel=5)
        return solution

    def _raise_unless_kept(self, solution):
        if solution.interrupted and not self.warm_start:
            raise KeyboardInterrupt

    def _report(self, name, iterations=None):
        """What a solver calls after each iteration: prints a line, tells the callbacks; whether one asks to stop."""
        if not self.verbose and iterations is None:
            return None

        def report(iteration, value, left, parameters):
            if self.verbose:
                print(f"[{type(self).__name__}] {name} iteration {iteration}: objective {value:.8g}, left {left:.2g}")
            if iterations is None:
                return False
            stop = iterations.end(parameters)
            iterations.begin(parameters)
            return stop

        return report

    def _keep_biases(self, space, bias, dtype):
        """Store the space with its learned biases and their fitted attributes, in place of an earlier fit's."""
        for name in ("size_bias_", "sets_", "set_bias_"):
            if hasattr(self, name):
                delattr(self, name)
        self.label_space_ = space.with_bias(bias) if len(bias) else space
        if self.label_space == "observed":
            self.sets_, self.set_bias_ = self.label_space_.sets, self.label_space_.set_bias.astype(dtype)
        else:
            self.size_bias_ = self.label_space_.size_bias.astype(dtype)

    @property
    def _strengths(self):
        """Of the two penalties on coefficients, in units of the loss."""
        return {"alpha": (1.0 - self.l1_ratio) / self.C, "l1": self.l1_ratio / self.C}

    @property
    def _default_solver(self):
        return PROX_NEWTON if self._strengths["l1"] > 0 else "lbfgs"

    def _options_of(self, solver, *, metric_at=None):
        """What a solver takes besides what all of them take."""
        options = {
            "mm": {"step": self.mm_step},
            "lbfgs": {"metric_at": metric_at},
            PROX_NEWTON: {"n_jobs": self.n_jobs},
        }
        return options.get(solver, {})

    def _check_penalty(self):
        if self._strengths["l1"] > 0 and self.solver not in ("auto", PROX_NEWTON):
            raise ValueError(
                f"solver={self.solver!r} minimises smooth objectives, so l1_ratio must be 0; got {self.l1_ratio}. Use "
                f"solver='auto' or {PROX_NEWTON!r}."
            )

    @property
    def _learns_bias(self):
        return self.label_space == "observed" or self.size_bias


def check_strength(C, weights):
    with np.errstate(over="ignore"):
        total = weights.sum()
    if not np.isfinite(1.0 / C) or not np.isfinite(total):
        raise ValueError(f"1 / C and the sum of sample_weight must be finite; got C={C} and {total}.")


def _extrapolated(reached, Cs):
    """Where the last two and three of the starts that were reached at Cs[:-1] point to at Cs[-1]; or else the last.

    By polynomials in log C, unless they reach far beyond what is known. Coefficients and mean scores go along, biases
    stay.
    """
    starts, places = [], np.log(Cs[-len(reached) - 1 :]) if reached else np.zeros(1)
    for n_points in range(2, len(reached) + 1):
        known, place = places[-n_points - 1 : -1], places[-1]
        if not np.isfinite(place) or (np.diff(known) <= 0).any():
            break
        others = [np.delete(known, j) for j in range(n_points)]
        shares = [np.prod((place - other) / (own - other)) for own, other in zip(known, others, strict=True)]
        if max(np.abs(shares)) > MAX_SHARE:
            break
        pairs = zip(*(start[:2] for start in reached[-n_points:]), strict=True)
        coef, mean_score = (sum(share * value for share, value in zip(shares, values, strict=True)) for values in pairs)
        starts.append((coef, mean_score, reached[-1][2]))
    return starts or reached[-1:]
