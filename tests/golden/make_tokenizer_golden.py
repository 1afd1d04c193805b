#!/usr/bin/env python3
"""Makes tests/golden/tokenizer/: one small tokenizer.json a style, and cases.json with the reference library's ids.

    python3 -m venv V && V/bin/pip install tokenizers && V/bin/python tests/golden/make_tokenizer_golden.py
"""
import json, os, random, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import compare_tokenizers as c

TEXTS = ["", " ", "Hello world", "  two  blanks ", "don't we'll I'M you'RE ’s", "3.14159 and 1234567 2024-01-01", "tab\tnew\n\nline\r\n end  \n",
         "naïve café cafe\u0301 A\u030a \u212b \ufb01", "日本語のテキスト。中文，한국어", "العربية हिन्दी ไทย", "😀👩‍👩‍👧‍👦🏳️‍🌈👍🏽",
         "<|endoftext|>a<|im_start|> b<s></s> <unk>", "x [MASK] y[MASKED]z the there thé", "def f(x):\n    return x**2  # ok\n", "a\u00a0b\u2003c\u3000d\u180ee\u200bf",
         "²½Ⅷ٣", "x" * 300, "\U00032295\U0001e4d0", "\u0000\u0001\u007f\u0085", "K\u017f'\u017f 'S"]
RAW = [b"\xff\xfe", b"ab\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80x", b"\xc0\x80", b"ok\x80\x80ok", b"\xf4\x90\x80\x80"]


def main():
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer")
    os.makedirs(out, exist_ok=True)
    corpus = [t for t in TEXTS if "\0" not in t] * 3 + [d.decode("utf-8", "replace")[:4000].replace("\0", "") for d in c.documents(2e5)][:40]
    rng = random.Random(3)
    texts = [t.encode() for t in TEXTS] + RAW + list(c.fuzz(56))[:56]
    texts = [t for t in texts if len(t) < 1000]
    rng.shuffle(texts)
    cases = {}
    for name, t in c.styles(corpus, vocab=700):
        t.save(os.path.join(out, name + ".json"), pretty=False)
        cases[name] = [{"hex": b.hex(), "special": s, "ids": t.encode(b.decode("utf-8", "replace"), add_special_tokens=s).ids}
                       for b in texts for s in ((False, True) if name == "llama3" else (False,))]
    with open(os.path.join(out, "cases.json"), "w") as f:
        json.dump(cases, f, separators=(",", ":"))


main()
