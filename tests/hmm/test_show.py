"""What is shown of a model, on a model that can be read off by eye."""

import dataclasses

import pytest
import torch
from enumeration import best

from shoestring.core.schema import encode
from shoestring.hmm.parameters import HmmError, Parameters, random_parameters
from shoestring.hmm.sampling import from_sentence_start, sample, stationary
from shoestring.hmm.show import Move, Word, describe, explain, explanation_lines, find_words

WORDS = ("the", "dog", "cat", "ran", ".")


def story_model(end: bool = False) -> Parameters:
    """States 0 to 3 are article, animal, verb and full stop, and follow one another."""
    transition = [[0, 1, 0, 0], [0, 0, 0.9, 0.1], [0, 0, 0, 1], [1, 0, 0, 0]]
    emission = [[1, 0, 0, 0, 0], [0, 0.25, 0.75, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    tables = [torch.tensor(table, dtype=torch.float64) for table in ([1, 0, 0, 0], transition, emission)]
    return Parameters(*tables, torch.tensor([0, 0, 0, 0.5], dtype=torch.float64) if end else None)


def test_states_come_by_the_time_spent_in_them_with_their_words_and_moves() -> None:
    found = describe(story_model(), WORDS, top=2, sentences=0)
    # the article, the animal and the stop once in every sentence, the verb in nine of ten
    assert [state.state for state in found.states][-1] == 2
    shares = {state.state: state.stationary for state in found.states}
    assert shares == pytest.approx({0: 1 / 3.9, 1: 1 / 3.9, 3: 1 / 3.9, 2: 0.9 / 3.9})
    shown = {state.state: state for state in found.states}
    assert shown[1].words == (Word(word="cat", probability=0.75), Word(word="dog", probability=0.25))
    assert shown[1].moves == (Move(state=2, probability=0.9), Move(state=3, probability=0.1))
    assert shown[0].words == (Word(word="the", probability=1.0),)  # those of probability zero are left out
    assert (shown[0].start, shown[1].start, shown[0].end) == (1.0, 0.0, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_random_model_is_shown_in_order(dtype: torch.dtype) -> None:
    model = random_parameters(7, 9, 0).to(dtype=dtype)
    words = [f"w{i}" for i in range(9)]
    found = describe(model, words, top=8)
    shares = [state.stationary for state in found.states]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1)
    assert sorted(state.state for state in found.states) == list(range(7))
    for state in found.states:
        assert state.stationary == pytest.approx(float(stationary(model.transition)[state.state]))
        row = sorted(model.emission[state.state].tolist(), reverse=True)
        assert [word.probability for word in state.words] == pytest.approx(row[:8])
        for word in state.words:
            assert word.probability == pytest.approx(model.emission[state.state, words.index(word.word)].item())
        assert len(state.moves) == 7
    assert describe(model, words) == found


def test_one_state_and_one_word_are_in_the_singular() -> None:
    one = Parameters(torch.ones(1), torch.ones(1, 1), torch.ones(1, 1))
    assert describe(one, ["a"], sentences=0).lines()[0].startswith("1 state over 1 word,")
    with pytest.raises(HmmError, match=r"2 words for a model of 1 symbol$"):
        describe(one, ["a", "b"], sentences=0)


def test_ties_go_to_the_lower_number() -> None:
    model = Parameters(torch.full((3,), 1 / 3), torch.full((3, 3), 1 / 3), torch.full((3, 4), 0.25))
    found = describe(model, "abcd", top=3, sentences=0)
    assert [state.state for state in found.states] == [0, 1, 2]
    assert [word.word for word in found.states[0].words] == ["a", "b", "c"]
    assert [move.state for move in found.states[0].moves] == [0, 1, 2]


def test_with_an_end_the_time_is_that_of_sequence_after_sequence() -> None:
    tables = ([1.0, 0.0], [[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [0.5, 0.0])
    model = Parameters(*(torch.tensor(table, dtype=torch.float64) for table in tables))
    found = describe(model, ("a", "b"), sentences=400, length=50, seed=3)
    assert [state.stationary for state in found.states] == pytest.approx([2 / 3, 1 / 3])
    assert [state.end for state in found.states] == [0.5, 0.0]
    drawn = " ".join(found.sentences).split()
    assert drawn.count("a") / len(drawn) == pytest.approx(2 / 3, abs=0.03)


def test_sentences_begin_with_their_first_word_though_rows_begin_anywhere() -> None:
    middle = torch.tensor([0, 0, 1, 0], dtype=torch.float64)  # every row begins with a verb
    found = describe(story_model()._replace(start=middle), WORDS, sentences=400, length=12, seed=5).sentences
    assert set(found) == {f"the {animal} {rest}" for animal in ("dog", "cat") for rest in ("ran .", ".")}
    assert describe(story_model(), WORDS, sentences=1, length=2, seed=5).sentences[0].split()[0] == "the"


def test_a_sentence_begins_as_often_with_a_word_as_in_a_long_text() -> None:
    words, closing = ("he", "she", '"', ".", "!"), '".!'
    model = random_parameters(4, 5, 3, concentration=0.5)
    text = [words[token] for token in sample(model, 1, 10_000, seed=1).tokens[0].tolist()]
    firsts, ended = [], False
    for word in text:
        if ended and word not in closing:
            firsts.append(word)
        ended = word in ".!" or (ended and word in closing)
    drawn = [row[0] for row in from_sentence_start(model, words, 4_000, 1, seed=2)]
    assert set(drawn) == {0, 1}
    assert drawn.count(0) / len(drawn) == pytest.approx(firsts.count("he") / len(firsts), abs=0.04)


def test_without_a_mark_that_ends_sentences_rows_are_those_of_sample() -> None:
    model, words = random_parameters(3, 5, 2), tuple("abcde")
    drawn = sample(model, 3, 12, seed=5).tokens.tolist()
    found = describe(model, words, sentences=3, length=12, seed=5).sentences
    assert [*found] == [" ".join(words[token] for token in row) for row in drawn]
    for text in describe(story_model(end=True), WORDS, sentences=20, length=40).sentences:
        assert text.endswith(".") or len(text.split()) == 40


def test_the_path_of_a_sentence() -> None:
    text = "the cat ran . the dog ."
    found = explain(story_model(), WORDS, find_words(text.split(), WORDS), top=1)
    assert [(step.word, step.state) for step in found] == [*zip(text.split(), [0, 1, 2, 3, 0, 1, 3])]
    assert found[5].probability == 0.25 and found[5].words == (Word(word="cat", probability=0.75),)
    model = random_parameters(3, 5, 2)
    ids = [0, 3, 3, 1, 4, 2]
    path = explain(model.to(dtype=torch.float32), WORDS, ids)
    assert tuple(step.state for step in path) == best(model, ids)[0]


def test_a_part_of_the_states_is_not_said_to_be_all() -> None:
    lines = describe(story_model(), WORDS, top=2, sentences=0).lines(1)
    assert lines[0].startswith("4 states")
    assert len(lines) == 3


def test_lines_say_it_in_text() -> None:
    lines = describe(story_model(), WORDS, top=2, sentences=1, length=4).lines()
    assert lines[0] == "4 states over 5 words, the most visited first"
    at = lines.index("state 1  25.64%  cat 0.75, dog 0.25")
    assert lines[at + 1] == "             to  2 0.90, 3 0.10"
    assert lines[-2] == "sentences drawn from the model" and lines[-1].startswith("the ")
    assert len(lines) == 1 + 2 * 4 + 2
    path = explanation_lines(explain(story_model(), WORDS, find_words(["the", "dog", "."], WORDS)))
    assert path == [
        "the  state 0  1.000  the 1.00",
        "dog  state 1  0.250  cat 0.75, dog 0.25",
        ".    state 3  1.000  . 1.00",
    ]
    assert explanation_lines([]) == []


def test_it_is_plain_data() -> None:
    found = describe(story_model(), WORDS)
    assert encode(found)["states"][0]["words"][0] == encode(found.states[0].words[0])
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.states[0].state = 3  # type: ignore[misc]


def test_an_unknown_word_is_named_with_the_nearest() -> None:
    with pytest.raises(HmmError, match=r'word 2, "dogs", is not among the 5 words of the model; the nearest is "dog"'):
        find_words(["the", "dogs", "."], WORDS)
    with pytest.raises(HmmError, match=r'"zzz", is not .* the nearest is "'):
        find_words(["zzz"], WORDS)


def test_what_cannot_be_shown_is_named() -> None:
    model = story_model()
    with pytest.raises(HmmError, match="4 words for a model of 5 symbols"):
        describe(model, WORDS[:4])
    with pytest.raises(HmmError, match="top = 0: must be at least 1"):
        describe(model, WORDS, top=0)
    with pytest.raises(HmmError, match='probability zero: word 2, "ran", cannot stand there'):
        explain(model, WORDS, find_words(["the", "ran"], WORDS))
    with pytest.raises(HmmError, match="it does not end where the sentence does"):
        explain(story_model(end=True), WORDS, find_words(["the", "dog"], WORDS))
    with pytest.raises(HmmError, match="row 0, position 1: token 5"):
        explain(model, WORDS, [0, 5])
    with pytest.raises(HmmError, match="row 0 is empty"):
        explain(model, WORDS, [])


def test_showing_draws_nothing_from_the_common_generator() -> None:
    state = torch.get_rng_state()
    describe(story_model(), WORDS)
    explain(story_model(), WORDS, [0])
    assert torch.equal(torch.get_rng_state(), state)
