"""The chat importer: what each message becomes, and that a log takes all of it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldlog.importers.base import Broken, cut_text
from foldlog.importers.chat import translate
from tests.chat_messages import (
    HELLO,
    USER,
    call,
    calls,
    fold,
    line,
    of,
    payloads,
    result,
    translated,
)
from tests.core_fold import core_document

# The goal


def test_the_goal_is_the_first_user_message():
    """The first user message starts the run, which then plans and runs."""
    events = translated(USER)
    assert events == [
        {"type": "RunStarted", "goal": {"statement": "Where is order 17?"}},
        {"type": "RunTransitioned", "to": "planning"},
        {"type": "RunTransitioned", "to": "running"},
    ]


def test_a_goal_may_be_empty_or_missing():
    """An empty first user message, or none at all, is a run with an empty goal."""
    for messages in (
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": None}],
        [HELLO],
    ):
        assert translated(*messages)[0]["goal"] == {"statement": ""}


def test_what_stands_before_the_goal_follows_the_start():
    """System messages and a greeting come before the goal in the file and after it in the run."""
    system = {"role": "system", "content": "Be kind."}
    events = translated(system, HELLO, USER, {"role": "developer", "content": "Be short."})
    assert events[0]["goal"]["statement"] == USER["content"]
    assert payloads(events) == [system, HELLO, {"role": "developer", "content": "Be short."}]
    assert not of(events, "WaitStarted")


def test_a_long_goal_is_cut_on_a_character_and_kept_whole():
    """A goal over 8 KiB is cut where a character ends; the artifact has all of it."""
    text = "a" + "é" * 5000
    translation = translate(line({"role": "user", "content": text}))
    model = fold(translation)
    assert model.goal == "a" + "é" * 4095
    assert [each.data for each in translation.artifacts] == [text.encode()]
    assert translation.artifacts[0].sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_a_text_is_never_cut_inside_a_character():
    """The cut is the longest beginning within the limit, for every width of character."""
    for character in "aé€𝄞":
        cut = cut_text(character * 10_000)
        assert set(cut) == {character}
        assert 8192 - 4 < len(cut.encode()) <= 8192


def test_a_goal_of_parts_is_their_text_and_is_recorded_whole():
    """Text parts make the statement, one a line; pictures are kept with the message."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    parts = [{"type": "text", "text": "What is"}, picture, {"type": "text", "text": "this?"}]
    message = {"role": "user", "content": parts}
    events = translated(message)
    assert events[0]["goal"]["statement"] == "What is\nthis?"
    assert payloads(events) == [message]


# Tool calls


def test_a_call_and_its_result():
    """A call is ToolStarted with its arguments, its result ToolSucceeded."""
    events = translated(USER, calls(call()), result("shipped", name="find"))
    assert of(events, "ToolStarted", "ToolSucceeded", "ToolFailed") == [
        {"type": "ToolStarted", "step_id": "step_1.0", "tool": "find", "arguments": {"id": 17}},
        {"type": "ToolSucceeded", "step_id": "step_1.0", "result": "shipped"},
    ]


def test_a_result_that_begins_with_error_is_a_failure():
    """`Error` at the very beginning, in this case, is a failure, and not recoverable."""
    events = translated(USER, calls(call()), result("Error: no such order"))
    assert of(events, "ToolSucceeded", "ToolFailed") == [
        {
            "type": "ToolFailed",
            "step_id": "step_1.0",
            "error": "Error: no such order",
            "recoverable": False,
        }
    ]
    for text in ("error: x", " Error", "No Error", ""):
        assert of(translated(USER, calls(call()), result(text)), "ToolSucceeded")


def test_parts_that_begin_with_error_are_a_failure():
    """A result in parts is judged by its text, and kept with the message."""
    message = result([{"type": "text", "text": "Error: full"}])
    events = translated(USER, calls(call()), message)
    assert of(events, "ToolFailed")[0]["error"] == "Error: full"
    assert payloads(events)[-1] == message


def test_a_null_result_is_a_success_without_one():
    """A tool that said nothing succeeded."""
    done = of(translated(USER, calls(call()), result(None)), "ToolSucceeded")
    assert done == [{"type": "ToolSucceeded", "step_id": "step_1.0"}]


def test_parallel_calls_have_places_of_their_own():
    """Each call of one message is a step; results may come in any order."""
    given = calls(call("a", "x"), call("b", "y"), content="Both.")
    events = translated(USER, given, result("2", "y"), result("1", "x"))
    started = [(each["step_id"], each["tool"]) for each in of(events, "ToolStarted")]
    assert started == [("step_1.0", "a"), ("step_1.1", "b")]
    done = [(each["step_id"], each["result"]) for each in of(events, "ToolSucceeded")]
    assert done == [("step_1.1", "2"), ("step_1.0", "1")]


def test_very_many_parallel_calls_fit():
    """The limit of events a batch does not limit the calls of a message."""
    given = [call("pay", f"c{i}") for i in range(150)]
    answers = [result("ok", f"c{i}") for i in range(150)]
    events = translated(USER, calls(*given), *answers, effects=("pay",), reward=1.0)
    assert len(of(events, "EffectSucceeded")) == 150


def test_an_id_used_twice_belongs_to_the_nearest_open_call():
    """One id, two calls: each result ends the latest call of it that is still open."""
    again = translated(
        USER, calls(call("a")), result("1"), calls(call("b")), result("2"), reward=1.0
    )
    assert [each["step_id"] for each in of(again, "ToolSucceeded")] == ["step_1.0", "step_3.0"]
    nested = translated(USER, calls(call("a")), calls(call("b")), result("2"), result("1"))
    assert [each["step_id"] for each in of(nested, "ToolSucceeded")] == ["step_2.0", "step_1.0"]


def test_a_result_without_a_call_is_recorded():
    """A result that no open call waits for changes nothing and is kept whole."""
    events = translated(USER, calls(call()), result("1"), result("2"), result("3", "other"))
    assert len(of(events, "ToolSucceeded")) == 1
    assert payloads(events)[1:] == [result("2"), result("3", "other")]


def test_arguments_are_an_object_or_kept_as_text():
    """Arguments that are no JSON object are kept as they are, unparsed."""
    texts = {
        '{"a": 1}': {"a": 1},
        "{}": {},
        "[1]": {"unparsed": "[1]"},
        "{not json": {"unparsed": "{not json"},
        '{"a":1,"a":2}': {"unparsed": '{"a":1,"a":2}'},
        '{"a":NaN}': {"unparsed": '{"a":NaN}'},
    }
    for text, expected in texts.items():
        started = of(translated(USER, calls(call(arguments=text))), "ToolStarted")
        assert started[0]["arguments"] == expected
    for nothing in ("", " ", None):
        assert (
            "arguments"
            not in of(translated(USER, calls(call(arguments=nothing))), "ToolStarted")[0]
        )
    given = of(translated(USER, calls(call(arguments={"b": 2}))), "ToolStarted")
    assert given[0]["arguments"] == {"b": 2}


def test_deep_arguments_become_an_artifact():
    """What would nest a proposal too deep is kept outside it."""
    deep = '{"a":' * 62 + "1" + "}" * 62
    translation = translate(line(USER, calls(call(arguments=deep))))
    fold(translation)
    assert [json.loads(each.data) for each in translation.artifacts] == [json.loads(deep)]


def test_large_arguments_become_an_artifact():
    """Arguments over 64 KiB are named, not held."""
    given = {"text": "x" * 70_000}
    translation = translate(line(USER, calls(call(arguments=json.dumps(given)))))
    fold(translation)
    started = translation.proposals[-1]["events"][0]
    assert started["arguments"] == {"artifact": translation.artifacts[0].uri}
    assert json.loads(translation.artifacts[0].data) == given


def test_a_result_over_64_kib_is_an_artifact():
    """The limit counts compact JSON in UTF-8: quotes and escapes included."""
    for text, is_large in (("x" * 65_534, False), ("x" * 65_535, True), ('"' * 40_000, True)):
        translation = translate(line(USER, calls(call()), result(text), reward=1))
        fold(translation)
        done = next(p["events"] for p in translation.proposals if "Succ" in p["events"][0]["type"])
        assert ("result_ref" in done[0]) is is_large
        assert [each.data for each in translation.artifacts] == [text.encode()] * is_large


def test_a_long_error_is_cut_and_kept():
    """An error over 8 KiB is cut; the artifact has all of it."""
    text = "Error: " + "€" * 9000
    translation = translate(line(USER, calls(call()), result(text)))
    fold(translation)
    failed = translation.proposals[-1]["events"][0]
    assert text.startswith(failed["error"])
    assert [each.data for each in translation.artifacts] == [text.encode()]


def test_a_legacy_function_call():
    """The older form, `function_call` and role `function`, is a call like any other."""
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    events = translated(USER, old, {"role": "function", "name": "f", "content": "Error"})
    assert [each["step_id"] for each in of(events, "ToolStarted", "ToolFailed")] == ["step_1.0"] * 2


# Effects


def test_an_effect_tool_is_an_effect_besides():
    """Intended before the call, its outcome after the result; other tools have none."""
    events = translated(
        USER, calls(call("pay")), result("ok"), calls(call("look")), result("ok"), effects=("pay",)
    )
    kinds = [each["type"] for each in events if each["type"].startswith(("Tool", "Effect"))]
    first = ["EffectIntended", "ToolStarted", "ToolSucceeded", "EffectSucceeded"]
    assert kinds == [*first, "ToolStarted", "ToolSucceeded"]
    effect = of(events, "EffectIntended")[0]["effect"]
    assert effect == {
        "id": "effect_1.0",
        "kind": "pay",
        "target": "tool:pay",
        "idempotency_key": "run_1/step_1.0",
    }


def test_a_failed_call_is_a_failed_effect():
    """The effect's error is the call's."""
    events = translated(USER, calls(call("pay")), result("Error: no funds"), effects=("pay",))
    failed = {"type": "EffectFailed", "effect_id": "effect_1.0", "error": "Error: no funds"}
    assert of(events, "EffectFailed", "EffectSucceeded", "EffectUnknown") == [failed]


def test_an_effect_without_a_result_is_unknown():
    """Nobody knows whether it happened; a failed run ends with it in doubt."""
    for reward in (None, 0.0):
        events = translated(USER, calls(call("pay")), effects=("pay",), reward=reward)
        assert [each["effect_id"] for each in of(events, "EffectUnknown")] == ["effect_1.0"]
        assert len(of(events, "RunFinished")) == (reward is not None)


def test_a_run_with_an_effect_in_doubt_is_not_completed():
    """Reward 1 and an effect without a result: left open, said so, the reward recorded."""
    translation = translate(line(USER, calls(call("pay")), reward=1.0), ("pay",))
    model = fold(translation)
    assert (model.status, model.pending) == ("running", {})
    assert model.effects == {"effect_1.0": "unknown"}
    assert translation.proposals[-1]["events"] == [
        {"type": "Recorded", "name": "reward", "payload": 1}
    ]
    assert "effect_1.0" in translation.notes[0]


def test_any_tool_name_makes_a_target():
    """A name with white space or signs of its own is still a reference."""
    for name in ("a b", "x/y?z", "naïve", "\u0000", "𝄞" * 250):
        translated(USER, calls(call(name)), result("ok"), effects=(name,), reward=1)


# Waits


def test_each_later_user_message_ends_a_wait():
    """The agent's question is the reason, the answer the payload; consecutive ones wait again."""
    events = translated(USER, HELLO, {"role": "user", "content": "yes"}, USER)
    waits = of(events, "WaitStarted", "SignalReceived")
    assert waits == [
        {"type": "WaitStarted", "kind": "user", "key": "user_2", "reason": "Let me look."},
        {"type": "SignalReceived", "key": "user_2", "signal_id": "message_2", "payload": "yes"},
        {
            "type": "WaitStarted",
            "kind": "user",
            "key": "user_3",
            "reason": "the user's next message",
        },
        {
            "type": "SignalReceived",
            "key": "user_3",
            "signal_id": "message_3",
            "payload": USER["content"],
        },
    ]


def test_a_user_message_while_a_call_is_open():
    """A wait may begin and end while a call is pending; the result still finds it."""
    events = translated(
        USER, calls(call()), {"role": "user", "content": "?"}, result("1"), reward=1
    )
    assert [each["type"] for each in events[-2:]] == ["ToolSucceeded", "RunFinished"]


def test_a_large_or_missing_user_message():
    """Over 64 KiB it is an artifact; null content is a signal without payload."""
    text = "y" * 70_000
    translation = translate(line(USER, {"role": "user", "content": text}))
    fold(translation)
    signal = translation.proposals[-1]["events"][0]
    assert signal["payload"] == {"artifact": translation.artifacts[0].uri}
    assert translation.artifacts[0].data == text.encode()
    nothing = translated(USER, {"role": "user", "content": None})
    assert "payload" not in of(nothing, "SignalReceived")[0]


# The end


@pytest.mark.parametrize(
    ("reward", "status", "outcome"),
    [
        (1.0, "finish", "completed"),
        (1, "finish", "completed"),
        (0, "finish", "failed"),
        (0.99, "finish", "failed"),
        (-1, "finish", "failed"),
        (2.0, "finish", "failed"),
        (None, "running", None),
    ],
)
def test_the_reward_ends_the_run(reward: Any, status: str, outcome: str | None):
    """1 ends it completed, any other number failed, null leaves it open."""
    model = fold(translate(line(USER, HELLO, reward=reward)))
    assert (model.status, model.result) == (status, outcome)


def test_without_a_reward_the_run_stays_open():
    """No `reward` at all is like null; open calls stay pending."""
    model = fold(translate(line(USER, calls(call()))))
    assert (model.status, list(model.pending)) == ("running", ["step_1.0"])


def test_calls_without_a_result_fail_at_the_end():
    """A run that ends leaves no call pending."""
    events = translated(USER, calls(call()), calls(call("b", "c2")), reward=1.0)
    failed = [(each["step_id"], each["error"]) for each in of(events, "ToolFailed")]
    assert failed == [(f"step_{n}.0", "no result in the transcript") for n in (1, 2)]
    assert events[-1] == {"type": "RunFinished", "result": "completed", "reason": "reward 1"}


# Nothing is lost


def test_assistant_messages_are_recorded_less_their_arguments():
    """Ids and texts stay with the message; the arguments stand in ToolStarted."""
    events = translated(USER, calls(call(), content="Looking.") | {"refusal": None})
    bare = {"id": "c1", "type": "function", "function": {"name": "find"}}
    assert payloads(events)[0]["content"] == "Looking."
    assert payloads(events)[0]["tool_calls"] == [bare]


def test_fields_that_no_event_has_are_recorded():
    """More fields of the line, or of a message, stand in Recorded events."""
    events = translated(
        USER | {"mood": "cross"},
        calls(call()),
        result("1", cache="hit"),
        USER | {"mood": "calm"},
        model="m-1",
    )
    assert payloads(events, "transcript") == [{"model": "m-1"}]
    kept = payloads(events)
    assert kept[0] == USER | {"mood": "cross"}
    assert kept[2] == {"role": "tool", "tool_call_id": "c1", "cache": "hit"}
    assert kept[3] == {"role": "user", "mood": "calm"}


def test_a_named_user_is_the_author():
    """A message's own name is its author's id; a name no author can have is recorded."""
    translation = translate(line(USER | {"name": "ada"}, USER | {"name": "x" * 300}))
    fold(translation)
    assert translation.proposals[0]["author"] == {"kind": "user", "id": "ada"}
    assert len(translation.proposals[0]["events"]) == 1
    assert translation.proposals[-1]["author"] == {"kind": "user", "id": "user"}
    assert translation.proposals[-1]["events"][1]["payload"]["name"] == "x" * 300


def test_authors_are_who_acted():
    """Users give goals and answers, the agent calls, tools answer, the importer ends the run."""
    translation = translate(line(USER, calls(call()), result("1"), USER, reward=0))
    authors = [f"{p['author']['kind']}:{p['author']['id']}" for p in translation.proposals]
    agent = "agent:assistant"
    expected = ["user:user", agent, agent, agent, "tool:find", agent, "user:user", "system:import"]
    assert authors == expected


def test_a_huge_assistant_text_is_an_artifact():
    """An assistant's message over 64 KiB is kept whole outside the log."""
    message = {"role": "assistant", "content": "z" * 70_000}
    translation = translate(line(USER, message))
    fold(translation)
    assert json.loads(translation.artifacts[0].data) == message


# Broken lines


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([], None),
        ("x", None),
        ({"messages": [USER]}, "id"),
        ({"id": 17, "messages": [USER]}, "id"),
        ({"id": "../etc/passwd", "messages": [USER]}, "id"),
        ({"id": "", "messages": [USER]}, "id"),
        ({"id": "a" * 129, "messages": [USER]}, "id"),
        ({"id": "a"}, "messages"),
        (line(), "messages"),
        ({"id": "a", "messages": {}}, "messages"),
        (line(USER, "hello"), "messages[1]"),  # type: ignore[arg-type]
        (line({"content": "x"}), "messages[0].role"),
        (line({"role": "human", "content": "x"}), "messages[0].role"),
        (line({"role": ["user"], "content": "x"}), "messages[0].role"),
        (line({"role": "user", "content": 5}), "messages[0].content"),
        (line({"role": "user", "content": ["x"]}), "messages[0].content[0]"),
        (line(USER, {"role": "tool", "content": "x"}), "messages[1].tool_call_id"),
        (line(USER, {"role": "function", "content": "x"}), "messages[1].name"),
        (line(USER, HELLO | {"tool_calls": {}}), "messages[1].tool_calls"),
        (line(USER, HELLO | {"tool_calls": [1]}), "messages[1].tool_calls[0]"),
        (line(USER, calls(call(call_id=None))), "messages[1].tool_calls[0].id"),  # type: ignore[arg-type]
        (line(USER, calls({"id": "c"})), "messages[1].tool_calls[0].function"),
        (line(USER, calls(call(), call(""))), "messages[1].tool_calls[1].function.name"),
        (line(USER, calls(call(arguments=[]))), "messages[1].tool_calls[0].function.arguments"),
        (line(USER, HELLO | {"function_call": "auto"}), "messages[1].function_call"),
        (line(USER, reward="1.0"), "reward"),
        (line(USER, reward=True), "reward"),
        (line(USER, reward=[]), "reward"),
    ],
)
def test_a_broken_line_names_its_field(value: Any, field: str | None):
    """What is not the chat form is refused whole, by the path of the first field that is wrong."""
    with pytest.raises(Broken) as caught:
        translate(value)
    assert caught.value.field == field
    assert caught.value.message


# Laws

TEXT = st.text(max_size=12) | st.sampled_from(["Error", "Error: x", "x" * 66_000, "é" * 5000])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
PARTS = st.lists(
    st.fixed_dictionaries({"type": st.just("text")}, optional={"text": TEXT, "x": JSON}), max_size=3
)
CONTENT = st.none() | TEXT | PARTS
ID = st.sampled_from(["a", "b", ""])
TOOL = st.sampled_from(["pay", "look", "a b", "é"])
FUNCTION = st.fixed_dictionaries(
    {"name": TOOL}, optional={"arguments": st.none() | TEXT | JSON.map(json.dumps)}
)
EXTRA = {"name": TOOL | st.integers(0, 9), "x": JSON}
MESSAGE = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant"]), "content": CONTENT},
        optional=EXTRA,
    ),
    st.fixed_dictionaries(
        {
            "role": st.just("assistant"),
            "content": CONTENT,
            "tool_calls": st.none()
            | st.lists(st.fixed_dictionaries({"id": ID, "function": FUNCTION}), max_size=4),
        },
        optional={"function_call": st.none() | FUNCTION, **EXTRA},
    ),
    st.fixed_dictionaries(
        {"role": st.just("tool"), "tool_call_id": ID, "content": CONTENT}, optional=EXTRA
    ),
    st.fixed_dictionaries({"role": st.just("function"), "name": TOOL, "content": CONTENT}),
)
REWARD = st.none() | st.sampled_from([0, 1, 0.0, 1.0, 0.5])


@given(st.lists(MESSAGE, min_size=1, max_size=10), REWARD, st.sets(TOOL))
def test_every_translation_is_accepted(messages: list[Any], reward: Any, effects: set[str]):
    """Whatever the messages, a log accepts every proposal, and each call has its place."""
    translation = translate(line(*messages, reward=reward), effects)
    model = fold(translation)
    events = [event for proposal in translation.proposals for event in proposal["events"]]
    called = [
        f["name"]
        for each in messages
        if each["role"] == "assistant"
        for f in [
            *(c["function"] for c in each.get("tool_calls") or ()),
            *filter(None, [each.get("function_call")]),
        ]
    ]
    assert [each["tool"] for each in of(events, "ToolStarted")] == called
    assert len(model.effects) == sum(name in effects for name in called)
    users = sum(each["role"] == "user" for each in messages)
    assert len(of(events, "SignalReceived")) == max(users - 1, 0)
    assert (model.status == "finish") == (reward is not None and not translation.notes)
    assert not model.pending or reward is None
    shown = core_document(translation.run_id, translation.proposals)
    assert (shown["status"], shown["result"]) == (model.status, model.result)
    assert {each["id"]: each["status"] for each in shown["effects"]} == model.effects
    assert [each["step_id"] for each in shown["pending_tool_calls"]] == sorted(model.pending)


@given(st.lists(st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "id"]), JSON)))
def test_nothing_but_broken_is_raised(messages: list[Any]):
    """Lists of objects that only look like messages are translated or refused, never a crash."""
    try:
        expected = fold(translate(line(*messages))).status
    except Broken as broken:
        expected = "running" if broken.field and broken.message else "unnamed"
    assert expected == "running"


@given(JSON, JSON, JSON)
def test_any_json_is_translated_or_broken(run_id: Any, messages: Any, reward: Any):
    """Any JSON in the three fields, and any JSON as the line, is refused as a value."""
    for value in (run_id, {"id": run_id, "messages": messages, "reward": reward}):
        with pytest.raises(Broken):
            translate(value)


@given(st.lists(MESSAGE, min_size=1, max_size=6), st.data())
def test_texts_are_kept_to_the_letter(messages: list[Any], data: Any):
    """Every text of a message stands in an event or in an artifact."""
    at = data.draw(st.integers(0, len(messages) - 1))
    mark = "a mark of its own"
    messages[at] = messages[at] | {"content": mark + " é" * data.draw(st.integers(0, 40_000))}
    text = messages[at]["content"]
    translation = translate(line(*messages))
    kept = [json.dumps(translation.proposals, ensure_ascii=False).encode()]
    kept += [artifact.data for artifact in translation.artifacts]
    assert any(text.encode() in each for each in kept)
