#!/usr/bin/env python3
"""Compare our tokenizer with the reference `tokenizers` library (PyPI), id by id and second by second.

    python3 -m venv V && V/bin/pip install tokenizers
    make build/tests/tok_dump && V/bin/python tests/golden/compare_tokenizers.py WORKDIR [MEGABYTES]

Trains one tokenizer for each style of pre-tokenizer on Debian's documentation, then encodes a mixed corpus (manual pages in
a dozen languages, message catalogues, source code, emoji, combining marks, invalid UTF-8, very long words, random strings)
with both. Exits non-zero on the first difference and prints the document around it.
"""
import glob, gzip, json, os, random, struct, subprocess, sys, time
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


def documents(limit):
    total = 0
    def read(p):
        try:
            f = gzip.open(p, "rb") if p.endswith(".gz") else open(p, "rb")
            with f:
                return f.read(1 << 20)
        except OSError:
            return b""
    groups = [glob.glob("/usr/share/man/%s*/man*/*.gz" % l) for l in ("ja", "ko", "zh", "ru", "de", "fr", "pl", "tr", "uk")]
    groups += [glob.glob("/usr/share/man/man*/*.gz"), glob.glob("/usr/share/games/fortunes/*"),
               glob.glob("/usr/lib/python3*/*.py"), glob.glob("/usr/include/**/*.h", recursive=True),
               glob.glob("/usr/share/doc/**/*.html", recursive=True), glob.glob("/usr/share/doc/**/*.gz", recursive=True)]
    groups += [glob.glob("/usr/share/locale/%s/LC_MESSAGES/*.mo" % l) for l in ("ar", "hi", "he", "th", "ta", "ja", "ko", "zh_CN", "fa", "bn", "el", "vi")]
    rng = random.Random(7)
    for g in groups:
        g.sort()
        rng.shuffle(g)
    while any(groups) and total < limit:
        for g in groups:
            if g:
                d = read(g.pop())
                total += len(d)
                if d:
                    yield d


def fuzz(n):
    rng = random.Random(11)
    alphabets = ["abcdefghijklmnopqrstuvwxyz ", "  \t\n\r\u00a0\u2003\u3000\u180e\u200b", "0123456789٠١٢²½Ⅷ", "’'s't're'VE'll'D ſK",
                 "日本語中文한국어ひらがなカタカナ", "العربية हिन्दी தமிழ் ไทย", "e\u0301a\u0308\u0323\u0307\u0345\u1100\u1161\u11a8\ufb01\u212b",
                 "😀👩‍👩‍👧‍👦🏳️‍🌈👍🏽", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "<|endoftext|><|im_start|><s></s>[MASK] ", "\x00\x01\x7f\x85\u2028"]
    for i in range(n):
        if i % 7 == 0:
            yield bytes(rng.randrange(256) for _ in range(rng.randrange(60)))
            continue
        s = "".join(rng.choice(rng.choice(alphabets)) for _ in range(rng.randrange(80)))
        b = s.encode()
        if i % 11 == 0 and len(b) > 2:
            b = b[:rng.randrange(len(b))] + bytes([rng.randrange(128, 256)]) + b[rng.randrange(len(b)):]
        yield b
    yield b"x" * 200000
    yield "長".encode() * 60000
    yield b""
    yield b" "


def byte_level_tokenizer(name, pre, norm=None, ignore_merges=False, specials=("<|endoftext|>", "<|im_start|>"), corpus=(), extra=(), vocab=6000):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if norm:
        t.normalizer = norm
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=vocab, special_tokens=list(specials), show_progress=False,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_tokens(list(extra))
    return name, t


def styles(corpus, vocab=6000):
    def byte_level(*a, **k):
        return byte_level_tokenizer(*a, vocab=vocab, **k)
    B, S, I = pre_tokenizers.ByteLevel, pre_tokenizers.Split, "isolated"
    seq = pre_tokenizers.Sequence
    yield byte_level("gpt2", B(add_prefix_space=False), corpus=corpus)
    yield byte_level("gpt2-prefix", B(add_prefix_space=True), corpus=corpus)
    name, t = byte_level("llama3", seq([S(Regex(LLAMA3), I), B(add_prefix_space=False, use_regex=False)]), ignore_merges=True, corpus=corpus)
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|endoftext|> $A", pair="<|endoftext|> $A <|endoftext|> $B:1", special_tokens=[("<|endoftext|>", t.token_to_id("<|endoftext|>"))])])
    yield name, t
    yield byte_level("qwen2", seq([S(Regex(QWEN2), I), B(add_prefix_space=False, use_regex=False)]), norm=normalizers.NFC(), corpus=corpus)
    yield byte_level("smollm", seq([pre_tokenizers.Digits(individual_digits=True), B(add_prefix_space=False)]), corpus=corpus)
    yield byte_level("deepseek", seq([S(Regex(p), I) for p in DEEPSEEK] + [B(add_prefix_space=False, use_regex=False)]), corpus=corpus)
    for b in ("removed", "merged_with_previous", "merged_with_next", "contiguous"):
        yield byte_level("split-" + b, seq([S(Regex(r"\s+|[0-9]"), b), B(add_prefix_space=False, use_regex=False)]), corpus=corpus)
    yield byte_level("split-invert", seq([S(Regex(r"\p{L}+"), "removed", invert=True), B(add_prefix_space=False, use_regex=False)]), corpus=corpus)
    yield byte_level("added", B(add_prefix_space=False), norm=normalizers.NFC(), corpus=corpus, extra=[
        AddedToken("the", single_word=True), AddedToken("é", normalized=True), AddedToken("[MASK]", lstrip=True, rstrip=True, normalized=False),
        AddedToken("[MASKED]", normalized=False), AddedToken("日本", normalized=True), AddedToken("<s>", special=True, normalized=False)])
    # SentencePiece style: no pre-tokenizer, the text as one word, byte fallback (Llama-2), and Metaspace (Mistral's newer files)
    for name, kw in (("llama2", None), ("metaspace", "first"), ("metaspace-always", "always"), ("metaspace-never", "never")):
        t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        if kw is None:
            t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        else:
            t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=kw, split=kw != "first")
        tr = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        tr.pre_tokenizer = pre_tokenizers.Metaspace()
        special = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(256)]
        tr.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False, limit_alphabet=min(400, vocab // 4)))
        j = json.loads(tr.to_str())
        mine = json.loads(t.to_str())
        mine["model"] = j["model"]
        mine["added_tokens"] = [a for a in j["added_tokens"] if a["id"] < 3]
        yield name, Tokenizer.from_str(json.dumps(mine))


def main():
    work, mb = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 50
    dump = os.environ.get("TOK_DUMP", "build/tests/tok_dump")
    os.makedirs(work, exist_ok=True)
    docs = list(documents(mb * 1e6)) + list(fuzz(40000))
    with open(work + "/docs.bin", "wb") as f:
        for d in docs:
            f.write(struct.pack("<I", len(d)) + d)
    texts = [d.decode("utf-8", "replace") for d in docs]
    corpus = [t[:20000].replace("\0", "") for t in texts[:400]]
    bad = 0
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for name, t in styles(corpus):
        t.save("%s/%s.json" % (work, name))
        for special in (0, 1) if name == "llama3" else (0,):
            r = subprocess.run([dump, "%s/%s.json" % (work, name), work + "/docs.bin", work + "/ids.bin", str(special)],
                               capture_output=True, text=True)
            if r.returncode:
                print(name, "tok_dump:", r.stderr.strip())
                bad += 1
                continue
            raw = open(work + "/ids.bin", "rb").read()
            at, t0, spent = 0, time.time(), 0.0
            for i, s in enumerate(texts):
                n = struct.unpack_from("<I", raw, at)[0]
                mine = struct.unpack_from("<%dI" % n, raw, at + 4)
                at += 4 + 4 * n
                t0 = time.time()
                ref = tuple(t.encode(s, add_special_tokens=bool(special)).ids)
                spent += time.time() - t0
                if mine != ref:
                    k = next((k for k, (a, b) in enumerate(zip(mine, ref)) if a != b), min(len(mine), len(ref)))
                    print("%s: document %d (%d bytes) differs at id %d: ours %s, reference %s\n   near %r" % (
                        name, i, len(docs[i]), k, mine[k:k + 6], ref[k:k + 6], t.decode(list(ref[max(0, k - 8):k + 8]))))
                    if len(s) < 200:
                        print("   text %r" % s)
                    bad += 1
                    break
            else:
                print("%-24s equal on %d documents, %.1f MB; ours %s; reference %.3f s (one thread)" % (
                    name + ("+special" if special else ""), len(docs), sum(map(len, docs)) / 1e6, r.stdout.strip(), spent), flush=True)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
