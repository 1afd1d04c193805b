#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden values of small Llama models from PyTorch and Transformers: llama.json and llama.safetensors.

    python3 -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python tests/golden/make_llama_golden.py [OUTPUT_FOLDER]

Needed only to make the files again; tests read the committed ones. Everything is fp32 on the CPU with one thread.

Weights and tokens come from a formula that C repeats exactly (tests/unit/model_util.h): with
    mix(z) = splitmix64's finaliser,  fnv(name) = FNV-1a 64
    u(name, i) = (mix(fnv(name) + (i + 1) * 0x9E3779B97F4A7C15) >> 40) - 2^23      an integer of [-2^23, 2^23)
element i of a tensor is
    embed_tokens            u * 2^-23
    norms                   1 + u * 2^-25      (in double, rounded to fp32)
    biases                  u * 2^-26
    other matrices          u * 2^-25
and token i of row r is mix(fnv("tokens.r") + (i + 1) * 0x9E3779B97F4A7C15) >> 33, modulo the vocabulary.

A row is a pack of documents: positions restart in each, attention is causal and stays inside (an explicit 4D mask, eager
attention), the label of a token is the next token of its document. Per case:
    <case>/logits         [3][V]  tokens 0, T/2 and T-1 of row 0
    <case>/grad/<name>    gradient of the mean loss of row 0
    <case>/final/<name>   weights after 10 AdamW steps; step s (from 0) trains on rows s mod R and (s + 1) mod R together, mean
                          over the valid targets of both, clip_grad_norm_ 1.0, decay on matrices only
and in llama.json the loss of row 0, and loss and gradient norm (before clipping) of the 10 steps.
"""
import json
import os
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

GOLDEN = 0x9E3779B97F4A7C15
STEPS = 10
OPTIM = dict(learning_rate=2e-3, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.1, max_grad_norm=1.0)

COMMON = dict(rms_norm_eps=1e-5, rope_theta=10000.0, max_position_embeddings=256,
              tie_word_embeddings=False, attention_bias=False)
CASES = {
    "h4_2": dict(COMMON, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=8, vocab_size=37),
    "h6_3_tied": dict(COMMON, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
                      num_key_value_heads=3, head_dim=6, vocab_size=41, tie_word_embeddings=True),
    "h5_1_bias": dict(COMMON, hidden_size=20, intermediate_size=40, num_hidden_layers=2, num_attention_heads=5,
                      num_key_value_heads=1, head_dim=8, vocab_size=33, attention_bias=True, rope_theta=500000.0),
    "h4_4_tied_bias": dict(COMMON, hidden_size=32, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4,
                           num_key_value_heads=4, head_dim=16, vocab_size=29, tie_word_embeddings=True,
                           attention_bias=True, rms_norm_eps=1e-6),
}
ROWS = [[1, 7, 24, 5], [53], [2, 1, 1, 30, 9, 90]]  # document lengths


def mix(z):
    z = z.astype(np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def fnv(name):
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def stream(name, n):
    i = np.arange(1, n + 1, dtype=np.uint64)
    return mix(np.uint64(fnv(name)) + i * np.uint64(GOLDEN))


def weight(name, shape):
    u = (stream(name, int(np.prod(shape))) >> np.uint64(40)).astype(np.int64) - 2**23
    u = u.astype(np.float64)
    if name.endswith("embed_tokens.weight"):
        w = u * 2.0**-23
    elif name.endswith(".bias"):
        w = u * 2.0**-26
    elif len(shape) == 1:
        w = 1 + u * 2.0**-25
    else:
        w = u * 2.0**-25
    return torch.from_numpy(w.astype(np.float32).reshape(shape))


def row(r, vocab):
    lens = ROWS[r]
    n = sum(lens)
    ids = torch.from_numpy(((stream(f"tokens.{r}", n) >> np.uint64(33)) % np.uint64(vocab)).astype(np.int64))
    doc = torch.repeat_interleave(torch.arange(len(lens)), torch.tensor(lens))
    pos = torch.cat([torch.arange(k) for k in lens])
    labels = torch.full((n,), -100)
    labels[:-1] = torch.where(doc[1:] == doc[:-1], ids[1:], -100)
    see = (doc[:, None] == doc[None, :]) & torch.ones(n, n, dtype=torch.bool).tril()
    mask = torch.zeros(n, n).masked_fill(~see, torch.finfo(torch.float32).min)
    return ids[None], pos[None], mask[None, None], labels


def forward(model, r, vocab):
    ids, pos, mask, labels = row(r, vocab)
    logits = model(input_ids=ids, position_ids=pos, attention_mask=mask, use_cache=False).logits[0].float()
    loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    return logits, loss, int((labels >= 0).sum())


def make(cfg):
    model = LlamaForCausalLM(LlamaConfig(**cfg, attn_implementation="eager"))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(weight(name, tuple(p.shape)))
    return model.float().train()


def run(case, cfg, tensors):
    model, vocab = make(cfg), cfg["vocab_size"]
    logits, loss, n = forward(model, 0, vocab)
    (loss / n).backward()
    t = logits.shape[0]
    tensors[f"{case}/logits"] = logits.detach()[[0, t // 2, t - 1]].contiguous().clone()
    for name, p in model.named_parameters():
        tensors[f"{case}/grad/{name}"] = p.grad.clone()
    out = {"config": cfg, "loss": float(loss.detach()) / n, "losses": [], "grad_norms": []}
    groups = [{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": OPTIM["weight_decay"]},
              {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=OPTIM["learning_rate"], betas=(OPTIM["beta1"], OPTIM["beta2"]),
                            eps=OPTIM["eps"], foreach=False)
    for s in range(STEPS):
        parts = [forward(model, (s + k) % len(ROWS), vocab)[1:] for k in range(2)]
        loss, n = sum(p[0] for p in parts), sum(p[1] for p in parts)
        opt.zero_grad()
        (loss / n).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIM["max_grad_norm"])
        opt.step()
        out["losses"].append(float(loss.detach()) / n)
        out["grad_norms"].append(float(norm.detach()))
    for name, p in model.named_parameters():
        tensors[f"{case}/final/{name}"] = p.detach().clone()
    return out


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tensors, cases = {}, {}
    with np.errstate(over="ignore"):
        for case, cfg in CASES.items():
            cases[case] = run(case, cfg, tensors)
    doc = {"made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
           "optimizer": OPTIM, "rows": ROWS, "cases": cases}
    save_file(tensors, os.path.join(folder, "llama.safetensors"))
    os.chmod(os.path.join(folder, "llama.safetensors"), 0o644)
    with open(os.path.join(folder, "llama.json"), "w") as f:
        json.dump(doc, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
