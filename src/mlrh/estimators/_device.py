"""X on a GPU at the border: which arrays stay there, checked, and answers as arrays of the same kind and place.

Tensors of torch on another device than the CPU stay there, and so do those on the CPU and arrays of CuPy where
scikit-learn's `array_api_dispatch` is on. torch is needed, and loaded, only where such an array is given.
"""

import sys
from typing import Any

import numpy as np
import sklearn

# Of float32 features in a fit, here and on the CPU: sums over 1e8 rows stay below 3.4e38, where float32 ends.
LARGEST_FLOAT32 = 1e30


def stays(X) -> bool:
    """Whether X is to be worked on where it lies."""
    if is_tensor(X):
        return X.device.type != "cpu" or sklearn.get_config()["array_api_dispatch"]
    return _is_of_cupy(X) and sklearn.get_config()["array_api_dispatch"]


def _is_of_cupy(X):
    return type(X).__module__.partition(".")[0] in ("cupy", "cupyx")  # the latter has sparse arrays


def is_tensor(values) -> bool:
    """Whether values are a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def to_numpy(values) -> Any:
    """An array of NumPy of a tensor or an array of CuPy; anything else as it is."""
    if is_tensor(values):
        return values.detach().cpu().numpy()
    return values.get() if _is_of_cupy(values) else values


def refuse(X, what):
    """Raise a ValueError where X would stay on a device, which `what` can't work on."""
    if stays(X):
        way = "X.get()" if _is_of_cupy(X) else "X.cpu().numpy()"
        raise ValueError(f"{what} needs X as an array of NumPy; got a {type(X).__name__} on a device. Use {way}.")


def validated(estimator, X, *, reset):
    """X as a tensor of float64 or float32, where it lies; with reset, the estimator notes its columns."""
    import torch

    is_of_cupy = _is_of_cupy(X)
    is_sparse = type(X).__module__.startswith("cupyx") if is_of_cupy else X.layout is not torch.strided
    if is_sparse:
        way = "X.toarray()" if is_of_cupy else "X.to_dense()"
        raise ValueError(f"X on a device must be dense; got a sparse {type(X).__name__}. Use {way}.")
    X = torch.from_dlpack(X) if is_of_cupy else X.detach()
    if X.dim() != 2 or 0 in X.shape:
        raise ValueError(f"X must have at least one row and one column; got shape {tuple(X.shape)}.")
    if X.is_complex():
        raise ValueError("X must hold real numbers; got complex ones.")
    X = X if X.dtype in (torch.float64, torch.float32) else X.to(_wider(torch, X))
    largest = float(X.abs().max())
    if not np.isfinite(largest):
        raise ValueError("X must hold finite numbers; got NaN or infinity.")
    if reset and X.dtype == torch.float32 and largest > LARGEST_FLOAT32:
        raise ValueError(
            f"Features in float32 must be at most {LARGEST_FLOAT32:g} in magnitude; got {largest:g}. Scale them, or "
            "convert X to float64."
        )
    if reset:
        estimator.n_features_in_ = X.shape[1]
        vars(estimator).pop("feature_names_in_", None)
    elif X.shape[1] != estimator.n_features_in_:
        raise ValueError(
            f"X has {X.shape[1]} features, but {type(estimator).__name__} is expecting {estimator.n_features_in_} "
            "features as input."
        )
    return X


def _wider(torch, X):
    return torch.float32 if X.is_floating_point() else torch.float64


def like(answer, X):
    """A tensor, or numbers of NumPy, as an array of the kind and at the place of X; as it is where X doesn't stay."""
    if not stays(X) or (isinstance(answer, np.ndarray) and answer.dtype.kind not in "biuf"):
        return answer
    import torch

    if _is_of_cupy(X):
        import cupy

        return cupy.from_dlpack(answer) if isinstance(answer, torch.Tensor) else cupy.asarray(answer)
    return torch.as_tensor(answer, device=X.device)


def decoded(form, sets, X):
    """Predicted sets (n_samples, n_labels), a tensor, in the form of y; arrays and classes that are numbers like X."""
    import torch

    if form.kind == "matrix":
        return like(sets.to(getattr(torch, form.dtype)), X)
    answer = form.decode(to_numpy(sets))
    return like(answer, X) if isinstance(answer, np.ndarray) else answer


def check_fit(estimator):
    """Raise a ValueError that says what of a fit can't be done on a device, where the estimator asks for it."""
    if estimator.l1_ratio > 0:
        name = type(estimator).__name__
        raise ValueError(f"{name} has no L1 penalty for X on a device; got l1_ratio={estimator.l1_ratio}. Use the CPU.")
    if estimator.solver not in ("auto", "lbfgs"):
        raise ValueError(f"For X on a device solver must be 'auto' or 'lbfgs'; got {estimator.solver!r}. Use the CPU.")


def check_decision(estimator):
    """Raise a ValueError where the estimator asks for answers that can't be found on a device."""
    if estimator.answer_sizes is not None or callable(estimator.decision):
        raise ValueError(
            f"{type(estimator).__name__} answers X on a device by the decisions of mlrh.torch.decide, without "
            "answer_sizes and without a function of your own. Use the CPU, or decide yourself from distribution(X)."
        )


def distribution(space, scores):
    """The distribution of mlrh.torch of scores, a tensor."""
    import mlrh.torch

    own = mlrh.torch.label_space(space).to(scores.device).requires_grad_(False)
    return own.distribution(scores)


def decide(distribution, decision):
    """The sets, a tensor, that a decision chooses by `mlrh.torch.decide`."""
    import mlrh.torch

    return mlrh.torch.decide(distribution, decision)


def design(X, weights, fit_intercept):
    """The DeviceDesign of X, a tensor."""
    from mlrh.fitting.device import DeviceDesign

    return DeviceDesign(X, weights, fit_intercept=fit_intercept)


def tensor_like(values, X):
    """An array of NumPy as a tensor of the type and at the place of X."""
    import torch

    return torch.as_tensor(values, dtype=X.dtype, device=X.device)


def concatenated(parts):
    """Arrays, or tensors, one below the other."""
    if not is_tensor(parts[0]):
        return np.concatenate(parts)
    import torch

    return torch.cat(parts)


def copied(X):
    """A copy of X as an array, or as a sparse matrix, in the memory of the CPU."""
    return to_numpy(X.clone()) if is_tensor(X) else X.copy()


# Kernels


def gram_features(gram):
    """The DeviceGramFeatures of a kernel matrix, a tensor."""
    from mlrh.fitting.device import DeviceGramFeatures

    return DeviceGramFeatures(gram)


def kernel_matrix(kernel, X, other, *, gamma, degree, coef0):
    """Kernel values of X, a tensor, and other rows (an array or a tensor), in float64 at the place of X."""
    import torch

    is_same = other is X
    X = X.double()
    if kernel == "precomputed":
        return X
    if kernel not in ("linear", "poly", "rbf", "sigmoid"):
        raise ValueError(
            f"For X on a device kernel must be 'linear', 'poly', 'rbf', 'sigmoid' or 'precomputed'; got {kernel!r}."
        )
    other = X if is_same else torch.as_tensor(other, dtype=torch.float64, device=X.device)
    products = X @ other.T
    if kernel == "linear":
        return products
    if kernel == "rbf":
        # |x - z|^2 = |x|^2 + |z|^2 - 2 x'z; rounding may leave less than 0, and a row with itself not quite 0.
        squares = X.square().sum(1)[:, None] + other.square().sum(1) - 2 * products
        if is_same:
            squares.fill_diagonal_(0.0)
        return squares.clamp_(min=0.0).mul_(-gamma).exp_()
    products = gamma * products + coef0
    return products.tanh() if kernel == "sigmoid" else products**degree


def gamma_scale(X, weights) -> float:
    """1 / (n_features * variance of X) with weighted rows, X a tensor."""
    import torch

    own = torch.as_tensor(weights, dtype=torch.float64, device=X.device)
    X = X.double()
    mean = (own @ X).mean() / own.sum()
    variance = float((own @ (X - mean).square()).mean() / own.sum())
    return 1.0 / (X.shape[1] * variance) if variance > 0 else 1.0
