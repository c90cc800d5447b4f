"""A fit's attributes appear all at once or not at all, also where Ctrl-C interrupts it in its last lines."""


def keep(estimator, attributes, *, without):
    """Give an estimator the attributes of a new fit, and take those named in `without` away, in one step.

    Python delivers an interrupt between two instructions, and putting one prepared dict in place of another is a single
    instruction.
    """
    others = {name: value for name, value in vars(estimator).items() if name not in without}
    estimator.__dict__ = {**others, **attributes}
