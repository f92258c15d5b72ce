"""The real small model: its tokenizer's rules, its template, its answer. Needs the model (92 MB fetched once)."""

import numpy as np
import pytest

import models

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lm():
    return models.load("smollm2-135m")


def test_digits_are_split_and_nothing_is_put_first(lm):
    assert [lm.decode([i]) for i in lm.encode("In 1234")] == ["In", " ", "1", "2", "3", "4"]
    assert lm.encode("") == []
    text = "Tabs\tand  spaces, 日本語, émigré\n\n x = 10"
    assert lm.decode(lm.encode(text)) == text


def test_chat_template(lm):
    ids = lm.encode([{"role": "user", "content": "Hi"}])
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert lm.decode(ids) == system + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert ids[0] == 1 and ids[1] != 1 and 2 in lm.stop_ids


def test_greedy_answer(lm, forward):
    ids = lm.encode([{"role": "user", "content": "What is the capital of France?"}])
    start, row = len(ids), np.zeros((1, 64), np.int32)
    row[0, :start] = ids
    for at in range(start, 64):
        row[0, at] = int(forward(lm, row)[0][0, at - 1].argmax())
        if row[0, at] in lm.stop_ids:
            break
    assert lm.decode(row[0, start : at + 1]) == "The capital of France is Paris.<|im_end|>"
