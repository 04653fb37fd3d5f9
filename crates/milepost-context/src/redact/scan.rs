//! Finds the spans of a text that are secrets, in one pass for what they begin with and a look at
//! each place that might be one.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, AhoCorasickKind, Input, MatchKind};
use regex::{Regex, RegexSet};

use super::assign::{self, assigned};
use super::builtin::{Before, FORMS, Form, HEADERS};
use super::rules::{KeyRule, Rules};

/// How far a form is followed from where it begins, in bytes.
const WINDOW: usize = 32 * 1024;
/// A form whose letters are fewer different ones than this is a placeholder.
const LEAST_DIFFERENT: u32 = 6;

/// A secret in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) kind: Cow<'static, str>,
    /// The lower, the surer.
    rank: u8,
}

#[derive(Clone, Copy)]
enum Lead {
    Form(usize),
    Header(usize),
    Word,
}

/// Literals in any case, and what each leads to.
struct Leads {
    automaton: AhoCorasick,
    /// For each literal, itself and every other that it begins with.
    leads: Vec<Vec<(String, Lead)>>,
}

impl Leads {
    fn new<'a>(literals: impl IntoIterator<Item = (&'a str, Lead)>) -> Option<Self> {
        let all: Vec<(String, Lead)> = literals.into_iter().map(|(text, lead)| (text.to_owned(), lead)).collect();
        let begins = |long: &str, short: &str| {
            long.get(..short.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(short))
        };
        let leads = all.iter().map(|(long, _)| all.iter().filter(|(short, _)| begins(long, short)).cloned().collect());
        let automaton = AhoCorasickBuilder::new()
            .match_kind(MatchKind::LeftmostLongest)
            .ascii_case_insensitive(true)
            .kind(Some(AhoCorasickKind::DFA))
            .build(all.iter().map(|(literal, _)| literal))
            .ok()?;
        Some(Self { automaton, leads: leads.collect() })
    }

    /// Every place where a literal stands, and what it leads to.
    fn each(&self, text: &str, mut visit: impl FnMut(usize, &str, Lead)) {
        let mut at = 0;
        while let Some(hit) = self.automaton.find(Input::new(text).range(at..)) {
            for (literal, lead) in self.leads.get(hit.pattern().as_usize()).into_iter().flatten() {
                visit(hit.start(), literal, *lead);
            }
            at = hit.start() + 1;
        }
    }
}

pub(super) struct Scanner {
    leads: Option<Leads>,
    keys: HashMap<String, KeyRule>,
    /// What the user's patterns match at all, then where.
    own_set: RegexSet,
    own: Vec<(String, Regex)>,
    allowed: Vec<Regex>,
}

/// The patterns of the forms and of the headers. Each is compiled when something first begins like it, as most never are.
static FORM_PATTERNS: [OnceLock<Regex>; FORMS.len()] = [const { OnceLock::new() }; FORMS.len()];
static HEADER_PATTERNS: [OnceLock<Regex>; HEADERS.len()] = [const { OnceLock::new() }; HEADERS.len()];

#[allow(clippy::expect_used, reason = "the patterns are constants that a test compiles")]
fn compiled(form: &Form, pattern: &'static OnceLock<Regex>) -> &'static Regex {
    pattern.get_or_init(|| Regex::new(form.pattern).expect("a valid pattern"))
}

impl Scanner {
    pub(super) fn new(rules: &Rules) -> Self {
        let literals = |forms: &'static [Form], lead: fn(usize) -> Lead| {
            let listed = move |(index, form): (usize, &'static Form)| {
                form.literals.iter().map(move |literal| (*literal, lead(index)))
            };
            forms.iter().enumerate().flat_map(listed)
        };
        let named: Vec<String> = named_spellings(rules);
        let words = named.iter().map(|name| (name.as_str(), Lead::Word));
        let leads = if rules.well_known {
            let known = assign::WORDS.iter().map(|word| (*word, Lead::Word));
            let forms = literals(FORMS, Lead::Form).chain(literals(HEADERS, Lead::Header));
            Leads::new(forms.chain(known).chain(words))
        } else if named.is_empty() {
            None
        } else {
            Leads::new(words)
        };
        let own_set = RegexSet::new(rules.patterns.iter().map(|(_, regex)| regex.as_str())).unwrap_or_default();
        Self { leads, keys: rules.keys.clone(), own_set, own: rules.patterns.clone(), allowed: rules.allowed.clone() }
    }

    /// The secrets of a text, in order, none touching another.
    pub(super) fn scan(&self, text: &str) -> Vec<Span> {
        let mut spans = Vec::new();
        let tokens = assign::tokens(text);
        if let Some(leads) = &self.leads {
            let mut ends = 0;
            leads.each(text, |at, literal, lead| {
                let span = match lead {
                    // A form is a form only in its own case.
                    Lead::Form(index) if text.get(at..).is_some_and(|rest| rest.starts_with(literal)) => {
                        form(text, at, ends, FORMS.get(index), FORM_PATTERNS.get(index))
                    }
                    Lead::Header(index) => form(text, at, ends, HEADERS.get(index), HEADER_PATTERNS.get(index)),
                    Lead::Word if !within(&tokens, at, at + literal.len()) => {
                        let value = assigned(text, (at, at + literal.len()), &self.keys);
                        value.map(|(start, end, kind)| Span { start, end, kind: kind.into(), rank: 3 })
                    }
                    Lead::Form(_) | Lead::Word => None,
                };
                if let Some(span) = span {
                    ends = span.end;
                    spans.push(span);
                }
            });
        }
        for index in self.own_set.matches(text) {
            if let Some((kind, regex)) = self.own.get(index) {
                spans.extend(own(text, kind, regex));
            }
        }
        if spans.is_empty() {
            return spans;
        }
        spans.retain(|span| !self.is_allowed(text, span) && !within(&tokens, span.start, span.end));
        merged(text, spans)
    }

    fn is_allowed(&self, text: &str, span: &Span) -> bool {
        let secret = text.get(span.start..span.end).unwrap_or_default();
        self.allowed.iter().any(|allowed| allowed.is_match(secret))
    }
}

/// How the user's keys may be spelled in a text.
fn named_spellings(rules: &Rules) -> Vec<String> {
    let mut names: Vec<String> =
        rules.keys.iter().filter(|(_, rule)| **rule != KeyRule::Default).map(|(key, _)| key.clone()).collect();
    names.extend(rules.spellings.iter().cloned());
    names.sort();
    names.dedup();
    names
}

fn own<'a>(text: &'a str, kind: &'a str, regex: &'a Regex) -> impl Iterator<Item = Span> + 'a {
    regex.captures_iter(text).filter_map(move |found| {
        let secret = found.name("secret").or_else(|| found.get(0))?;
        let token = assign::is_token(secret.as_str());
        (!secret.is_empty() && !token).then(|| Span {
            start: secret.start(),
            end: secret.end(),
            kind: Cow::Owned(kind.to_owned()),
            rank: 0,
        })
    })
}

/// Whether a place lies inside a token of an earlier redaction.
fn within(tokens: &[Range<usize>], start: usize, end: usize) -> bool {
    let next = tokens.partition_point(|token| token.end < end);
    tokens.get(next).is_some_and(|token| token.start <= start && end <= token.end)
}

pub(super) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The secret of a form that begins at `at`. Where another secret ends, a word ends.
fn form(
    text: &str,
    at: usize,
    ends: usize,
    form: Option<&Form>,
    pattern: Option<&'static OnceLock<Regex>>,
) -> Option<Span> {
    let (form, pattern) = (form?, pattern?);
    let before = text.as_bytes().get(..at)?;
    let last = before.last().copied();
    let mut start = at;
    let fits = match form.before {
        Before::Any => true,
        Before::Boundary => at == ends || !last.is_some_and(is_word),
        Before::Letter => last.is_some_and(|b| b.is_ascii_alphanumeric()),
        Before::Query => matches!(last, Some(b'?' | b'&' | b';')),
        Before::Digits { least, most } => {
            let digits = before.iter().rev().take(most + 1).take_while(|b| b.is_ascii_digit()).count();
            start = at - digits;
            let ahead = start.checked_sub(1).and_then(|at| before.get(at));
            (least..=most).contains(&digits) && !ahead.is_some_and(|b| is_word(*b))
        }
    };
    if !fits {
        return None;
    }
    let end = text.floor_char_boundary(at.saturating_add(WINDOW).min(text.len()));
    let found = compiled(form, pattern).captures(text.get(at..end)?)?;
    let (from, to) = match found.get(1) {
        Some(secret) => (at + secret.start(), at + secret.end()),
        None => (start, at + found.get(0)?.end()),
    };
    let secret = text.get(from..to)?;
    let url = form.before == Before::Letter;
    // A password may be short; what stands for one is known by its form.
    let is_chosen = url || form.kind == "password";
    let blank = if is_chosen { assign::is_placeholder(secret) } else { is_blank(secret) };
    let header = form.kind == "authorization" && !secret.bytes().any(|b| b.is_ascii_digit());
    (!blank && !header && !assign::is_token(secret)).then(|| Span {
        start: from,
        end: to,
        kind: form.kind.into(),
        rank: if is_chosen || matches!(form.kind, "authorization" | "cookie") { 2 } else { 1 },
    })
}

/// Whether a form is filled with a placeholder.
fn is_blank(secret: &str) -> bool {
    let seen = secret.bytes().fold(0u128, |seen, b| seen | 1 << (b & 0x7f));
    seen.count_ones() < LEAST_DIFFERENT || secret.contains("EXAMPLE") || secret.contains("xxxxxx")
}

/// Spans that touch become one, of the surest kind.
fn merged(text: &str, mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by_key(|span| (span.start, span.rank));
    let mut out: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        match out.last_mut() {
            Some(last) if span.start < last.end => {
                if span.rank < last.rank {
                    last.kind = span.kind;
                    last.rank = span.rank;
                }
                last.end = last.end.max(span.end);
            }
            _ => out.push(span),
        }
    }
    debug_assert!(out.iter().all(|span| text.is_char_boundary(span.start) && text.is_char_boundary(span.end)));
    out
}
