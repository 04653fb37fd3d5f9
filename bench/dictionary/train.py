"""Makes `v1.zdict`: python train.py OUT [--size KIB] [--words KIB] [-k N] [--seed N]

The content is a list of words that the trained part lacks, then segments that fastcover chose from texts of `corpus.py`
(the most useful last, as zstd reaches the end with the shortest offsets). The entropy tables come from other texts of the same
generator, with ids and invented words, so that they fit what the dictionary does not know.
The same seed and the same zstandard (requirements.txt) give the same bytes.
"""

import argparse

from zstandard._cffi import ffi, lib

import corpus
import vocabulary as V

DICT_ID = 0x4D494C31  # in the range for private use; payloads do not carry it


def check(n):
    if lib.ZDICT_isError(n):
        raise SystemExit(ffi.string(lib.ZDICT_getErrorName(n)).decode())
    return n


def sizes(texts):
    return ffi.new("size_t[]", [len(t) for t in texts])


def segments(texts, size, k, d=8):
    """The content that fastcover picks, without its entropy tables."""
    out = ffi.new("char[]", size)
    p = ffi.new("ZDICT_fastCover_params_t*")
    p.k, p.d, p.f, p.accel, p.splitPoint = k, d, 20, 1, 1.0
    n = check(lib.ZDICT_trainFromBuffer_fastCover(out, size, b"".join(texts), sizes(texts), len(texts), p[0]))
    full = ffi.buffer(out, n)[:]
    return full[check(lib.ZDICT_getDictHeaderSize(full, len(full))):]


def words(have, limit):
    """Frequent words of five letters and more that `have` lacks, the most frequent last."""
    ranked = {}
    for name in ("NOUNS", "VERBS", "ADJS", "ADVS", "EXTRA"):
        table = getattr(V, name)
        for i, w in enumerate(table):
            ranked[w] = min(ranked.get(w, 1.0), i / len(table))
    kept, text = [], b""
    for w in sorted(ranked, key=lambda w: (-len(w), w)):  # long words first: short ones are found inside them
        b = (" " + w).encode()
        if len(b) >= 6 and b not in have and b not in text:
            text += b
            kept.append((ranked[w], b))
    out, n = [], 0
    for _, b in sorted(kept):
        if n + len(b) > limit:
            break
        out.append(b)
        n += len(b)
    return b"".join(reversed(out))


def finalize(content, texts, level=3):
    size = len(content) + 1024
    out = ffi.new("char[]", size)
    p = ffi.new("ZDICT_params_t*")
    p.compressionLevel, p.dictID = level, DICT_ID
    n = check(lib.ZDICT_finalizeDictionary(out, size, content, len(content), b"".join(texts), sizes(texts), len(texts), p[0]))
    return ffi.buffer(out, n)[:]


def texts(seed):
    plain = [t[:8192] for t in corpus.samples(seed, 8000, focus=0.0, ids=False)]
    entropy = [t[:8192] for t in corpus.samples(seed + 1, 3000, rare=0.3, focus=1.5)]
    return plain, entropy


def build(plain, entropy, kib, words_kib, k):
    body = segments(plain, (kib - words_kib) * 1024, k)
    return finalize(words(body, min(words_kib * 1024, kib * 1024 - len(body) - 700)) + body, entropy)


if __name__ == "__main__":
    a = argparse.ArgumentParser()
    a.add_argument("out")
    a.add_argument("--size", type=int, default=16)
    a.add_argument("--words", type=int, default=6)
    a.add_argument("-k", type=int, default=400)
    a.add_argument("--seed", type=int, default=1)
    o = a.parse_args()
    d = build(*texts(o.seed), o.size, o.words, o.k)
    with open(o.out, "wb") as f:
        f.write(d)
    print(len(d), "bytes")
