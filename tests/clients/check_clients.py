"""The official OpenAI and Anthropic clients, unmodified, against a running server.

    pip install -r tests/clients/requirements.txt
    mlxcel serve --model DIR --port 8080 &
    python tests/clients/check_clients.py http://127.0.0.1:8080

Every check compares with something computed another way: the stream with the
whole answer, a forced call with the tool's schema, counts with other counts.
The script fails when a check did not run to its end.
"""

import json
import sys

import anthropic
import jsonschema
import openai
from pydantic import BaseModel

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
PING = {"type": "object", "properties": {}, "additionalProperties": False}


class Cat(BaseModel):
    name: str
    age: int
    indoor: bool


def openai_tools():
    return [
        {"type": "function", "function": {
            "name": "get_weather", "description": "The weather of a city",
            "parameters": WEATHER}},
        {"type": "function", "function": {
            "name": "ping", "description": "Says pong", "parameters": PING}},
    ]


def responses_tools():
    return [{"type": "function", "strict": False, **tool["function"]}
            for tool in openai_tools()]


def anthropic_tools():
    return [{"name": tool["function"]["name"],
             "description": tool["function"]["description"],
             "input_schema": tool["function"]["parameters"]}
            for tool in openai_tools()]


QUESTION = "What is the weather like in Oslo? Use a function."
MESSAGES = [{"role": "user", "content": "Name three colours."}]
SAMPLING = {"temperature": 0, "seed": 1}
# Newer versions of the client have no argument for it.
GREEDY = {"temperature": 0}


class Checks:
    def __init__(self, url):
        self.openai = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        self.model = self.openai.models.list().data[0].id

    # Chat completions.

    def chat_stream_equals_whole(self):
        whole = self.openai.chat.completions.create(
            model=self.model, messages=MESSAGES, max_tokens=40, **SAMPLING)
        text = whole.choices[0].message.content
        assert len(text) > 10, text
        assert whole.usage.completion_tokens <= 40
        pieces, finish, usage = [], None, None
        for chunk in self.openai.chat.completions.create(
                model=self.model, messages=MESSAGES, max_tokens=40, stream=True,
                stream_options={"include_usage": True}, **SAMPLING):
            if chunk.choices:
                pieces.append(chunk.choices[0].delta.content or "")
                finish = chunk.choices[0].finish_reason or finish
            usage = chunk.usage or usage
        assert len([p for p in pieces if p]) > 3
        assert "".join(pieces) == text
        assert finish == whole.choices[0].finish_reason
        assert usage.completion_tokens == whole.usage.completion_tokens
        assert usage.prompt_tokens == whole.usage.prompt_tokens

    def chat_logprobs(self):
        whole = self.openai.chat.completions.create(
            model=self.model, messages=MESSAGES, max_tokens=5, logprobs=True,
            top_logprobs=3, **SAMPLING)
        entries = whole.choices[0].logprobs.content
        assert len(entries) == whole.usage.completion_tokens
        assert "".join(e.token for e in entries) == whole.choices[0].message.content
        for entry in entries:
            assert len(entry.top_logprobs) == 3
            # Greedy: what was drawn is the likeliest.
            assert entry.logprob == max(t.logprob for t in entry.top_logprobs)

    def chat_forced_call(self):
        for choice, names in (
                ({"type": "function", "function": {"name": "get_weather"}}, {"get_weather"}),
                ("required", {"get_weather", "ping"})):
            arguments = dict(
                model=self.model, messages=[{"role": "user", "content": QUESTION}],
                tools=openai_tools(), tool_choice=choice, max_tokens=200, **SAMPLING)
            whole = self.openai.chat.completions.create(**arguments)
            assert whole.choices[0].finish_reason == "tool_calls"
            calls = whole.choices[0].message.tool_calls
            assert len(calls) >= 1 and calls[0].id
            assert {call.function.name for call in calls} <= names
            for call in calls:
                jsonschema.validate(
                    json.loads(call.function.arguments),
                    WEATHER if call.function.name == "get_weather" else PING)
            streamed, pieces = {}, 0
            for chunk in self.openai.chat.completions.create(stream=True, **arguments):
                for delta in chunk.choices[0].delta.tool_calls or []:
                    entry = streamed.setdefault(delta.index, ["", ""])
                    entry[0] += delta.function.name or ""
                    entry[1] += delta.function.arguments or ""
                    pieces += bool(delta.function.arguments)
            assert [tuple(streamed[i]) for i in sorted(streamed)] == [
                (call.function.name, call.function.arguments) for call in calls]
            assert pieces > 3 or calls[0].function.name == "ping"

    def chat_random_calls_always_fit(self):
        different = set()
        for seed in range(8):
            whole = self.openai.chat.completions.create(
                model=self.model, messages=[{"role": "user", "content": QUESTION}],
                tools=openai_tools(), temperature=1.8, seed=seed, max_tokens=300,
                tool_choice={"type": "function", "function": {"name": "get_weather"}})
            if whole.choices[0].finish_reason == "length":
                continue
            [call] = whole.choices[0].message.tool_calls
            jsonschema.validate(json.loads(call.function.arguments), WEATHER)
            different.add(call.function.arguments)
        assert len(different) >= 4, different

    def chat_call_and_result(self):
        whole = self.openai.chat.completions.create(
            model=self.model, max_tokens=16, tools=openai_tools(), **SAMPLING,
            messages=[
                {"role": "user", "content": QUESTION},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {
                        "name": "get_weather",
                        "arguments": '{"city": "Oslo", "unit": "celsius", "days": 1}'}}]},
                {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 21 degrees"}])
        assert whole.usage.completion_tokens > 0

    def chat_no_call_without_tools(self):
        whole = self.openai.chat.completions.create(
            model=self.model, messages=MESSAGES, tools=openai_tools(),
            tool_choice="none", max_tokens=30, **SAMPLING)
        plain = self.openai.chat.completions.create(
            model=self.model, messages=MESSAGES, max_tokens=30, **SAMPLING)
        assert whole.choices[0].message.tool_calls is None
        assert whole.choices[0].message.content == plain.choices[0].message.content

    def chat_parsed_model(self):
        parsed = self.openai.chat.completions.parse(
            model=self.model, max_tokens=120, response_format=Cat, **SAMPLING,
            messages=[{"role": "user", "content": "Invent a cat, in short JSON."}])
        cat = parsed.choices[0].message.parsed
        assert isinstance(cat, Cat) and isinstance(cat.age, int)
        with self.openai.chat.completions.stream(
                model=self.model, max_tokens=120, response_format=Cat, **SAMPLING,
                messages=[{"role": "user", "content": "Invent a cat, in short JSON."}]) as stream:
            for _ in stream:
                pass
            assert stream.get_final_completion().choices[0].message.parsed == cat

    def chat_schema_under_random_sampling(self):
        schema = {
            "type": "object",
            "properties": {
                "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
                "size": {"type": "number", "minimum": 0, "maximum": 10},
                "tags": {"type": "array", "maxItems": 3,
                         "items": {"enum": ["a", "b", 7, None]}},
                "more": {"$ref": "#/$defs/more"}},
            "required": ["id", "size", "tags", "more"],
            "additionalProperties": False,
            "$defs": {"more": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}}}
        texts = set()
        for seed in range(12):
            whole = self.openai.chat.completions.create(
                model=self.model, messages=MESSAGES, temperature=2, seed=seed,
                max_tokens=250, response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "thing", "schema": schema, "strict": True}})
            if whole.choices[0].finish_reason == "length":
                continue
            text = whole.choices[0].message.content
            jsonschema.validate(json.loads(text), schema)
            texts.add(text)
        assert len(texts) >= 6, texts

    def chat_json_object(self):
        whole = self.openai.chat.completions.create(
            model=self.model, max_tokens=200, temperature=0,
            messages=[{"role": "user", "content": 'Answer with {"ok": true}'}],
            response_format={"type": "json_object"})
        if whole.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(whole.choices[0].message.content), dict)
        else:
            assert whole.choices[0].message.content.lstrip().startswith("{")

    def chat_grammar(self):
        whole = self.openai.chat.completions.create(
            model=self.model, messages=MESSAGES, max_tokens=20, temperature=0,
            extra_body={"grammar": 'root ::= ("red" | "blue") "-" [0-9]{3}'})
        text = whole.choices[0].message.content
        colour, number = text.split("-")
        assert colour in ("red", "blue") and len(number) == 3 and number.isdigit(), text

    def chat_errors(self):
        def refused(kind, **arguments):
            try:
                self.openai.chat.completions.create(
                    model=arguments.pop("model", self.model),
                    messages=arguments.pop("messages", MESSAGES), **arguments)
            except kind as error:
                return error
            raise AssertionError(f"not refused: {arguments}")

        error = refused(openai.BadRequestError, response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "strin"}}})
        assert "/type" in str(error) and error.param == "response_format", error
        error = refused(openai.BadRequestError, tool_choice="required")
        assert error.param == "tool_choice"
        refused(openai.NotFoundError, model="no-such-model")
        error = refused(openai.BadRequestError, extra_body={"no_such_field": 1})
        assert "no_such_field" in str(error)
        error = refused(openai.BadRequestError, messages=[
            {"role": "user", "content": "word " * 20000}])
        assert error.code == "context_length_exceeded", error

    # Completions.

    def completion_echo_and_logprobs(self):
        whole = self.openai.completions.create(
            model=self.model, prompt="The capital of France is", max_tokens=3,
            echo=True, logprobs=2, temperature=0)
        choice = whole.choices[0]
        assert choice.text.startswith("The capital of France is")
        assert len(choice.logprobs.tokens) == (
            whole.usage.prompt_tokens + whole.usage.completion_tokens)
        assert choice.logprobs.token_logprobs[0] is None
        assert all(p <= 0 for p in choice.logprobs.token_logprobs[1:])
        pieces = [chunk.choices[0].text for chunk in self.openai.completions.create(
            model=self.model, prompt="The capital of France is", max_tokens=3,
            temperature=0, stream=True) if chunk.choices]
        assert "The capital of France is" + "".join(pieces) == choice.text

    # Responses.

    def responses_stream_equals_whole(self):
        arguments = dict(
            model=self.model, input="Name three colours.", max_output_tokens=400,
            temperature=0)
        whole = self.openai.responses.create(**arguments)
        assert len(whole.output_text) > 10
        deltas, kinds, numbers = [], [], []
        for event in self.openai.responses.create(stream=True, **arguments):
            kinds.append(event.type)
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                deltas.append(event.delta)
        assert numbers == list(range(len(numbers)))
        assert kinds[:4] == [
            "response.created", "response.in_progress",
            "response.output_item.added", "response.content_part.added"]
        assert kinds[-1] in ("response.completed", "response.incomplete")
        assert "".join(deltas) == whole.output_text
        assert event.response.usage.output_tokens == whole.usage.output_tokens
        assert event.response.status == whole.status
        with self.openai.responses.stream(**arguments) as stream:
            for _ in stream:
                pass
            assert stream.get_final_response().output_text == whole.output_text

    def responses_call(self):
        arguments = dict(
            model=self.model, input=QUESTION, tools=responses_tools(),
            tool_choice={"type": "function", "name": "get_weather"},
            max_output_tokens=200, temperature=0)
        whole = self.openai.responses.create(**arguments)
        [call] = whole.output
        assert call.type == "function_call" and call.name == "get_weather"
        jsonschema.validate(json.loads(call.arguments), WEATHER)
        deltas, done = "", None
        for event in self.openai.responses.create(stream=True, **arguments):
            if event.type == "response.function_call_arguments.delta":
                deltas += event.delta
            if event.type == "response.output_item.done":
                done = event.item
        assert deltas == call.arguments == done.arguments
        answer = self.openai.responses.create(
            model=self.model, max_output_tokens=16, temperature=0,
            tools=responses_tools(), input=[
                {"role": "user", "content": QUESTION},
                {"type": "function_call", "call_id": call.call_id, "name": call.name,
                 "arguments": call.arguments},
                {"type": "function_call_output", "call_id": call.call_id,
                 "output": "Sunny"}])
        assert answer.usage.output_tokens > 0

    def responses_parsed_model(self):
        parsed = self.openai.responses.parse(
            model=self.model, input="Invent a cat, in short JSON.", text_format=Cat,
            max_output_tokens=120, temperature=0)
        assert isinstance(parsed.output_parsed, Cat)

    def responses_errors(self):
        for arguments in (
                {"previous_response_id": "resp_1"}, {"store": True},
                {"tools": [{"type": "web_search"}]}, {"input": []}):
            try:
                self.openai.responses.create(**{
                    "model": self.model, "input": "Hi", **arguments})
            except openai.BadRequestError:
                continue
            raise AssertionError(f"not refused: {arguments}")

    # Messages.

    def messages_stream_equals_whole(self):
        arguments = dict(
            model=self.model, max_tokens=40, extra_body=GREEDY, messages=MESSAGES,
            system="Answer in short.")
        whole = self.anthropic.messages.create(**arguments)
        assert whole.content[0].type == "text" and len(whole.content[0].text) > 10
        assert whole.stop_reason in ("end_turn", "max_tokens")
        with self.anthropic.messages.stream(**arguments) as stream:
            pieces = list(stream.text_stream)
            final = stream.get_final_message()
        assert len(pieces) > 3
        assert "".join(pieces) == whole.content[0].text == final.content[0].text
        assert final.stop_reason == whole.stop_reason
        assert final.usage.output_tokens == whole.usage.output_tokens
        counted = self.anthropic.messages.count_tokens(
            model=self.model, messages=MESSAGES, system="Answer in short.")
        usage = whole.usage
        assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens

    def messages_stop_sequence(self):
        whole = self.anthropic.messages.create(
            model=self.model, max_tokens=40, extra_body=GREEDY, messages=MESSAGES)
        text = whole.content[0].text
        stop = text[10:14]
        cut = self.anthropic.messages.create(
            model=self.model, max_tokens=40, extra_body=GREEDY, messages=MESSAGES,
            stop_sequences=[stop])
        assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == stop
        assert cut.content[0].text == text[:text.index(stop)]

    def messages_call(self):
        arguments = dict(
            model=self.model, max_tokens=200, extra_body=GREEDY, tools=anthropic_tools(),
            tool_choice={"type": "tool", "name": "get_weather"},
            messages=[{"role": "user", "content": QUESTION}])
        whole = self.anthropic.messages.create(**arguments)
        assert whole.stop_reason == "tool_use"
        [block] = whole.content
        assert block.type == "tool_use" and block.name == "get_weather"
        jsonschema.validate(block.input, WEATHER)
        with self.anthropic.messages.stream(**arguments) as stream:
            partial = [event.partial_json for event in stream if event.type == "input_json"]
            final = stream.get_final_message()
        assert len(partial) > 3
        assert final.content[0].input == block.input == json.loads("".join(partial))
        answer = self.anthropic.messages.create(
            model=self.model, max_tokens=16, extra_body=GREEDY, tools=anthropic_tools(),
            messages=[
                {"role": "user", "content": QUESTION},
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": block.id, "name": block.name,
                     "input": block.input}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": block.id, "content": "Sunny"}]}])
        assert answer.usage.output_tokens > 0

    def messages_errors(self):
        for arguments, kind in (
                ({"messages": []}, anthropic.BadRequestError),
                ({"model": "no-such-model"}, anthropic.NotFoundError),
                ({"tools": [{"type": "bash_20250124", "name": "bash"}]},
                 anthropic.BadRequestError)):
            try:
                self.anthropic.messages.create(**{
                    "model": self.model, "max_tokens": 5, "messages": MESSAGES, **arguments})
            except kind as error:
                assert error.body["type"] == "error", error.body
                continue
            raise AssertionError(f"not refused: {arguments}")


NAMES = [
    "chat_stream_equals_whole", "chat_logprobs", "chat_forced_call",
    "chat_random_calls_always_fit", "chat_call_and_result",
    "chat_no_call_without_tools", "chat_parsed_model",
    "chat_schema_under_random_sampling", "chat_json_object", "chat_grammar",
    "chat_errors", "completion_echo_and_logprobs", "responses_stream_equals_whole",
    "responses_call", "responses_parsed_model", "responses_errors",
    "messages_stream_equals_whole", "messages_stop_sequence", "messages_call",
    "messages_errors"]


def main():
    checks = Checks(sys.argv[1].rstrip("/"))
    written = [n for n, f in vars(Checks).items()
               if callable(f) and n != "__init__"]
    assert written == NAMES, "the list of checks does not fit the class"
    failed = 0
    for name in NAMES:
        try:
            getattr(checks, name)()
            print(f"ok      {name}", flush=True)
        except Exception as error:  # each is reported, the rest still runs
            failed += 1
            print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
    print(f"{len(NAMES) - failed} of {len(NAMES)} checks hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
