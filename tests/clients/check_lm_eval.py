"""lm-eval against /v1/completions gives the scores that the logits give.

    pip install -r tests/clients/requirements-lm-eval.txt
    mlxcel serve --model DIR --port 8080 --deterministic &
    python tests/clients/check_lm_eval.py http://127.0.0.1:8080 DIR MLXCEL

The task is made of local files only: sentences with four endings each, of which
one fits. lm-eval asks the server for the log-likelihood of every ending; the
same sums come from `mlxcel logits` over the tokens that lm-eval chose.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

QUESTIONS = [
    ("The capital of France is", ["Paris", "a shoe", "very blue", "seventeen"], 0),
    ("Two plus two is", ["green", "four", "a dog", "London"], 1),
    ("At night one can see the", ["stars", "bread", "Monday", "of"], 0),
    ("Fish live in the", ["desk", "idea", "water", "loudly"], 2),
    ("In winter it is often", ["cold", "purple", "a verb", "eaten"], 0),
    ("A cat likes to drink", ["stones", "milk", "windows", "Tuesday"], 1),
    ("The sun rises in the", ["east", "pocket", "soup", "grammar"], 0),
    ("Bees make", ["honey", "cars", "laws", "snow"], 0),
    ("The opposite of hot is", ["cold", "music", "table", "run"], 0),
    ("One reads a", ["cloud", "book", "spoon", "nose"], 1),
    ("Birds can", ["fly", "rust", "boil", "subtract"], 0),
    ("The week has seven", ["days", "legs", "colours", "wheels"], 0),
]

TASK = """
task: local_endings
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
target_delimiter: " "
metric_list:
  - metric: acc
  - metric: acc_norm
metadata:
  version: 1.0
"""


def run_lm_eval(url, model, folder, work):
    data = work / "endings.jsonl"
    data.write_text("".join(
        json.dumps({"question": q, "choices": c, "answer": a}) + "\n"
        for q, c, a in QUESTIONS))
    (work / "local_endings.yaml").write_text(TASK.format(data=data))
    subprocess.run(
        [sys.executable, "-m", "lm_eval", "--model", "local-completions",
         "--model_args", f"model={model},base_url={url}/v1/completions,"
         f"tokenizer={folder},tokenizer_backend=huggingface,num_concurrent=4,"
         "max_retries=1",
         "--tasks", "local_endings", "--include_path", str(work),
         "--output_path", str(work / "out"), "--log_samples"],
        check=True)
    [scores] = (work / "out").rglob("results_*.json")
    [samples] = (work / "out").rglob("samples_*.jsonl")
    return (json.loads(scores.read_text())["results"]["local_endings"],
            [json.loads(line) for line in samples.read_text().splitlines()])


def likelihoods(pairs, folder, program, work):
    """Sum of log-probabilities of each ending, and whether it is the greedy one."""
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    for context, ending in pairs:
        whole = tokenizer(context + ending, add_special_tokens=False)["input_ids"]
        start = len(tokenizer(context, add_special_tokens=False)["input_ids"])
        rows.append((whole, start))
    width = max(len(row) for row, _ in rows)
    ids = np.zeros((len(rows), width), np.int32)
    for i, (row, _) in enumerate(rows):
        ids[i, :len(row)] = row
    save_file({"input_ids": ids,
               "lengths": np.array([len(row) for row, _ in rows], np.int32)},
              work / "in.safetensors")
    subprocess.run([program, "logits", "--model", folder,
                    "--input", str(work / "in.safetensors"),
                    "--output", str(work / "out.safetensors")], check=True)
    logits = load_file(work / "out.safetensors")["logits"].astype(np.float64)
    out = []
    for i, (row, start) in enumerate(rows):
        part = logits[i, start - 1:len(row) - 1]
        part = part - part.max(-1, keepdims=True)
        part -= np.log(np.exp(part).sum(-1, keepdims=True))
        tokens = row[start:]
        out.append((part[np.arange(len(tokens)), tokens].sum(),
                    bool((part.argmax(-1) == tokens).all())))
    return out


def main():
    url, folder, program = sys.argv[1].rstrip("/"), sys.argv[2], sys.argv[3]
    import urllib.request
    models = json.load(urllib.request.urlopen(url + "/v1/models"))
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        scores, samples = run_lm_eval(url, models["data"][0]["id"], folder, work)
        assert len(samples) == len(QUESTIONS), len(samples)
        samples.sort(key=lambda sample: sample["doc_id"])
        pairs, served = [], []
        for sample in samples:
            requests = sample["arguments"]
            for key in sorted(requests):
                pairs.append((requests[key]["arg_0"], requests[key]["arg_1"]))
            for [value, greedy] in sample["filtered_resps"]:
                served.append((float(value), str(greedy) == "True"))
        assert len(pairs) == len(served) == 4 * len(QUESTIONS)
        own = likelihoods(pairs, folder, program, work)
        worst = max(abs(a - b) for (a, _), (b, _) in zip(served, own))
        print(f"{len(own)} log-likelihoods differ by at most {worst:.2e}")
        assert worst < 1e-3, worst
        assert len({round(a, 3) for a, _ in served}) > 30, "all the same"
        assert [g for _, g in served] == [g for _, g in own]
        right = normalized = 0
        for i, (_, choices, answer) in enumerate(QUESTIONS):
            values = np.array([a for a, _ in own[4 * i:4 * i + 4]])
            lengths = np.array([len(choice) for choice in choices])
            right += int(values.argmax() == answer)
            normalized += int((values / lengths).argmax() == answer)
        count = len(QUESTIONS)
        print(f"acc {scores['acc,none']}, own {right / count}; "
              f"acc_norm {scores['acc_norm,none']}, own {normalized / count}")
        assert abs(scores["acc,none"] - right / count) < 1e-9
        assert abs(scores["acc_norm,none"] - normalized / count) < 1e-9
        assert right > count / 2, "a model that knows nothing proves nothing"
    return 0


if __name__ == "__main__":
    sys.exit(main())
