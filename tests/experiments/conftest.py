"""A toy model that reads text: random weights behind a tokenizer of single bytes, and haystacks to hide needles in."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

import models
from models import llama
from models.tokenizer import Tokenizer
from tests.conftest import toy_config

TEXT = "The quick brown fox jumps over the lazy dog. It was not amused. Nobody asked it!\n" * 60
#: A chat template, and one that thinks by itself, as Qwen3's: an empty thought before the answer ends it.
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
THINKING = PLAIN + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
#: One that writes the day of today, as Llama 3.2's.
DATED = '{% if strftime_now is defined %}{{ strftime_now("%d %b %Y") }}{% endif %}' + PLAIN
#: Fields of a row that are the machine's, other in every run.
MEASURED = ("seconds_prefill", "seconds_compress", "seconds_per_token", "seconds_to_first_token", "peak_bytes")


def byte_tokenizer() -> Tokenizer:
    """One token for each byte, and an end of sequence."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Fast(BPE(vocab={c: i for i, c in enumerate([*alphabet, "<eos>"])}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<eos>"))


def made_talker() -> models.LanguageModel:
    """Two layers of random weights that can encode and decode any text."""
    config = llama.config(toy_config(vocab_size=257, num_hidden_layers=2))
    made = models.random(config, seed=1).replace(tokenizer=byte_tokenizer(), name="toy")
    return jax.block_until_ready(made)


@pytest.fixture(scope="session")
def talker() -> models.LanguageModel:
    return made_talker()


@pytest.fixture(scope="session")
def reader(talker) -> models.LanguageModel:
    """The toy model with room for long prompts and answers; it makes prompts and is not run."""
    config = llama.config(toy_config(vocab_size=257, num_hidden_layers=1, max_position_embeddings=40_000))
    return models.random(config, seed=1).replace(tokenizer=talker.tokenizer, name="reader")


@pytest.fixture
def cli(talker, monkeypatch, capsys):
    """Run the command line in this process, with the toy model behind every --model: (exit code, stdout, stderr)."""
    from experiments import cli

    monkeypatch.setattr(models, "load", lambda name, dtype="float32": talker)

    def run(*argv: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main([str(word) for word in argv])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def haystack_file(tmp_path: Path) -> Path:
    path = tmp_path / "haystack.txt"
    path.write_text(TEXT)
    return path


def row(**changes: Any) -> dict[str, Any]:
    """A result row as `kvjax sweep` writes it."""
    made = dict(
        model="toy", dtype="float32", seed=0, prompts="1:abc", task="needle", mode="unseen", length=64, prompt=0,
        policy="snapkv", policy_repr="P(0.5)", budget=0.5, kept_share=0.5, allocated_bytes=5_100_000, host_bytes=0,
        full_bytes=10_000_000, score=1.0, answer=" 1",
    )  # fmt: skip
    return {**made, **changes}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
