"""From a data set's columns to features for classifiers: encoding, filling, scaling. Knows nothing of labels."""

from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder, StandardScaler


def make_preprocessor(data):
    """A transformer for the X of a MultilabelData, not fitted.

    Dense numeric columns are standardised, sparse ones divided by their largest magnitude (which keeps them sparse, and
    0/1 columns as they are). Missing numbers become the column's median (sparse: its mean). A nominal column becomes
    one 0/1 column per value, a missing value one of its own; values not seen in fit become zeros.
    """
    is_sparse = sparse.issparse(data.X)
    numeric = make_pipeline(
        SimpleImputer(strategy="mean" if is_sparse else "median", keep_empty_features=True),
        MaxAbsScaler() if is_sparse else StandardScaler(),
    )
    if not data.nominal:
        return numeric
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=is_sparse)
    nominal = make_pipeline(ToDense(), encoder) if is_sparse else encoder
    rest = [column for column in range(data.X.shape[1]) if column not in set(data.nominal)]
    steps = [("nominal", nominal, data.nominal), ("numeric", numeric, rest)]
    return ColumnTransformer([step for step in steps if step[2]], sparse_threshold=1.0)


class ToDense(TransformerMixin, BaseEstimator):
    """Sparse columns as an array, for transformers that take no others."""

    def fit(self, X, y=None):
        """Learns nothing."""
        return self

    def transform(self, X):
        """X as an array."""
        return X.toarray()

    def __sklearn_is_fitted__(self):
        return True
