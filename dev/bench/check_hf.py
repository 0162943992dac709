#!/usr/bin/env python3
"""Does Hugging Face's transformers compute what we compute? Needs torch, transformers and numpy; no network.

    make train_gpt2 test_gpt2 && dev/bench/check_hf.py [--trainer ./train_gpt2]

1. transformers -> ours: a random GPT2LMHeadModel whose logits span at least +-10 is saved with save_pretrained, and
   `eval` of ours must give the loss that PyTorch computes in double from its logits.
   ./test_gpt2 compares the logits, which must agree to 1e-5 of the largest.
2. ours -> transformers: `export` of that folder is loaded with from_pretrained, without a warning, and every tensor is
   equal byte by byte; so for fp32, bf16 and fp16. AutoTokenizer must give one token a byte, and take it back.
   With the package gguf: llama.cpp's converter knows every tensor's name, and finds what it asks of config.json and of the
   tokenizer's files.
3. greedy text of ours equals model.generate's, token by token.
Exit 1 if anything differs.
"""
import json
import logging
import subprocess
import sys
import tempfile
import warnings

from lab import needs, parser, write_shard

needs(__doc__, "numpy", "safetensors", "torch", "transformers")
import numpy
import safetensors
import torch
import transformers

from torch_gpt2 import State, write_state

VOCABULARY, END = 257, 256
failures = 0


def check(ok, text):
    global failures
    failures += not ok
    print(("ok     " if ok else "WRONG  ") + text)


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def random_model():
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=96, n_embd=64, n_layer=3, n_head=4, bos_token_id=END,
                                     eos_token_id=END)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            x.copy_(torch.randn_like(x) * (0.3 if "ln" not in name else 0.2) + (1 if "ln" in name and "weight" in name else 0))
        model.transformer.wte.weight.mul_(2)
    return model


def load_quietly(call):
    """what call returns, and every warning on the way"""
    logger, messages = logging.getLogger("transformers"), []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    logger.addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    logger.removeHandler(handler)
    return result, messages + [str(w.message) for w in caught]


def check_losses(args, folder, model):
    tokens = numpy.random.default_rng(2).integers(0, VOCABULARY, 96 * 5 + 1)
    write_shard(folder + "/x.bin", tokens, VOCABULARY)
    rows = torch.tensor(tokens[:-1].reshape(5, 96))
    with torch.no_grad():
        logits = model.double()(rows).logits
    model.float()
    check(logits.abs().max() >= 10, f"logits span {logits.min():.1f} to {logits.max():.1f}")
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(tokens[1:]))
    out = run(args.trainer, "eval", folder + "/a", "--data", folder + "/x.bin")
    found = float(out.split("loss")[1].split()[0])
    check(abs(found - losses.item()) < 1e-4, f"transformers -> ours: loss {found} (PyTorch in double: {losses:.6f})")


def check_logits(folder, model):
    x, y = torch.tensor(numpy.random.default_rng(3).integers(0, VOCABULARY, (2, 2, 96)))
    with torch.no_grad():
        logits = model(x).logits.flatten(0, 1)
    loss, c = torch.nn.functional.cross_entropy(logits, y.flatten()).item(), model.config
    # no gradients: test_gpt2's bounds for them are for weights of ordinary size, and these are ten times larger
    zeros = torch.zeros(((VOCABULARY + 63) // 64 * 64 + c.n_positions + c.n_layer * (12 * c.n_embd + 13) + 2) * c.n_embd)
    write_state(folder + "/state.bin", State(x, y, logits, loss, {"all": zeros}))
    command = ["./test_gpt2", "--model", folder + "/a", "--state", folder + "/state.bin"]
    done = subprocess.run(command, capture_output=True, text=True)
    error, bound = [float(done.stdout.split("logits")[1].split()[i]) for i in (3, 5)]
    largest = logits.abs().max().item()
    check(error <= 1e-5 * largest, f"logits differ by {error / largest:.1e} of the largest, {largest:.1f} (bound 1e-5)")


def check_export(args, folder, model):
    for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        source, target = f"{folder}/in_{kind}", f"{folder}/out_{kind}"
        model.to(dtype).save_pretrained(source)
        model.float()
        run(args.trainer, "export", source, "--hf", target)
        loaded, messages = load_quietly(lambda: transformers.AutoModelForCausalLM.from_pretrained(target, dtype="auto"))
        check(not messages, f"{kind}: from_pretrained without a warning {messages}")
        original = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto").state_dict()
        same = [torch.equal(x, original[name]) and x.dtype == dtype for name, x in loaded.state_dict().items()]
        check(all(same) and len(same) == len(original), f"{kind}: {sum(same)} of {len(original)} tensors equal")
    tokenizer, messages = load_quietly(lambda: transformers.AutoTokenizer.from_pretrained(folder + "/out_fp32"))
    check(not messages, f"AutoTokenizer without a warning {messages}")
    text = "First Citizen:\n caf\u00e9  \u4e2d \U0001f642 'tis"
    ids = tokenizer(text)["input_ids"]
    check(ids == list(text.encode()), "AutoTokenizer gives one token a byte")
    check(tokenizer.decode(ids) == text, "and takes it back")
    check(tokenizer.eos_token_id == END, "and knows the end of a text")


def check_converter(folder):
    """what convert_hf_to_gguf.py of llama.cpp reads of a GPT2LMHeadModel (its own test of the tokenizer aside)"""
    try:
        import gguf
    except ImportError:
        print("skipped the names of llama.cpp's converter: no package gguf")
        return
    config = transformers.AutoConfig.from_pretrained(folder + "/out_fp32").to_dict()
    keys = "architectures n_layer n_ctx n_embd n_head layer_norm_epsilon vocab_size".split()
    check(all(config.get(key) for key in keys), "llama.cpp: the keys of config.json")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, config["n_layer"])
    with safetensors.safe_open(folder + "/out_fp32/model.safetensors", framework="numpy") as file:
        unknown = [name for name in file.keys() if names.get_name(name, (".weight", ".bias")) is None]
    check(not unknown, f"llama.cpp: the names of all tensors {unknown}")
    found = gguf.SpecialVocab(folder + "/out_fp32").special_token_ids
    check(found.get("eos") == END and found.get("bos") == END, f"llama.cpp: special tokens {found}")


def check_greedy(args, folder, model):
    prompt = "The same words"
    start = torch.tensor([[END] + list(prompt.encode())])
    with torch.no_grad():
        theirs = model.generate(start, attention_mask=torch.ones_like(start), do_sample=False, max_new_tokens=60, pad_token_id=END)
    expected = theirs[0, start.shape[1]:].tolist()
    line = run(args.trainer, "generate", folder + "/a", "--prompt", prompt, "--temperature", "0", "--tokens", "60", "--json")
    found = json.loads(line)["ids"]
    check(found == expected[:expected.index(END)] if END in expected else found == expected,
          f"greedy: {len(found)} tokens are the same as model.generate's")


def main():
    p = parser(__doc__)
    p.add_argument("--trainer", default="./train_gpt2")
    args = p.parse_args()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    model = random_model()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder + "/a")
        check_losses(args, folder, model)
        check_logits(folder, model)
        check_greedy(args, folder, model)
        check_export(args, folder, model)
        check_converter(folder)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
