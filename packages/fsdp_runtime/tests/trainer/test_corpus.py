"""Token files hold what the data said, on two sides, and short data is refused."""

import numpy as np
import pytest

from sshsdp_fsdp_runtime.trainer.config import CorpusConfig
from sshsdp_fsdp_runtime.trainer.corpus import build_corpus, open_corpus
from sshsdp_fsdp_runtime.trainer.errors import InputError

CONFIG = CorpusConfig(validation_fraction=0.25)


def corpus_of(folder, *data, config=CONFIG):
    build_corpus(folder, data, config)
    return open_corpus(folder)


def test_bytes_are_tokens_and_a_nul_ends_a_document(tmp_path):
    for index in range(40):
        (tmp_path / f"{index:02d}.txt").write_text(f"document {index:02d}")
    corpus = corpus_of(tmp_path / "run", tmp_path)
    sides = corpus.train.tobytes(), corpus.validation.tobytes()
    documents = [text for side in sides for text in side.split(b"\0")[:-1]]
    assert sorted(documents) == [f"document {index:02d}".encode() for index in range(40)]
    assert corpus.facts.vocab == 256
    assert len(corpus.validation) == 10 * len(b"document 00\0")
    assert not (tmp_path / "run/stream.bin").exists()


def test_token_arrays_set_the_vocabulary_and_keep_their_type(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(1000, dtype=np.uint16))
    corpus = corpus_of(tmp_path / "run", tmp_path / "a.npy")
    assert corpus.train.dtype == np.uint16
    assert sorted([*corpus.train, *corpus.validation]) == list(range(1000))
    assert corpus.facts.vocab == 1000
    assert corpus.tokenizer is None


def test_arrays_of_two_types_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(9, dtype=np.uint8))
    np.save(tmp_path / "b.npy", np.arange(9, dtype=np.uint16))
    with pytest.raises(InputError, match="one element type, got uint8 and uint16"):
        corpus_of(tmp_path / "run", tmp_path)


def test_jsonl_without_any_text_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n\n')
    with pytest.raises(InputError, match=r"expected tokens in .*a.jsonl, got none"):
        corpus_of(tmp_path / "run", tmp_path / "a.jsonl")


def test_too_short_data_is_refused_with_both_numbers(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 399)
    corpus = corpus_of(tmp_path / "run", tmp_path / "a.txt")
    corpus.check(context=16, batch=4)
    with pytest.raises(InputError, match=r"at least 4801 training tokens .* got 300 from .*a.txt"):
        corpus.check(context=16, batch=299)
    with pytest.raises(InputError, match=r"at least 101 validation tokens"):
        corpus.check(context=100, batch=1)


def test_a_tokenizer_file_sets_the_vocabulary_and_travels_with_the_run(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"</s>": 0, "a": 1, "b": 2, "?": 3}, unk_token="?")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "words.json"))
    (tmp_path / "text.txt").write_text("a b b c " * 50)
    config = CorpusConfig(tokenizer=tmp_path / "words.json", validation_fraction=0.25)
    corpus = corpus_of(tmp_path / "run", tmp_path / "text.txt", config=config)
    both = np.concatenate([corpus.train, corpus.validation])
    assert corpus.facts.vocab == 4
    assert np.bincount(both).tolist() == [1, 50, 100, 50]
    assert corpus.tokenizer is not None
    assert corpus.tokenizer.decode([1, 2, 2, 0]) == "a b b"


def test_a_tokenizer_for_tokens_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(9, dtype=np.uint8))
    with pytest.raises(InputError, match=r"text for the tokenizer words.json, got token arrays"):
        corpus_of(tmp_path / "run", tmp_path / "a.npy", config=CorpusConfig(tokenizer="words.json"))


def test_a_missing_tokenizer_file_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(InputError, match=r"a tokenizer.json, got .*absent.json"):
        corpus_of(
            tmp_path / "run",
            tmp_path / "a.txt",
            config=CorpusConfig(tokenizer=tmp_path / "absent.json"),
        )
