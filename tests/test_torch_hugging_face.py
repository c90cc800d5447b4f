"""MLRHLoss under Hugging Face's Trainer and pipelines, and MLRHClassifier under SetFit; tiny models, no download."""

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from mlrh import MLRHClassifier
from mlrh.torch import GroupSpace, MLRHLoss, decide
from mlrh.torch.hugging_face import LabelSetPipeline, TrainerLoss, loss_of

LABELS = ["red", "blue", "round", "small"]
TEXTS = [
    "red ball", "blue box", "small red box", "round blue ball", "small round thing",
    "red red box", "blue thing", "blue ball", "small blue box", "round red ball",
]  # fmt: skip
Y = torch.tensor([[word in text.split() for word in LABELS] for text in TEXTS])
LEARNING_RATE = 0.5


def make_tokenizer():
    words = sorted({word for text in TEXTS for word in text.split()})
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "model_max_length": 16}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def make_config():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig(
        vocab_size=20, max_position_embeddings=16, id2label=dict(enumerate(LABELS)), **sizes, **no_dropout
    )


def make_model():
    torch.manual_seed(0)
    return BertForSequenceClassification(make_config())


def encoded():
    return make_tokenizer()(TEXTS, padding=True, return_tensors="pt")


def make_rows():
    inputs = encoded()
    return [{name: values[i] for name, values in inputs.items()} | {"labels": Y[i].float()} for i in range(len(Y))]


def make_trainer(folder, criterion, *, batch, accumulated=1, n_steps=3, **options):
    """Trainer of plain gradient descent; every step takes all rows, so that their order doesn't matter."""
    model = make_model()
    loss = TrainerLoss(model, criterion)
    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=batch, gradient_accumulation_steps=accumulated, max_steps=n_steps,
        learning_rate=LEARNING_RATE, lr_scheduler_type="constant", optim="sgd", max_grad_norm=0.0, use_cpu=True,
        report_to="none", disable_tqdm=True, dataloader_pin_memory=False, **({"save_strategy": "no"} | options),
    )  # fmt: skip
    rows = make_rows()
    return Trainer(
        model, arguments, train_dataset=rows, eval_dataset=rows[:7], compute_loss_func=loss, callbacks=[loss]
    )


def trained_by_hand(criterion, n_steps=3):
    """The model after gradient descent on the mean over all rows, without Trainer."""
    model = make_model()
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=LEARNING_RATE)
    for _ in range(n_steps):
        optimizer.zero_grad()
        criterion(model(**encoded()).logits, Y).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(("batch", "accumulated"), [(10, 1), (5, 2), (3, 4)])  # the last has batches of 3, 3, 3 and 1
def test_steps_are_those_of_the_mean_over_all_rows_whatever_is_accumulated(batch, accumulated, tmp_path):
    by_hand, criterion = MLRHLoss.from_targets(Y, size_bias=True), MLRHLoss.from_targets(Y, size_bias=True)
    expected = trained_by_hand(by_hand)
    trainer = make_trainer(tmp_path, criterion, batch=batch, accumulated=accumulated)
    mean_loss = trainer.train().metrics["train_loss"]
    for parameter, other in zip(trainer.model.base_model.parameters(), expected.base_model.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=0, atol=1e-5)
    torch.testing.assert_close(trainer.model.classifier.weight, expected.classifier.weight, rtol=0, atol=1e-5)
    torch.testing.assert_close(criterion.size_bias, by_hand.size_bias, rtol=0, atol=1e-5)
    assert criterion.size_bias.abs().max() > 0.01
    start = MLRHLoss.from_targets(Y)(make_model()(**encoded()).logits, Y).item()
    assert 0.5 * start < mean_loss < start  # over the steps; a mean of each batch would be twice as large with two


def test_the_evaluation_loss_is_the_mean_over_rows_and_answers_are_logits(tmp_path):
    trainer = make_trainer(tmp_path, MLRHLoss.from_targets(Y), batch=10, per_device_eval_batch_size=7)
    logits = trainer.model(**encoded()).logits[:7]
    expected = MLRHLoss.from_targets(Y)(logits, Y[:7]).item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(trainer.predict(make_rows()[:7]).predictions, logits.detach(), rtol=0, atol=1e-6)


def test_the_optimizer_has_the_size_bias_without_weight_decay(tmp_path):
    criterion = MLRHLoss.from_targets(Y, size_bias=True)
    trainer = make_trainer(tmp_path, criterion, batch=10, weight_decay=0.1)
    groups = trainer.create_optimizer().param_groups
    (decay,) = [g["weight_decay"] for g in groups if any(p is criterion.size_bias for p in g["params"])]
    assert decay == 0
    assert max(g["weight_decay"] for g in groups) == 0.1


def brute_force(logits, sizes, size_bias):
    """All sets (n, K) of these sizes, and their probabilities, by listing them."""
    sets = np.array([y for y in itertools.product([0, 1], repeat=len(LABELS)) if sizes[0] <= sum(y) <= sizes[1]])
    weights = np.exp(sets @ logits + size_bias[sets.sum(1)])
    return sets, weights / weights.sum()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model trained with a size bias, its loss, and where it was saved: at the end, and in the middle."""
    folder = tmp_path_factory.mktemp("model")
    criterion = MLRHLoss.from_targets(Y, size_bias=True)
    trainer = make_trainer(folder, criterion, batch=10, n_steps=4, save_strategy="steps", save_steps=2)
    trainer.train()
    trainer.save_model(str(folder / "end"))
    return SimpleNamespace(model=trainer.model, criterion=criterion, end=folder / "end", middle=folder / "checkpoint-2")


def test_a_loaded_model_answers_with_the_sets_marginals_and_probabilities_of_brute_force(saved):
    model = AutoModelForSequenceClassification.from_pretrained(saved.end).eval()
    answers = LabelSetPipeline(model=model, tokenizer=make_tokenizer())(TEXTS, batch_size=4)
    assert len(answers) == len(TEXTS)
    size_bias = saved.criterion.size_bias.detach().double().numpy()
    for text, answer in zip(TEXTS, answers, strict=True):
        logits = saved.model.eval()(**make_tokenizer()(text, return_tensors="pt")).logits[0].detach().double().numpy()
        sets, probabilities = brute_force(logits, (1, 2), size_bias)
        best = probabilities.argmax()
        assert answer["labels"] == [LABELS[k] for k in np.flatnonzero(sets[best])]
        assert answer["probability"] == pytest.approx(probabilities[best], abs=1e-6)
        assert list(answer["marginals"]) == LABELS
        np.testing.assert_allclose(list(answer["marginals"].values()), probabilities @ sets, rtol=0, atol=1e-6)


def test_a_pipeline_decides_as_it_is_told_and_takes_options_of_the_tokenizer(saved):
    pipeline = LabelSetPipeline(model=saved.model, tokenizer=make_tokenizer())
    (one,) = pipeline("small red ball", decision=("top", 3))  # a list of one, as the stock pipeline has it
    assert len(one["labels"]) == 3
    assert one["probability"] == 0  # three labels are not possible
    for_good = LabelSetPipeline(model=saved.model, tokenizer=make_tokenizer(), decision="f1")
    logits = saved.model(**encoded()).logits.double()
    expected = decide(saved.criterion.distribution(logits), "f1")
    found = [[name in answer["labels"] for name in LABELS] for answer in for_good(TEXTS)]
    assert found == expected.bool().tolist()
    assert pipeline("small red ball", truncation=True, max_length=1) == pipeline("small")


@pytest.mark.parametrize(
    ("option", "instead"),
    [({"top_k": 1}, "use decision=('top', k)."), ({"function_to_apply": "sigmoid"}, "is in the answer's 'marginals'.")],
    ids=["top_k", "function_to_apply"],
)
def test_options_of_the_stock_pipeline_for_single_labels_are_refused_with_what_to_use(option, instead, saved):
    parts = {"model": saved.model, "tokenizer": make_tokenizer()}
    ((name, value),) = option.items()
    message = re.escape(f"has no {name}; got {name}={value!r}.") + ".*" + re.escape(instead)
    with pytest.raises(ValueError, match=message):
        LabelSetPipeline(**parts, **option)
    for texts in ("small red ball", []):
        with pytest.raises(ValueError, match=message):
            LabelSetPipeline(**parts)(texts, **option)


def test_no_texts_have_no_answers(saved):
    assert LabelSetPipeline(model=saved.model, tokenizer=make_tokenizer())([]) == []


def test_every_checkpoint_has_the_size_bias_of_its_step(saved):
    at_2, at_4 = (loss_of(AutoModelForSequenceClassification.from_pretrained(f)) for f in (saved.middle, saved.end))
    by_hand = MLRHLoss.from_targets(Y, size_bias=True)
    trained_by_hand(by_hand, n_steps=2)
    torch.testing.assert_close(at_2.size_bias, by_hand.size_bias, rtol=0, atol=1e-5)
    torch.testing.assert_close(at_4.size_bias, saved.criterion.size_bias, rtol=0, atol=0)
    assert isinstance(at_4.size_bias, torch.nn.Parameter)
    assert (at_4.min_labels, at_4.max_labels) == (1, 2)


def test_a_training_that_goes_on_from_a_checkpoint_has_its_size_bias(saved, tmp_path):
    criterion = MLRHLoss.from_targets(Y, size_bias=True)
    trainer = make_trainer(tmp_path, criterion, batch=10, n_steps=4)
    trainer.train(resume_from_checkpoint=str(saved.middle))
    torch.testing.assert_close(criterion.size_bias, saved.criterion.size_bias, rtol=0, atol=1e-5)


def test_a_label_space_is_trained_and_answers_while_the_model_is_in_memory(tmp_path):
    space = GroupSpace([([0, 1], 0, 1), ([2, 3], 0, 1)], 4, bias=True)
    possible = (Y[:, :2].sum(1) <= 1) & (Y[:, 2:].sum(1) <= 1)
    criterion = MLRHLoss(label_space=space)
    trainer = make_trainer(tmp_path, criterion, batch=4, n_steps=1)
    trainer.train_dataset = [row for row, is_possible in zip(make_rows(), possible, strict=True) if is_possible]
    trainer.train()
    assert all(bias.grad is None and bias.abs().max() > 0 for bias in space.parameters())
    for answer in LabelSetPipeline(model=trainer.model, tokenizer=make_tokenizer())(TEXTS):
        assert len({"red", "blue"} & set(answer["labels"])) <= 1
        assert len({"round", "small"} & set(answer["labels"])) <= 1
    assert not hasattr(trainer.model.config, "mlrh")


def test_a_model_retrained_with_a_label_space_is_saved_without_the_sizes_of_before(saved, tmp_path):
    model = type(saved.model).from_pretrained(saved.end)
    loss_of(model)
    loss = TrainerLoss(model, MLRHLoss(label_space=GroupSpace([([0, 1], 0, 1)], 4)))
    loss.on_train_end(None, None, None)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="got a model with neither"):
        loss_of(type(model).from_pretrained(tmp_path))


@pytest.mark.parametrize(
    ("criterion", "message"),
    [
        (torch.nn.BCEWithLogitsLoss(), "must be an MLRHLoss; got BCEWithLogitsLoss"),
        (MLRHLoss(2, reduction="sum"), "reduction='mean' and no weight"),
        (MLRHLoss(2, weight=torch.ones(4)), "reduction='mean' and no weight"),
        (MLRHLoss(2, padding_index=-1), "dense labels of 0 and 1, since Trainer counts .* padding_index=-1"),
    ],
)
def test_a_criterion_whose_mean_can_not_be_made_right_is_refused(criterion, message):
    with pytest.raises(ValueError, match=message):
        TrainerLoss(make_model(), criterion)


def test_biases_that_ddp_would_take_for_unused_are_refused_in_several_processes():
    arguments = SimpleNamespace(world_size=2, ddp_find_unused_parameters=None)
    learning, fixed = (TrainerLoss(make_model(), MLRHLoss(2, size_bias=bias)) for bias in (True, None))
    with pytest.raises(ValueError, match="must have ddp_find_unused_parameters=False; got None"):
        learning.on_train_begin(arguments, None, None)
    fixed.on_train_begin(arguments, None, None)
    arguments.ddp_find_unused_parameters = False
    learning.on_train_begin(arguments, None, None)
    assert learning.model.config.mlrh["learned"] and not fixed.model.config.mlrh["learned"]


def test_a_model_without_a_loss_is_told_how_to_get_one():
    with pytest.raises(ValueError, match=r"callbacks=\[loss\]\), which writes them, or set model.mlrh_loss"):
        LabelSetPipeline(model=make_model(), tokenizer=make_tokenizer())


def test_the_example_of_the_docs_trains_and_answers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[1] / "docs" / "neural-networks.md").read_text()
    (block,) = re.findall(r"```python\n((?:(?!```).)*?TrainerLoss.*?)```", text, re.DOTALL)
    names: dict = {}
    exec(block, names)
    (answer,) = names["pipeline"]("a red ball")
    assert set(answer) == {"labels", "probability", "marginals"}
    assert 1 <= len(answer["labels"]) <= 2


def test_the_classifier_is_a_head_of_setfit(tmp_path):
    sentence_transformers, setfit = pytest.importorskip("sentence_transformers"), pytest.importorskip("setfit")
    make_tokenizer().save_pretrained(tmp_path / "body")
    torch.manual_seed(0)
    BertModel(make_config()).save_pretrained(tmp_path / "body")
    body = sentence_transformers.SentenceTransformer(str(tmp_path / "body"), device="cpu")  # means of the tokens
    model = setfit.SetFitModel(body, MLRHClassifier(C=100.0), multi_target_strategy="one-vs-rest", labels=LABELS)
    targets = Y.int().tolist()
    model.fit(TEXTS, targets, num_epochs=1, show_progress_bar=False)
    embeddings = body.encode(TEXTS, show_progress_bar=False)
    head = MLRHClassifier(C=100.0).fit(embeddings, targets)
    sets, marginals = model.predict(TEXTS, show_progress_bar=False), model.predict_proba(TEXTS, show_progress_bar=False)
    assert sets.tolist() == head.predict(embeddings).tolist()
    np.testing.assert_allclose(marginals, head.predict_proba(embeddings), rtol=0, atol=1e-6)
    model.save_pretrained(str(tmp_path / "saved"))
    loaded = setfit.SetFitModel.from_pretrained(str(tmp_path / "saved"), multi_target_strategy="one-vs-rest")
    assert loaded.predict(TEXTS, show_progress_bar=False).tolist() == sets.tolist()
    chosen = loaded.model_head.distribution(loaded.encode(TEXTS, show_progress_bar=False))
    np.testing.assert_allclose(chosen.marginals(), marginals, rtol=0, atol=1e-6)
