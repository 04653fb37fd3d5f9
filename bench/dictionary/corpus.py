"""Composes agent transcripts from our own word lists and templates: the only input of the dictionary.

`samples(seed, count)` yields payloads as the store sees them before compression: messages as JSON in the shapes of several
vendors, state deltas in a compact binary form, marks, and a few whole states. Deterministic for a seed.
"""

import base64
import json
import random
import struct

import vocabulary as V

SLOT_CHARS = "aeiou"


def zipf_weights(words, s):
    return [1.0 / (i + 3) ** s for i in range(len(words))]


class Gen:
    def __init__(self, seed, rare=0.0, focus=1.0, ids=True):
        self.r = random.Random(seed)
        self.rare = rare  # share of words replaced by invented ones, so that letters are seen outside known words
        self.keep = focus  # how much one text keeps to its words
        self.ids = ids  # False: random ids and base64 are left empty, as a dictionary cannot use them
        self.tables = {}
        self.topic()
        for name, s in (("NOUNS", 0.75), ("VERBS", 0.8), ("ADJS", 0.75), ("ADVS", 0.9), ("IDENT", 0.6), ("DIRS", 0.7),
                        ("STEMS", 0.5), ("EXT", 0.8), ("TOOLS", 0.5), ("MODELS", 0.4), ("FIRST", 0.2), ("FOREIGN", 0.3)):
            words = getattr(V, name)
            acc, total = [], 0.0
            for w in zipf_weights(words, s):
                total += w
                acc.append(total)
            self.tables[name] = (words, acc)

    # ---- words -------------------------------------------------------------------------------------------------------------
    RECALL = {"NOUNS": 0.35, "VERBS": 0.25, "ADJS": 0.25, "ADVS": 0.1, "IDENT": 0.45, "DIRS": 0.55, "STEMS": 0.5, "EXT": 0.7, "TOOLS": 0.5, "MODELS": 0.9, "FIRST": 0.8}

    def pick(self, name):
        """A word by its frequency; one text keeps to its topic, so words used before in it are likelier."""
        said = self.said.setdefault(name, [])
        if said and self.r.random() < self.RECALL.get(name, 0.0) * self.focus:
            return said[int(len(said) * self.r.random() ** 1.5)]
        words, acc = self.tables[name]
        w = self.r.choices(words, cum_weights=acc)[0]
        said.append(w)
        return w

    def topic(self):
        self.said = {}
        self.idents = []
        self.focus = self.keep * self.r.uniform(0.6, 1.6)

    def c(self, *xs):
        return self.r.choice(xs)

    def chance(self, p):
        return self.r.random() < p

    def n(self, lo, hi):
        return self.r.randint(lo, hi)

    def invented(self):
        """A word that nobody wrote down, with the letters of English."""
        on = self.c("b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "v", "w", "st", "tr", "pr", "ch", "sh", "th", "cl",
                    "gr", "pl", "con", "re", "un", "in", "de", "ex", "sub", "inter", "over", "out", "dis", "com", "per", "pro", "k", "qu")
        mid = self.c("a", "e", "i", "o", "u", "ea", "ou", "ai", "ee", "oo", "y")
        co = self.c("n", "r", "t", "s", "l", "m", "d", "c", "nd", "st", "nt", "ck", "rt", "ss", "ll", "p", "v", "g", "rm", "x")
        end = self.c("", "", "", "e", "er", "ed", "ing", "tion", "ment", "ly", "s", "al", "ity", "able", "ous", "ive", "or", "y", "ance",
                     "ness", "ism", "ist", "ful", "ic", "ate", "ize", "ure", "age", "ary")
        w = on + mid + co + end
        return w if self.chance(0.7) else w + self.c("a", "o", "i") + self.c("n", "r", "l", "t")

    def word(self, table):
        if self.rare and self.chance(self.rare):
            return self.invented()
        return self.pick(table)

    def noun(self):
        return self.word("NOUNS")

    def plural(self):
        w = self.noun()
        if w.endswith(("s", "x", "ch", "sh")):
            return w + "es"
        if w.endswith("y") and w[-2:-1] not in SLOT_CHARS:
            return w[:-1] + "ies"
        return w + "s"

    def verb(self):
        while True:
            w = self.word("VERBS")
            if w not in ("be", "have", "do") or self.chance(0.1):
                return w

    def ing(self):
        w = self.verb()
        return (w[:-1] if w.endswith("e") and not w.endswith("ee") and len(w) > 2 else w) + "ing"

    def ed(self):
        w = self.verb()
        irregular = {"make": "made", "get": "got", "see": "seen", "run": "run", "find": "found", "take": "taken", "give": "given",
                     "write": "written", "read": "read", "keep": "kept", "build": "built", "send": "sent", "go": "gone", "do": "done",
                     "be": "been", "have": "had", "set": "set", "show": "shown", "throw": "thrown", "choose": "chosen", "put": "put",
                     "split": "split", "break": "broken", "lose": "lost", "leave": "left", "hold": "held", "bring": "brought"}
        if w in irregular:
            return irregular[w]
        if w.endswith("e"):
            return w + "d"
        if w.endswith("y") and w[-2] not in SLOT_CHARS:
            return w[:-1] + "ied"
        return w + "ed"

    def verbs(self):
        w = self.verb()
        return {"be": "is", "have": "has", "do": "does", "go": "goes"}.get(w, w + ("es" if w.endswith(("s", "x", "ch", "sh")) else "s"))

    def adj(self):
        return self.word("ADJS")

    def adv(self):
        return self.word("ADVS")

    def ident(self, style=None):
        style = style or self.c("snake", "snake", "camel", "pascal")
        if self.idents and self.chance(0.35 * self.focus):
            ws = self.r.choice(self.idents[-12:])
            return self.styled(ws, style)
        ws = [self.pick("IDENT") for _ in range(self.c(1, 2, 2, 2, 3))]
        self.idents.append(ws)
        return self.styled(ws, style)

    def styled(self, ws, style):
        if style == "snake":
            return "_".join(ws)
        if style == "camel":
            return ws[0] + "".join(w.capitalize() for w in ws[1:])
        if style == "const":
            return "_".join(ws).upper()
        return "".join(w.capitalize() for w in ws)

    def filename(self):
        if self.chance(0.15):
            return self.c("Cargo.toml", "package.json", "README.md", "Dockerfile", "pyproject.toml", "tsconfig.json", "Makefile",
                          ".gitignore", "main.py", "index.ts", "lib.rs", "main.rs", "mod.rs", "__init__.py", "package-lock.json", ".env",
                          "go.mod", "config.yaml", "docker-compose.yml", "CHANGELOG.md", "index.html", "requirements.txt", "Cargo.lock")
        stem = self.pick("STEMS") if self.chance(0.7) else self.ident("snake")
        if self.chance(0.12):
            stem = self.c("test_" + stem, stem + "_test", stem + ".test", stem + ".spec")
        return stem + "." + self.pick("EXT")

    def path(self, absolute=None):
        parts = [self.pick("DIRS") for _ in range(self.n(1, 3))] + [self.filename()]
        p = "/".join(parts)
        if absolute or (absolute is None and self.chance(0.35)):
            p = self.c("/home/user/", "/Users/" + self.pick("FIRST") + "/", "/workspace/", "/app/", "/repo/", "/tmp/", "/usr/local/",
                       "/home/" + self.pick("FIRST") + "/projects/", "/Users/" + self.pick("FIRST") + "/code/", "/var/lib/") + p
        return p

    def hex(self, k):
        return "%0*x" % (k, self.r.getrandbits(4 * k)) if self.ids else ""

    def uuid(self):
        if not self.ids:
            return ""
        h = self.hex(32)
        return f"{h[:8]}-{h[8:12]}-{self.c('4', '4', '7')}{h[13:16]}-{self.c('8', '9', 'a', 'b')}{h[17:20]}-{h[20:]}"

    def b62(self, k):
        return "".join(self.r.choices("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", k=k if self.ids else 0))

    def b64(self, k):
        return base64.b64encode(self.r.randbytes(k)).decode() if self.ids else ""

    def ts(self):
        y, mo, d, h, m, s = self.n(2024, 2027), self.n(1, 12), self.n(1, 28), self.n(0, 23), self.n(0, 59), self.n(0, 59)
        base = f"{y}-{mo:02}-{d:02}T{h:02}:{m:02}:{s:02}"
        return base + self.c("Z", "Z", f".{self.n(0, 999):03}Z", f".{self.n(0, 999):03}Z", f".{self.n(0, 999999):06}Z", "+00:00", "+02:00")

    def logts(self):
        t = self.ts()
        return self.c(t, t[:10] + " " + t[11:19], t[11:19], t[:10] + " " + t[11:19] + f",{self.n(0, 999):03}")

    def num(self):
        return self.c(self.n(0, 9), self.n(0, 9), self.n(10, 99), self.n(10, 99), self.n(100, 999), self.n(1000, 9999),
                      self.c(10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 404, 429, 500, 512, 1000, 1024, 2048, 3000, 4096, 8080, 8192))

    def version(self):
        return f"{self.n(0, 5)}.{self.n(0, 30)}.{self.n(0, 20)}"

    def person(self):
        return self.pick("FIRST").capitalize()

    # ---- prose -------------------------------------------------------------------------------------------------------------
    def np(self, depth=0):
        k = self.r.random()
        if k < 0.30:
            s = self.c("the ", "the ", "the ", "a ", "this ", "that ", "each ", "your ", "our ", "its ", "my ", "any ", "every ", "one ",
                       "another ", "some ", "their ") + self.noun()
        elif k < 0.50:
            s = self.c("the ", "the ", "a ", "this ", "an ") + self.adj() + " " + self.noun()
        elif k < 0.60:
            s = self.c("the ", "the ", "a ", "") + self.noun() + " " + self.noun()
        elif k < 0.72:
            s = self.c("the ", "", "all ", "some ", "these ", "those ", "two ", "both ", "most ", "many ", "more ", "all the ",
                       "several ", "other ", "three ", "a few ", "no ") + self.plural()
        elif k < 0.78:
            s = "the " + self.adj() + " " + self.plural()
        elif k < 0.88:
            s = self.c("`" + self.ident() + "`", "`" + self.ident() + "`", "`" + self.path() + "`", self.filename(), "`" + self.ident("snake") + "()`",
                       "the `" + self.ident() + "` " + self.c("function", "field", "method", "class", "struct", "variable", "table", "module"))
        else:
            s = self.c("it", "it", "they", "this", "that", "we", "you", "I", "everything", "something", "nothing", "what we have",
                       "what you see", "anything else", "the rest", "one of them", "all of them", "the following", "the first one")
        if depth < 2 and self.chance(0.22):
            s += self.c(" of ", " of ", " in ", " for ", " from ", " with ", " on ", " between ", " to ", " at ") + self.np(depth + 1)
        elif depth < 1 and self.chance(0.08):
            s += self.c(" that ", " which ", " that is ", " that was ", " you ", " we ", " that have been ", " who ") + self.c(self.verbs(), self.ed())
        return s

    def pp(self):
        return self.c("in ", "in ", "for ", "with ", "from ", "to ", "on ", "at ", "by ", "after ", "before ", "without ", "into ", "through ",
                      "during ", "under ", "about ", "because of ", "instead of ", "as well as ", "according to ", "between ", "against ",
                      "within ", "until ", "across ", "based on ", "outside of ", "in addition to ", "as part of ", "in case of ", "over ",
                      "in front of ", "at the end of ", "at the beginning of ", "in the middle of ", "on top of ", "next to ") + self.np(1)

    def subj(self):
        return self.c("it", "the " + self.noun(), "the " + self.adj() + " " + self.noun(), "this", "that", "the " + self.noun() + " " + self.noun(),
                      "`" + self.ident() + "`", "each " + self.noun(), "the " + self.noun(), "which", "he", "she", self.person())

    def vp(self):
        k = self.n(0, 21)
        m = self.c("should ", "can ", "will ", "would ", "could ", "must ", "might ", "may ", "does not ", "doesn't ", "can't ", "cannot ",
                   "won't ", "didn't ", "did not ", "needs to ", "has to ", "is able to ", "is going to ", "used to ", "seems to ", "tends to ")
        if k < 5:
            return m + self.verb() + " " + self.np()
        if k < 8:
            return self.verbs() + " " + self.np()
        if k < 10:
            return self.c("is ", "was ", "is not ", "isn't ", "has been ", "will be ", "should be ", "can be ", "must be ", "is always ",
                          "was never ", "is already ", "is being ", "had been ", "would be ", "is only ", "gets ") + self.ed()
        if k < 12:
            return self.c("is ", "was ", "is ", "is too ", "is very ", "looks ", "seems ", "becomes ", "remains ", "is not ", "is now ",
                          "is still ", "is more ", "was more ", "are ", "were ", "feels ") + self.adj()
        if k < 14:
            return self.c("is ", "was ", "has ", "has no ", "means ", "contains ", "includes ", "had ", "gives ", "returns ", "takes ",
                          "uses ", "needs ", "expects ", "holds ", "creates ", "depends on ", "comes from ", "leads to ", "refers to ") + self.np()
        if k < 16:
            return self.c("is ", "was ", "has been ", "should be ", "can be ", "will be ") + self.ed() + " " + self.pp()
        if k < 18:
            return self.c("is ", "was ", "keeps ", "starts ", "stops ", "is still ") + self.ing() + " " + self.np()
        if k < 20:
            return m + self.c("be ", "be ", "not be ", "have been ", "still be ", "never be ") + self.ed() + self.c("", " " + self.pp())
        return self.c("makes it ", "makes sure ", "turns out to be ", "is the reason ", "is the same as ", "is one of the ", "is used to ",
                      "is a good ", "has nothing to do with ", "is responsible for ") + self.noun()

    def clause(self):
        s = self.subj() + " " + self.vp()
        if self.chance(0.3):
            s += " " + self.pp()
        if self.chance(0.1):
            s += " " + self.adv()
        return s

    def sentence(self):
        r = self.n(0, 11)
        if r < 5:
            s = self.clause()
        elif r < 7:
            s = self.clause() + self.c(", and ", ", but ", " and ", ", so ", " because ", " when ", " if ", " while ", ", which ", " so that ",
                                      "; ", " unless ", " until ", " since ", " although ", ", or ", " as ", " before ", " after ", ": ", " — ",
                                      ", even if ", " as soon as ", " that ", " where ", ", because ") + self.clause()
        elif r < 8:
            s = self.c("if ", "when ", "since ", "because ", "after ", "while ", "before ", "once ", "although ", "unless ", "as ") + self.clause() + ", " + self.clause()
        elif r < 9:
            s = self.c("however, ", "instead, ", "for example, ", "then ", "also, ", "in this case, ", "otherwise ", "first, ", "now ", "finally, ",
                       "as a result, ", "there is ", "there are ", "note that ", "so ", "in general, ", "on the other hand, ", "for now, ",
                       "in other words, ", "in particular, ", "of course, ", "at the same time, ", "to be honest, ", "by default, ",
                       "in the meantime, ", "more importantly, ", "in practice, ", "it turns out that ") + self.clause()
        else:
            s = self.fixed()
        s = s[0].upper() + s[1:]
        return s if s[-1] in ".!?:`" else s + self.c(".", ".", ".", ".", ".", "!", "…") if not self.chance(0.04) else s + "?"

    def fixed(self):
        """Turns of phrase of agents and their users."""
        n, n2, v, f, p, i = self.noun(), self.noun(), self.verb(), self.filename(), self.path(), self.ident()
        a, pl = self.adj(), self.plural()
        return self.c(
            f"I'll start by reading the {n} in `{p}` to understand how it works.",
            f"Let me check the {n} first.",
            f"Let me look at `{f}` to see how the {n} is {self.ed()}.",
            f"Now I need to {v} the {n} so that the {pl} are {self.ed()} correctly.",
            f"I can see the problem: `{i}` {self.verbs()} the {n} before the {n2} is {self.ed()}.",
            f"I've updated `{p}` and added a test for the {a} case.",
            f"All {self.num()} tests pass now.",
            f"The tests are failing because the {n} expects {self.np()}.",
            f"Can you {v} the {n} in {f}? It should {self.verb()} the {pl}.",
            f"Could you please {v} {self.np()} and tell me what you think about it?",
            f"Please don't change the {n} yet, I want to see the {n2} first.",
            f"What is the difference between {self.np()} and {self.np()}?",
            f"How do I {v} {self.np()} {self.pp()}?",
            f"Why does `{i}` return {self.c('null', 'None', 'an empty list', 'an error', 'undefined', 'the wrong value', '0')} when the {n} is {a}?",
            f"I want to {v} {self.np()}, but I'm not sure how to {self.verb()} {self.np()}.",
            f"I would like you to {v} the {n} and make sure that {self.clause()}.",
            f"Thanks, that works! One more thing: {self.clause()}.",
            f"That's not quite right. The {n} should {v} {self.np()}.",
            f"yes, go ahead", f"ok, looks good, please continue", f"no, use the {a} {n} instead",
            f"You're right, I missed that. I'll {v} the {n} and {self.verb()} the {n2}.",
            f"Here is what I found:", f"Here's a summary of the changes:", f"There are a few options:", f"Next steps:",
            f"This looks like a {a} {n} in the {n2}.",
            f"The fix is to {v} the {n} before {self.ing()} the {n2}.",
            f"I recommend {self.ing()} {self.np()} rather than {self.ing()} {self.np()}.",
            f"In order to {v} {self.np()}, we need to {self.verb()} {self.np()}.",
            f"The reason is that {self.clause()}.",
            f"Let's {v} {self.np()} and see whether {self.clause()}.",
            f"I don't have access to the {n}, so I can't {v} it.",
            f"It's important to {v} the {pl} carefully, because {self.clause()}.",
            f"The user wants me to {v} {self.np()}. I should first {self.verb()} {self.np()}.",
            f"Wait, actually {self.clause()}. So I need to {v} it differently.",
            f"Hmm, the {n} is {self.ed()} twice. That means the {n2} isn't {self.ed()} at all.",
            f"If you'd like, I can also {v} {self.np()}.",
            f"Would you like me to {v} {self.np()}?",
            f"Do you want me to commit these changes and open a pull request?",
            f"The build succeeded with {self.num()} warnings.",
            f"We decided to {v} the {n} {self.pp()}, since {self.clause()}.",
            f"TODO: {v} {self.np()}", f"Step {self.n(1, 9)}: {v} {self.np()}",
            f"There's no {n} with that name in this {n2}.",
            f"I ran into an error while {self.ing()} the {n}: {self.errtext()}",
            f"My {n} is {a} and I have been {self.ing()} it for {self.num()} {self.c('days', 'hours', 'weeks', 'years', 'minutes')}.",
            f"Dear {self.person()}, thank you for your {n}. We will {v} it as soon as possible.",
            f"Hi {self.person()}, just a quick reminder about the {n} on {self.c('Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday', 'Sunday')}.",
            f"The total is ${self.num()}.{self.n(0, 99):02} for {self.n(2, 40)} {pl}.",
            f"In {self.n(1850, 2026)} the {n} was {self.ed()} by {self.np()}.",
            f"You are a helpful assistant that can {v} {pl} and {self.verb()} {self.np()}.",
            f"You must not {v} the {n} unless the user has asked for it.",
            f"Always {v} the {n} before you {self.verb()} the {n2}. Never {self.verb()} {self.np()}.",
        )

    def prose(self, sentences):
        out = []
        for k in range(sentences):
            out.append(self.sentence())
            if self.chance(0.12) and k + 1 < sentences:
                out[-1] += "\n\n"
        return " ".join(out).replace("\n ", "\n")

    def markdown(self):
        out = []
        for _ in range(self.n(1, 3)):
            k = self.n(0, 5)
            if k == 0:
                out.append(self.c("# ", "## ", "### ") + self.c("Summary", "Overview", "Changes", "Usage", "Installation", "Next steps", "Notes",
                           "Problem", "Solution", "Root cause", "Testing", self.noun().capitalize() + " " + self.noun()) + "\n\n" + self.prose(self.n(1, 3)))
            elif k == 1:
                out.append("\n".join(self.c("- ", "- ", "* ", "- **", "- `", "- [ ] ", "- [x] ") .replace("**", "**" + self.noun().capitalize() + "**: ")
                           .replace("`", "`" + self.ident() + "` ") + self.clause() for _ in range(self.n(2, 5))))
            elif k == 2:
                out.append("\n".join(f"{j + 1}. {self.c('**' + self.noun().capitalize() + ' ' + self.noun() + '**: ', '', '')}{self.sentence()}" for j in range(self.n(2, 5))))
            elif k == 3:
                out.append("```" + self.code_fenced() + "\n```")
            elif k == 4:
                cols = [self.noun().capitalize() for _ in range(self.n(2, 4))]
                rows = ["| " + " | ".join(cols) + " |", "|" + "---|" * len(cols)]
                rows += ["| " + " | ".join(str(self.c(self.noun(), self.num(), "`" + self.ident() + "`", "yes", "no")) for _ in cols) + " |" for _ in range(self.n(1, 4))]
                out.append("\n".join(rows))
            else:
                out.append(self.prose(self.n(1, 4)))
        return "\n\n".join(out)

    def text(self):
        k = self.r.random()
        if k < 0.25:
            return self.fixed()
        if k < 0.65:
            return self.prose(self.c(1, 1, 2, 2, 3, 4, 6))
        if k < 0.70:
            return " ".join(self.pick("FOREIGN") for _ in range(self.n(4, 25))) + "."
        if k < 0.73:
            return self.sentence() + " " + self.c("✅", "🎉", "👍", "⚠️", "❌", "✓ ", "→ ", "…", "• ", "“" + self.noun() + "”", "it’s ", "café") + " " + self.sentence()
        return self.markdown()

    # ---- code --------------------------------------------------------------------------------------------------------------
    def expr(self, style):
        i = self.ident(style)
        j = self.ident(style)
        return self.c(i, j, str(self.num()), f"{i}.{j}", f"{i}({j})", f"{i}.{j}()", f'"{self.noun()}"', f"{i}[{j}]", f"{i} + 1", f"{i}.{j}({self.ident(style)})",
                      f"len({i})" if style == "snake" else f"{i}.length", f"'{self.ident('snake')}'", f'"{self.sentence()}"' if self.chance(0.3) else f'"{self.ident("snake")}"')

    def cond(self, style):
        i = self.ident(style)
        return self.c(f"{i} == {self.expr(style)}", f"{i} != {self.expr(style)}", f"{i} > {self.num()}", f"{i} < {self.ident(style)}", f"{i} >= 0",
                      f"{i}.is_empty()" if style == "snake" else f"!{i}", f"{i} && {self.ident(style)}")

    def py(self):
        s, P = "snake", self.ident("pascal")
        f, x, y = self.ident(s), self.ident(s), self.ident(s)
        t = self.c("str", "int", "list[str]", "dict[str, Any]", "bool", "None", "Optional[str]", "float", P, "bytes", "Path")
        return self.c(
            f"def {f}({x}: {t}, {y}={self.c('None', 'True', 'False', '0', '[]')}) -> {t}:\n    \"\"\"{self.sentence()}\"\"\"\n    if {x} is None:\n        return {self.c('None', 'False', '[]', '{}')}\n    for {y} in {self.expr(s)}:\n        if {y} not in {x}:\n            {x}.append({y})\n    return {self.expr(s)}",
            f"class {P}({self.c('', 'object', 'BaseModel', 'Exception', self.ident('pascal'))}):\n    def __init__(self, {x}, {y}=None):\n        self.{x} = {x}\n        self.{y} = {y} or {{}}\n\n    def {f}(self):\n        return self.{x}.{self.ident(s)}({self.expr(s)})",
            f"import {self.c('os', 'sys', 'json', 're', 'logging', 'time', 'asyncio', 'datetime', 'pathlib', 'typing')}\nfrom {self.c('typing', 'pathlib', 'datetime', 'collections', 'dataclasses', 'app.' + x, '.' + x)} import {self.c('Path', 'Optional', 'Any', 'dataclass', 'datetime', 'defaultdict', P)}",
            f"    try:\n        {x} = {self.expr(s)}\n    except {self.c('ValueError', 'KeyError', 'Exception', 'FileNotFoundError', 'TypeError', 'RuntimeError')} as e:\n        logger.error(f\"Failed to {self.verb()} {{{x}}}: {{e}}\")\n        raise",
            f"with open({self.c(x, repr(self.filename()))}, \"{self.c('r', 'w', 'rb', 'a')}\") as f:\n    {y} = {self.c('json.load(f)', 'f.read()', 'f.readlines()')}",
            f"def test_{f}():\n    {x} = {P}({self.expr(s)})\n    assert {x}.{y} == {self.expr(s)}",
            f"async def {f}(self, {x}: {t}):\n    {y} = await self.{self.ident(s)}({x})\n    return {{\"{x}\": {y}, \"status\": \"ok\"}}",
            f"@{self.c('property', 'staticmethod', 'pytest.fixture', 'app.get(' + repr('/' + x) + ')', 'dataclass', 'app.route(' + repr('/api/' + x) + ')')}\ndef {f}({self.c('self', '', x)}):\n    return [{y}.{self.ident(s)} for {y} in {x} if {y}]",
            f"if __name__ == \"__main__\":\n    parser = argparse.ArgumentParser()\n    parser.add_argument(\"--{x}\", default={self.num()}, help=\"{self.clause()}\")\n    main(parser.parse_args())",
            f"    # {self.clause()}\n    self.{x} = {self.expr(s)}\n    print({self.expr(s)})",
        )

    def rust(self):
        s, P = "snake", self.ident("pascal")
        f, x, y = self.ident(s), self.ident(s), self.ident(s)
        t = self.c("String", "&str", "u64", "usize", "Vec<u8>", "Option<String>", "bool", "i64", "&[u8]", P, "Vec<String>", "HashMap<String, Value>", "Arc<Mutex<" + P + ">>")
        return self.c(
            f"pub fn {f}(&self, {x}: {t}) -> Result<{t}, {self.c('Error', 'anyhow::Error', 'StoreError', 'io::Error')}> {{\n    let {y} = self.{self.ident(s)}({x})?;\n    Ok({y})\n}}",
            f"#[derive(Debug, Clone{self.c('', ', PartialEq', ', Serialize, Deserialize', ', Default', ', Copy, Eq')})]\npub struct {P} {{\n    pub {x}: {t},\n    {y}: {t},\n}}",
            f"impl {self.c('Default for ', 'Display for ', 'From<Error> for ', 'Iterator for ', '')}{P} {{\n    pub fn new({x}: {t}) -> Self {{\n        Self {{ {x}, {y}: {self.c('Vec::new()', 'None', '0', 'String::new()', 'Default::default()')} }}\n    }}\n}}",
            f"use {self.c('std::collections::HashMap', 'std::sync::Arc', 'std::path::PathBuf', 'serde::{Deserialize, Serialize}', 'tokio::sync::mpsc', 'std::io::{self, Read, Write}', 'crate::' + x + '::' + P, 'super::*', 'anyhow::Result')};",
            f"    match {self.expr(s)} {{\n        Some({x}) => {self.expr(s)},\n        None => return Err({P}::{self.ident('pascal')}({y})),\n    }}",
            f"    let mut {x} = {self.c('Vec::new()', 'HashMap::new()', 'String::with_capacity(' + str(self.num()) + ')', '0usize', self.expr(s))};\n    for {y} in {self.expr(s)}.iter() {{\n        if {self.cond(s)} {{\n            {x}.push({y}.clone());\n        }}\n    }}",
            f"#[test]\nfn {f}() {{\n    let {x} = {P}::new({self.expr(s)});\n    assert_eq!({x}.{y}(), {self.expr(s)});\n}}",
            f"    /// {self.sentence()}\n    pub async fn {f}(&mut self) -> Result<()> {{\n        self.{x}.{y}().await?;\n        Ok(())\n    }}",
            f"    .map(|{x}| {x}.{y}.to_string())\n    .collect::<Vec<_>>()", f"    if let Some({x}) = self.{y}.get(&{x}) {{\n        return Ok({x}.clone());\n    }}",
            f"enum {P} {{\n    {self.ident('pascal')},\n    {self.ident('pascal')}({t}),\n    {self.ident('pascal')} {{ {x}: {t} }},\n}}",
        )

    def ts_code(self):
        s, P = "camel", self.ident("pascal")
        f, x, y = self.ident(s), self.ident(s), self.ident(s)
        t = self.c("string", "number", "boolean", "string[]", "Promise<void>", P, "any", "Record<string, unknown>", "string | null", "Promise<" + P + ">")
        return self.c(
            f"export {self.c('async ', '', 'default ')}function {f}({x}: {t}, {y}?: {t}): {t} {{\n  const {self.ident(s)} = await {self.expr(s)};\n  if (!{x}) {{\n    throw new Error('{self.clause()}');\n  }}\n  return {self.expr(s)};\n}}",
            f"export interface {P} {{\n  {x}: {t};\n  {y}?: {t};\n  id: string;\n  createdAt: {self.c('Date', 'string', 'number')};\n}}",
            f"import {{ {P}{self.c('', ', ' + f)} }} from '{self.c('./', '../', '@/components/', '@/lib/', 'react', '../')}{x}';",
            f"const [{x}, set{x[0].upper() + x[1:]}] = useState{self.c('', '<' + t + '>')}({self.c('null', '[]', 'false', chr(39) * 2, '0')});\n\n  useEffect(() => {{\n    {f}();\n  }}, [{x}]);",
            f"const {x} = {y}.{self.c('map', 'filter', 'find', 'forEach', 'reduce', 'some')}(({self.ident(s)}) => {self.expr(s)});",
            f"  try {{\n    const response = await fetch(`/api/{x}/${{{y}}}`, {{\n      method: '{self.c('POST', 'GET', 'PUT', 'DELETE')}',\n      headers: {{ 'Content-Type': 'application/json' }},\n      body: JSON.stringify({{ {x} }}),\n    }});\n    return await response.json();\n  }} catch (error) {{\n    console.error('Failed to {self.verb()} {self.noun()}:', error);\n  }}",
            f"describe('{P}', () => {{\n  it('should {self.verb()} {self.np()}', async () => {{\n    const {x} = {f}({self.expr(s)});\n    expect({x}).to{self.c('Be', 'Equal', 'HaveLength', 'BeDefined', 'BeNull')}({self.expr(s)});\n  }});\n}});",
            f"    <div className=\"{self.c('flex items-center', 'container', 'mt-4', self.ident('snake').replace('_', '-'))}\">\n      <{P} {x}={{{y}}} onClick={{() => {f}({y})}} />\n      <p>{self.clause()}</p>\n    </div>",
            f"router.{self.c('get', 'post', 'put', 'delete')}('/{x}/:id', async (req, res) => {{\n  const {{ {y} }} = req.body;\n  const {x} = await {self.expr(s)};\n  res.status({self.c(200, 201, 400, 404, 500)}).json({{ {x} }});\n}});",
            f"module.exports = {{ {f}, {x} }};", f"export const {self.ident('const')} = {self.num()};", f"  // {self.clause()}\n  this.{x} = {self.expr(s)};",
        )

    def other(self):
        s = "snake"
        x, y, P, f = self.ident(s), self.ident(s), self.ident("pascal"), self.ident("camel")
        return self.c(
            f"func ({x[0]} *{P}) {self.ident('pascal')}(ctx context.Context, {f} string) (*{P}, error) {{\n\t{f}, err := {x[0]}.{f}(ctx)\n\tif err != nil {{\n\t\treturn nil, fmt.Errorf(\"failed to {self.verb()} {self.noun()}: %w\", err)\n\t}}\n\treturn {f}, nil\n}}",
            f"package {x}\n\nimport (\n\t\"context\"\n\t\"fmt\"\n\t\"{self.c('net/http', 'time', 'errors', 'strings', 'encoding/json', 'os')}\"\n)\n\ntype {P} struct {{\n\tID   string `json:\"id\"`\n\tName string `json:\"{x}\"`\n}}",
            f"public class {P} extends {self.ident('pascal')} {{\n    private final String {f};\n\n    @Override\n    public {self.c('void', 'String', 'int', 'boolean')} {self.ident('camel')}(String {f}) throws IOException {{\n        this.{f} = {self.expr('camel')};\n        return {self.expr('camel')};\n    }}\n}}",
            f"SELECT {x}, {y}, COUNT(*) FROM {self.ident(s)}s WHERE {x} = {self.c('?', '$1', chr(39) + self.noun() + chr(39), self.num())} AND {y} IS NOT NULL ORDER BY created_at DESC LIMIT {self.num()};",
            f"CREATE TABLE IF NOT EXISTS {x}s (\n    id {self.c('INTEGER PRIMARY KEY', 'BIGSERIAL PRIMARY KEY', 'UUID PRIMARY KEY', 'TEXT PRIMARY KEY')},\n    {y} TEXT NOT NULL,\n    {x} INTEGER DEFAULT 0,\n    created_at TIMESTAMP NOT NULL DEFAULT now()\n);\nCREATE INDEX idx_{x}_{y} ON {x}s ({y});",
            f"INSERT INTO {x} ({y}, name) VALUES ('{self.noun()}', {self.num()});\nUPDATE {x} SET {y} = {self.num()} WHERE id = {self.num()};",
            f"static int {x}(const char *{y}, size_t len)\n{{\n    if ({y} == NULL) {{\n        return -1;\n    }}\n    for (int i = 0; i < len; i++) {{\n        {x}[i] = {y}[i];\n    }}\n    return 0;\n}}",
            f"#include <{self.c('stdio.h', 'stdlib.h', 'string.h', 'vector', 'iostream', 'memory')}>\n#define {self.ident('const')} {self.num()}\n\nstd::string {P}::{f}(const std::vector<int>& {x}) {{\n    return {self.expr('snake')};\n}}",
            f"#!/bin/bash\nset -euo pipefail\n\n{self.ident('const')}=\"${{1:-{self.noun()}}}\"\nif [ ! -f \"${self.ident('const')}\" ]; then\n  echo \"{self.clause()}\" >&2\n  exit 1\nfi\nfor f in $(find . -name \"*.{self.pick('EXT')}\"); do\n  {self.shellcmd()}\ndone",
            f"version: '3'\nservices:\n  {x}:\n    image: {self.noun()}:{self.version()}\n    ports:\n      - \"{self.num()}:{self.num()}\"\n    environment:\n      - {self.ident('const')}={self.num()}\n    depends_on:\n      - {y}",
            f"name: CI\non:\n  push:\n    branches: [main]\njobs:\n  build:\n    runs-on: ubuntu-latest\n    steps:\n      - uses: actions/checkout@v4\n      - name: {self.verb().capitalize()} {self.noun()}\n        run: {self.shellcmd()}",
            f"[package]\nname = \"{x.replace('_', '-')}\"\nversion = \"{self.version()}\"\nedition = \"2021\"\n\n[dependencies]\n{y.replace('_', '-')} = {{ version = \"{self.n(0, 4)}\", features = [\"{self.noun()}\"] }}\nserde = \"1\"\ntokio = \"1\"",
            "{\n  \"name\": \"" + x + "\",\n  \"version\": \"" + self.version() + "\",\n  \"scripts\": {\n    \"build\": \"tsc\",\n    \"test\": \"jest\"\n  },\n  \"dependencies\": {\n    \"" + y + "\": \"^" + self.version() + "\"\n  }\n}",
            f"<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n  <meta charset=\"utf-8\">\n  <title>{self.noun().capitalize()}</title>\n  <link rel=\"stylesheet\" href=\"/{self.noun()}.css\">\n</head>\n<body>\n  <h1>{self.clause()}</h1>\n  <a href=\"https://{self.noun()}.{self.c('com', 'org', 'io', 'dev')}/{self.noun()}\">{self.noun()}</a>\n</body>\n</html>",
            f".{x.replace('_', '-')} {{\n  display: flex;\n  margin: 0 auto;\n  padding: {self.num()}px;\n  color: #{self.hex(6)};\n  background-color: #{self.hex(3)};\n  font-size: {self.n(8, 40)}px;\n}}",
            f"FROM {self.c('python', 'node', 'rust', 'golang', 'alpine')}:{self.version()}\nWORKDIR /app\nCOPY . .\nRUN {self.shellcmd()}\nEXPOSE 8080\nCMD [\"{self.noun()}\"]",
        )

    def code(self, lang=None):
        f = {"python": self.py, "rust": self.rust, "typescript": self.ts_code, "": self.other}[lang if lang is not None else self.c("python", "python", "rust", "typescript", "typescript", "", "")]
        return f() if self.chance(0.6) else f() + "\n\n" + f()

    def code_fenced(self):
        lang = self.c("python", "rust", "typescript", "")
        if lang == "" and self.chance(0.5):
            return self.c("bash", "sh") + "\n" + self.shellcmd()
        return lang + "\n" + self.code(lang)

    # ---- shell -------------------------------------------------------------------------------------------------------------
    def shellcmd(self):
        p, q = self.path(), self.path()
        return self.c(
            f"cd {p.rsplit('/', 1)[0]} && {self.c('ls -la', 'git status', 'npm test', 'cargo build', 'make', 'npm install', 'pytest -q')}",
            f"git {self.c('status', 'diff', 'log --oneline -' + str(self.n(3, 20)), 'add -A', 'diff --stat', 'checkout -b ' + self.noun() + '/' + self.noun(), 'push origin main', 'show ' + self.hex(7), 'stash', 'branch -a')}",
            f"git commit -m \"{self.c('fix', 'feat', 'docs', 'refactor', 'chore', 'test')}: {self.verb()} {self.np()}\"",
            f"grep -rn \"{self.ident()}\" {p} --include=*.{self.pick('EXT')} | head -{self.n(5, 50)}", f"rg -n '{self.ident()}' {p}",
            f"cat {p}", f"sed -n '{self.num()},{self.num()}p' {p}", f"cat {p} | head -{self.n(10, 100)}", f"ls -la {p.rsplit('/', 1)[0]}",
            f"find . -name \"*.{self.pick('EXT')}\" -not -path \"*/node_modules/*\" | head -{self.n(5, 50)}",
            f"cargo {self.c('test', 'build --release', 'check', 'clippy --all-targets -- -D warnings', 'fmt', 'run', 'test --workspace', 'test -p ' + self.noun())} 2>&1 | tail -{self.n(5, 40)}",
            f"npm {self.c('install', 'test', 'run build', 'run lint', 'run dev', 'ci')}", f"npx {self.c('tsc --noEmit', 'jest', 'eslint .', 'vitest run')} {p}",
            f"python {self.c('-m pytest', '-m pytest -xvs', '-m pip install', '')} {p}", f"pip install -r requirements.txt", f"go test ./... -run {self.ident('pascal')}",
            f"docker {self.c('ps', 'build -t ' + self.noun() + ' .', 'compose up -d', 'logs ' + self.noun())}", f"kubectl get pods -n {self.noun()}",
            f"curl -s -X POST http://localhost:{self.num()}/api/{self.noun()} -H \"Content-Type: application/json\" -d '{{\"{self.ident()}\": {self.num()}}}'",
            f"mkdir -p {p.rsplit('/', 1)[0]} && cp {p} {q}", f"rm -rf {p}", f"mv {p} {q}", f"wc -l {p}", f"sqlite3 {p} \"SELECT * FROM {self.noun()}\"",
            f"psql -c \"SELECT count(*) FROM {self.ident('snake')}\"", f"ps aux | grep {self.noun()}", f"export {self.ident('const')}={self.noun()}", f"make {self.noun()}",
            f"timeout {self.num()} ./{p}", f"tail -n {self.num()} {p}", f"chmod +x {p}", f"which {self.noun()}",
        )

    def errtext(self):
        i = self.ident()
        return self.c(
            f"TypeError: Cannot read properties of undefined (reading '{self.ident('camel')}')", f"KeyError: '{self.ident('snake')}'",
            f"error[E0{self.n(100, 799)}]: mismatched types", f"error: cannot find value `{i}` in this scope", f"ModuleNotFoundError: No module named '{self.ident('snake')}'",
            f"FileNotFoundError: [Errno 2] No such file or directory: '{self.path()}'", f"ValueError: invalid literal for int() with base 10: '{self.noun()}'",
            f"AttributeError: '{self.ident('pascal')}' object has no attribute '{self.ident('snake')}'", f"connection refused: 127.0.0.1:{self.num()}",
            f"bash: {self.noun()}: command not found", f"Error: ENOENT: no such file or directory, open '{self.path(True)}'", f"permission denied: {self.path(True)}",
            f"AssertionError: assert {self.num()} == {self.num()}", f"timeout: the {self.noun()} did not respond within {self.num()} ms", f"HTTP {self.c(400, 401, 403, 404, 409, 422, 429, 500, 502, 503)}: {self.clause()}",
            f"thread 'main' panicked at {self.path(False)}:{self.num()}:{self.n(1, 80)}:", f"error TS{self.n(1000, 9999)}: Property '{i}' does not exist on type '{self.ident('pascal')}'.",
            f"warning: unused variable: `{i}`", f"rate limit reached, retry after {self.n(1, 600)} seconds", f"SyntaxError: Unexpected token '{self.c('<', '}', ',', ')')}'",
        )

    def shellout(self):
        k = self.n(0, 18)
        rep = lambda lo, hi, f: "\n".join(f() for _ in range(self.n(lo, hi)))
        mon = lambda: self.c("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
        if k == 0:
            u = self.c("root", "user", self.pick("FIRST"))
            return "total " + str(self.num()) + "\n" + rep(2, 9, lambda: f"{self.c('-rw-r--r--', '-rw-r--r--', 'drwxr-xr-x', '-rwxr-xr-x')}  {self.n(1, 12)} {u} {self.c(u, 'staff')} {self.n(10, 99999):>6} {mon()} {self.n(1, 28):>2} {self.n(0, 23):02}:{self.n(0, 59):02} {self.filename()}")
        if k == 1:
            return rep(2, 10, lambda: f"{self.hex(7)} {self.c('', 'fix: ', 'feat: ', 'docs: ', 'refactor: ', 'chore: ', 'test: ', 'Merge pull request #' + str(self.num()) + ' from ')}{self.verb()} {self.np(1)}")
        if k == 2:
            return f"On branch {self.c('main', 'master', 'feature/' + self.noun())}\nYour branch is up to date with 'origin/main'.\n\nChanges not staged for commit:\n  (use \"git add <file>...\" to update what will be committed)\n" + rep(1, 5, lambda: f"\t{self.c('modified:   ', 'modified:   ', 'new file:   ', 'deleted:    ')}{self.path(False)}") + "\n\nno changes added to commit"
        if k == 3:
            p, i, j = self.path(False), self.num(), self.num()
            lines = self.code().split("\n")
            return f"diff --git a/{p} b/{p}\nindex {self.hex(7)}..{self.hex(7)} 100644\n--- a/{p}\n+++ b/{p}\n@@ -{i},{self.n(3, 20)} +{j},{self.n(3, 20)} @@ {lines[0]}\n" + "\n".join(self.c(" ", " ", "+", "-") + x for x in lines)
        if k == 4:
            return rep(1, 9, lambda: f"{self.path(False)}:{self.num()}:{self.c('', '    ', '  ')}{self.r.choice(self.code().split(chr(10))).strip()}")
        if k == 5:
            a = self.n(1, 400)
            return "\n".join(f"{a + j:>6}{self.c('→', chr(9))}{x}" for j, x in enumerate((self.code() + "\n" + self.code()).split("\n")))
        if k == 6:
            return rep(1, 3, lambda: f"   Compiling {self.ident('snake')} v{self.version()} ({self.path(True).rsplit('/', 1)[0]})") + f"\n{self.errtext()}\n  --> {self.path(False)}:{self.num()}:{self.n(1, 80)}\n   |\n{self.num()} |     {self.r.choice(self.rust().split(chr(10))).strip()}\n   |         ^^^^^^^^ {self.clause()}\n   |\n   = note: {self.clause()}\n\nerror: could not compile `{self.ident('snake')}` due to {self.n(2, 9)} previous errors"
        if k == 7:
            return f"running {self.num()} tests\n" + rep(2, 8, lambda: f"test {self.ident('snake')}::tests::{self.ident('snake')} ... {self.c('ok', 'ok', 'ok', 'FAILED', 'ignored')}") + f"\n\ntest result: ok. {self.num()} passed; {self.n(0, 3)} failed; 0 ignored; 0 measured; 0 filtered out; finished in {self.n(0, 9)}.{self.n(0, 99):02}s\n"
        if k == 8:
            return f"============================= test session starts ==============================\nplatform linux -- Python 3.{self.n(8, 13)}.{self.n(0, 9)}, pytest-{self.version()}\nrootdir: {self.path(True).rsplit('/', 1)[0]}\ncollected {self.num()} items\n\n" + rep(1, 5, lambda: f"tests/test_{self.ident('snake')}.py::test_{self.ident('snake')} {self.c('PASSED', 'PASSED', 'FAILED')} [{self.n(1, 100):>3}%]") + f"\n\n========================= {self.num()} passed, {self.n(0, 9)} failed in {self.n(0, 90)}.{self.n(0, 99):02}s ========================="
        if k == 9:
            return "Traceback (most recent call last):\n" + rep(1, 5, lambda: f"  File \"{self.path(True)}\", line {self.num()}, in {self.c('<module>', self.ident('snake'))}\n    {self.r.choice(self.py().split(chr(10))).strip()}") + "\n" + self.errtext()
        if k == 10:
            return self.errtext() + "\n" + rep(2, 6, lambda: f"    at {self.c('', 'async ', 'Object.')}{self.ident('camel')} ({self.path(True)}:{self.num()}:{self.n(1, 90)})")
        if k == 11:
            return rep(2, 8, lambda: f"{self.logts()} {self.c('', '[', '')}{self.c('INFO', 'INFO', 'WARN', 'ERROR', 'DEBUG')}{self.c('', ']', ' ')} {self.c(self.ident('snake'), self.ident('snake') + ':', self.ident('snake') + '::' + self.ident('snake') + ':')} {self.clause()} {self.ident('snake')}={self.c(self.num(), self.noun())}")
        if k == 12:
            return rep(3, 14, lambda: self.c("./", "", "")+ self.path(False))
        if k == 13:
            return f"added {self.num()} packages, and audited {self.num()} packages in {self.n(1, 60)}s\n\n{self.num()} packages are looking for funding\n  run `npm fund` for details\n\nfound {self.n(0, 9)} vulnerabilities"
        if k == 14:
            return ",".join(self.ident("snake") for _ in range(4)) + "\n" + rep(2, 8, lambda: f"{self.num()},{self.noun()},{self.n(0, 999)}.{self.n(0, 99):02},{self.ts()[:10]}")
        if k == 15:
            return self.c("", "(no output)", "ok", "Done.", f"{self.num()}", f"{self.num()} {self.path()}", "File updated successfully.", f"Found {self.num()} files", "No matches found", "exit code 1", self.errtext())
        if k == 16:
            return json.dumps(self.apidoc(), indent=2)
        if k == 17:
            return f"HTTP/1.1 {self.c('200 OK', '404 Not Found', '201 Created', '500 Internal Server Error')}\nContent-Type: application/json; charset=utf-8\nContent-Length: {self.num()}\nDate: {self.c('Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun')}, {self.n(1, 28):02} {mon()} {self.n(2024, 2027)} {self.n(0, 23):02}:{self.n(0, 59):02}:{self.n(0, 59):02} GMT\n\n" + json.dumps(self.apidoc())
        return self.code()

    def apidoc(self, depth=0):
        style = self.c("snake", "camel")
        d = {}
        if self.chance(0.6):
            d["id"] = self.c(self.num(), self.uuid(), self.noun() + "_" + self.b62(10))
        for _ in range(self.n(2, 6)):
            k = self.c(self.ident(style), self.ident(style), self.c("name", "status", "type", "title", "description", "url", "email", "count", "total",
                       "message", "error", "created_at", "updatedAt", "results", "items", "data", "success", "limit", "tags", "path", "value"))
            d[k] = self.c(self.num(), self.noun(), self.c(True, False), None, self.clause(), self.ts(), self.path(), [self.noun() for _ in range(self.n(0, 4))],
                          f"https://{self.c('api.', 'www.', '')}{self.noun()}.{self.c('com', 'org', 'io', 'dev')}/{self.noun()}/{self.num()}", f"{self.pick('FIRST')}@{self.noun()}.com",
                          self.r.random() * 100 if self.chance(0.5) else round(self.r.random() * 100, 2),
                          [self.apidoc(depth + 1) for _ in range(self.n(1, 3))] if depth < 1 else self.num(), self.apidoc(depth + 1) if depth < 2 else {})
        return d

    # ---- messages ----------------------------------------------------------------------------------------------------------
    def toolinput(self, name=None):
        p = self.path(True)
        return self.c(
            {"command": self.shellcmd(), "description": f"{self.verb().capitalize()} {self.np(1)}"}, {"command": self.shellcmd()}, {"command": self.shellcmd(), "timeout": self.num() * 1000},
            {"file_path": p}, {"file_path": p, "offset": self.num(), "limit": self.num()}, {"file_path": p, "old_string": self.code(), "new_string": self.code()},
            {"file_path": p, "old_string": self.py(), "new_string": self.py(), "replace_all": False}, {"file_path": p, "content": self.code() + "\n\n" + self.code()},
            {"pattern": self.ident(), "path": p, "output_mode": self.c("content", "files_with_matches"), "-n": True}, {"pattern": "**/*." + self.pick("EXT")}, {"path": p},
            {"query": self.clause()}, {"url": f"https://{self.noun()}.{self.c('com', 'org', 'dev')}/{self.noun()}", "prompt": self.sentence()},
            {"todos": [{"content": f"{self.verb().capitalize()} {self.np(1)}", "status": self.c("pending", "in_progress", "completed"), "activeForm": f"{self.ing().capitalize()} {self.np(1)}"} for _ in range(self.n(2, 5))]},
            {"description": f"{self.verb()} {self.noun()}", "prompt": self.prose(3), "subagent_type": "general-purpose"}, {"location": self.noun().capitalize(), "unit": "celsius"},
            {"cmd": ["bash", "-lc", self.shellcmd()], "workdir": p}, {"sessionId": self.uuid(), "description": self.clause()}, self.apidoc(1), {"sql": self.other()}, {"code": self.code()},
            {"session_id": self.uuid(), "checkpoint_id": self.uuid(), "limit": self.num()},
        )

    def usage(self):
        return {"input_tokens": self.num(), "cache_creation_input_tokens": self.num(), "cache_read_input_tokens": self.n(0, 99999), "output_tokens": self.num(), **self.c({}, {"service_tier": "standard"})}

    def tuid(self):
        return "toolu_01" + self.b62(22)

    def callid(self):
        return "call_" + self.b62(24)

    def blocks_assistant(self):
        out = []
        if self.chance(0.2):
            out.append({"type": "thinking", "thinking": self.prose(self.n(1, 6)), **self.c({}, {"signature": self.b64(self.n(30, 60))})})
        if self.chance(0.7) or not out:
            out.append({"type": "text", "text": self.text()})
        for _ in range(self.c(0, 1, 1, 1, 2)):
            out.append({"type": "tool_use", "id": self.tuid(), "name": self.pick("TOOLS"), "input": self.toolinput()})
        return out

    def blocks_result(self):
        out = []
        for _ in range(self.c(1, 1, 1, 2)):
            t = self.shellout()
            b = {"type": "tool_result", "tool_use_id": self.tuid(), "content": self.c(t, t, [{"type": "text", "text": t}])}
            if self.chance(0.15):
                b = {"tool_use_id": b["tool_use_id"], "type": "tool_result", "content": b["content"], "is_error": self.c(True, False)}
            out.append(b)
        return out

    def message(self):
        k = self.r.random()
        if k < 0.22:
            m = {"role": "user", "content": self.text()}
        elif k < 0.40:
            m = {"role": "assistant", "content": self.text()}
        elif k < 0.52:
            m = {"role": "assistant", "content": self.blocks_assistant()}
        elif k < 0.64:
            m = {"role": "user", "content": self.blocks_result()}
        elif k < 0.67:
            m = {"role": "user", "content": [{"type": "text", "text": self.text()}]}
            if self.chance(0.3):
                m["content"].append({"type": "image", "source": {"type": "base64", "media_type": self.c("image/png", "image/jpeg"), "data": "iVBORw0KGgo" + self.b64(self.n(40, 90))}})
        elif k < 0.73:
            m = {"role": "assistant", "content": self.c(None, "", self.text()), "tool_calls": [{"id": self.callid(), "type": "function", "function": {"name": self.pick("TOOLS"), "arguments": json.dumps(self.toolinput())}} for _ in range(self.c(1, 1, 2))]}
        elif k < 0.78:
            m = {"role": "tool", "tool_call_id": self.callid(), "content": self.c(self.shellout(), json.dumps(self.apidoc()))}
        elif k < 0.80:
            m = {"role": "system", "content": self.prose(self.n(2, 6))}
        elif k < 0.84:
            m = self.c({"type": "function_call", "name": self.pick("TOOLS"), "arguments": json.dumps(self.toolinput()), "call_id": self.callid()},
                       {"type": "function_call_output", "call_id": self.callid(), "output": self.shellout()},
                       {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": self.text(), "annotations": []}]},
                       {"type": "message", "role": "user", "content": [{"type": "input_text", "text": self.text()}]},
                       {"type": "reasoning", "summary": [{"type": "summary_text", "text": self.prose(2)}], "encrypted_content": None},
                       {"timestamp": self.ts(), "type": "response_item", "payload": {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": self.text()}]}},
                       {"timestamp": self.ts(), "type": "event_msg", "payload": {"type": "token_count", "info": {"total_token_usage": {"input_tokens": self.num(), "cached_input_tokens": self.num(), "output_tokens": self.num(), "reasoning_output_tokens": self.num(), "total_tokens": self.num()}}}})
        elif k < 0.88:
            u = self.uuid()
            head = {"parentUuid": self.c(u, None), "isSidechain": False, "userType": "external", "cwd": self.path(True).rsplit("/", 1)[0], "sessionId": self.uuid(), "version": self.version(), "gitBranch": self.c("main", "master", "")}
            if self.chance(0.5):
                m = {**head, "type": "user", "message": {"role": "user", "content": self.c(self.text(), self.blocks_result())}, "uuid": self.uuid(), "timestamp": self.ts()}
            else:
                m = {**head, "message": {"id": "msg_01" + self.b62(22), "type": "message", "role": "assistant", "model": self.pick("MODELS"), "content": self.blocks_assistant(), "stop_reason": self.c("tool_use", "end_turn", None), "stop_sequence": None, "usage": self.usage()}, "requestId": "req_01" + self.b62(22), "type": "assistant", "uuid": self.uuid(), "timestamp": self.ts()}
        elif k < 0.96:
            m = {"role": self.c("user", "assistant", "assistant", "system", "tool"), "content": self.text(), "timestamp": self.ts()}
            if self.chance(0.4):
                m["toolCalls"] = [{"id": self.callid(), "name": self.pick("TOOLS"), "arguments": self.toolinput()}]
            if self.chance(0.2):
                m["toolResults"] = [{"id": self.callid(), "name": self.pick("TOOLS"), "output": self.shellout()}]
            if self.chance(0.3):
                m["metadata"] = {"phase": self.n(1, 5), "step": self.noun(), "type": self.c("protocol", "log", "error")}
            if self.chance(0.2):
                m["tokens"] = self.num()
            if self.chance(0.2):
                m = {"id": self.uuid(), **m}
        else:
            m = {"role": "model", "parts": [self.c({"text": self.text()}, {"functionCall": {"name": self.pick("TOOLS"), "args": self.toolinput()}}, {"functionResponse": {"name": self.pick("TOOLS"), "response": {"output": self.shellout()}}})]}
        return m

    # ---- state -------------------------------------------------------------------------------------------------------------
    def section(self, name):
        g = self
        steps = lambda: [{"id": f"step-{j + 1}", "description": f"{g.verb().capitalize()} {g.np(1)}", "action": g.c(g.pick("TOOLS"), g.verb()), "parameters": g.toolinput(), "status": g.c("pending", "running", "completed", "failed"), "dependencies": []} for j in range(g.n(2, 6))]
        return {
            "context": lambda: {"sessionId": g.uuid(), "workspaceId": g.noun(), "projectId": g.noun() + "-" + g.hex(6), "projectName": g.noun().capitalize() + " " + g.noun(), "taskId": g.uuid(), "agentType": g.c("dev-task", "pm-feature", "qa-task", "harness", "coder", "reviewer", "planner", "researcher"), "systemPrompt": g.prose(g.n(2, 5)), "role": g.noun(), "instructions": [g.sentence() for _ in range(g.n(1, 4))], "allowedTools": [g.pick("TOOLS") for _ in range(g.n(2, 6))], "workingDirectory": g.path(True).rsplit("/", 1)[0], "createdAt": g.ts(), "lastActiveAt": g.ts(), "status": g.c("active", "paused", "completed", "failed", "running")},
            "memory": lambda: {"currentTask": g.clause(), "currentArtifacts": [g.path() for _ in range(g.n(0, 4))], "recentFiles": [g.path() for _ in range(g.n(1, 8))], "recentCommands": [g.shellcmd() for _ in range(g.n(1, 6))], "draftArtifacts": {g.filename(): g.text()}, "pendingActions": [f"{g.verb()} {g.np(1)}" for _ in range(g.n(0, 3))], "shared_memory": {g.ident("snake"): g.c(g.num(), g.clause(), g.noun()) for _ in range(g.n(1, 6))}},
            "tools": lambda: {"mcpCache": {g.pick("TOOLS"): g.apidoc(1)}, "hydratedDocuments": {g.path(): {"content": g.text(), "hydratedAt": g.ts(), "ttl": g.c(300, 3600, 86400)}}, "apiCallHistory": [{"operation": g.pick("TOOLS"), "timestamp": g.ts()} for _ in range(g.n(1, 6))]},
            "execution": lambda: {"query": g.clause(), "plan": steps(), "currentStepIndex": g.n(0, 9), "results": [{"stepId": f"step-{j}", "output": g.c(g.text(), g.shellout(), g.apidoc(1)), "completedAt": g.ts(), "durationMs": g.num(), "tokenUsage": g.num()} for j in range(g.n(1, 3))], "execution_path": [g.ident("snake") for _ in range(g.n(1, 5))], "current_node": g.ident("snake"), "next_node": g.ident("snake"), "accumulated_outputs": {g.ident("snake"): g.clause()}, "lastError": g.c(None, {"stepIndex": g.n(0, 9), "message": g.errtext(), "timestamp": g.ts()}), "iterations": g.n(0, 30), "passedChecks": [g.noun()], "failedChecks": []},
            "agent": lambda: {"status": g.c("idle", "running", "waiting", "blocked", "paused"), "pid": g.n(100, 65000), "currentPhase": g.n(1, 6), "currentStep": g.clause(), "tokensUsed": g.n(0, 200000), "blockedBy": g.c(None, g.noun())},
            "environment": lambda: {"variables": {g.ident("const"): "encrypted:" + g.b64(24) for _ in range(g.n(1, 3))}, "dependencies": [{"type": g.c("api", "file", "service", "package"), "name": g.ident("snake"), "providedAt": g.ts()}]},
            "files": lambda: {"manifest": {g.path(): {"size": g.num(), "hash": g.hex(64), "modified": g.ts()} for _ in range(g.n(1, 4))}, "deliverables": [g.path() for _ in range(g.n(1, 3))], "lastModified": g.ts()},
            "protocols": lambda: {"pendingDependencies": [], "pendingQuestions": [{"id": g.uuid(), "question": g.sentence(), "options": [g.noun(), g.noun()]}], "completedPhases": [1, 2, 3][:g.n(0, 3)]},
            "summary": lambda: {"completedItems": [g.clause() for _ in range(g.n(1, 4))], "pendingItems": [g.clause() for _ in range(g.n(1, 3))], "decisions": [g.clause() for _ in range(g.n(0, 3))], "blockers": [], "tokens": {"checkpoint": g.num(), "lastCompactionInput": g.num(), "totalSaved": g.num()}},
            "metrics": lambda: {"totalMessages": g.num(), "userMessages": g.num(), "assistantMessages": g.num(), "averageMessageLength": g.num(), "toolCallsCount": g.num(), "duration": g.num(), "artifactsGenerated": g.n(0, 9), "total_retries": g.n(0, 5), "total_cost_usd": round(g.r.random(), 6)},
        }[name]()

    SECTIONS = ["context", "memory", "tools", "execution", "agent", "environment", "files", "protocols", "summary", "metrics"]

    def whole_state(self):
        d = {s: self.section(s) for s in self.SECTIONS if self.chance(0.7)}
        if self.chance(0.5):
            d["conversation"] = {"messages": [self.message() for _ in range(self.n(2, 12))], "totalTokens": self.num(), "lastMessageAt": self.ts()}
        return d

    def mark(self):
        d = {"checkpoint_id": self.uuid(), "session_id": self.uuid(), "version": "1.0", "reason": self.c("periodic", "manual", "pause", "error", "interval", "rate_limit", "phase_complete", "user_pause"), "trigger": self.c("initial", "messages", "interval", "step", "node_complete", "node_start", "edge_transition", "loop_iteration", "safe_point", "milestone", "final"), "createdBy": self.c("auto", "user", "system"), "created_at": self.ts(), "description": self.clause(), "label": self.c(None, self.noun() + " " + self.noun()), "checkpointNumber": self.num(), "messageCount": self.num(), "state_hash": self.hex(64), "is_clean": self.c(True, False), "current_node": self.ident("snake"), "next_node": self.ident("snake"), "progress": self.n(0, 100)}
        keys = [k for k in d if self.chance(0.6)]
        return {k: d[k] for k in keys}

    # ---- binary forms ------------------------------------------------------------------------------------------------------
    def varint(self, v):
        out = bytearray()
        while v > 127:
            out.append(v & 127 | 128)
            v >>= 7
        out.append(v)
        return bytes(out)

    def binary(self, v):
        """A value as tag, varint length and bytes; the real encoding need not be the same for the keys and strings to be found."""
        if v is None:
            return b"\x00"
        if v is True or v is False:
            return b"\x02" if v else b"\x01"
        if isinstance(v, int):
            return b"\x03" + self.varint(v << 1)
        if isinstance(v, float):
            return b"\x04" + struct.pack("<d", v)
        if isinstance(v, str):
            b = v.encode()
            return b"\x05" + self.varint(len(b)) + b
        if isinstance(v, (list, tuple)):
            return b"\x07" + self.varint(len(v)) + b"".join(map(self.binary, v))
        return b"\x08" + self.varint(len(v)) + b"".join(self.varint(len(k.encode())) + k.encode() + self.binary(x) for k, x in sorted(v.items()))

    def paths(self, v, at=()):
        for k, x in v.items():
            yield at + (k,), x
            if isinstance(x, dict) and len(at) < 2:
                yield from self.paths(x, at + (k,))

    def delta(self):
        name = self.c(*self.SECTIONS)
        ps = list(self.paths({name: self.section(name)}))
        out = bytearray()
        for _ in range(self.c(1, 1, 2, 2, 3, 5)):
            at, x = self.r.choice(ps)
            at = list(at)
            if isinstance(x, list) and x:
                at, x = at + [self.n(0, 30)], self.r.choice(x)
            if self.chance(0.5):
                out += bytes([self.n(1, 4), len(at)])
                for p in at:
                    out += self.binary(p)[1 if isinstance(p, str) else 0:]
            else:
                out += self.binary("/" + "/".join(map(str, at)))
            out += self.binary(x)
        return bytes(out)

    def jsonb(self, m):
        style = self.r.random()
        m2 = m
        sort = style < 0.3
        indent, seps = (None, (",", ":"))
        if style > 0.9:
            seps = (", ", ": ")
        return json.dumps(m2, ensure_ascii=False, separators=seps, sort_keys=sort, indent=indent).encode()

    def payload(self):
        self.topic()
        k = self.r.random()
        if k < 0.72:
            m = self.message()
            return self.jsonb(m) if self.chance(0.85) else self.binary(m)
        if k < 0.90:
            return self.delta()
        if k < 0.96:
            m = self.mark()
            return self.jsonb(m) if self.chance(0.5) else self.binary(m)
        if k < 0.98:
            return self.jsonb({self.c(*self.SECTIONS): self.section(self.c(*self.SECTIONS))})
        s = self.whole_state()
        return self.binary(s) if self.chance(0.7) else self.jsonb(s)


def samples(seed, count, rare=0.0, focus=1.0, ids=True):
    g = Gen(seed, rare, focus, ids)
    return [g.payload() for _ in range(count)]


if __name__ == "__main__":
    import sys
    for b in samples(int(sys.argv[1]), int(sys.argv[2])):
        print(len(b), b[:700].decode("utf-8", "replace"))
