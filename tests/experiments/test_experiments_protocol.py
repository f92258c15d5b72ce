"""The two protocols: what is cut, to the token, what is compressed, and what a data set's task makes of it."""

import json

import pytest
from tokenizers.processors import TemplateProcessing

import kvjax
from experiments.tasks.answering import Answering
from experiments.tasks.chat import encode_plain
from experiments.tasks.datasets.longbench import LongBench
from experiments.tasks.datasets.source import Local
from experiments.tasks.example import Read
from experiments.tasks.protocol import KVPRESS, OFFICIAL, Asked
from models.tokenizer import Tokenizer
from tests.experiments.conftest import byte_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
CHAT = "{{ bos_token }}{% for m in messages %}<user>{{ m.content }}</user>{% endfor %}<bot>"


@pytest.fixture
def chatter(talker):
    """The toy model behind a tokenizer that begins texts with a special token and has a chat template."""
    inner = byte_tokenizer().inner
    inner.bos_token, inner.chat_template = "<eos>", CHAT
    inner.backend_tokenizer.post_processor = TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 256)])
    return talker.replace(tokenizer=Tokenizer(inner))


def write(folder, *rows):
    file = folder / "hotpotqa.jsonl"
    common = {"input": "Who?", "answers": ["Ann"], "length": 3, "all_classes": None}
    file.write_text("".join(json.dumps(common | row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return Local(file)


@pytest.mark.parametrize(
    ("length", "text"),
    [  # both halves keep floor(length / 2) tokens; a token is a byte here
        (26, LETTERS),
        (25, LETTERS[:12] + LETTERS[-12:]),
        (24, LETTERS[:12] + LETTERS[-12:]),
        (10, "abcdevwxyz"),
        (3, "az"),
        (2, "az"),
        (100, LETTERS),
    ],
)
def test_official_drops_the_middle_to_the_token(talker, length, text):
    cut = OFFICIAL.cut(talker, Asked(LETTERS), length, "seen")
    assert talker.decode(cut.context) == text and cut.dropped == 26 - len(text)
    assert cut.question == cut.prefix == ()


def test_official_counts_special_tokens_and_adds_the_template_after_cutting(chatter):
    cut = OFFICIAL.cut(chatter, Asked(LETTERS), 10, "seen")
    assert chatter.decode(cut.context) == "<eos><user>abcdvwxyz</user><bot>"  # the first half is <eos>abcd
    assert cut.context.count(256) == 1 and cut.dropped == 17
    plain = OFFICIAL.cut(chatter, Asked(LETTERS, chat=False), 10, "seen")
    assert chatter.decode(plain.context) == "<eos>abcdvwxyz"
    whole = OFFICIAL.cut(chatter, Asked(LETTERS, chat=False), 27, "seen")
    assert chatter.decode(whole.context) == "<eos>" + LETTERS and whole.dropped == 0


def test_official_cuts_chinese_without_an_error(talker):
    """Three bytes a character: the halves of 10 tokens end within one, which becomes replacement characters."""
    cut = OFFICIAL.cut(talker, Asked("一二三四五六"), 10, "seen")
    halves = "一二".encode()[:5], "五六".encode()[-5:]
    assert talker.decode(cut.context) == "".join(half.decode(errors="replace") for half in halves) and cut.dropped == 8


def test_kvpress_cuts_the_end_of_the_context_alone(chatter):
    asked = Asked(LETTERS, "Q?", "A:")
    cut = KVPRESS.cut(chatter, asked, 17, "unseen")
    assert chatter.decode(cut.context) == "<eos><user>abcdefghij" and len(cut.context) == 17
    assert chatter.decode(cut.question) == "Q?</user><bot>A:" and cut.prefix == () and cut.dropped == 16
    seen = KVPRESS.cut(chatter, asked, 100, "seen")
    assert chatter.decode(seen.context) == f"<eos><user>{LETTERS}Q?" and seen.question == ()
    assert chatter.decode(seen.prefix) == "</user><bot>A:"


def test_kvpress_parts_question_and_answer_by_a_line_without_a_template(talker):
    cut = KVPRESS.cut(talker, Asked("context ", "Q?", "A:"), 100, "unseen")
    assert talker.decode(cut.context + cut.question) == "context Q?\nA:"


def test_seen_compresses_the_question_and_unseen_does_not(talker, tmp_path):
    source = write(tmp_path, {"context": "x" * 300})
    made = lambda protocol, mode: next(  # noqa: E731
        LongBench("hotpotqa", source, protocol).examples(talker, 900, 1, 0, haystack=(), mode=mode)
    )
    official, seen, unseen = made(OFFICIAL, "seen"), made(KVPRESS, "seen"), made(KVPRESS, "unseen")
    assert "Question: Who?\nAnswer:" in talker.decode(official.compressed) and official.fed == ()
    assert "Who?" in talker.decode(seen.compressed) and talker.decode(seen.fed) == "\nAnswer:"
    assert "Who?" not in talker.decode(unseen.compressed) and talker.decode(unseen.fed) == "Question: Who?\n\nAnswer:"
    assert len({official.task, seen.task}) == 2 and seen.task == unseen.task


def test_prompts_sample_the_rows_and_end_with_them(talker, tmp_path):
    source = write(tmp_path, *({"context": f"row {i}."} for i in range(7)))
    rows = lambda protocol, seed, **how: [  # noqa: E731
        x.meta["row"]
        for x in LongBench("hotpotqa", source, protocol).examples(
            talker, 900, how.pop("count", 7), seed, haystack=(), mode="seen", **how
        )
    ]
    assert sorted(rows(OFFICIAL, 0)) == list(range(7)) and rows(OFFICIAL, 0) == rows(KVPRESS, 0) != rows(OFFICIAL, 1)
    assert rows(OFFICIAL, 0, count=3) == rows(OFFICIAL, 0)[:3]
    assert rows(OFFICIAL, 0, start=5, count=100) == rows(OFFICIAL, 0)[5:]


def test_the_example_tells_protocol_row_and_what_was_cut(talker, tmp_path):
    source = write(tmp_path, {"context": "é" * 500})
    task = LongBench("hotpotqa", source)
    (made,) = task.examples(talker, 200, 1, 0, haystack=(), mode="seen")
    whole = encode_plain(talker, task.rules.ask(task.rows[0]).context)
    origin = {"data": task.data.digest, "protocol": "official", "row": 0, "dropped_tokens": len(whole) - 200, "words": 3}
    assert made.meta == origin
    assert made.compressed[:100] == tuple(whole[:100]) and made.compressed[-100:] == tuple(whole[-100:])


def test_bad_modes_and_lengths_are_refused_before_a_prompt(talker, tmp_path):
    task = LongBench("hotpotqa", write(tmp_path, {"context": "x"}))
    refused = ((100, "unseen", "no question mode 'unseen', only seen"), (1, "seen", "too short"), (1000, "seen", "1024 positions"))
    for length, mode, words in refused:
        with pytest.raises(ValueError, match=words):
            next(task.examples(talker, length, 1, 0, haystack=(), mode=mode))


@pytest.mark.parametrize(("protocol", "mode"), [(OFFICIAL, "seen"), (KVPRESS, "unseen")])
def test_with_everything_kept_the_answer_is_the_models_own(talker, tmp_path, protocol, mode):
    task = LongBench("hotpotqa", write(tmp_path, {"context": "Ann did it. " * 9}), protocol)
    example = next(task.examples(talker, 500, 1, 0, haystack=(), mode=mode))
    full, whole = kvjax.methods.full(), list(example.compressed + example.fed)
    pre = kvjax.prefill(talker, list(example.compressed), needs=frozenset())
    (grade,) = Answering(task).measure(talker, kvjax.compress(pre, full), full, [Read(example, pre)])
    cache = kvjax.compress(kvjax.prefill(talker, whole, needs=frozenset()), full)
    own = kvjax.decode(talker, cache, full, max_new_tokens=example.new_tokens, stop=())
    written = talker.decode(own.tokens[0]).split("<eos>")[0]
    cost = grade.pop("spent")
    assert written and grade == {"score": task.grade(written, ("Ann",)), "answer": written}
    assert (cost.fed, cost.generated, cost.held) == (len(example.fed), len(own.tokens[0]), len(whole) + cost.generated)
